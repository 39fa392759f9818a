"""Scan traces for cliffs, faithfully or within a budget; ablate cliffs; make training pairs of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.seeds import generator
from ramify.methods.cliffs.algorithm import (
    Candidate,
    Cliff,
    TokenFacts,
    cliff_mass,
    confirm,
    correct,
    critical_cut,
    detect,
    screen,
    tangent_cut,
)
from ramify.methods.cliffs.forks import Chances, ReplyForks, ReplyPlace, chances_of
from ramify.rollout.potential import Fixed, Forks, ForksSpent, Staged, Store, UntilLost, potential
from ramify.rollout.token_traces import TokenTrace
from ramify.stats.drops import Counts, ZTest

CONTROLS: tuple[Literal["random", "critical", "tangent"], ...] = ("random", "critical", "tangent")
HOPELESS, SURE = 0.01, 0.0005
"""Budgeted: a candidate gets no further fresh forks once the chance that they confirm it is below the one, or its p-value the
other."""

CARRY = 0.02
"""Budgeted: an estimate is carried over left-out tokens while their summed 1 - probability is below this: a fifth of the smallest
drop that counts, so that what they lose together cannot pass for a cliff."""


class ScanConfig(Config):
    """How traces are scanned."""

    n: int = Field(64, ge=1)
    """forks of a position"""
    delta0: float = Field(0.1, ge=0, lt=1)
    """smallest drop that counts"""
    alpha: float = Field(0.05, gt=0, lt=1)
    """one-sided level of the test: of a faithful scan, of rebounds and of other tokens tried at a cliff"""
    candidate: float = Field(0.2, gt=0, lt=1)
    """budgeted: one-sided level at which a drop is checked on fresh forks; alpha where nothing is checked"""
    faithful: bool = False
    """every position with all forks, as in the paper; else the budgeted scan"""
    screen: Literal["prob", "none"] = "prob"
    """budgeted: leave out tokens whose probability under the sampler is at least 1 - delta0, which cannot lose delta0"""
    first: int = Field(16, ge=1)
    """budgeted: forks before the first look; doubled until n"""
    miss: float = Field(0.1, ge=0, lt=1)
    """budgeted: stop at a pair of positions once the chance that all its forks would make it a cliff is below this"""
    confirm: int | None = Field(None, ge=0)
    """fresh forks before and after each candidate, at most where budgeted; 0 is no confirmation;
    none is 256, and 0 with faithful"""
    fdr: float = Field(0.05, gt=0, lt=1)
    """bound on the expected share of false cliffs among the confirmed ones of the whole scan"""
    early_stop: int = Field(0, ge=0)
    """faithful: stop after so many positions in a row without a right fork (the reference: 20); 0 never does"""
    budget_rollouts: int | None = Field(None, ge=1)
    """forks in all; a trace whose first forks no longer fit is not begun, so the last one may go over"""

    @property
    def test(self) -> ZTest:
        """The test at its own level."""
        return ZTest(self.delta0, self.alpha)

    @property
    def finding(self) -> ZTest:
        """The test that finds cliffs: looser where fresh forks check them afterwards."""
        return ZTest(self.delta0, self.alpha if self.faithful or not self.fresh else self.candidate)

    @property
    def fresh(self) -> int:
        """Forks of the confirmation, before and after each candidate, at most."""
        return (0 if self.faithful else 256) if self.confirm is None else self.confirm


@dataclass(frozen=True)
class Scanned:
    """One trace with its potentials, cliffs and rebounds."""

    trace: Any
    cliffs: tuple[Cliff, ...]
    rebounds: tuple[Cliff, ...] = ()
    forks: int = 0
    """Forks requested, confirmation included."""
    tested: int = 0
    """Tokens tested."""
    gap: float = 0.0
    """Largest distance of recorded log-probs from those found now."""
    entropy_of: int = 0
    """Likeliest tokens the entropies sum over; 0 is the whole vocabulary."""

    def of(self, *statuses: str) -> list[Cliff]:
        """The cliffs of these statuses, by position."""
        return [cliff for cliff in self.cliffs if cliff.status in statuses]

    @property
    def kept(self) -> list[Cliff]:
        """Confirmed cliffs, or those found where nothing was confirmed."""
        return self.of("confirmed", "found")


@dataclass
class ScanResult:
    """What a scan found. ``left`` are traces that the budget did not reach,
    ``failed`` those that could not be scored, with the reason."""

    config: ScanConfig
    scanned: list[Scanned] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    spent: ForksSpent = field(default_factory=ForksSpent)


async def scan(
    traces: Sequence[Any],
    forks: Forks[Any, int],
    config: ScanConfig | None = None,
    on_trace: Callable[[Scanned], None] | None = None,
    store: Store[int] | None = None,
) -> ScanResult:
    """Scan every trace, one after the other, all positions of one together; ``on_trace`` is called with each when it is done.

    Candidates are confirmed or refuted over all traces together (:func:`corrected`),
    so those passed to ``on_trace`` are undecided.

    With a ``store``, counts that are in it are loaded and what is measured is kept. Forks are keyed by position, so with forks of
    one seed a budgeted scan's are among those of the faithful one:
    comparing the two shows what the budget loses, and not what other samples would have changed.

    Raises NeedsError where the screen needs probabilities that neither the model nor the trace has.
    """
    config = config or ScanConfig()
    result = ScanResult(config)
    used = 0
    for at, trace in enumerate(traces):
        left = None if config.budget_rollouts is None else config.budget_rollouts - used
        try:
            one = await scan_one(trace, forks, config, left, store)
        except InfrastructureError as error:  # such as a reply that does not fit the model's context
            result.failed[trace.id] = str(error)
            continue
        if one is None:
            result.left = list(traces[at:])
            break
        used += one.forks
        result.scanned.append(one)
        if on_trace is not None:
            on_trace(one)
    result.scanned = corrected(result.scanned, config)
    result.spent = forks.spent()
    return result


LOOKED = 4
"""Problems whose bare prompt is forked before a scan."""


async def first_look(traces: Sequence[Any], forks: Forks[Any, int], config: ScanConfig) -> set[bool]:
    """How replies end, right or wrong or both: the traces, else the first forks of at most :data:`LOOKED` bare prompts.

    Of each as many as a scan's first look takes. Where they end one way only nothing can be found. Empty where nothing is judged.
    Traces are chosen, often the wrong ones, so alike ones alone say nothing."""
    ends = {bool(trace.correct) for trace in traces if trace.correct is not None}
    heads = list({trace.problem_id: trace for trace in traces}.values())[:LOOKED]
    if len(ends) == 2:
        return ends
    looked: set[bool] = set()
    for trace in heads:
        counts, _ = await potential(forks, trace, [0], Fixed(min(config.first, config.n)))
        looked |= {end for end, count in ((True, counts[0].k), (False, counts[0].n - counts[0].k)) if count}
        if len(looked | ends) == 2:
            return looked | ends
    return looked


def corrected(scanned: Sequence[Scanned], config: ScanConfig) -> list[Scanned]:
    """The traces of one whole scan with their checked cliffs confirmed or refuted, false discoveries bounded over all of them."""
    decided = iter(correct([cliff for one in scanned for cliff in one.cliffs], config.fdr))
    return [replace(one, cliffs=tuple(itertools.islice(decided, len(one.cliffs)))) for one in scanned]


async def scan_one(
    trace: Any, forks: Forks[Any, int], config: ScanConfig, left: int | None = None, store: Store[int] | None = None
) -> Scanned | None:
    """One trace; None where its first stage needs more than the ``left`` forks. Raises as :func:`scan`."""
    test, chances = config.finding, await chances_of(forks, trace)
    facts = _facts(chances, trace.length)
    early: int | None = None
    counts: dict[int, Counts]
    positions, pairs = _plan(trace, chances, config)
    if left is not None and len(positions) * (config.n if config.faithful else config.first) > left:
        return None
    if pairs is None and config.early_stop:
        counts, early = await potential(forks, trace, positions, UntilLost(config.n, config.early_stop), store=store)
    elif pairs is None:
        counts, _ = await potential(forks, trace, positions, Fixed(config.n), store=store)
    else:
        rule = Staged(config.n, config.first, config.miss, test, pairs, _bound(chances, config), CARRY)
        counts, pairs = await potential(forks, trace, positions, rule, store=store)
    _complete(forks, trace, counts)
    found = trace.with_potentials(counts, early)
    known: dict[str, Any] = {"token_ids": getattr(trace, "response_ids", None), "facts": facts, "pairs": pairs}
    cliffs = detect(trace.id, found.potentials, test, **known)
    rebounds = detect(trace.id, found.potentials, config.test, **known, rises=True)
    total = sum(c.forks for c in counts.values())
    if config.fresh and cliffs:
        cliffs = await _checked(trace, forks, cliffs, chances, config, store)
        total += sum({t: c.forks for cliff in cliffs for t, c in _fresh(cliff)}.values())
    tested = len(counts) - 1 if pairs is None else len(pairs)
    return Scanned(found, tuple(cliffs), tuple(rebounds), total, tested, chances.gap, chances.entropy_of)


async def _checked(
    trace: Any, forks: Forks[Any, int], cliffs: Sequence[Cliff], chances: Chances, config: ScanConfig, store: Store[int] | None
) -> list[Cliff]:
    """The cliffs with fresh counts before and after each: all of them, or, in a budgeted scan, in up to three looks, until they
    confirm it beyond doubt or will not. Giving a candidate up leaves its p-value large, so it never makes a false cliff."""
    pairs = [(_before(cliff), cliff.t) for cliff in cliffs]
    positions = sorted({t for pair in pairs for t in pair})
    if config.faithful:
        sure, (fresh, _) = 0.0, await potential(forks, trace, positions, Fixed(config.fresh), "confirm", store)
    else:
        test, first, sure = ZTest(config.delta0, config.fdr), -(-config.fresh // 4), SURE
        rule = Staged(config.fresh, first, HOPELESS, test, pairs, _bound(chances, config), sure=sure)
        fresh, _ = await potential(forks, trace, positions, rule, "confirm", store)
    _complete(forks, trace, fresh)
    return confirm(cliffs, [(fresh[start], fresh[t]) for start, t in pairs], config.test, sure)


def _before(cliff: Cliff) -> int:
    return cliff.start if cliff.interval else cliff.t - 1


def _fresh(cliff: Cliff) -> list[tuple[int, Counts]]:
    return list(zip((_before(cliff), cliff.t), cliff.fresh or (), strict=False))


def _bound(chances: Chances, config: ScanConfig) -> list[float] | None:
    """Probabilities of the tokens where they bound what a token can lose."""
    known = chances.least if chances.pi is None else chances.pi
    return None if config.screen == "none" or known is None else known.tolist()


def _complete(forks: Forks[Any, int], trace: Any, counts: Mapping[int, Counts]) -> None:
    """Refuse counts of a trace on which the model or the verifier failed; a missing score of the reply itself is allowed."""
    broken = [t for t, c in counts.items() if t < trace.length and c.missing and 2 * c.missing >= c.forks]
    if broken:
        why = forks.spent().first_failure or "the verifier gave none"
        raise InfrastructureError(
            "scorer", f"at {len(broken)} of {len(counts)} positions half of the forks or more have no score: {why}"
        )


def _plan(trace: Any, chances: Chances, config: ScanConfig) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Positions to measure at first, and the pairs to test; None where every neighbouring pair is."""
    every = list(range(trace.length + 1))
    if config.faithful:
        return every, None
    if config.screen == "none":
        return every, list(itertools.pairwise(every))
    known = _bound(chances, config)
    if known is None:
        raise NeedsError(
            f"the probability screen needs the probabilities of the tokens of trace '{trace.id}', and neither the trace nor the "
            "model has them: its server gives neither log-probs of given tokens (prompt_logprobs) nor the likeliest tokens "
            "beside a sampled one (logprobs), or they say nothing of these sampling settings; scan with --screen none"
        )
    return screen(known, config.delta0, CARRY)


