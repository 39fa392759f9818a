"""Tasks of a run, or of any log that can be imported, taken into a memory; what recurs in them is kept in the run as findings."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.methods.earned_code_memory.algorithm import structure
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.results import LearnedRun, RecurringProcedure
from ramify.methods.earned_code_memory.rules import procedure
from ramify.trace.message import Message
from ramify.trace.node import Finding
from ramify.trace.sources import conclude, opened
from ramify.trace.view import View, views

LEARN = "earned-code-memory learn"


def learn(memory: Memory, source: Path, form: str | None = None) -> LearnedRun:
    """Record every finished attempt of ``source`` that the memory does not hold, and find procedures that recur.

    A procedure recurs where attempts at ``k`` structurally different tasks go through the same calls. Raises UserError where
    there is no attempt with a request.
    """
    recorded = known = 0
    seen: dict[tuple[str, ...], list[tuple[str, str, bool | None]]] = defaultdict(list)
    with opened(source, form) as run:
        for view in views(run, unjudged=True):
            messages = [Message(one.role, one.text, one.message.data) for one in view.messages]
            query = next((one.text for one in messages if one.role == "user" and one.text.strip()), "")
            if not query or view.failure or not any(one.role == "assistant" for one in messages):
                continue
            steps = tuple(
                procedure([call.name for one in messages if one.role == "assistant" for call in one.calls if not call.error])
            )
            if len(steps) > 1:
                seen[steps].append((query, view.end.id, view.success))
            task = stable_hash("attempt", *_texts(view))[:16]
            if task in memory.store.refresh().tasks:
                known += 1
                continue
            memory.record(query, messages, view.success, task=task, source=f"{source.name}:{view.end.id}")
            recorded += 1
    if not recorded and not known:
        raise UserError(f"{source} holds no attempt with a request and a reply")
    k = min(memory.config.k, 1000)
    procedures = [_procedure(steps, tasks) for steps, tasks in seen.items()]
    found = sorted((one for one in procedures if one.structures >= k), key=lambda one: (-one.structures, one.calls))
    conclude(source, LEARN, [_finding(one, memory) for one in found])
    return LearnedRun(recorded, known, tuple(found), k, str(memory.store.path))


def _texts(view: View) -> list[str]:
    return [part for one in view.messages for part in (one.role, one.text)]


def _procedure(steps: tuple[str, ...], tasks: list[tuple[str, str, bool | None]]) -> RecurringProcedure:
    queries = sorted({query for query, _, _ in tasks})
    ended = [success for _, _, success in tasks if success is not None]
    return RecurringProcedure(
        calls=steps,
        attempts=len(tasks),
        structures=len({structure(query) for query in queries}),
        queries=tuple(queries[:10]),
        succeeded=sum(ended),
        ended=len(ended),
        node=tasks[0][1],
    )


def _finding(one: RecurringProcedure, memory: Memory) -> Finding:
    return Finding(
        "recurring procedure",
        LEARN,
        f"{one.structures} structurally different requests in {one.attempts} attempts go through {one.chain}",
        node=one.node,
        action=f"ramify earned-code-memory learn {memory.store.path} --write text, then --write tools",
        value=float(one.structures),
        unit="structures",
        evidence={name: value for name, value in codec.to_json(one).items() if name not in ("node", "structures")},
        identity={"k": memory.config.k},
    )
