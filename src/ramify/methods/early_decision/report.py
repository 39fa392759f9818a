"""What all stages of a study say together, the ambiguous prompts first. No model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.early_decision.algorithm import (
    Cut,
    DefenceEffect,
    Family,
    Locked,
    OpenFall,
    Point,
    ThinkingEffect,
    TurnSummary,
    continuation_point,
    defence,
    detectable,
    error_rates,
    judge_cuts,
    oscillation_summary,
    panel_agreement,
    settling,
    thinking_effect,
)
from ramify.methods.early_decision.record import (
    CONTINUE,
    PROBE,
    TURNS,
    VALLEY,
    CutCounts,
    Mode,
    Study,
    StudyTrace,
    TurnCounts,
    Way,
)
from ramify.methods.early_decision.results import (
    ContinuationCurves,
    Continued,
    MeanPoint,
    PoolShares,
    ProbedStates,
    SmallestSignificant,
    Spent,
    StageVerdict,
    StudyReport,
    TurnSettings,
    TurnsFound,
    TurnsMeasured,
    ValleyFound,
    WayCurves,
    WayMeans,
)
from ramify.stats.intervals import clustered_share
from ramify.trace.node import Finding

AMBIGUOUS = (0.2, 0.8)
"""Share of yes, among rollouts that no prefix is taken from, within which a prompt is ambiguous."""
C = TypeVar("C", bound=CutCounts)


class ReportConfig(Config):
    """How cuts are judged; where the published material disagrees, the default is that of its tables (8)."""

    locked: Locked = "pre"
    """locked: the share before the turn is saturated (the code), or both are (the documentation)"""
    family: Family = "model"
    """cuts that are corrected together"""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """of the tests of cuts"""
    margin: float = Field(0.1, gt=0, lt=1)
    """within which two shares are equivalent"""


def build(study: Study, config: ReportConfig | None = None, base: Study | None = None) -> StudyReport:
    """Everything the study's run says; beside that of ``base``, the same prompts without a defence."""
    curves, turns = continuation(study), oscillation(study, config or ReportConfig())
    probed, along = study.found(PROBE, ProbedStates), study.found(VALLEY, ValleyFound)
    verdicts = {
        "probe": None if probed is None else probed.judged,
        "valley": None if along is None else along.judged,
        "continuation": None if curves is None else curves.verdict(),
        "oscillation": None if turns is None else turns.verdict(),
    }
    return StudyReport(
        study.source,
        len(study.prompts),
        statuses(study),
        forced(study),
        shares(study),
        _effects(study),
        curves,
        turns,
        probed,
        along,
        {name: verdict for name, verdict in verdicts.items() if verdict is not None},
        None if base is None else compare(base, study),
    )


def statuses(study: Study) -> dict[str, int]:
    """How many traces there are of each kind."""
    return dict(sorted(Counter(row.status for row in study.traces.values()).items()))


def forced(study: Study) -> int:
    """Thinking that was closed by force."""
    return sum(row.closed == "forced" and row.mode == "thinking" for row in study.traces.values())


def conclude_continuation(study: Study, settings: Mapping[str, Any], spent: Spent) -> Continued:
    """What continuations say, which the run keeps where there are any."""
    found = continuation(study)
    verdict = StageVerdict.of("", "no prefix was continued") if found is None else found.verdict()
    result = Continued(found, spent, **vars(verdict))
    if found is not None:
        study.conclude(CONTINUE, result, found.open_fall, settings)
    return result


def conclude_turns(study: Study, settings: Mapping[str, Any], unrated: int, spent: Spent) -> TurnsMeasured:
    """What cuts at turns of stance say, which the run keeps where stances were rated; every turn is a finding of its own."""
    found = oscillation(study, ReportConfig())
    verdict = StageVerdict.of("", "no trace was rated") if found is None else found.verdict()
    caveats = (f"{plural(unrated, 'trace')} left out, rated by no judge; the same command tries them again",) if unrated else ()
    result = TurnsMeasured(found, unrated, spent, **vars(verdict), caveats=caveats)
    if found is not None:
        study.conclude(TURNS, result, replace(found, by_pool={}), settings, *_turns(study))
    return result


def _tally(study: Study, mode: Mode, without: Container[str] = ()) -> dict[str, tuple[int, int]]:
    """(yes, labelled) of each prompt's traces, but those whose key is in ``without``."""
    ends: dict[str, list[bool]] = {name: [] for name in study.prompts}
    for row in study.labelled(mode):
        if row.key not in without:
            ends[row.prompt].append(row.outcome is True)
    return {name: (sum(outcomes), len(outcomes)) for name, outcomes in ends.items()}


def shares(study: Study) -> dict[str, PoolShares]:
    """Shares of yes by mode and pool. Prompts were sampled, and traces of one prompt are alike."""
    found: dict[str, PoolShares] = {}
    for mode in study.config.modes:
        rows = study.labelled(mode)
        of = {}
        for pool, names in study.pools.items():
            own = [row for row in rows if row.prompt in names]
            of[pool] = clustered_share([row.outcome is True for row in own], [row.prompt for row in own])
        harmful, benign = of.get("harmful"), of.get("benign")
        errors = harmful and benign and all(of.values()) and error_rates((harmful.k, harmful.n), (benign.k, benign.n))
        found[mode] = PoolShares({pool or "all": share for pool, share in of.items()}, errors or None)
    return found


