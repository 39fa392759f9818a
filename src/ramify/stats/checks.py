"""Checks: a measured value and the threshold that it is judged against."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

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
    """Number of independent observations that the value is computed from."""
    seeds: tuple[int, ...]
    op: str
    """One of ``>= <= > < ==``, or ``report``: shown, never judged."""
    threshold: float | None = None
    known_failure: str = ""
    """Reason why a miss is expected, with the page that discusses it; empty where none is."""
    status: str = field(init=False, default="")
    """``reported`` without a threshold, else ``pass``, ``miss`` or ``known_failure``. A value that is not a number misses; a
    known failure that holds is a pass."""

    def __post_init__(self) -> None:
        if self.op != "report" and self.op not in _OPS:
            raise ValueError(f"check {self.name!r}: unknown operator {self.op!r}")
        if self.op != "report" and self.threshold is None:
            raise ValueError(f"check {self.name!r}: {self.op} needs a threshold")
        object.__setattr__(self, "status", self._judged())

    def _judged(self) -> str:
        if self.op == "report" or self.threshold is None:
            return "reported"
        if _OPS[self.op](self.value, self.threshold):
            return "pass"
        return "known_failure" if self.known_failure else "miss"
