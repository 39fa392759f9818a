"""How numbers are written for a reader: shares, differences, intervals, p-values. The one place that decides their digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "-"
"""What stands for a number that there is not."""


def number(value: float | None) -> str:
    """Four significant digits; a dash for None and for what is not a number. Whole numbers are written whole."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent: ``41.2%``."""
    return NOTHING if share is None or not math.isfinite(share) else f"{share:.{digits}%}"


def points(difference: float | None, digits: int = 1) -> str:
    """A difference of shares in percentage points, signed: ``+4.2``."""
    return NOTHING if difference is None or not math.isfinite(difference) else f"{100 * difference:+.{digits}f}"


def interval(ends: Sequence[float] | None) -> str:
    """The ends of an interval: ``[0.1, 0.25]``; a dash for None."""
    return NOTHING if ends is None else f"[{number(float(ends[0]))}, {number(float(ends[1]))}]"


def percent_interval(ends: Sequence[float] | None, digits: int = 1) -> str:
    """The ends of an interval of a share: ``[10.2%, 25.0%]``; a dash for None."""
    return NOTHING if ends is None else f"[{percent(ends[0], digits)}, {percent(ends[1], digits)}]"


def points_interval(ends: Sequence[float] | None, digits: int = 1) -> str:
    """The ends of an interval of a difference of shares: ``[+1.2, +7.0]``; a dash for None."""
    return NOTHING if ends is None else f"[{points(ends[0], digits)}, {points(ends[1], digits)}]"


def p_value(p: float | None) -> str:
    """Two significant digits: ``0.043``."""
    return NOTHING if p is None or not math.isfinite(p) else f"{p:.2g}"


def cell(value: object) -> str:
    """A cell of a table: a dash for None, yes or no, numbers as :func:`number`, everything else as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)
