"""Measure potentials by forks: all positions at once, or a few forks first and more where they may matter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ramify.rollout.token_forks import Chances
from ramify.stats.drops import Counts, ZTest
from ramify.stats.sequential import chance_of


class Forks(Protocol):
    """What a scan needs: :class:`ramify.rollout.token_forks.TokenForks`, or ``StepForks`` for the steps of an agent."""

    async def count(self, trace: Any, t: int, n: int, purpose: str, start: int = 0, append: Sequence[int] = ()) -> Counts:
        """Right ones among ``n`` forks of position ``t``."""
        ...

    async def chances(self, trace: Any) -> Chances:
        """Probabilities of the trace's tokens or steps."""
        ...

    def spent(self) -> dict[str, Any]:
        """What was spent so far."""
        ...


async def count_at(
    forks: Forks, trace: Any, more: Mapping[int, int], purpose: str, known: Mapping[int, Counts] | None = None
) -> dict[int, Counts]:
    """``known`` counts with ``more`` forks at each position, all drawn together."""
    out = dict(known or {})
    places = [t for t, n in more.items() if n > 0]
    drawn = await asyncio.gather(
        *(forks.count(trace, t, more[t], purpose, start=out[t].forks if t in out else 0) for t in places)
    )
    for t, counts in zip(places, drawn, strict=True):
        out[t] = out[t] + counts if t in out else counts
    return out


async def count_staged(
    forks: Forks,
    trace: Any,
    positions: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    test: ZTest,
    n: int,
    first: int,
    miss: float,
    purpose: str = "scan",
    pi: Sequence[float] | None = None,
    slack: float = 0.0,
    sure: float = 0.0,
) -> tuple[dict[int, Counts], list[tuple[int, int]]]:
    """Counts by position, and the pairs (start, t) tested: ``first`` forks at all ``positions``, twice as many up to ``n`` where needed.

    A pair stays open while the predictive chance that ``n`` forks of each would make the test fire is at least ``miss``. A start before
    t - 1 is an estimate carried on; it serves the first look only, then the pair gets the position just before its token. ``pi`` are the
    probabilities of the tokens, entry t - 1 that of token t: they bound what a token can lose (:func:`ramify.stats.sequential.chance_of`),
    within ``slack`` for what was carried on. A pair is closed as well once the test's p-value is at most ``sure``.
    """
    counts: dict[int, Counts] = {}
    tested, live, size = {t: start for start, t in pairs}, list(pairs), min(first, n)
    wanted: Iterable[int] = positions
    while True:
        more = {t: size - (counts[t].forks if t in counts else 0) for t in wanted}
        counts = await count_at(forks, trace, more, purpose, counts)
        if size == n and all(start == t - 1 for start, t in live):
            return counts, [(start, t) for t, start in tested.items()]
        live = [
            (t - 1, t)
            for start, t in live
            if not _sure(counts[start], counts[t], test, sure)
            and _open(counts[start], counts[t], test, n, miss, None if pi is None else pi[t - 1], slack)
        ]
        tested.update((t, start) for start, t in live)
        size = min(2 * size, n)
        wanted = sorted({t for pair in live for t in pair})


def _open(prev: Counts, cur: Counts, test: ZTest, n: int, miss: float, pi: float | None, slack: float) -> bool:
    ends = [c.n + max(0, n - c.forks) for c in (prev, cur)]
    bound = None if prev.truncated or cur.truncated else pi  # the chance among the forks that end is no martingale
    return chance_of(test.table(*ends), prev.k, prev.n, cur.k, cur.n, bound, slack) >= miss


def _sure(prev: Counts, cur: Counts, test: ZTest, sure: float) -> bool:
    """With one right and one wrong fork more on either side, since a few forks all right, and none, have no error at all."""
    return test.p_value(*(Counts(c.k + 1, c.n + 2) for c in (prev, cur))) <= sure


async def count_until_lost(forks: Forks, trace: Any, n: int, zeros: int) -> tuple[dict[int, Counts], int | None]:
    """Positions in order, until ``zeros`` of them in a row had no right fork: behind that one nothing is measured."""
    counts: dict[int, Counts] = {}
    run = 0
    for t in range(trace.length + 1):
        counts[t] = await forks.count(trace, t, n, "scan")
        run = run + 1 if counts[t].n and not counts[t].k else 0
        if run == zeros and t < trace.length:
            return counts, t
    return counts, None
