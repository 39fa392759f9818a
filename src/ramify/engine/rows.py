"""What the scheduler moves about: draws to make, groups of them that continue one prefix, and the rows of those that are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ramify.engine.taps import States, Taps
from ramify.model.protocol import Sampling

if TYPE_CHECKING:
    from ramify.engine.speculate import Kept


@dataclass(slots=True)
class Stats:
    """What was computed, in tokens. ``forward_rows`` counts every row of every tile, padding included."""

    tiles: int = 0
    forward_rows: int = 0
    padded_rows: int = 0
    prompt_tokens: int = 0
    """Given tokens that were run."""
    cached_tokens: int = 0
    """Given tokens whose keys and values were found or copied instead."""
    drawn_tokens: int = 0
    preempted: int = 0
    """Times a row had to make room for another."""
    again_tokens: int = 0
    """Tokens run a second time because their keys and values were no longer there when a preempted row went on."""


@dataclass(eq=False, slots=True)
class Job:
    """One draw to make. ``done`` is called with the finished row, or with the error its ``until`` raised."""

    key: int
    settings: Sampling
    done: Callable[[Job, Row | Exception], None]
    told: Callable[[Row], None] | None = None
    """Called with the row each time it has drawn more tokens."""
    owner: str = ""
    """The client it is made for."""
    cancelled: bool = False
    number: int = 0
    """Set by the scheduler: order of arrival."""


@dataclass(eq=False, slots=True)
class Group:
    """Draws of one owner that continue one prefix under the same taps."""

    prefix: np.ndarray
    taps: Taps | None
    owner: str
    number: int
    """Order of arrival."""
    jobs: deque[Job] = field(default_factory=deque)
    parked: list[Row] = field(default_factory=list)
    """Draws that were under way and had to give their rows to others; they go on first."""

    @property
    def eldest(self) -> Row | None:
        """The parked row that goes on first."""
        return min(self.parked, key=lambda row: row.job.number, default=None)


@dataclass(eq=False, slots=True)
class Row:
    """An active draw. ``tokens`` is prefix and drawn tokens; the keys and values of the first ``computed`` are in the arena."""

    group: Group
    job: Job
    tokens: list[int]
    uniforms: np.ndarray
    """One for each token that may be drawn."""
    computed: int = 0
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: States = field(default_factory=dict)
    stop: str = ""
    found: int = 0
    """Given tokens whose keys and values were there when it first became active."""
    entered: int = 0
    """Tokens it had drawn when it last became active."""
    reached: int = 0
    """Tokens that were computed when it last was preempted."""
    kept: Kept | None = None
    """The speculator's, where there is one."""

    @property
    def drawn(self) -> list[int]:
        """Tokens drawn so far."""
        return self.tokens[len(self.group.prefix) :]

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still missing."""
        return len(self.tokens) - self.computed

    @property
    def turn(self) -> int:
        """Tokens drawn since it last became active."""
        return len(self.logprobs) - self.entered