async def cost_estimate(traces: Sequence[Any], forks: Forks[Any, int], config: ScanConfig) -> dict[str, int]:
    """What a scan will take, from the screen alone: forks at the first look,
    at most before confirmation, and of a faithful scan."""
    plans = [(trace, _plan(trace, await chances_of(forks, trace), config)) for trace in traces]
    positions = sum(len(places) for _, (places, _) in plans)
    return {
        "traces": len(plans),
        "tokens": sum(trace.length for trace, _ in plans),
        "positions": positions,
        "forks at the first look": positions * (config.n if config.faithful else min(config.first, config.n)),
        "forks at most": config.n * sum(len({*places, *(t - 1 for _, t in pairs or ())}) for _, (places, pairs) in plans),
        "forks of every position": config.n * sum(trace.length + 1 for trace, _ in plans),
        "forks to confirm a candidate": 2 * config.fresh,
    }


def _facts(chances: Chances, length: int) -> list[TokenFacts]:
    def column(values: np.ndarray | None) -> list[Any]:
        return [None] * length if values is None else values.tolist()

    columns = (column(chances.pi), column(chances.q), column(chances.entropy), column(chances.greedy))
    return [TokenFacts(*row) for row in zip(*columns, strict=True)]


# -- deletion and keeping (3.3)


