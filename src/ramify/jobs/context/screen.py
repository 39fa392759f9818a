"""Screening: which parts the samples so far speak for, and which parts to leave out next.

A hypothesis says when the decision is likely: never changed (no cause), while a unit is there (one cause), while each of two is
there (needed together), or while any of two or three is there (each enough). A unit is a part, whole: one leaf of the context or
a group of them. The rates with and without are unknown, on a grid. Nothing here decides what is reported: what is found likely is
confirmed on samples of its own (:mod:`ramify.jobs.context.search`), so prior and grid cost samples where they are wrong, and
never a level.

Axis legend: U units, N leaves, H hypotheses, G pairs of rates, C candidates of what to leave out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["none", "one", "together", "each"]
"""No cause; one part; parts that are needed together; parts that are each enough."""

_RATES = np.array([(high, low) for high in (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97) for low in (0.03, 0.1, 0.2, 0.35, 0.5, 0.65)])
_RATES = _RATES[_RATES[:, 0] - _RATES[:, 1] >= 0.28]
_FLAT = np.array([0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])
_PRIOR = {"none": 0.25, "one": 0.37, "together": 0.2, "each": 0.18}
_TRIPLES = 0.02
"""Prior weight of three parts that are each enough, beside the rest."""
_GROUP = 0.35
"""Prior weight of a group of leaves against a leaf."""


@dataclass(frozen=True, slots=True)
class CauseHypothesis:
    """What the decision depends on: ``units`` by number."""

    kind: Kind
    units: tuple[int, ...] = ()


class CauseScreen:
    """The posterior over hypotheses. ``units`` (U, N) says which leaves each unit is made of; ``fixed`` leaves are never left
    out. ``more``: something was found already, so that nothing more is likelier."""

    def __init__(self, units: np.ndarray, fixed: np.ndarray, seed: int, more: bool = False) -> None:
        self.units, self.fixed = units.astype(bool), fixed.astype(bool)
        self._size = self.units.sum(1)
        self._rng = np.random.default_rng([seed, len(units)])
        count = len(units)
        weight = np.where(self._size == 1, 1.0, _GROUP)
        first, second = np.triu_indices(count, 1)
        apart = ~(self.units[first] & self.units[second]).any(1)
        first, second = first[apart], second[apart]
        both = weight[first] * weight[second]
        prior = dict(_PRIOR, none=0.8, one=0.13, together=0.03, each=0.04) if more else _PRIOR
        shares = [np.array([prior["none"]]), prior["one"] * weight / weight.sum()]
        if len(first):
            shares += [prior["together"] * both / both.sum(), prior["each"] * both / both.sum()]
        pairs = np.stack([first, second], 1)
        self._alone = count
        self._pairs, self._triples = pairs, np.zeros((0, 3), int)
        self._prior = np.log(np.concatenate(shares))
        self._grown: set[int] = set()
        self._samples: list[tuple[np.ndarray, bool]] = []
        self._likelihood = np.zeros((len(self._prior), len(_RATES)))
        self._flat = np.zeros(len(_FLAT))
        self.weights = np.zeros(0)
        """Posterior of each hypothesis (H,)."""
        self.high = self.low = np.zeros(0)
        """Expected rates with and without, of each hypothesis (H,)."""
        self._update()

    def hypothesis(self, number: int) -> CauseHypothesis:
        """CauseHypothesis ``number``."""
        at = number - 1
        if at < 0:
            return CauseHypothesis("none")
        if at < self._alone:
            return CauseHypothesis("one", (at,))
        at -= self._alone
        if at < 2 * len(self._pairs):
            kind: Kind = "together" if at < len(self._pairs) else "each"
            return CauseHypothesis(kind, tuple(map(int, self._pairs[at % len(self._pairs)])))
        return CauseHypothesis("each", tuple(map(int, self._triples[at - 2 * len(self._pairs)])))

    def add(self, left_out: np.ndarray, happened: bool) -> None:
        """One sample without the leaves ``left_out`` (N,)."""
        self._samples.append((left_out.astype(bool), happened))
        self._take(self._active(left_out[None])[0], happened, slice(None))
        self._flat += np.log(_FLAT if happened else 1 - _FLAT)
        self._update()

    def extend(self, samples: Sequence[tuple[np.ndarray, bool]]) -> None:
        """Many samples at once."""
        for left_out, happened in samples:
            self._samples.append((left_out.astype(bool), happened))
            self._take(self._active(left_out[None])[0], happened, slice(None))
            self._flat += np.log(_FLAT if happened else 1 - _FLAT)
        self._update()

    @property
    def best(self) -> int:
        """The likeliest hypothesis."""
        return int(np.argmax(self.weights))

    def next(self, count: int) -> list[np.ndarray]:
        """What to leave out next (N,): those sets that tell most about the hypotheses, the later ones given the earlier."""
        candidates = self._candidates()
        alive = self.weights > 1e-6
        chance = np.where(self._active(candidates)[:, alive], self.high[alive], self.low[alive])
        surprise = _entropy(chance)
        chosen: list[int] = []
        branches = [self.weights[alive]]
        for _ in range(count):
            gain = np.zeros(len(candidates))
            for weights in branches:
                whole = weights.sum()
                if whole > 1e-9:
                    gain += whole * (_entropy(chance @ (weights / whole)) - surprise @ (weights / whole))
            gain[chosen] = -1
            chosen.append(int(np.argmax(gain)))
            likely = chance[chosen[-1]]
            branches = [part for weights in branches for part in (weights * likely, weights * (1 - likely))]
        return [candidates[i] for i in chosen]

    def _take(self, active: np.ndarray, happened: bool, which: slice) -> None:
        high, low = (np.log(rate if happened else 1 - rate) for rate in _RATES.T)
        self._likelihood[which] += np.where(active[:, None], high, low)

    def _active(self, left_out: np.ndarray) -> np.ndarray:
        """Whether the decision is likely (C, H) without the leaves ``left_out`` (C, N)."""
        gone = (left_out.astype(np.float32) @ self.units.T.astype(np.float32)) >= self._size
        first, second = gone[:, self._pairs[:, 0]], gone[:, self._pairs[:, 1]]
        sure = np.ones((len(left_out), 1), bool)
        three = gone[:, self._triples].all(2)
        return np.concatenate([sure, ~gone, ~(first | second), ~(first & second), ~three], 1)

    def _update(self) -> None:
        shifted = np.exp(self._likelihood - self._likelihood.max(1, keepdims=True))
        rates = shifted / shifted.sum(1, keepdims=True)
        total = self._likelihood.max(1) + np.log(shifted.mean(1))
        total[0] = np.logaddexp.reduce(self._flat) - np.log(len(_FLAT))
        self.high, self.low = rates @ _RATES[:, 0], rates @ _RATES[:, 1]
        flat = np.exp(self._flat - self._flat.max())
        self.high[0] = self.low[0] = flat @ _FLAT / flat.sum()
        weights = np.exp(self._prior + total - (self._prior + total).max())
        self.weights = weights / weights.sum()
        self._grow()

    def _grow(self) -> None:
        """Three parts that are each enough are looked at where two of them are likely ones."""
        at = self.best
        kind = self.hypothesis(at)
        if kind.kind != "each" or len(kind.units) != 2 or at in self._grown or self.weights[at] < 0.1:
            return
        self._grown.add(at)
        inside = self.units[list(kind.units)].any(0)
        third = [u for u in range(self._alone) if not (self.units[u] & inside).any()]
        if not third:
            return
        known = {tuple(row) for row in self._triples.tolist()}
        rows = [row for u in third if (row := tuple(sorted((*kind.units, u)))) not in known]
        if not rows:
            return
        self._triples = np.concatenate([self._triples, np.array(rows, int)])
        weight = np.where(self._size == 1, 1.0, _GROUP)
        ways = max(1.0, self._alone * (self._alone - 1) * (self._alone - 2) / 6)
        prior = np.log(_TRIPLES * weight[np.array(rows)].prod(1) / ways)
        self._prior = np.concatenate([self._prior, prior])
        self._likelihood = np.concatenate([self._likelihood, np.zeros((len(rows), len(_RATES)))])
        new = slice(len(self._likelihood) - len(rows), None)
        for left_out, happened in self._samples:
            self._take(self._active(left_out[None])[0][new], happened, new)
        self._update()

    def _per_unit(self) -> np.ndarray:
        shares = self.weights[1 : 1 + self._alone].copy()
        at, pairs = 1 + self._alone, len(self._pairs)
        for start in (at, at + pairs):
            for side in (0, 1):
                np.add.at(shares, self._pairs[:, side], self.weights[start : start + pairs])
        for side in (0, 1, 2):
            np.add.at(shares, self._triples[:, side], self.weights[at + 2 * pairs :])
        return shares

    def _candidates(self) -> np.ndarray:
        """Sets of leaves that may be left out (C, N): stretches that halve the posterior, likely units and pairs of them, their
        complements, and some at random."""
        shares, leaves = self._per_unit(), self.units.shape[1]
        by_leaf = (shares / self._size) @ self.units + 1e-3 / leaves
        along = np.concatenate([[0.0], np.cumsum(by_leaf / by_leaf.sum())])
        cuts = sorted({0, leaves, *(int(np.searchsorted(along, share)) for share in np.linspace(0, 1, 9))})
        sets = [np.zeros(leaves, bool), np.ones(leaves, bool)]
        for start, end in itertools.combinations(cuts, 2):
            stretch = np.zeros(leaves, bool)
            stretch[start:end] = True
            sets += [stretch, ~stretch]
        for unit in np.argsort(-shares, kind="stable")[:8]:
            sets += [self.units[unit], ~self.units[unit]]
        for number in np.argsort(-self.weights, kind="stable")[:12]:
            if len(units := self.hypothesis(int(number)).units) > 1:
                together = np.asarray(self.units[list(units)].any(0))
                sets += [together, ~together]
        for share in (0.3, 0.5, 0.7):
            sets += list(self._rng.random((12, leaves)) < share)
        for _ in range(24):
            some = self._rng.permutation(self._alone)[: self._rng.integers(1, max(2, self._alone // 2))]
            sets.append(np.asarray(self.units[some].any(0)))
        return np.unique(np.array(sets) & ~self.fixed, axis=0)


def _entropy(chance: np.ndarray) -> np.ndarray:
    """Bits of a yes or no of that chance."""
    p = np.clip(chance, 1e-9, 1 - 1e-9)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))