def compare(base: Study, treated: Study) -> DefenceEffect:
    """Whether a defence discriminates better or only moves the threshold, on the prompts of both studies, with thinking (3.9).

    Raises UserError where the studies have other prompts, or lack a pool named harmful or benign.
    """
    if base.prompts != treated.prompts:
        raise UserError(f"{base.folder} and {treated.folder} are studies of other prompts, so they cannot be compared")
    sides = []
    for study in (base, treated):
        each = _tally(study, "thinking")
        side = {pool: [each[name] for name in study.pools.get(pool, ())] for pool in ("harmful", "benign")}
        for pool, counts in side.items():
            if not any(n for _, n in counts):
                raise UserError(f"{study.folder} has no labelled trace in a pool named '{pool}', and a comparison needs both")
        sides.append((side["harmful"], side["benign"]))
    return defence(sides[0], sides[1])


def _effects(study: Study) -> dict[str, ThinkingEffect]:
    modes = _tally(study, "thinking"), _tally(study, "none")
    out = {}
    for pool, names in study.pools.items():
        k_on, n_on, k_off, n_off = ([each[name][i] for name in names] for each in modes for i in (0, 1))
        out[pool or "all"] = thinking_effect(k_on, n_on, k_off, n_off)
    return out


def slices(study: Study, m: int) -> dict[str, str]:
    """The slice of each prompt: what it says itself (``slice``),
    else ambiguous or settled by rollouts that no prefix is taken from.

    Prompts without such rollouts belong to none: a slice chosen on the samples it is judged by would look settled by selection.
    """
    taken = {row.key for row in study.prefixes(m)}
    out = {}
    for name, (k, n) in _tally(study, "thinking", taken).items():
        own = study.prompts[name].slice
        if own or n > 1:
            out[name] = own or ("ambiguous" if AMBIGUOUS[0] <= k / n <= AMBIGUOUS[1] else "settled")
    return out


Ended = tuple[StudyTrace, int, int]
"""A trace that a prefix is from, and (yes, judged) of the continuations."""


def continuation(study: Study) -> ContinuationCurves | None:
    """Continuation curves by way: of each slice (ambiguous first), each pool, all prefixes,
    and the mean of the pools (the paper's). None where nothing was continued."""
    sampled = _largest(study.continued, lambda row: (row.trace, row.way, row.share))
    if not sampled:
        return None
    parents = {row.key: row for row in study.labelled()}
    used = [parents[key] for key in sorted({row.trace for row in sampled})]
    m = max(Counter(row.prompt for row in used).values())
    slice_of, prefixes = slices(study, m), {row.key for row in study.prefixes(m)}
    on, off = _tally(study, "thinking"), _tally(study, "none")
    siblings = _tally(study, "thinking", parents.keys() - prefixes)  # a slice is not shown on the rollouts that chose it
    siblings |= {name: on[name] for name in on if study.prompts[name].slice}
    points: list[tuple[Way, float, Ended]] = [(row.way, row.share, (parents[row.trace], row.k, row.n)) for row in sampled]
    points += [("closed", 0.0, (row, *off[row.prompt])) for row in used]  # nothing kept: no thinking
    parts = sorted(set(slice_of.values()), key=lambda name: (name != "ambiguous", name))
    found = {part: _curves(points, used, {name for name in slice_of if slice_of[name] == part}, siblings) for part in parts}
    pools = {f"pool {pool}": _curves(points, used, set(names), on) for pool, names in study.pools.items() if pool}
    return ContinuationCurves(
        found | pools | {"all": _curves(points, used, study.prompts, on)},
        WayMeans(_means([own.closed for own in pools.values()]), _means([own.open for own in pools.values()])),
        _open_fall(points, on, study.config.seed),
        Counter(slice_of.values()),
        sum(row.status == "no_room" for row in sampled),
        sum(row.missing for row in sampled),
    )


def _curves(
    points: Sequence[tuple[Way, float, Ended]],
    used: Sequence[StudyTrace],
    names: Container[str],
    ends: Mapping[str, tuple[int, int]],
) -> WayCurves:
    """Of the prefixes of some prompts; open with nothing kept is the whole trace anew,
    its own sample left out of ``ends``."""
    anew: list[tuple[Way, float, Ended]] = [
        ("open", 0.0, (row, ends[row.prompt][0] - (row.outcome is True), ends[row.prompt][1] - 1)) for row in used
    ]
    at: dict[tuple[Way, float], list[Ended]] = {}
    for way, share, ended in (*points, *anew):
        if ended[2] > 1 and ended[0].prompt in names:
            at.setdefault((way, share), []).append(ended)
    out: dict[Way, list[Point]] = {"closed": [], "open": []}
    for way, share in sorted(at):
        rows, k, n = zip(*at[way, share], strict=True)
        outcomes, prompts = [row.outcome is True for row in rows], [row.prompt for row in rows]
        out[way].append(continuation_point(share, way, k, n, outcomes, prompts))
    return WayCurves(tuple(out["closed"]), tuple(out["open"]))


