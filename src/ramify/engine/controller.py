"""The adaptive controller: whether the next step drafts. A schedule predicts a gain from a profile;
measured times confirm it or not.

A profile may be out of date, and other work on the machine slows long cycles more than short ones. So stretches with and
without drafts are timed, and what was measured, divided by what was promised, corrects every later promise. The faster way
continues; a short trial of the other comes ever more rarely, and costs a small share of the time at most. Without times the
promise alone decides. Nothing but time and the number of tokens is looked at, all of it past:
the distribution of what is sampled stays as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

MARGIN = 0.05
"""Drafting starts where its predicted speed-up reaches this, and ends where the prediction falls below no drafting."""
TRIAL, LEAST = 24, 48
"""Tokens of a trial: a request, and at least in all."""
SHARE = 0.03
"""Most of the time that trials of the slower way may cost."""
PATIENCE, MOST = 6, 256
"""Trials' worth of tokens between two trials: at least, and at most."""
TIMES, TOKENS = 32, 256
"""Steps of each way whose seconds and whose tokens count: how long a step takes changes with the machine,
what it samples does not."""
TRIALS = 3
"""Trials whose median decides."""


def _by_way(most: int) -> dict[bool, deque[float]]:
    return {True: deque(maxlen=most), False: deque(maxlen=most)}


@dataclass(slots=True)
class _Load:
    """What is known at one load. A stretch is a number of tokens sampled one way: with drafts (True) or without."""

    trial: int
    left: float
    """Tokens of the stretch that are still to be sampled."""
    chosen: bool
    """The faster way so far."""
    drafting: bool
    """The way of this stretch."""
    begun: bool = False
    """Whether its first step is over, which finds the caches as the other way left them."""
    spent: float = 0.0
    sampled: float = 0.0
    """Seconds and tokens of the stretch, its first step included."""
    patience: int = PATIENCE
    promise: float = 1.0
    """The prediction of the last step that consulted it."""
    kept: deque[float] = field(default_factory=lambda: deque(maxlen=TRIALS))
    """By trial, the gain that was measured / the gain that was promised."""
    usual: float = 1.0
    """Their median."""
    seconds: dict[bool, deque[float]] = field(default_factory=lambda: _by_way(TIMES))
    tokens: dict[bool, deque[float]] = field(default_factory=lambda: _by_way(TOKENS))
    """By way, of steps; those with drafts divided by what the step promised, which follows acceptance as it changes."""

    @property
    def gain(self) -> float:
        """Tokens a second with drafts / without, as far as is known."""
        return self.promise * self.usual

    def begin(self, drafting: bool, tokens: float) -> None:
        """Begin a stretch."""
        self.drafting, self.left, self.begun, self.spent, self.sampled = drafting, tokens, False, 0.0, 0.0

    def settle(self, better: bool) -> None:
        """Continue with the better way until the next trial."""
        loss = abs(1.0 - (1.0 / self.gain if better else self.gain)) / max(1e-3, 1.0 if better else self.gain)
        if self.drafting != better == self.chosen and self.seconds[better]:  # a trial is over, and what it cost is known
            tokens = float(np.mean(self.tokens[better])) * (self.promise if better else 1.0)
            loss = max(loss, 1.0 - self.sampled / (self.spent / float(np.median(self.seconds[better])) * tokens))
        self.chosen = better
        self.begin(better, self.trial * min(MOST, max(self.patience, loss / SHARE)))

    def turn(self) -> None:
        """The stretch is over: what comes next, and for how long."""
        if self.drafting == self.chosen:
            self.seconds[not self.chosen].clear()
            self.begin(not self.chosen, self.trial)
            return
        if all(self.seconds.values()):
            # of the tokens the mean, of the seconds the median, which other work spares
            more = float(np.mean(self.tokens[True]) / np.mean(self.tokens[False]))
            self.kept.append(more / float(np.median(self.seconds[True]) / np.median(self.seconds[False])))
            self.usual = float(np.median(self.kept))
            better, sure = self.gain > 1, (self.promise * self.kept[-1] > 1) == self.chosen
            self.patience = min(2 * self.patience, MOST) if sure and better == self.chosen else PATIENCE
        self.settle(self.gain > 1)


class AdaptiveController:
    """Decides by load; loads within a factor of two are one."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def drafts(self, requests: int, promise: float) -> bool:
        """Whether a step of so many requests drafts, if drafting promises ``promise`` times the tokens a second of no drafting;
        0: never."""
        if promise <= 0:
            return False
        load = self._loads.get(requests.bit_length())
        if load is None:
            trial, on = max(LEAST, TRIAL * requests), promise > 1
            load = self._loads[requests.bit_length()] = _Load(trial, trial, on, on, promise=promise)
            if not on:
                load.settle(on)
        load.promise = promise
        if load.left <= 0:
            load.turn()
        elif load.drafting == load.chosen and load.chosen != (load.gain > (1 if load.chosen else 1 + MARGIN)):
            load.patience = PATIENCE
            load.settle(not load.chosen)
        return load.drafting

    def saw(self, requests: int, drafting: bool, tokens: int, seconds: float) -> None:
        """A step of ``requests`` sequences, drafting or not, sampled so many tokens in so much time."""
        load = self._loads.get(requests.bit_length())
        if load is None or drafting != load.drafting:  # not consulted
            return
        load.spent += seconds
        load.sampled += tokens
        if load.begun:
            load.seconds[drafting].append(seconds)
            load.tokens[drafting].append(tokens / load.promise if drafting else tokens)
            load.left -= tokens
        load.begun = True
