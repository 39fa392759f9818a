"""A solver of inspect (``inspect_ai``) that rewrites, checks, verifies or stops as verify-or-ship plans:
``Task(..., solver=inspect_verify(...))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramify.integrations.inspect.writer import require_inspect
from ramify.score.judge import Item, Judge
from ramify.trace.message import plain

if TYPE_CHECKING:
    from ramify.methods.verify_or_ship.algorithm import ControlConfig, Tables
    from ramify.methods.verify_or_ship.control import Critic


def failed_checks(checks: Mapping[str, Any]) -> str:
    """What the model is told before a rewrite: which checks failed."""
    failed = [name for name, value in checks.items() if value is not None and not value]
    return f"These checks failed: {', '.join(failed)}. Write it again." if failed else "This may be wrong. Write it again."


def inspect_verify(
    critics: Sequence[Critic],
    verifier: Judge,
    tables: Tables,
    config: ControlConfig | None = None,
    feedback: Callable[[Mapping[str, Any]], str] = failed_checks,
) -> Any:
    """A solver in whose hands ``generate`` writes the candidates: each is the completion of inspect's model.

    Critics and verifier judge the completion; the sample's target is their ``answer``, its metadata the rest of their data. The
    belief, what was done, what it cost and whether the last candidate was delivered are in the sample's metadata,
    ``verify_or_ship``. Raises NeedsError where inspect is not installed, UserError where the tables do not know a critic.
    """
    require_inspect()
    from inspect_ai.model import ChatMessageUser
    from inspect_ai.solver import solver

    from ramify.methods.verify_or_ship.control import Controller

    Controller(critics, verifier, lambda item, last, checks: "", config, tables)  # what does not fit is refused now

    def made() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            held = [state]

            async def written(item: Item, last: str | None, checks: Mapping[str, Any]) -> str:
                if last is not None:
                    held[0].messages.append(ChatMessageUser(content=feedback(checks)))
                held[0] = await generate(held[0])
                return str(held[0].output.completion)

            target = getattr(state, "target", None)
            data = {**plain(dict(state.metadata or {})), "answer": getattr(target, "text", "")}
            item = Item(id=str(state.sample_id), prompt=state.input_text, data=data)
            found = await Controller(critics, verifier, written, config, tables).run(item)
            held[0].metadata["verify_or_ship"] = {
                "belief": found.belief,
                "delivered": found.delivered,
                "verified": found.verified,
                "actions": found.actions,
                "cost": found.cost,
                "failures": found.failures,
            }
            return held[0]

        return solve

    made_here: Any = solver(name="inspect_verify")(made)
    return made_here()
