"""Whether raters agree, whether two shares are equal, and whether a classifier discriminates better or only says yes more
often."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.stats.intervals import Interval, difference_of_proportions

Equality = Literal["equivalent", "different", "undecided"]


def fleiss_kappa(counts: np.ndarray) -> float | None:
    """Chance-corrected agreement (Fleiss 1971) of raters on N items in C categories:
    ``counts`` (N, C), each row summing to the raters.

    None where every rating is of one category, so that agreement is undefined. Raises ValueError where rows differ in their sum,
    or where there are fewer than two raters.
    """
    table = np.asarray(counts, np.float64)
    raters = table.sum(axis=1)
    if table.ndim != 2 or len(table) == 0 or (raters != raters[0]).any() or raters[0] < 2:
        raise ValueError("kappa needs items that were all rated by the same number of raters, at least two")
    return _kappa(table.sum(axis=0), ((table**2).sum(axis=1) - raters).sum() / (raters[0] - 1), raters.sum())


def kappa_interval(
    counts: np.ndarray, clusters: Sequence[Any], seed: int = 0, samples: int = 1000, level: float = 0.95
) -> Interval | None:
    """Percentile interval of :func:`fleiss_kappa`, resampling whole ``clusters`` (N,):
    chunks of one trace are not independent."""
    table = np.asarray(counts, np.float64)
    fleiss_kappa(table)
    names, codes = np.unique(np.asarray(clusters), return_inverse=True)
    raters = table[0].sum()
    parts = np.column_stack([table, ((table**2).sum(axis=1) - raters) / (raters - 1), table.sum(axis=1)])
    sums = np.zeros((len(names), parts.shape[1]))
    np.add.at(sums, codes, parts)
    picks = generator(seed, "kappa-interval").integers(0, len(names), size=(samples, len(names)))
    values = [_kappa(one[:-2], one[-2], one[-1]) for one in sums[picks].sum(axis=1)]
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _kappa(by_category: np.ndarray, agreeing: float, ratings: float) -> float | None:
    """Kappa of ratings by category (C,), the summed agreement of items times raters, and the number of ratings."""
    expected = float(((by_category / ratings) ** 2).sum())
    return None if expected >= 1 else (float(agreeing / ratings) - expected) / (1 - expected)


def equality(k1: int, n1: int, k2: int, n2: int, margin: float = 0.1, level: float = 0.95) -> tuple[Equality, Interval]:
    """Two one-sided tests (Schuirmann 1987) of |k1/n1 - k2/n2| < ``margin``, by the interval they amount to, which is returned.

    ``equivalent`` where the 2 level - 1 interval of the difference (Newcombe) lies inside the margin, ``different`` where the
    ``level`` interval leaves out 0, else ``undecided``: a test that found nothing has shown nothing. A difference that is both
    small and certain counts as equivalent. Raises UserError on a margin outside (0, 1).
    """
    if not 0 < margin < 1:
        raise UserError(f"the margin of equivalence must lie between 0 and 1, not {margin}")
    low, high = difference_of_proportions(k1, n1, k2, n2, 2 * level - 1)
    if -margin < low and high < margin:
        return "equivalent", (low, high)
    ends = difference_of_proportions(k1, n1, k2, n2, level)
    return ("undecided" if ends[0] <= 0 <= ends[1] else "different"), (low, high)


def detection(hits: int, n: int, false_alarms: int, m: int) -> tuple[float, float]:
    """(d', c): how well yes and no cases are separated, and the criterion for yes (Green and Swets 1966).

    ``hits`` of ``n`` yes cases and ``false_alarms`` of ``m`` no cases got a yes. Half a case is added to each side (Hautus 1995),
    so that shares of 0 and 1 stay finite. Raises ValueError on counts that are none.
    """
    if not (0 <= hits <= n and 0 <= false_alarms <= m and n and m):
        raise ValueError(f"{hits} of {n} and {false_alarms} of {m} are no counts")
    z = NormalDist().inv_cdf
    yes, no = z((hits + 0.5) / (n + 1)), z((false_alarms + 0.5) / (m + 1))
    return yes - no, -(yes + no) / 2
