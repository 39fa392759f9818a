"""The search for the parts that a decision depends on: screened by what each sample tells about all parts at once, confirmed on
samples of their own.

**Level.** A cause is reported where two bets are won (:class:`ramify.stats.sequential.DropBet`): that the decision is rarer
without the part than with it, once with the part deleted and once with filler in its place. Their samples were drawn for nothing
else. Claim j, of all that are ever tried in a search, is tested at ``level * SPEND * (1 - SPEND)^j``, so the chance of reporting
any part on which the decision does not depend is at most ``level``, over all parts looked at. Of parts that are each enough, each
is tested while the others are left out; a claim about several parts is reported when each of them is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ramify.jobs.context.screen import CauseHypothesis, CauseScreen, Kind
from ramify.stats.drops import Counts
from ramify.stats.sequential import DropBet

HOPELESS = -3.0
"""The logarithm of a bet below which it is given up."""
SPEND = 0.8
"""Share of the level that is left which the next claim is tested at."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One context to sample a decision in: without the leaves ``left_out``, deleted or with filler in their place; ``index``
    counts the samples of one variant."""

    left_out: tuple[int, ...] = ()
    filler: bool = False
    index: int = 0


Decisions = Callable[[Sequence[Variant]], Awaitable[Sequence[bool | None]]]
"""Samples the decision in each context, all at once; None where a sample failed."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How long to search. ``ready``, ``stay`` and ``sure`` are posteriors: of a claim whose confirmation begins, that is
    continued, and that is reported once confirmed; ``nothing``: of no (further) cause, that ends the search."""

    budget: int = 300
    """Samples at most."""
    level: float = 0.05
    at_once: int = 1
    """Samples that are drawn at once while screening."""
    ready: float = 0.6
    stay: float = 0.4
    sure: float = 0.8
    nothing: float = 0.9
    cap: int = 100
    """Pairs after which a bet that is not won is given up."""
    claims: int = 3
    """Causes (each of one part or several) after which the search ends."""
    units: int = 48
    """Parts that are told apart at a time, about; groups are opened as they turn out likely."""


@dataclass(frozen=True, slots=True)
class FoundCause:
    """Parts, by number, that are needed together, each enough, or one alone, with the counts that confirmed it: of each part
    ``kept`` (with it), ``deleted`` and ``filled``."""

    kind: Kind
    parts: tuple[int, ...]
    kept: tuple[Counts, ...]
    deleted: tuple[Counts, ...]
    filled: tuple[Counts, ...]
    level: float
    """At which it was tested."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What came of a search."""

    causes: tuple[FoundCause, ...]
    whole: Counts
    """The decision in the context as it was."""
    bare: Counts
    """The decision without any part."""
    samples: int
    failed: int
    nothing: float
    """The posterior of no (further) cause, at the end: by the model of the screening, not a level."""
    spent: bool
    tried: int
    """Claims whose confirmation began."""
    screened: int
    """Samples that were drawn to screen; the others confirmed."""
    unconfirmed: tuple[int, ...] = ()
    """Parts of the likeliest claim where nothing was confirmed."""


@dataclass
class _Claim:
    need: float
    tests: tuple[tuple[tuple[int, ...], int], ...]
    """Pairs of parts that are left out in both arms, and the part that is tested."""
    level: float
    given_up: bool = False