@dataclass(frozen=True)
class AblatedCliff:
    """Fresh forks of one cliff, by arm: ``del`` resamples from before the token, ``keep`` from after it; then the controls."""

    trace_id: str
    t: int
    kind: str | None
    """Its class."""
    cuts: Mapping[str, int | None]
    """Where each arm resamples from; None where that is undefined."""
    counts: Mapping[str, Counts | None]


async def ablate(
    scanned: Sequence[Scanned],
    forks: Forks[Any, int],
    n: int = 64,
    controls: Sequence[str] = CONTROLS,
    which: Literal["first", "all"] = "first",
    seed: int = 42,
    progress: Progress = SILENT,
) -> list[AblatedCliff]:
    """Fresh continuations with the cliff token taken back and kept, and the controls: one record a cliff.

    Of each trace that ended wrong: its first cliff, or all of them. ``del`` resamples from before the token, which the sampler
    may sample again; ``keep`` from after it. The controls, which are of the
    trace, stand in the record of its first cliff only, None where undefined. Forks here are sampled for this alone, never taken
    over from the scan. Raises UserError on a control there is none of.
    """
    for name in controls:
        if name not in CONTROLS:
            raise UserError(f"unknown control '{name}': known are {', '.join(CONTROLS)}")

    async def one(trace: Any, cliff: Cliff, controls: Sequence[str]) -> AblatedCliff:
        cuts = _cuts(trace, cliff, controls, seed)
        places = {arm: t for arm, t in cuts.items() if t is not None}
        counts = await asyncio.gather(*(forks.count(trace, t, n, f"ablate-{arm}") for arm, t in places.items()))
        found = dict.fromkeys(cuts) | dict(zip(places, counts, strict=True))
        return AblatedCliff(trace.id, cliff.t, cliff.facts.kind, cuts, found)

    jobs = []
    for result in scanned:
        if result.trace.correct is False:
            chosen = result.kept[:1] if which == "first" else result.kept
            jobs += [one(result.trace, cliff, () if i else controls) for i, cliff in enumerate(chosen)]
    progress.begin(len(jobs), 0, f"fork {n} times", "cliffs")
    return await gathered(jobs, progress)


