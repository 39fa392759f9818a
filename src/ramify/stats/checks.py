"""Checks: a measured value beside the threshold that it is judged against."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ramify.stats.intervals import mean_t, paired_t, wilson

_OPS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One measured value against one threshold.

    Raises ValueError on an unknown operator, or when the operator compares and there is no threshold.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    """Lower and upper end in the unit of ``value``, or None where the value is exact."""
    n: int
    """Number of independent observations behind the value."""
    seeds: tuple[int, ...]
    op: str
    """One of ``>= <= > < ==``, or ``report``: shown, never judged."""
    threshold: float | None = None
    known_miss: str = ""
    """Reason why a miss is expected, with the page that discusses it; empty where none is."""

    def __post_init__(self) -> None:
        if self.op != "report" and self.op not in _OPS:
            raise ValueError(f"check {self.name!r}: unknown operator {self.op!r}")
        if self.op != "report" and self.threshold is None:
            raise ValueError(f"check {self.name!r}: {self.op} needs a threshold")

    @classmethod
    def mean(
        cls,
        name: str,
        values: Sequence[float | None] | np.ndarray,
        seeds: Sequence[int],
        op: str = "report",
        threshold: float | None = None,
        known_miss: str = "",
    ) -> Self:
        """The mean of independent values, (n,), with Student's interval where there are several finite ones; nan of none.

        A report leaves out a value that is None, and its seed; a check misses by it.
        """
        counts = [op != "report" or value is not None for value in values]
        known = [math.nan if value is None else value for value, one in zip(values, counts, strict=True) if one]
        if len(seeds) == len(counts):
            seeds = [seed for seed, one in zip(seeds, counts, strict=True) if one]
        interval = mean_t(known) if len(known) > 1 and all(map(math.isfinite, known)) else None
        return cls(
            name, float(np.mean(known)) if known else math.nan, interval, len(known), tuple(seeds), op, threshold, known_miss
        )

    @classmethod
    def paired(
        cls,
        name: str,
        a: Sequence[float] | np.ndarray,
        b: Sequence[float] | np.ndarray,
        seeds: Sequence[int],
        op: str = "report",
        threshold: float | None = None,
    ) -> Self:
        """Mean difference of two arms on the same tasks, (n,) each, with Student's interval of the differences."""
        return cls(name, float(np.mean(np.subtract(a, b))), paired_t(a, b), len(a), tuple(seeds), op, threshold)

    @classmethod
    def worst(
        cls, name: str, values: Sequence[float], seeds: Sequence[int], op: str, threshold: float | None, n: int | None = None
    ) -> Self:
        """The one of ``values`` that is furthest on the wrong side of ``op``: the least where more is wanted, else the largest."""
        value = (min if op in (">=", ">") else max)(values)
        return cls(name, value, None, len(values) if n is None else n, tuple(seeds), op, threshold)

    @classmethod
    def share(cls, name: str, k: int, n: int, seeds: Sequence[int], op: str = "report", threshold: float | None = None) -> Self:
        """``k`` of ``n``, with Wilson's interval."""
        return cls(name, k / n, wilson(k, n), n, tuple(seeds), op, threshold)

    @property
    def status(self) -> str:
        """``reported`` without a threshold, else ``pass``, ``miss`` or ``known_miss``. A value that is not a number misses; a known miss
        that holds is a pass."""
        if self.op == "report" or self.threshold is None:
            return "reported"
        if _OPS[self.op](self.value, self.threshold):
            return "pass"
        return "known_miss" if self.known_miss else "miss"

    def to_json(self) -> dict[str, Any]:
        """The contract's form. Numbers that JSON cannot hold (NaN, infinity) become null."""
        out: dict[str, Any] = {
            "name": self.name,
            "value": _finite(self.value),
            "interval": None if self.interval is None else [_finite(end) for end in self.interval],
            "n": int(self.n),
            "seeds": [int(seed) for seed in self.seeds],
            "op": self.op,
            "threshold": None if self.threshold is None else _finite(self.threshold),
            "status": self.status,
        }
        return out | ({"known_miss": self.known_miss} if self.known_miss else {})


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
