"""How many drafts to make and how many of them to verify: off, fixed:k, threshold:t, greedy, stale2 (paper, section on the
hardware-aware prefix scheduler).

What makes verification exact is non-anticipation: whether a draft is verified may depend only on what was known before that draft
was sampled, jointly over requests. A confidence reads the token before its own, so fixed and threshold look at a row's past only;
greedy admits in falling order of survival and stops at the first loss, and the next candidate is always known without its own
token; stale2 takes its total from earlier steps and only the ranking from this one.
A search for the best total on this step's confidences is biased.

Axis legend: R requests of a step, K drafts a request (depth).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.engine.controller import AdaptiveController

RECENT = 128
"""Rounds whose survivals stand for those to come."""
REFRESH = 32
"""Steps after which the break-even is computed anew."""


class Costs(Protocol):
    """Seconds of one whole cycle: drafting ``depth`` tokens for ``requests`` rows (0:
    none), the target over ``tokens``, host work."""

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        """float64, of the shape of ``tokens`` (which may be fractional)."""
        ...


class Schedule(Protocol):
    """One object a run: it may remember earlier steps. One with a ``controller`` is given the times of its steps."""

    def depth(self, requests: int) -> int:
        """How many tokens to draft this step for so many requests; 0 = none. Decided before anything is drafted."""
        ...

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Drafts to verify, int64 [R], from ``confidence`` float [R, K] (of each draft,
        given those before it); at most ``limits``."""
        ...


def survival(confidence: np.ndarray, limits: np.ndarray | None = None) -> np.ndarray:
    """Probability that a draft and all before it are accepted, float64 [R, K]; 0 past a row's limit."""
    a: np.ndarray = np.cumprod(np.clip(confidence, 0.0, 1.0).astype(np.float64), axis=1)
    if limits is not None:
        a[np.arange(a.shape[1]) >= limits[:, None]] = 0.0
    return a


def ranked(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, survivals) of the candidates of ``a`` [R, K] in the order of admission: falling, ties by smaller position, then row.

    Candidates that cannot survive are left out. A row's candidates come in the order of their positions.
    """
    rows, positions = np.nonzero(a)
    values = a[rows, positions]
    order = np.lexsort((rows, positions, -values))
    return rows[order], values[order]


def rates(values: np.ndarray, requests: float, seconds: np.ndarray) -> np.ndarray:
    """Tokens a second after admitting the first n of the ranked survivals ``values`` [N], for n = 0..N; ``seconds`` [N + 1]."""
    return np.asarray((requests + np.concatenate(([0.0], np.cumsum(values)))) / seconds)


def until_loss(rate: np.ndarray) -> int:
    """How many to admit one by one as long as each makes the rate [N + 1] larger."""
    falls = np.flatnonzero(np.diff(rate) <= 0)
    return int(falls[0]) if len(falls) else len(rate) - 1


def counts(rows: np.ndarray, budget: int, requests: int) -> np.ndarray:
    """Admitted drafts of each request when the first ``budget`` of the ranked candidates are, int64 [R]."""
    return np.bincount(rows[:budget], minlength=requests)


class Off:
    """No drafting."""

    def depth(self, requests: int) -> int:
        """0."""
        return 0

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """0 for each."""
        return np.zeros(len(limits), np.int64)


class FixedSchedule:
    """``k`` drafts for every row at every load."""

    def __init__(self, k: int) -> None:
        self.k = k

    def depth(self, requests: int) -> int:
        """k."""
        return self.k

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """k, or what there is room for."""
        return np.asarray(np.minimum(self.k, limits))


class Threshold:
    """Up to the first draft whose confidence is below ``least``; ignores the load."""

    def __init__(self, least: float, block: int) -> None:
        self.least, self.block = least, block

    def depth(self, requests: int) -> int:
        """The block."""
        return self.block

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Length of the leading run of confidences that reach the threshold."""
        return np.asarray(np.minimum(np.cumprod(confidence >= self.least, axis=1).sum(axis=1), limits))