def _cuts(trace: Any, cliff: Cliff, controls: Sequence[str], seed: int) -> dict[str, int | None]:
    cuts: dict[str, int | None] = {"del": _before(cliff), "keep": cliff.t}
    if "random" in controls:
        high = max(2, trace.length)
        cuts["random"] = int(generator(seed, "random-del", trace.id).integers(1, high))
    if "critical" in controls:
        cuts["critical"] = critical_cut(trace.potentials)
    if "tangent" in controls:
        cuts["tangent"] = tangent_cut(trace.potentials)
    return cuts


# -- candidates, mass and pairs (3.5, 3.6)


@dataclass(frozen=True)
class Examined:
    """A cliff with the other tokens that could have been sampled there."""

    trace: TokenTrace
    cliff: Cliff
    prev: Counts
    """Fresh forks of the position before."""
    candidates: tuple[Candidate, ...]

    @property
    def mass(self) -> float:
        """CPM under the source model."""
        return cliff_mass(self.candidates, self.trace.response_ids[self.cliff.t - 1])


async def examine(
    scanned: Sequence[Scanned], forks: ReplyForks, test: ZTest, top: int = 10, n: int = 64, classes: Sequence[str] = ()
) -> list[Examined]:
    """The ``top`` likeliest tokens at every kept cliff, the cliff token itself included, with fresh forks after each.

    ``classes`` keeps cliffs of these classes only. Raises NeedsError where the model does not return the likeliest tokens.
    """

    async def one(trace: TokenTrace, cliff: Cliff) -> Examined:
        options = await forks.alternatives(trace, cliff.t - 1, top)
        token = trace.response_ids[cliff.t - 1]
        options.setdefault(token, cliff.facts.q or 0.0)
        places: list[ReplyPlace] = [cliff.t - 1, *((cliff.t - 1, a) for a in options)]
        prev, *after = await asyncio.gather(*(forks.count(trace, place, n, "candidates") for place in places))
        found = [Candidate(a, q, c, test.fires(prev, c)) for (a, q), c in zip(options.items(), after, strict=True)]
        return Examined(trace, cliff, prev, tuple(found))

    jobs = [
        one(result.trace, cliff)
        for result in scanned
        for cliff in result.kept
        if not cliff.interval and (not classes or cliff.facts.kind in classes)
    ]
    return list(await asyncio.gather(*jobs))


