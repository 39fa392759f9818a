"""What a run keeps of calls and conversations beside their texts: a note at every reply and at every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramify.base import codec
from ramify.methods.orchestrator.algorithm import Workflow
from ramify.methods.orchestrator.pool import CallResult, ModelPool
from ramify.model.protocol import Sampling
from ramify.score.judge import Judgement
from ramify.trace.db import Run
from ramify.trace.node import Node, Provenance

MAKER = "orchestrator"
ANSWER = "answer"
_NOTHING_SPENT = {"usd": 0.0, "given_tokens": 0, "sampled_tokens": 0}


@dataclass(frozen=True)
class CallFailure:
    """Why a call has no reply; ``kind`` is one of :data:`ramify.methods.orchestrator.pool.FAILURES`."""

    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


@dataclass(frozen=True)
class CallNote:
    """Of a call: who was asked, why, at what cost, and how it failed."""

    usd: float
    given_tokens: int
    sampled_tokens: int
    worker: str = ""
    """Empty of a composer's plan."""
    failure: CallFailure | None = None
    dropped_characters: int = 0
    workflow: int | None = None
    step: int | None = None
    why: str = ""
    role: str = ""
    composer: bool = False
    round: int | None = None
    """Of a plan: which of the conversation's it is."""
    unreadable: str | None = None
    """Of a plan: why it is not a workflow."""

    @classmethod
    def of(cls, pool: ModelPool, result: CallResult, **place: Any) -> CallNote:
        """The note on a worker's reply; ``place``: its place in a conversation, as fields."""
        failure = CallFailure(result.failure, result.why[:300]) if result.failure else None
        worker, dropped = pool.names[result.worker], result.dropped
        return cls(result.usd, result.given, result.sampled, worker, failure, dropped, **place)

    @property
    def who(self) -> str:
        """Who was asked."""
        return self.worker or "composer"

    def to_data(self) -> Mapping[str, Any]:
        """As the node of the reply holds it."""
        data: Mapping[str, Any] = codec.to_json(self, lean=True)
        return data


@dataclass(frozen=True)
class AnswerNote:
    """Of a conversation, at its answer: what went otherwise than planned, its workflows, and what it cost in all."""

    notes: tuple[str, ...]
    workflows: tuple[Workflow, ...]
    usd: float
    tokens: int


def call_note(node: Node) -> CallNote | None:
    """The note on a reply that was asked for here; None of any other message."""
    if node.role != "assistant" or not ({"worker", "composer"} & node.data.keys()):
        return None
    return codec.from_json(CallNote, {**_NOTHING_SPENT, **node.data}, f"node {node.id}")


def answer_notes(run: Run) -> dict[str, AnswerNote]:
    """The notes on the answers of a run, by node."""
    return {
        note.node: codec.from_json(AnswerNote, note.value, f"{run.folder}, the answer {note.node}")
        for note in run.annotations(name=ANSWER, maker=MAKER)
    }


def provenance_of(pool: ModelPool, worker: int, settings: Sampling) -> Provenance:
    """Who said what a worker said."""
    identity = pool.models[worker].identity
    return Provenance(identity.name, identity.weights, {**settings.to_json(), "worker": pool.names[worker]}, pool.seed)


def judged_as(judgement: Judgement | None) -> tuple[bool | None, float | None]:
    """Outcome and reward of an attempt, as its record has them: a judge that says yes or no gives both."""
    value = None if judgement is None else judgement.value
    return (value if isinstance(value, bool) else None), (None if value is None else float(value))
