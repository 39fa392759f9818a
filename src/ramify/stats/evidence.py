"""Evidence: interventions against one baseline, with counts, intervals, corrected p-values and power, in one table.

Every study that changes something and counts outcomes (a fork, a scan, a policy check) reports this table, so that a reader sees
the same columns everywhere and many comparisons are corrected in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.stats.intervals import Interval, difference_of_proportions, wilson
from ramify.stats.power import detectable_difference
from ramify.stats.tests import fisher


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One intervention: ``hits`` of ``n`` outcomes, against the baseline's."""

    intervention: str
    hits: int
    n: int
    share: float
    share_interval: Interval
    """Wilson."""
    difference: float
    """Share minus the baseline's share."""
    difference_interval: Interval
    """Newcombe."""
    p: float
    """Fisher's exact test, two-sided."""
    p_corrected: float
    detectable: float
    """The smallest difference that these counts would have found 4 times in 5."""


def evidence(
    base: tuple[int, int], arms: Mapping[str, tuple[int, int]], level: float = 0.95, correction: str = "holm"
) -> list[EvidenceRow]:
    """One row for each of ``arms`` (name -> (hits, n)) against ``base`` (hits, n),
    in the order given; as :func:`each_against`."""
    return each_against({name: (base, arm) for name, arm in arms.items()}, level, correction)


def each_against(
    pairs: Mapping[str, tuple[tuple[int, int], tuple[int, int]]], level: float = 0.95, correction: str = "holm"
) -> list[EvidenceRow]:
    """One row for each of ``pairs`` (name -> its own base (hits, n), (hits, n)), corrected over all of them, in the order given.

    ``correction`` is ``holm`` (bounds the chance of any false finding), ``bh`` (bounds the share of false findings) or ``none``.
    Raises UserError on another name and ValueError on counts that are none. An arm without outcomes keeps p = 1.
    """
    if correction not in CORRECTIONS:
        raise UserError(f"unknown correction '{correction}': {nearest(correction, CORRECTIONS)}")
    raw = [fisher(hits, n, base_hits, base_n) if n and base_n else 1.0 for (base_hits, base_n), (hits, n) in pairs.values()]
    corrected = CORRECTIONS[correction](raw)
    rows = []
    for (name, ((base_hits, base_n), (hits, n))), p, p_corrected in zip(pairs.items(), raw, corrected, strict=True):
        base_share, share = (k / of if of else 0.0 for k, of in ((base_hits, base_n), (hits, n)))
        row = EvidenceRow(
            intervention=name,
            hits=hits,
            n=n,
            share=share,
            share_interval=wilson(hits, n, level),
            difference=share - base_share,
            difference_interval=difference_of_proportions(hits, n, base_hits, base_n, level),
            p=p,
            p_corrected=p_corrected,
            detectable=detectable_difference(base_share, n, base_n, level=level),
        )
        rows.append(row)
    return rows


def holm(p_values: Sequence[float]) -> list[float]:
    """Step-down corrected p-values (Holm 1979), in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return _in_order(steps, order)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Step-up corrected p-values that bound the false discovery rate (Benjamini and Hochberg 1995), in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * (len(p) / np.arange(1, len(p) + 1))
    return _in_order(np.minimum.accumulate(scaled[::-1])[::-1], order)


def _in_order(corrected: np.ndarray, order: np.ndarray) -> list[float]:
    out = np.empty_like(corrected)
    out[order] = np.minimum(corrected, 1.0)
    return [float(value) for value in out]


CORRECTIONS: dict[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg, "none": list}
