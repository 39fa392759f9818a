"""A solver of inspect (``inspect_ai``) that answers with a pool of workers:
``Task(..., solver=inspect_orchestrator(composer))``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError
from ramify.integrations.inspect.writer import require_inspect
from ramify.model.protocol import Sampling
from ramify.trace.message import Message

if TYPE_CHECKING:
    from ramify.methods.orchestrator.composer import Composer
    from ramify.methods.orchestrator.pool import ModelPool
    from ramify.methods.orchestrator.router import TurnRouter


def inspect_orchestrator(
    system: Composer | TurnRouter,
    pool: ModelPool | None = None,
    *,
    exclude: Collection[str] = (),
    settings: Sampling | None = None,
) -> Any:
    """A solver that answers a sample's messages with a composer, or with a router over ``pool``;
    inspect's own model is not asked.

    The answer is the sample's output; every candidate with who saw what, tokens and USD is in its metadata, ``orchestrator``.
    Raises NeedsError where inspect is not installed, UserError of a router without its pool,
    and at a sample InfrastructureError where every worker failed.
    """
    require_inspect()
    from inspect_ai.model import ChatMessageAssistant, ModelOutput
    from inspect_ai.solver import solver

    from ramify.methods.orchestrator.composer import Composer
    from ramify.methods.orchestrator.conversation import AnsweredQuery, Orchestration
    from ramify.methods.orchestrator.turns import answer_with

    workers = system.pool if isinstance(system, Composer) else pool
    if workers is None:
        raise UserError("a router needs the pool that it chooses from: inspect_orchestrator(router, pool)")
    if not isinstance(system, Composer):
        workers.check_router(system.workers)

    def made() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            given = [Message(one.role, one.text) for one in state.messages]
            key = f"{state.sample_id}/{state.epoch}"
            chat = Orchestration(workers, given, key, settings=settings, exclude=exclude)
            found = await (system.converse(chat) if isinstance(system, Composer) else answer_with(chat, system))
            state.messages.append(ChatMessageAssistant(content=found.answer))
            state.output = ModelOutput.from_content("orchestrator", found.answer)
            state.metadata["orchestrator"] = AnsweredQuery.of(found).to_json()
            return state

        return solve

    made_here: Any = solver(name="inspect_orchestrator")(made)
    return made_here()
