"""Several attempts at each of several tasks: how reliable an agent is, whether two versions of it differ, and how many attempts
it takes to say so.

Tasks are what was sampled, attempts at one task are not independent of each other: intervals are over tasks where there are
several, and over further attempts at it where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow, each_against
from ramify.stats.intervals import Interval, clustered_mean, difference_of_proportions, mean_t, normal_quantile, wilson
from ramify.stats.tests import fisher_stratified


@dataclass(frozen=True, slots=True)
class OverTasks:
    """A mean over tasks with its 95 % interval; ``tasks`` is how many had enough attempts for it."""

    value: float
    interval: Interval
    tasks: int


def pass_hat(counts: Counts, k: int) -> float:
    """Chance that ``k`` attempts at one task all succeed, C(successes, k) / C(n, k): without bias from n >= k attempts, nan from
    fewer (tau-bench, arXiv 2406.12045, section 4.1)."""
    return math.comb(counts.k, k) / math.comb(counts.n, k) if counts.n >= k else math.nan


def flip_rate(counts: Counts) -> float:
    """Chance that two attempts at one task end differently, 2 k (n - k) / (n (n - 1)): without bias from two attempts, nan from
    fewer."""
    return 2 * counts.k * (counts.n - counts.k) / (counts.n * (counts.n - 1)) if counts.n > 1 else math.nan


def all_of(tasks: Sequence[Counts], k: int, of_one: Interval | None = None) -> OverTasks | None:
    """Mean of :func:`pass_hat` (pass^k) over tasks of ``k`` attempts or more; None where there is none.

    ``of_one`` is the interval of the rate of a single task, by default Wilson's."""
    return _over(tasks, lambda counts: pass_hat(counts, k), lambda p: p**k, of_one)


def flips(tasks: Sequence[Counts], of_one: Interval | None = None) -> OverTasks | None:
    """Mean of :func:`flip_rate` over tasks of two attempts or more; None where there is none. ``of_one`` as in :func:`all_of`."""
    return _over(tasks, flip_rate, lambda p: 2 * p * (1 - p), of_one)


def _over(
    tasks: Sequence[Counts], of: Callable[[Counts], float], of_rate: Callable[[float], float], of_one: Interval | None
) -> OverTasks | None:
    known = [(counts, of(counts)) for counts in tasks]
    values = [value for _, value in known if not math.isnan(value)]
    if not values:
        return None
    if len(values) == 1:
        counts = next(counts for counts, value in known if not math.isnan(value))
        low, high = of_one or wilson(counts.k, counts.n)
        ends = [of_rate(low), of_rate(high), *([of_rate(0.5)] if low < 0.5 < high else [])]
        return OverTasks(values[0], (min(*ends, values[0]), max(*ends, values[0])), 1)
    mean, interval = clustered_mean(values, range(len(values)))
    if interval is None or len(set(values)) == 1:  # alike tasks show no spread, which is not certainty
        interval = wilson(mean * len(values), len(values))
    return OverTasks(mean, (max(0.0, interval[0]), min(1.0, interval[1])), len(values))


@dataclass(frozen=True, slots=True)
class VersionsCompared:
    """Two versions of an agent at the same tasks, each with equal weight."""

    tasks: Mapping[str, EvidenceRow]
    """The second against the first at each, corrected over all of them (Holm)."""
    difference: float
    """Mean success of the second minus that of the first."""
    interval: Interval | None
    """Student's over tasks, of tasks that are all alike Newcombe's of as many trials as there are tasks; None of one task, whose
    own interval is in its row."""
    p: float
    """Exact, two-sided, that neither differs at any of these tasks."""
    only: tuple[int, int]
    """Tasks that the first, and the second, alone has attempts at: they are not compared."""

    @property
    def differing(self) -> tuple[str, ...]:
        """Tasks at which the versions differ, at 5 % over all of them."""
        return tuple(name for name, row in self.tasks.items() if row.p_corrected <= 0.05)


def compare_versions(first: Mapping[str, Counts], second: Mapping[str, Counts]) -> VersionsCompared:
    """Compare two versions by their counts at each task. Raises ValueError where they share no task with outcomes."""
    a, b = ({name: counts for name, counts in side.items() if counts.n} for side in (first, second))
    names = [name for name in a if name in b]
    if not names:
        raise ValueError("no task has outcomes of both")
    pairs = {name: ((a[name].k, a[name].n), (b[name].k, b[name].n)) for name in names}
    gaps = [b[name].rate - a[name].rate for name in names]
    interval = mean_t(gaps) if len(gaps) > 1 else None
    if interval is not None and max(gaps) - min(gaps) < 1e-9:  # alike tasks show no spread, which is not certainty
        before, after = (sum(side[name].rate for name in names) for side in (a, b))
        interval = difference_of_proportions(after, len(names), before, len(names))
    return VersionsCompared(
        tasks=dict(zip(names, each_against(pairs), strict=True)),
        difference=sum(gaps) / len(gaps),
        interval=interval,
        p=fisher_stratified([second for _, second in pairs.values()], [first for first, _ in pairs.values()]),
        only=(len(a) - len(names), len(b) - len(names)),
    )


def attempts_needed(tasks: Sequence[Counts], difference: float, power: float = 0.8, level: float = 0.95) -> int:
    """Attempts at each of ``tasks``, by each of two versions, that find a ``difference`` of mean success at these tasks with
    probability ``power``, by a two-sided test at 1 - ``level``.

    Each task counts with the variance of its rate: that of its attempts (with half a success and half a failure more, so that no
    task counts as certain), times (n + 1) / n, since few attempts look less spread than they are; normal approximation with the
    correction for an exact test (Fleiss, Tytun and Ury 1980). Raises ValueError without tasks or where ``difference`` is not
    within 0 and 1.
    """
    if not tasks or not 0 < abs(difference) < 1:
        raise ValueError("a plan needs tasks, and a difference between 0 and 1")
    rates = [(counts.k + 0.5) / (counts.n + 1) for counts in tasks]
    spread = [min(0.25, rate * (1 - rate) * (1 + 1 / max(counts.n, 1))) for rate, counts in zip(rates, tasks, strict=True)]
    variance = 2 * sum(spread) / len(rates) ** 2
    reach = normal_quantile(level) + normal_quantile(2 * power - 1)
    plain = variance * (reach / difference) ** 2
    return max(1, math.ceil(plain / 4 * (1 + math.sqrt(1 + 4 / (plain * len(rates) * abs(difference)))) ** 2))