class GreedySchedule:
    """Admit by falling survival while tokens a second of the whole cycle grow. Drafts only where that beats no drafting.

    ``prior`` [K] is the acceptance by position to start from, worth :data:`RECENT` rounds.
    """

    def __init__(self, costs: Costs, block: int, prior: np.ndarray) -> None:
        self.costs, self.block, self.controller = costs, block, AdaptiveController()
        self.recent = survival(np.tile(prior, (RECENT, 1)))
        """Survivals of the last rounds when the break-even was computed, [at most RECENT, block]."""
        self._newer: list[np.ndarray] = []
        self._known: dict[int, tuple[float, int, float]] = {}
        self._seconds: dict[tuple[int, int], np.ndarray] = {}
        self._payable: dict[int, bool] = {}
        self._age = 0

    def outlook(self, requests: int) -> tuple[float, int, float]:
        """(gain over no drafting, depth, drafts verified a request) of the best drafting at this load, by the recent survivals.

        The recent rounds stand for the requests of a step: with N of them, admitting n candidates is n R / N tokens more.
        """
        best_known = self._known.get(requests)
        if best_known is None:
            a = self.recent
            share = requests / len(a)
            plain = requests / float(self.costs.cycle(requests, np.array([float(requests)]), 0)[0])
            best_known = (0.0, 1, 0.0)
            for depth in range(1, self.block + 1):
                _, values = ranked(a[:, :depth])
                tokens = requests + share * np.arange(len(values) + 1)
                rate = rates(share * values, requests, self.costs.cycle(requests, tokens, depth))
                best = int(np.argmax(rate))
                best_known = max(best_known, (float(rate[best]) / plain, depth, best / len(a)))
            self._known[requests] = best_known
        return best_known

    def depth(self, requests: int) -> int:
        """The depth with the highest predicted gain, 0 where the controller finds that no drafting is at least as fast."""
        gain, depth, _ = self.outlook(requests)
        promise = gain if gain > 1 or self._could_pay(requests) else 0.0
        return depth if self.controller.drafts(requests, promise) else 0

    def _could_pay(self, requests: int) -> bool:
        """Whether drafting would pay here if every draft were accepted."""
        if requests not in self._payable:
            ks = np.arange(1, self.block + 1)
            plain = float(self.costs.cycle(requests, np.array([float(requests)]), 0)[0])
            best = [float(self.costs.cycle(requests, np.array([requests * (k + 1.0)]), int(k))[0]) / (k + 1) for k in ks]
            self._payable[requests] = bool(min(best) < plain)
        return self._payable[requests]

    def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """The greedy prefix of the ranked candidates of this step, cut at the first loss."""
        requests, depth = confidence.shape
        seconds = self._seconds.get((requests, depth))
        if seconds is None:
            tokens = requests + np.arange(requests * depth + 1.0)
            seconds = self._seconds[requests, depth] = self.costs.cycle(requests, tokens, depth)
        rows, values = ranked(survival(confidence, limits))
        budget = self.budget(values, requests, seconds[: len(values) + 1])
        self._remember(confidence)
        return counts(rows, budget, requests)

    def budget(self, values: np.ndarray, requests: int, seconds: np.ndarray) -> int:
        """How many candidates to admit in all."""
        return until_loss(rates(values, requests, seconds))

    def _remember(self, confidence: np.ndarray) -> None:
        """Positions that were not drafted are taken to continue as the last that was."""
        self._newer.append(confidence)
        self._age += 1
        if self._age % REFRESH == 1:
            whole = [np.pad(c, ((0, 0), (0, self.block - c.shape[1])), mode="edge") for c in self._newer]
            self.recent = np.concatenate((self.recent, survival(np.concatenate(whole))))[-RECENT:]
            self._newer.clear()
            self._known.clear()


class Stale(GreedySchedule):
    """The total comes from the confidences of two steps ago by a search over all totals, the ranking from this step's.

    Step times are jagged; a greedy path stops at the first tooth, this one looks past it.
    """

    def __init__(self, costs: Costs, block: int, prior: np.ndarray) -> None:
        super().__init__(costs, block, prior)
        self._shares: deque[float] = deque(maxlen=2)
        """Best budgets a request of the last two steps, on their own confidences."""

    def budget(self, values: np.ndarray, requests: int, seconds: np.ndarray) -> int:
        """Scaled by the number of requests where that has changed; the first two steps take the outlook's."""
        share = self._shares[0] if len(self._shares) == 2 else self.outlook(requests)[2]
        self._shares.append(int(np.argmax(rates(values, requests, seconds))) / requests)
        return round(share * requests)


def schedule_of(name: str, block: int, costs: Costs | None = None, prior: np.ndarray | None = None) -> Schedule:
    """The schedule that ``off``, ``fixed:k``, ``threshold:t``, ``greedy`` or ``stale2`` names.

    ``prior``: acceptance by position to start from, [block]. Raises UserError on a wrong name or number, or where greedy and
    stale2 have no costs.
    """
    kind, _, argument = name.partition(":")
    if kind == "off" and not argument:
        return Off()
    if kind == "fixed" and argument.isdecimal() and 1 <= int(argument) <= block:
        return FixedSchedule(int(argument))
    if kind == "threshold":
        try:
            least = float(argument)
        except ValueError:
            least = -1.0
        if 0 <= least <= 1:
            return Threshold(least, block)
    if kind in ("greedy", "stale2") and not argument:
        if costs is None:
            raise UserError(f"schedule '{name}' needs a profile of this machine: make one with 'ramify dspark profile'")
        return (GreedySchedule if kind == "greedy" else Stale)(
            costs, block, np.full(block, 0.7) if prior is None else np.asarray(prior)
        )
    if kind in ("fixed", "threshold"):
        raise UserError(f"schedule '{name}': fixed:k takes 1 to {block} drafts, threshold:t a confidence from 0 to 1")
    raise UserError(f"unknown schedule '{name}' ({nearest(kind, ['off', 'fixed:k', 'threshold:t', 'greedy', 'stale2'])})")
