"""Whether drafting is faster here and now: a schedule proposes it from a profile, the clock decides.

A profile is of another day, and a machine that does other work, too, slows long cycles more than short ones. So where a schedule would
draft, stretches with and without drafts are timed, and the faster way goes on, with a short trial of the other ever more rarely.
Nothing but time and the number of tokens is looked at, all of it past: the law of what is drawn stays as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

TRIAL = 8
"""Steps of a trial."""
PATIENCE, MOST = 32, 4096
"""Steps between trials: at first, and at last."""
KEPT = 32
"""Steps of each way that count."""


@dataclass(slots=True)
class _Load:
    """What is known at one load."""

    drafting: bool = True
    left: int = TRIAL
    patience: int = PATIENCE
    chosen: bool | None = None
    """The way that is taken between trials; None before there was a trial of each."""
    seen: dict[bool, deque[tuple[float, float]]] = field(
        default_factory=lambda: {way: deque(maxlen=KEPT) for way in (True, False)}
    )
    """By way, (tokens, seconds) of steps."""

    def rate(self, drafting: bool) -> float:
        """Tokens a second: the mean of the tokens, the median of the seconds, which other work does not touch."""
        tokens, seconds = np.array(self.seen[drafting]).T
        return float(tokens.mean() / np.median(seconds))

    def turn(self) -> None:
        """The stretch is over: what comes next, and for how long."""
        if not all(self.seen.values()):
            self.drafting, self.left = not self.seen[True], TRIAL
        elif self.chosen is not None and self.drafting == self.chosen:
            self.drafting, self.left = not self.chosen, TRIAL
        else:
            better = self.rate(True) > self.rate(False)
            self.patience = min(2 * self.patience, MOST) if better == self.chosen else PATIENCE
            self.drafting = self.chosen = better
            self.left = self.patience


class Referee:
    """Times both ways by load; loads within a factor of two are one."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def allows(self, requests: int) -> bool:
        """Whether a step of so many requests that would draft may. One call a step."""
        load = self._loads.setdefault(requests.bit_length(), _Load())
        if load.left <= 0:
            load.turn()
        load.left -= 1
        return load.drafting

    def saw(self, requests: int, drafting: bool, tokens: int, seconds: float) -> None:
        """A step of ``requests`` rows, drafting or not, drew so many tokens in so much time."""
        if requests.bit_length() in self._loads:
            self._loads[requests.bit_length()].seen[drafting].append((tokens, seconds))
