"""The search for forking tokens: other tokens are screened by a few samples each, the most suspicious confirmed on samples of
their own.

**Level.** Another token is named where a bet is won (:class:`ramify.stats.sequential.DropBet`) that what was recorded is rarer
after it than after the token that stands there. Each bet is tested at the level divided by the number of other tokens that were
screened, on samples drawn for nothing else, so the chance of naming any token without an effect is at most the level.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ramify.stats.drops import Counts
from ramify.stats.sequential import DropBet

FIRST = 4
"""Samples that screen each token."""
AT_ONCE, PAIRS = 4, 2
"""Claims that are confirmed in turns, and pairs that each gets in its turn."""
CAP, SOME, LITTLE = 100, 12, 0.14
"""Pairs after which a bet that is not won is given up; or after ``SOME`` where the rates differ by less than ``LITTLE``."""
SCREEN, CONFIRM = "screen", "confirm"


@dataclass(frozen=True, slots=True)
class OtherToken:
    """A token that could have stood after ``t`` tokens of a reply, and its probability there."""

    t: int
    token: int
    odds: float


SampleAt = Callable[[int, int | None, str, int], Awaitable[bool | None]]
"""Samples on after ``t`` tokens and another one (None: after ``t + 1`` of the reply's own), for a purpose and with an index:
whether it came out as recorded; None where that failed."""


@dataclass(slots=True)
class TriedToken:
    """Another token with how often it came out as recorded after the reply's own token (``kept``) and after this one
    (``instead``): samples that confirmed where there are any, else those that screened."""

    other: OtherToken
    kept: Counts
    instead: Counts
    confirmed: bool = False
    """The counts are of samples that were drawn to confirm."""
    named: bool = False

    @property
    def arms(self) -> tuple[tuple[int, int | None], tuple[int, int | None]]:
        """Where ``kept`` and ``instead`` are sampled."""
        return (self.other.t, None), (self.other.t, self.other.token)


@dataclass(frozen=True)
class SearchedTokens:
    """What came of a search: tokens that were tried, in the order of the reply, and what it took."""

    tried: tuple[TriedToken, ...]
    samples: int
    screened: int
    failed: int
    spent: bool
    """The budget ended it while something was still undecided."""


@dataclass
class TokenSearch:
    """A search over ``others``. ``exact``: the model always continues alike, so that one sample each decides."""

    others: Sequence[OtherToken]
    sample: SampleAt
    budget: int = 300
    level: float = 0.05
    exact: bool = False
    samples: int = 0
    failed: int = 0
    _known: dict[tuple[int, int | None, str], list[bool | None]] = field(default_factory=dict)

    async def run(self) -> SearchedTokens:
        """Screen the likeliest other tokens with half of the budget, and confirm with the rest."""
        first = 1 if self.exact else FIRST
        tried = [TriedToken(other, Counts(0, 0), Counts(0, 0)) for other in self._affordable(first)]
        arms = {arm for entry in tried for arm in entry.arms}
        await asyncio.gather(*(self._to(*arm, SCREEN, first) for arm in sorted(arms, key=str)))
        for entry in tried:
            entry.kept, entry.instead = self._counts(entry, SCREEN)
        screened = self.samples
        spent = False
        if self.exact:
            for entry in tried:
                entry.named = entry.kept.k > 0 and entry.instead.n > 0 and not entry.instead.k
        else:
            spent = await self._confirmed(tried)
        ordered = sorted(tried, key=lambda entry: (entry.other.t, -entry.other.odds))
        return SearchedTokens(tuple(ordered), self.samples, screened, self.failed, spent)

    def _affordable(self, first: int) -> list[OtherToken]:
        """The likeliest other tokens that can be screened with half of the budget (all of it where one sample decides)."""
        left, positions, chosen = self.budget if self.exact else max(2 * first, self.budget // 2), set[int](), []
        for other in sorted(self.others, key=lambda entry: (-entry.odds, entry.t, entry.token)):
            cost = first * (1 if other.t in positions else 2)
            if cost <= left:
                left -= cost
                positions.add(other.t)
                chosen.append(other)
        return chosen

    async def _confirmed(self, tried: Sequence[TriedToken]) -> bool:
        """Confirm what was screened as a drop, the largest first; whether the budget ended it."""
        need = math.log(max(1, len(tried)) / self.level)
        suspected = [entry for entry in tried if entry.kept.n and entry.instead.n and entry.kept.rate > entry.instead.rate]
        queue = sorted(suspected, key=lambda entry: (entry.instead.rate - entry.kept.rate, -entry.other.odds))
        live: list[tuple[TriedToken, DropBet]] = []
        while live or queue:
            fresh, queue = queue[: AT_ONCE - len(live)], queue[AT_ONCE - len(live) :]
            live += [(entry, DropBet((_near(entry.kept), _near(entry.instead)))) for entry in fresh]
            if self.samples + 2 * PAIRS * len(live) > self.budget:
                return True
            wanted: dict[tuple[int, int | None], int] = {}
            for entry, bet in live:
                for arm in entry.arms:
                    wanted[arm] = max(wanted.get(arm, 0), bet.n + PAIRS)
            await asyncio.gather(*(self._to(*arm, CONFIRM, n) for arm, n in wanted.items()))
            for entry, bet in live:
                kept, instead = (self._known[*arm, CONFIRM] for arm in entry.arms)
                for first, second in list(zip(kept, instead, strict=False))[bet.n : bet.n + PAIRS]:
                    if first is None or second is None:
                        bet.n += 1  # a pair that failed says nothing
                    else:
                        bet.add(first, second)
                entry.kept, entry.instead = self._counts(entry, CONFIRM)
                entry.confirmed, entry.named = True, bet.best >= need
            live = [(entry, bet) for entry, bet in live if not (entry.named or _hopeless(entry, bet))]
        return False

    async def _to(self, t: int, token: int | None, purpose: str, n: int) -> None:
        """Have ``n`` samples of an arm."""
        have = self._known.setdefault((t, token, purpose), [])
        more = await asyncio.gather(*(self.sample(t, token, purpose, index) for index in range(len(have), n)))
        self.samples += len(more)
        self.failed += sum(outcome is None for outcome in more)
        have += more

    def _counts(self, entry: TriedToken, purpose: str) -> tuple[Counts, Counts]:
        kept, instead = (Counts.of(self._known[*arm, purpose]) for arm in entry.arms)
        return kept, instead


def _near(counts: Counts) -> float:
    return (counts.k + 0.5) / (counts.n + 1)


def _hopeless(entry: TriedToken, bet: DropBet) -> bool:
    little = not (entry.kept.n and entry.instead.n) or entry.kept.rate - entry.instead.rate < LITTLE
    return bet.n >= CAP or (bet.n >= SOME and little)
