"""Whether drafting is faster here and now: a schedule proposes it from a profile, the clock decides.

A profile is of another day, and a machine that does other work, too, slows long cycles more than short ones. So where a schedule would
draft, stretches with and without drafts are timed, and the faster way goes on, with a short trial of the other ever more rarely.
Nothing but time and the number of tokens is looked at, all of it past: the law of what is drawn stays as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

TRIAL, LEAST = 24, 48
"""Tokens of a trial: a request, and at least in all."""
PATIENCE, MOST = 6, 1024
"""Trials' worth of tokens between two trials: at first, and at last."""
TIMES, TOKENS = 32, 256
"""Steps of each way whose seconds and whose tokens count: how long a step takes changes with the machine, what it draws does not."""
TRIALS = 3
"""Trials whose median decides."""


@dataclass(slots=True)
class _Load:
    """What is known at one load."""

    trial: int
    left: int
    """Tokens of the stretch that are still to be drawn."""
    begun: bool = False
    """Whether its first step is over, which finds the caches as the other way left them."""
    drafting: bool = True
    patience: int = PATIENCE
    chosen: bool | None = None
    """The way that is taken between trials; None before there was a trial of each."""
    seconds: dict[bool, deque[float]] = field(default_factory=lambda: {way: deque(maxlen=TIMES) for way in (True, False)})
    tokens: dict[bool, deque[int]] = field(default_factory=lambda: {way: deque(maxlen=TOKENS) for way in (True, False)})
    """By way, of steps."""
    slower: deque[float] = field(default_factory=lambda: deque(maxlen=TRIALS))
    """By trial, seconds of a step that drafts / of one that does not, from the steps just before it."""

    def gains(self) -> np.ndarray:
        """Tokens a second with drafts / without, by trial: of the tokens the mean, of the seconds the median, which other work spares."""
        more = np.mean(self.tokens[True]) / np.mean(self.tokens[False])
        return np.asarray(more / np.array(self.slower))

    def turn(self) -> None:
        """The stretch is over: what comes next, and for how long."""
        self.left, self.begun = self.trial, False
        if not all(self.seconds.values()):
            self.drafting = not self.seconds[True]
        elif self.drafting == self.chosen:
            self.drafting = not self.chosen
            self.seconds[self.drafting].clear()
        else:
            self.slower.append(float(np.median(self.seconds[True]) / np.median(self.seconds[False])))
            gains = self.gains()
            better, sure = bool(np.median(gains) > 1), (gains[-1] > 1) == self.chosen
            self.patience = min(2 * self.patience, MOST) if sure and better == self.chosen else PATIENCE
            self.drafting = self.chosen = better
            self.left *= self.patience


class Referee:
    """Times both ways by load; loads within a factor of two are one."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def allows(self, requests: int) -> bool:
        """Whether a step of so many requests that would draft may."""
        found = self._loads.get(requests.bit_length())
        if found is None:
            trial = max(LEAST, TRIAL * requests)
            found = self._loads[requests.bit_length()] = _Load(trial, trial)
        if found.left <= 0:
            found.turn()
        return found.drafting

    def saw(self, requests: int, drafting: bool, tokens: int, seconds: float) -> None:
        """A step of ``requests`` rows, drafting or not, drew so many tokens in so much time."""
        found = self._loads.get(requests.bit_length())
        if found is None or drafting != found.drafting:  # the schedule itself said no
            return
        if found.begun:
            found.seconds[drafting].append(seconds)
            found.tokens[drafting].append(tokens)
            found.left -= tokens
        found.begun = True
