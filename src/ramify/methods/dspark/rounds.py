"""Rounds of speculation as they were recorded: what was drafted, what survived, and how sure the drafter was. Numpy arrays only.

Axis legend: N rounds, G = gamma drafted positions (the block). A round is one draft and its verification: of its ``proposed``
tokens the first ``accepted`` survived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import UserError


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds of one drafter, verified at full length. Raises UserError where the arrays do not belong together."""

    accepted: np.ndarray
    """Drafts that survived, int [N]."""
    proposed: np.ndarray
    """Positions that count, int [N]: the block's length, or less where the target's end of sequence cut the round (positions
    behind an accepted stop token were never proposed)."""
    ended: np.ndarray
    """Whether the round ended at an accepted stop token, bool [N]: then there is no bonus token."""
    confidence: np.ndarray
    """The drafter's conditional acceptance probabilities, float [N, G]; nan where it has none."""
    prompt: np.ndarray
    """Which prompt a round belongs to, int [N]: what intervals are sampled over."""

    def __post_init__(self) -> None:
        n = len(self.accepted)
        sizes = {len(part) for part in (self.accepted, self.proposed, self.ended, self.confidence, self.prompt)}
        if sizes != {n} or self.confidence.ndim != 2:
            raise UserError(f"rounds need arrays of one length, and a confidence for each position; lengths are {sorted(sizes)}")
        if n and not ((self.accepted >= 0) & (self.accepted <= self.proposed) & (self.proposed <= self.block)).all():
            raise UserError("a round accepts at most what it proposes, and proposes at most a block")

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def block(self) -> int:
        """G."""
        return int(self.confidence.shape[1])

    @property
    def emitted(self) -> np.ndarray:
        """Tokens of each round, int [N]: accepted drafts and the bonus or corrected token, which a stop token leaves out."""
        return np.asarray(self.accepted + ~self.ended)

    @property
    def survived(self) -> np.ndarray:
        """y_k = 1[x_1..x_k all accepted], bool [N, G]."""
        return np.asarray(self.accepted[:, None] > np.arange(self.block))

    @property
    def judged(self) -> np.ndarray:
        """Whether position k was proposed at all, bool [N, G]."""
        return np.asarray(self.proposed[:, None] > np.arange(self.block))

    def pick(self, rows: np.ndarray) -> Rounds:
        """The rounds at these indices, or where the mask is true."""
        return Rounds(*(part[rows] for part in (self.accepted, self.proposed, self.ended, self.confidence, self.prompt)))

    def kept(self) -> KeptRounds:
        """As a record; confidences to 6 digits."""
        has = not np.isnan(self.confidence).any()
        confidence = np.round(self.confidence.astype(np.float64), 6).tolist() if has else None
        return KeptRounds(
            self.accepted.tolist(), self.proposed.tolist(), self.ended.tolist(), confidence, self.block, self.prompt.tolist()
        )


@dataclass(frozen=True, slots=True)
class KeptRounds:
    """:class:`Rounds` as lists, which have a JSON form; ``confidence`` is None where the drafter has none."""

    accepted: list[int]
    proposed: list[int]
    ended: list[bool]
    confidence: list[list[float]] | None
    block: int
    prompt: list[int]

    def rounds(self) -> Rounds:
        """Inverse of :meth:`Rounds.kept`."""
        shape = (len(self.accepted), self.block)
        confidence = np.full(shape, np.nan) if self.confidence is None else np.array(self.confidence).reshape(shape)
        accepted, proposed, prompt = (np.array(part, int) for part in (self.accepted, self.proposed, self.prompt))
        return Rounds(accepted, proposed, np.array(self.ended, bool), confidence, prompt)


def joined(parts: Sequence[Rounds]) -> Rounds:
    """Rounds of several sets of prompts as one; prompts of different sets stay apart. Raises UserError where there are none."""
    if not parts:
        raise UserError("there are no rounds to join")
    shifts = np.cumsum([0, *(int(part.prompt.max(initial=-1)) + 1 for part in parts)])
    fields = [[getattr(part, name) for part in parts] for name in ("accepted", "proposed", "ended", "confidence")]
    prompt = [part.prompt + shift for part, shift in zip(parts, shifts, strict=False)]
    return Rounds(*(np.concatenate(field) for field in (*fields, prompt)))


def accepted_length(rounds: Rounds) -> float:
    """tau: tokens per pass of the target, accepted drafts and the bonus or corrected token together (section 2)."""
    return float(rounds.emitted.mean())


def conditional_acceptance(rounds: Rounds) -> np.ndarray:
    """Share of position k accepted among the rounds where all before it were, float [G]; nan where none came so far."""
    reached = rounds.judged & (rounds.accepted[:, None] >= np.arange(rounds.block))
    seen = reached.sum(axis=0)
    return np.where(seen, (reached & rounds.survived).sum(axis=0) / np.maximum(seen, 1), np.nan)
