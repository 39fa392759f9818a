"""The results of episodes: turns, and attempts made of them."""

from __future__ import annotations

from dataclasses import dataclass

from ramify.base import notebook
from ramify.env.protocol import Task
from ramify.trace.graph import short
from ramify.trace.node import ROLLOUT, Node


@dataclass(frozen=True, eq=False)
class Turn:
    """One reply of the agent and the environment's answer. ``entropy`` is the mean over sampled tokens, in nats."""

    node: Node
    answer: Node
    entropy: float | None = None
    entropy_kind: str = "none"
    """exact (from full distributions), sampled (minus the mean log-probability of the sampled tokens), none."""

    @property
    def forkable(self) -> bool:
        """Whether a fork can start after this turn: from its snapshot, or by replaying the actions before it."""
        return not self.answer.stop

    def __repr__(self) -> str:
        return f"<turn {self.node.id}: {short(self.node.text, 60)!r}\n -> {short(self.answer.text, 90)!r}>"


@dataclass(frozen=True, slots=True)
class Draw:
    """Which sample of a position something is: its number among those of one purpose. Another purpose is another sample."""

    index: int
    purpose: str = ROLLOUT


@dataclass(frozen=True, eq=False)
class Attempt:
    """One episode from the root, or from a branch point, to its end, as it was played. ``turns`` holds the new turns only.
    What is stored of it is its :class:`ramify.trace.node.AttemptRecord`."""

    tree: str
    task: Task
    index: int
    start: str
    """Id of the node it continued from."""
    turns: tuple[Turn, ...]
    reward: float
    """Sum over the whole path, the part before ``start`` included."""
    outcome: bool | None
    """The environment's outcome; None when an infrastructure failure prevented one: unscored, not failed."""
    truncated: bool
    failure: str | None
    leaf: str
    replayed: int = 0
    """Steps replayed to bring the environment to ``start``."""
    paused: bool = False
    """It was asked to stop at ``leaf`` after some turns: it has no outcome yet, and :meth:`Episodes.branch` continues it."""

    @property
    def sampled_tokens(self) -> int:
        """Newly generated tokens; of text-only replies as many as their server says."""
        return sum(sampled_tokens(turn.node) for turn in self.turns)

    def _repr_html_(self) -> str:
        return notebook.html(self)

    def __repr__(self) -> str:
        ended = "" if self.failure is None else f",\n failed: {short(self.failure, 85)}"
        return (
            f"<attempt {self.index} at {short(self.task.id, 70)!r}:\n outcome {self.outcome}, reward {self.reward:g}, "
            f"{len(self.turns)} turns, leaf {self.leaf}{ended}>"
        )


def as_turn(node: Node, answer: Node) -> Turn:
    """A stored reply and its answer as a turn, with the entropy that can be computed from them."""
    if "entropy" in node.data:
        return Turn(node, answer, node.data["entropy"], "exact")
    if node.logprobs is not None and node.sampled_tokens:
        return Turn(node, answer, -float(node.logprobs.sum()) / node.sampled_tokens, "sampled")
    return Turn(node, answer)


def sampled_tokens(node: Node) -> int:
    """Tokens a model sampled for a reply; of a text-only one as many as its server says."""
    return node.sampled_tokens or int(node.data.get("usage", {}).get("completion_tokens", 0))


class Success:
    """Counts attempts that ended, for the live line: ``note`` is the share of the scored ones that succeeded, and how many
    failed."""

    def __init__(self, succeeded: int = 0, scored: int = 0) -> None:
        self.ended = self.tokens = self.failed = 0
        self.succeeded, self.scored = succeeded, scored

    def add(self, attempt: Attempt) -> None:
        """One more has ended."""
        self.ended += 1
        self.tokens += attempt.sampled_tokens
        self.failed += attempt.failure is not None
        self.scored += attempt.outcome is not None
        self.succeeded += bool(attempt.outcome)

    @property
    def note(self) -> str:
        """``success 41%, 2 failed``, empty before there is anything to say."""
        known = f"success {self.succeeded / self.scored:.0%}" if self.scored else ""
        return ", ".join(filter(None, (known, f"{self.failed} failed" if self.failed else "")))
