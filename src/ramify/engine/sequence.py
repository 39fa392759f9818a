"""The scheduler's objects: requests, sequence groups that continue one prefix, and running sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ramify.engine.taps import States, Taps
from ramify.model.protocol import Sampling

if TYPE_CHECKING:
    from ramify.engine.grammar import Shaper


@dataclass(slots=True)
class DraftState:
    """The speculator's state of one sequence."""

    keys: tuple[int, ...]
    """Of its uniforms, one for each of ``PURPOSES``, where verification needs them."""
    uniforms: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))
    """By anchor from ``since``, purpose and drafted token, [at most AHEAD, purposes, block]."""
    since: int = 0
    featured: int = 0
    """Leading positions whose features are in the cache."""
    absorbed: int = 0
    """Of them those whose draft-layer keys and values are, too."""

    def ran(self, start: int, count: int) -> None:
        """The features of ``count`` positions from ``start`` are in the cache; they count where those before them are, too."""
        if self.featured == start:
            self.featured += count


@dataclass(slots=True)
class Stats:
    """Counts of computed tokens. ``forward_rows`` counts every row of every forward pass, padding included."""

    forward_passes: int = 0
    forward_rows: int = 0
    padded_rows: int = 0
    prompt_tokens: int = 0
    """Given tokens that were run."""
    cached_tokens: int = 0
    """Given tokens whose keys and values were found or copied instead."""
    sampled_tokens: int = 0
    """Tokens that were sampled."""
    preempted: int = 0
    """Preemptions."""
    again_tokens: int = 0
    """Tokens run a second time because their keys and values were no longer there when a preempted sequence resumed."""


@dataclass(eq=False, slots=True)
class Request:
    """One completion to sample. ``done`` is called with the finished sequence, or with the error its ``until`` raised."""

    key: int
    """Its sample key: every uniform of the completion derives from it."""
    settings: Sampling
    done: Callable[[Request, Sequence | Exception], None]
    progress: Callable[[Sequence], None] | None = None
    """Called with the sequence each time it has more tokens."""
    client: str = ""
    """The client it is made for."""
    shaper: Shaper | None = None
    """Its grammar and penalties, as far as the completion has come."""
    cancelled: bool = False
    number: int = 0
    """Set by the scheduler: order of arrival."""
    plain: bool = field(init=False)
    """Whether every token after the first is sampled from the model's own distribution."""

    def __post_init__(self) -> None:
        self.plain = self.settings.plain(first=False)


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """Requests of one client that continue one prefix under the same taps."""

    prefix: np.ndarray
    key: bytes
    """The prefix, to compare."""
    taps: Taps | None
    client: str
    number: int
    """Order of arrival."""
    requests: deque[Request] = field(default_factory=deque)
    preempted: list[Sequence] = field(default_factory=list)
    """Sequences that ran and had to give up their slots; they resume first."""

    @property
    def eldest(self) -> Sequence | None:
        """The preempted sequence that resumes first."""
        return min(self.preempted, key=lambda seq: seq.request.number, default=None)


@dataclass(eq=False, slots=True)
class Sequence:
    """A completion under way. ``tokens`` is prefix and sampled tokens;
    the first ``computed`` have keys and values in the cache."""

    group: SequenceGroup
    request: Request
    tokens: list[int]
    uniforms: np.ndarray
    """One for each token that may be sampled."""
    computed: int = 0
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: States = field(default_factory=dict)
    stop: str = ""
    cached: int = 0
    """Given tokens whose keys and values were there when it first ran."""
    entered: int = 0
    """Tokens it had sampled when it last got a slot."""
    reached: int = 0
    """Tokens that were computed when it last was preempted."""
    draft: DraftState | None = None
    """The speculator's, where there is one."""

    @property
    def sampled(self) -> list[int]:
        """Tokens sampled so far."""
        return self.tokens[len(self.group.prefix) :]

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still missing."""
        return len(self.tokens) - self.computed

    @property
    def turn(self) -> int:
        """Tokens sampled since it last got a slot."""
        return len(self.logprobs) - self.entered
