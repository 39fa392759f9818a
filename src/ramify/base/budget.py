"""Budgets: the limit on a piece of work. Reaching one is a clean stop with results kept;
what was spent where is the ledger's business."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from ramify.base.errors import BudgetSpentError, UserError, nearest

#: What can be limited.
UNITS = ("calls", "tokens", "turns", "seconds", "money", "sandbox_seconds")


class Budget:
    """Limits per unit (absent: no limit). A child's spending counts towards its parent,
    so no child spends more than the parent has left.

    ``seconds`` is wall time since the budget was made, plus seconds charged (a resumed run charges its earlier time). Amounts
    are charged after they were spent, so the last call may overshoot; poll :attr:`spent_out` before starting more.
    """

    def __init__(
        self,
        limits: Mapping[str, float | None] | None = None,
        parent: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises UserError on an unknown unit, and on a limit that is negative or not a number."""
        self._limits: dict[str, float] = {}
        for unit, limit in (limits or {}).items():
            _known(unit)
            if limit is not None:
                if not limit >= 0:
                    raise UserError(f"the budget of {unit} must be a number of at least 0, not {limit}")
                self._limits[unit] = float(limit)
        above: tuple[str, ...] = () if parent is None else parent._limited
        self._limited: tuple[str, ...] = tuple(unit for unit in UNITS if unit in self._limits or unit in above)
        self._spent = dict.fromkeys(UNITS, 0.0)
        self._parent = parent
        self._clock = clock
        self._start = clock()

    def child(self, limits: Mapping[str, float | None] | None = None) -> Budget:
        """A budget within this one."""
        return Budget(limits, self, self._clock)

    def charge(self, **amounts: float) -> None:
        """Record what was spent (``charge(calls=1, tokens=80)``), here and in every ancestor.
        Never raises for going over. Raises ValueError on a negative amount."""
        for unit, amount in amounts.items():
            _known(unit)
            if not amount >= 0:
                raise ValueError(f"cannot charge {amount} {unit}")
        budget: Budget | None = self
        while budget is not None:
            for unit, amount in amounts.items():
                budget._spent[unit] += amount
            budget = budget._parent

    def spent(self, unit: str) -> float:
        """How much of ``unit`` this budget and its children have spent."""
        _known(unit)
        return self._spent[unit] + (self._clock() - self._start if unit == "seconds" else 0.0)

    def limit(self, unit: str) -> float:
        """This budget's own limit, infinity where it has none."""
        _known(unit)
        return self._limits.get(unit, math.inf)

    def remaining(self, unit: str) -> float:
        """What is left of ``unit`` here and in every ancestor, at least 0; infinity where nothing limits it."""
        left = max(0.0, self.limit(unit) - self.spent(unit))
        return left if self._parent is None else min(left, self._parent.remaining(unit))

    @property
    def spent_out(self) -> str:
        """The first unit with nothing left, or "": poll this before starting more work."""
        return next((unit for unit in self._limited if self.remaining(unit) <= 0), "")

    def require(self) -> None:
        """Raise BudgetSpentError when some unit is spent."""
        unit = self.spent_out
        if unit:
            raise BudgetSpentError(f"the budget of {unit} is spent; finished work is kept")

    def to_json(self) -> dict[str, dict[str, float]]:
        """Limits and what was spent so far."""
        return {"limits": dict(self._limits), "spent": {unit: self.spent(unit) for unit in UNITS if self.spent(unit)}}


def _known(unit: str) -> None:
    if unit not in UNITS:
        raise UserError(f"unknown budget unit '{unit}' ({nearest(unit, UNITS)})")