def _means(curves: Sequence[Sequence[Point]]) -> tuple[MeanPoint, ...]:
    """Over pools, at each share that any of them has."""
    of: dict[float, list[float]] = {}
    for point in (point for own in curves for point in own):
        of.setdefault(point.share, []).append(point.variance)
    return tuple(MeanPoint(share, sum(values) / len(values)) for share, values in sorted(of.items()))


def _open_fall(points: Sequence[tuple[Way, float, Ended]], on: Mapping[str, tuple[int, int]], seed: int) -> OpenFall | None:
    """Open variance with nothing kept minus that at the largest share, prefix by prefix; None where no prefix has both."""
    last = max((share for way, share, _ in points if way == "open"), default=0.0)
    of: dict[str, list[tuple[bool, int, int]]] = {}
    for way, share, (row, k, n) in points:
        if (way, share) == ("open", last) and n > 1 and on[row.prompt][1] > 2:
            of.setdefault(row.prompt, []).append((row.outcome is True, k, n))
    return settling([(on[name], rows) for name, rows in of.items()], seed, share=last) if of else None


def _largest(found: Mapping[str, C], at: Callable[[C], tuple[Any, ...]]) -> list[C]:
    """The row with most samples at each position, by position: it includes the samples of earlier calls."""
    rows: dict[tuple[Any, ...], C] = {}
    for row in sorted(found.values(), key=lambda row: row.n + row.missing):
        rows[at(row)] = row
    return [rows[place] for place in sorted(rows)]


Turn = tuple[str, int, TurnCounts, TurnCounts]
"""Trace, stance after the turn, the cut before it and the one after it."""


def _measured_turns(study: Study) -> tuple[list[Turn], int]:
    """Every turn of stance with answers at both its cuts, and how many lack them."""
    at = {(row.trace, row.chunk): row for row in _largest(study.cuts, lambda row: (row.trace, row.chunk)) if row.n}
    found, lacking = [], 0
    for key, row in sorted(study.stances.items()):
        for turn in row.turns:
            sides = [at[key, chunk] for chunk in (turn.pre, turn.post) if (key, chunk) in at]
            if len(sides) == 2:
                found.append((key, turn.stance, sides[0], sides[1]))
            else:
                lacking += 1
    return found, lacking


def oscillation(study: Study, config: ReportConfig) -> TurnsFound | None:
    """Turns of stance and what cutting there shows; None where no stance was rated."""
    rated = study.stances
    if not rated:
        return None
    turns, lacking = _measured_turns(study)
    cuts = [
        Cut(key, study.prompts[rated[key].prompt].pool, stance, *_complied(pre), *_complied(post), rated[key].prompt)
        for key, stance, pre, post in turns
    ]
    judged = judge_cuts(cuts, alpha=config.alpha, family=config.family, locked=config.locked, margin=config.margin)

    def summary(pool: str | None) -> TurnSummary:
        inside = {key: row for key, row in rated.items() if pool is None or study.prompts[row.prompt].pool == pool}
        prompts = {key: row.prompt for key, row in inside.items() if not row.loop and row.chunks > 1}
        loops, whole = sum(row.loop for row in inside.values()), sum(row.chunks < 2 for row in inside.values())
        return oscillation_summary([j for j in judged if pool in (None, j.cut.pool)], prompts, loops, whole)

    n = min((cut.n_pre for cut in cuts), default=0)
    bases = sorted({0, n // 20, n // 2}) if n else []
    whole = summary(None)
    return TurnsFound(
        **{name: getattr(whole, name) for name in TurnSummary.__dataclass_fields__},
        settings=TurnSettings(config.locked, config.family, config.alpha, config.margin),
        panel=panel_agreement([(key, row.ratings) for key, row in rated.items()]),
        unresolved_chunks=sum(row.stances.count(None) for row in rated.values() if not row.loop),
        turns_without_answers=lacking,
        smallest_significant=tuple(SmallestSignificant(base, n, detectable(base, n, len(cuts), config.alpha)) for base in bases),
        by_pool={pool: summary(pool) for pool in study.pools if pool},
    )


def _complied(side: TurnCounts) -> tuple[int, int]:
    """(no, judged) of a cut."""
    return side.n - side.k, side.n


def _turns(study: Study) -> list[Finding]:
    """Every turn of stance with answers sampled at both its cuts: where it is, and how the share of yes moves there."""
    found = []
    for key, stance, pre, post in _measured_turns(study)[0]:
        before, after = pre.k / pre.n, post.k / post.n
        why = f"the stance turns to {stance:+d}; {before:.0%} of the answers before it say yes, {after:.0%} behind it"
        evidence = {"trace": key, "stance": stance, "before": [pre.k, pre.n], "behind": [post.k, post.n]}
        where = study.traces[key].thought, study.traces[key].start + post.tokens
        found.append(Finding("turn of stance", TURNS, why, *where, value=after - before, unit="share", evidence=evidence))
    return found
