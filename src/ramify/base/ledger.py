"""The ledger: what was spent, by category, with cache hits apart. A budget limits; the ledger remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.base.errors import UserError

Amounts = dict[str, float]


class Ledger:
    """Amounts per category and unit, e.g. ``rollout`` -> ``tokens`` -> 120000. ``cached`` holds what a cache saved."""

    def __init__(self) -> None:
        self.spent: dict[str, Amounts] = {}
        self.cached: dict[str, Amounts] = {}

    def add(self, category: str, cached: bool = False, **amounts: float) -> None:
        """Record what was spent (``add("rollout", tokens=80)``), or what a cache hit saved.
        Raises ValueError on a negative or undefined amount."""
        row = (self.cached if cached else self.spent).setdefault(category, {})
        for unit, amount in amounts.items():
            if not amount >= 0:
                raise ValueError(f"cannot record {amount} {unit}")
            row[unit] = row.get(unit, 0.0) + amount

    def merge(self, other: Ledger) -> None:
        """Add everything of ``other`` to this ledger."""
        for category, amounts in other.spent.items():
            self.add(category, False, **amounts)
        for category, amounts in other.cached.items():
            self.add(category, True, **amounts)

    def total(self, unit: str, cached: bool = False) -> float:
        """Sum of one unit over the categories."""
        return sum(row.get(unit, 0.0) for row in (self.cached if cached else self.spent).values())

    def __str__(self) -> str:
        rows = _sorted(self.spent).items()
        return "; ".join(f"{name}: {', '.join(f'{amount:g} {unit}' for unit, amount in row.items())}" for name, row in rows)

    def to_json(self) -> dict[str, Any]:
        """JSON form, categories and units sorted."""
        return {"spent": _sorted(self.spent), "cached": _sorted(self.cached)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Ledger:
        """Inverse of :meth:`to_json`. Raises UserError on a record of another shape."""
        ledger = cls()
        try:
            for cached, name in ((False, "spent"), (True, "cached")):
                for category, amounts in record[name].items():
                    ledger.add(category, cached, **amounts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"not a ledger record: {error}") from None
        return ledger


def _sorted(table: dict[str, Amounts]) -> dict[str, Amounts]:
    return {category: dict(sorted(table[category].items())) for category in sorted(table)}