@dataclass(frozen=True)
class TokenPair:
    """A row for preference training on one token. Nothing may be appended to either token."""

    trace_id: str
    t: int
    prompt_ids: tuple[int, ...]
    """The question, and the reply up to the cliff."""
    chosen_id: int
    rejected_id: int
    kind: str | None = None
    """Class of the cliff."""
    p_prev: float | None = None
    """Potential before it; and after either token."""
    p_chosen: float | None = None
    p_rejected: float | None = None


def pairs(examined: Sequence[Examined], hard: bool = False) -> list[TokenPair]:
    """Rows for preference training on one token: the cliff token rejected, each candidate that is no cliff chosen (3.6).

    ``hard`` keeps candidates whose potential is at least that before the cliff.
    """
    rows = []
    for one in examined:
        token = one.trace.response_ids[one.cliff.t - 1]
        rejected = next(c for c in one.candidates if c.token_id == token)
        for candidate in one.candidates:
            if candidate.token_id == token or candidate.is_cliff or not candidate.counts.n:
                continue
            if hard and candidate.counts.rate < one.prev.rate:
                continue
            rows.append(
                TokenPair(
                    one.trace.id,
                    one.cliff.t,
                    tuple(one.trace.prefix(one.cliff.t - 1).tolist()),
                    candidate.token_id,
                    token,
                    one.cliff.facts.kind,
                    one.prev.rate if one.prev.n else None,
                    candidate.counts.rate,
                    rejected.counts.rate if rejected.counts.n else None,
                )
            )
    return rows


@dataclass(frozen=True)
class CliffMass:
    """CPM of a cliff under its own model and under another."""

    trace_id: str
    t: int
    cpm: float
    cpm_other: float
    delta: float


async def mass_under(examined: Sequence[Examined], forks: ReplyForks) -> list[CliffMass]:
    """CPM of each cliff under the source model and under the model of ``forks``,
    at the same prefix (3.5): one forward pass a token.

    Raises NeedsError on another tokenizer.
    """
    out = []
    for one in examined:
        token = one.trace.response_ids[one.cliff.t - 1]
        inside = [c.token_id for c in one.candidates if c.is_cliff or c.token_id == token]
        mass = cliff_mass(one.candidates, token, await forks.chances_of(one.trace, one.cliff.t - 1, inside))
        out.append(CliffMass(one.trace.id, one.cliff.t, one.mass, mass, mass - one.mass))
    return out