@dataclass
class CauseSearch:
    """A search over parts: ``leaves[p]`` are the leaves of part p, ``children[p]`` its parts; ``top`` are the parts to begin
    with, ``fixed`` leaves that are never left out."""

    leaves: Sequence[Sequence[int]]
    children: Sequence[Sequence[int]]
    top: Sequence[int]
    decide: Decisions
    settings: SearchSettings = field(default_factory=SearchSettings)
    fixed: Sequence[int] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._n = 1 + max((leaf for leaves in self.leaves for leaf in leaves), default=-1)
        self._data: list[tuple[np.ndarray, bool]] = []
        self._next: dict[tuple[tuple[int, ...], bool], int] = {}
        self._confirming: dict[tuple[tuple[int, ...], bool], list[bool]] = {}
        self._bets: dict[tuple[tuple[int, ...], int, bool], DropBet] = {}
        self._claims: dict[tuple[Kind, tuple[int, ...]], _Claim] = {}
        self._samples = self._failed = self._row = self._screened = 0
        self._units: list[int] = []
        self._shut = set(self.top)
        """Parts that are not opened: the parts in them are not told apart yet."""
        self._held = np.zeros(self._n, bool)
        self._held[list(self.fixed)] = True

    async def run(self) -> Searched:
        """Search until nothing more is likely, the budget is spent, or what is likely cannot be confirmed."""
        self._open_widest()
        causes: list[FoundCause] = []
        self._screen = self._screening(False)
        await self._draw([()] * min(2, self.settings.budget))
        while self._samples < self.settings.budget and self._row < 8 and self._units:
            screen = self._screen
            likely = screen.hypothesis(screen.best)
            weight = float(screen.weights[screen.best])
            if screen.weights[0] > self.settings.nothing:
                break
            if opened := self._to_open(likely, weight):
                self._open(opened)
                self._screen = self._screening(bool(causes))
                continue
            claim = self._claim(likely, weight)
            if claim is not None:
                if claim.given_up:
                    break
                live = self._live(claim, likely)
                if live:
                    await self._confirm(claim, live)
                    continue
                if weight >= self.settings.sure:
                    causes.append(self._found(likely, claim))
                    if len(causes) >= self.settings.claims or not self._hold(causes[-1]):
                        break
                    self._screen = self._screening(True)
                    continue
            await self._draw([tuple(map(int, np.flatnonzero(entry))) for entry in screen.next(self.settings.at_once)])
        return self._ended(causes)

    # --- samples ------------------------------------------------------------------------------------------------------

    async def _draw(self, sets: Sequence[tuple[int, ...]]) -> None:
        """Screening samples, by turns deleted and filled."""
        wanted = [self._variant(left_out, bool(left_out) and (self._samples + i) % 2 == 1) for i, left_out in enumerate(sets)]
        self._screened += len(await self._sampled(wanted))

    def _variant(self, left_out: tuple[int, ...], filler: bool) -> Variant:
        key = left_out, filler
        index = self._next.get(key, 0)
        self._next[key] = index + 1
        return Variant(left_out, filler, index)

    async def _sampled(self, wanted: Sequence[Variant]) -> list[bool | None]:
        done = list(await self.decide(wanted))
        for entry, happened in zip(wanted, done, strict=True):
            self._samples += 1
            self._row = self._row + 1 if happened is None else 0
            if happened is None:
                self._failed += 1
                continue
            left_out = np.zeros(self._n, bool)
            left_out[list(entry.left_out)] = True
            self._data.append((left_out, happened))
        self._screen.extend(
            [(x, y) for x, y in self._data[len(self._data) - sum(entry is not None for entry in done) :] if self._fits(x)]
        )
        return done

    def _fits(self, left_out: np.ndarray) -> bool:
        """Whether a sample speaks about what is still searched: nothing that was found (or is fixed) was left out."""
        return not (left_out & self._held).any()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _screening(self, more: bool) -> CauseScreen:
        units = np.zeros((len(self._units), self._n), bool)
        for row, part in enumerate(self._units):
            units[row, list(self.leaves[part])] = True
        screen = CauseScreen(units, self._held, self.seed, more)
        screen.extend([(x, y) for x, y in self._data if self._fits(x)])
        return screen

    def _open_widest(self) -> None:
        """Open groups, the largest first, while there are few enough parts; all of them are units."""
        self._units = [part for part in self.top if not self._touches(part)]
        while True:
            wide = [p for p in self._shut if self.children[p]]
            part = max(wide, key=lambda p: (len(self.leaves[p]), -p), default=None)
            if part is None or len(self._units) + len(self.children[part]) > self.settings.units:
                return
            self._open(part)

    def _open(self, part: int) -> None:
        self._shut.discard(part)
        self._shut |= set(self.children[part])
        self._units += [child for child in self.children[part] if not self._touches(child)]
        if self._touches(part) and part in self._units:
            self._units.remove(part)

    def _touches(self, part: int) -> bool:
        return bool(self._held[list(self.leaves[part])].any())

    def _to_open(self, likely: CauseHypothesis, weight: float) -> int | None:
        """A part of the likeliest claim whose parts are not told apart yet."""
        if weight < self.settings.stay:
            return None
        return next((p for u in likely.units if (p := self._units[u]) in self._shut and self.children[p]), None)

    def _hold(self, cause: FoundCause) -> bool:
        """Keep what was found from here on; whether anything else is left to search."""
        for part in cause.parts:
            self._held[list(self.leaves[part])] = True
        shut = [part for part in self._units if self._touches(part) and part in self._shut and self.children[part]]
        for part in shut:
            self._open(part)
        self._units = [part for part in self._units if not self._touches(part)]
        return bool(self._units)

    # --- claims -------------------------------------------------------------------------------------------------------

    def _claim(self, likely: CauseHypothesis, weight: float) -> _Claim | None:
        """The claim that the likeliest hypothesis makes, where it is likely enough."""
        if likely.kind == "none":
            return None
        parts = tuple(sorted(self._units[u] for u in likely.units))
        known = self._claims.get((likely.kind, parts))
        if known is not None:
            return known if weight >= self.settings.stay else None
        if weight < self.settings.ready:
            return None
        level = self.settings.level * SPEND * (1 - SPEND) ** len(self._claims)
        tests = tuple((tuple(p for p in parts if p != part) if likely.kind == "each" else (), part) for part in parts)
        claim = self._claims[likely.kind, parts] = _Claim(-math.log(level), tests, level)
        return claim

    def _live(self, claim: _Claim, likely: CauseHypothesis) -> list[tuple[tuple[int, ...], int, bool]]:
        """The bets of a claim that are not won yet."""
        number = self._screen.best
        near = float(self._screen.high[number]), float(self._screen.low[number])
        live = []
        for without, part in claim.tests:
            alone = self._claims.get(("one", (part,))) if not without else None
            need = claim.need if alone is None else min(claim.need, alone.need)  # won by a claim of its own before: it stays won
            for filler in (False, True):
                bet = self._bets.setdefault((without, part, filler), DropBet(near))
                if bet.best < need:
                    live.append((without, part, filler))
                    claim.given_up = claim.given_up or bet.n >= self.settings.cap or (bet.n >= 12 and bet.now < HOPELESS)
        return live

    async def _confirm(self, claim: _Claim, live: Sequence[tuple[tuple[int, ...], int, bool]]) -> None:
        """One pair for each bet; arms that several bets have in common are sampled once."""
        wanted: dict[tuple[tuple[int, ...], bool], int] = {}
        pairs = []
        for without, part, filler in live:
            n = self._bets[without, part, filler].n
            arms = tuple(self._arm(parts, filler) for parts in (without, (*without, part)))
            pairs.append((self._bets[without, part, filler], arms, n))
            for arm in arms:
                wanted[arm] = max(wanted.get(arm, 0), n + 1)
        missing = [arm for arm, n in wanted.items() for _ in range(n - len(self._confirming.get(arm, ())))]
        done = await self._sampled([self._variant(*arm) for arm in missing])
        for arm, happened in zip(missing, done, strict=True):
            if happened is not None:
                self._confirming.setdefault(arm, []).append(happened)
        for bet, (kept, without_it), n in pairs:
            have = self._confirming.get(kept, []), self._confirming.get(without_it, [])
            if min(map(len, have)) > n:
                bet.add(have[0][n], have[1][n])

    def _arm(self, parts: tuple[int, ...], filler: bool) -> tuple[tuple[int, ...], bool]:
        left_out = tuple(sorted({leaf for part in parts for leaf in self.leaves[part]}))
        return left_out, filler and bool(left_out)

    def _found(self, likely: CauseHypothesis, claim: _Claim) -> FoundCause:
        def counts(without: tuple[int, ...], filler: bool) -> Counts:
            return Counts.of(self._confirming.get(self._arm(without, filler), ()))

        return FoundCause(
            likely.kind,
            tuple(part for _, part in claim.tests),
            tuple(counts(without, False) + (counts(without, True) if without else Counts(0, 0)) for without, _ in claim.tests),
            tuple(counts((*without, part), False) for without, part in claim.tests),
            tuple(counts((*without, part), True) for without, part in claim.tests),
            claim.level,
        )

    def _ended(self, causes: Sequence[FoundCause]) -> Searched:
        everything = np.ones(self._n, bool)
        everything[list(self.fixed)] = False

        def counts(left_out: np.ndarray) -> Counts:
            return Counts.of(y for x, y in self._data if (x == left_out).all())

        likely = self._screen.hypothesis(self._screen.best)
        return Searched(
            tuple(causes),
            counts(np.zeros(self._n, bool)),
            counts(everything),
            self._samples,
            self._failed,
            float(self._screen.weights[0]) if self._units else 1.0,
            self._samples >= self.settings.budget,
            len(self._claims),
            self._screened,
            () if causes else tuple(self._units[u] for u in likely.units),
        )
