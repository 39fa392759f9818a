"""Speculation inside the engine's loop: draft, decide how much to verify, verify, keep what the drafter needs for the next round.

A step of a speculating engine is::

    drafts = speculator.propose(arena, rows, slots)         # rows about to draw a token; [] = none for this row
    tile: for each row its anchor (the last token, not run yet) and its drafts, at consecutive positions
    features, tap = speculator.watch(tile.size)             # the tap the tile runs under
    emitted = speculator.verify(logits, rows, drafts)       # logits of the entries of these rows, row by row
    ... append emitted tokens one by one until one ends the row; ``kept[i]`` of them stay ...
    speculator.settle(rows, drafts, kept, features, entries)  # entries[i]: first tile entry of row i

and for a prompt tile ``speculator.keep(row, features, first, count)``. Rows that are parked are absorbed before
(``speculator.absorb``). Emitting e tokens computes e positions: the anchor's and those of the e - 1 accepted drafts.

Axis legend: R rows, M tile rows, D width, m target layers read by the drafter, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import place_key, uniforms
from ramify.engine.cache import Arena
from ramify.engine.sampling import Picked, inverse_cdf, laws
from ramify.engine.schedules import Schedule
from ramify.engine.tiny import Tap
from ramify.engine.verify import coupled, rejection

if TYPE_CHECKING:
    from ramify.engine.batch import Row
    from ramify.engine.drafters import Drafter

PURPOSES = ("draft", "accept")
"""What a round needs uniforms for besides the tokens themselves."""
STRIDE = 256
"""Counter values of one anchor; more than any block."""


@dataclass(slots=True)
class Kept:
    """What the speculator keeps of one row: features not absorbed yet, and the keys of its uniforms."""

    absorbed: int
    """Positions whose draft-layer keys and values are in the arena."""
    pieces: list[tuple[Tensor, int, int]] = field(default_factory=list)
    """(features [M, m * D], first entry, entries) of the positions from ``absorbed`` on, in order."""
    keys: tuple[int, ...] = ()


@dataclass(slots=True)
class SpecStats:
    """Counts since the start. A round is one row's drafts and their verification."""

    rounds: int = 0
    plain: int = 0
    """Tokens drawn without drafts while a drafter was there."""
    drafted: int = 0
    proposed: int = 0
    """Drafts that went through the target; after a token that ended the draw none counts."""
    accepted: int = 0
    emitted: int = 0
    """Tokens of all rounds: accepted drafts, and one bonus or corrected token each."""
    reached_at: list[int] = field(default_factory=list)
    """By position: rounds in which the draft was proposed and all before it were accepted."""
    accepted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens a round: accepted drafts plus the bonus or corrected token. nan before the first round."""
        return self.emitted / self.rounds if self.rounds else float("nan")

    @property
    def budget(self) -> float:
        """Drafts verified a round."""
        return self.proposed / self.rounds if self.rounds else float("nan")

    @property
    def acceptance(self) -> list[float]:
        """By position: share of drafts accepted, given that all before them were."""
        return [a / r if r else float("nan") for a, r in zip(self.accepted_at, self.reached_at, strict=True)]


class Speculator:
    """Drafts for the rows of a scheduler. ``law`` is ``coupled`` or ``rejection`` (see :mod:`ramify.engine.verify`)."""

    def __init__(self, drafter: Drafter, schedule: Schedule, first: int, law: str = "coupled") -> None:
        if law not in ("coupled", "rejection"):
            raise UserError(f"verify is '{law}'; it is coupled or rejection")
        self.drafter, self.schedule, self.first, self.law = drafter, schedule, first, law
        self.block = drafter.config.block
        self.layers = drafter.config.layers
        """Layers to add to the arena; ``first`` is the arena's layer where they start."""
        self.target_layers = tuple(drafter.config.target_layers)
        self.stats = SpecStats(reached_at=[0] * self.block, accepted_at=[0] * self.block)
        self._weights: list[Tensor] = []

    def admit_row(self, key: int, found: int) -> Kept:
        """The state of a new row whose first ``found`` positions came out of the store, draft layers included."""
        raise NotImplementedError

    def fork(self, source: Kept, key: int) -> Kept:
        """The state of a row that starts as a copy of another."""
        raise NotImplementedError

    def watch(self, size: int) -> tuple[Tensor, Tap]:
        """Features of a tile of ``size`` rows [M, m * D], filled by the tap while the target runs."""
        raise NotImplementedError

    def keep(self, row: Row, features: Tensor, first: int, count: int) -> None:
        """Remember the features of ``row``'s next ``count`` positions: entries ``first`` on of ``features`` [M, m * D]."""
        raise NotImplementedError

    def absorb(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Give the drafter all that is kept of these rows, in one call."""
        raise NotImplementedError

    def propose(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int]) -> list[list[int]]:
        """Drafts to verify for rows about to draw, one list a row (empty: none); the arena needs room for a block past every row.

        Every row has one token pending (its anchor). Rows under taps and rows that will be forked at this token should not be given.
        """
        raise NotImplementedError

    def verify(self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[Sequence[int]]) -> list[Picked]:
        """The tokens each row emits, 1 to drafts + 1 of them. ``logits`` [sum(len(drafts) + 1), V], row by row."""
        raise NotImplementedError

    def settle(
        self,
        rows: Sequence[Row],
        drafts: Sequence[Sequence[int]],
        kept: Sequence[int],
        features: Tensor,
        entries: Sequence[int],
    ) -> None:
        """Count what was kept (``kept[i]`` of row i's emitted tokens) and remember its features. Call before ``computed`` moves on."""
        raise NotImplementedError
