"""How much a set of traces shows of getting out of wrong turns: coverage, dead ends, loops, ambiguity, trace by trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.maze_recovery.attempts import Key, Trace, Traces, from_records
from ramify.methods.maze_recovery.loops import Recovery, ambiguous
from ramify.render.numbers import interval, number
from ramify.render.result import Cell, Result, Section, table
from ramify.stats.intervals import ClusteredShare, clustered_share
from ramify.stats.tests import fisher
from ramify.trace.graph import factorize, short
from ramify.trace.keys import Canonicaliser, exact

_TOP = 10
_AMBIGUOUS = 0.05
"""Above this share of ambiguous moves the audit warns."""


class DeadEnd(NamedTuple):
    """A state that no attempt got on from. ``untried`` is None where the traces do not say what could have been done there.

    ``p``: the chance (Fisher, times the states of all tasks) that as many attempts at the task fail by luck as went through it.
    """

    task: Any
    state: str
    visits: int
    untried: tuple[str, ...] | None
    p: float
    node: str | None


class Lacking(NamedTuple):
    """A kind of state that led nowhere, with fewer ``examples`` of a way back than it needs."""

    state: str
    visits: int
    examples: int


class TraceAudit(NamedTuple):
    """What one trace shows."""

    task: Any
    attempt: Any
    success: bool | None
    steps: int
    steps_in_loops: int
    recoveries: int
    mean_depth: float | None
    efficiency: float | None
    dead_ends: int
    loop_free: bool


@dataclass(frozen=True)
class Counted:
    """What the steps of traces show by their states."""

    states_from: str
    traces: int
    tasks: int
    tasks_solved: int
    intervals_over: str
    success_share: ClusteredShare | None
    success_unknown: int
    steps: int
    states: int
    recoveries: int
    recovery_rate: float
    recovery_traces: ClusteredShare | None
    mean_depth: float | None
    efficiency: float | None
    loop_free: ClusteredShare | None
    stalled_steps: ClusteredShare | None
    ambiguity: ClusteredShare | None
    off_way_states: int
    dead_ends: int


@dataclass(frozen=True)
class Coverage:
    """Of the kinds of state that led nowhere, for how many a way back is shown often enough, and where it is lacking."""

    recovery_coverage: float
    families: int
    families_covered: int
    min_examples: int
    lacking: tuple[Lacking, ...]


@dataclass(frozen=True)
class RecoveryAudit(Result, Coverage, Counted):
    """An audit of traces by their states."""

    found: bool
    verdict: str
    dead_end_list: tuple[DeadEnd, ...]
    per_trace: tuple[TraceAudit, ...]

    def sections(self) -> Iterable[Section]:
        """The verdict, the numbers, dead ends and where no way back is shown."""
        ends = [
            (short(one.task), one.state, one.visits, one.p, None if one.untried is None else ", ".join(one.untried), one.node)
            for one in self.dead_end_list
        ]
        yield Section.of(
            "",
            self.verdict,
            table(("number", "value"), as_rows(vars(self))),
            table(("task", "state", "visits", "p", "untried", "node"), ends, "dead ends"),
            table(("state", "visits", "examples"), self.lacking, "no way back shown"),
        )


def as_rows(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """The names and values of those that are one number, one share or one text."""
    for name, value in found.items():
        if isinstance(value, ClusteredShare):
            ends = "" if value.interval is None else f"{interval(value.interval)} "
            yield prefix + name, f"{number(value.value)} {ends}({value.k} of {value.n})"
        elif name != "verdict" and value != "" and (value is None or isinstance(value, str | int | float)):
            yield prefix + name, value


def audit_traces(
    traces: Iterable[Mapping[str, Any]] | Sequence[Trace] | Traces,
    state_key: Key | None = None,
    task_key: Key | None = None,
    *,
    keys: Canonicaliser | None = None,
    family: Canonicaliser | None = None,
    min_examples: int = 3,
) -> RecoveryAudit:
    """Audit traces by their states; every number of the result is explained on the method's page.

    ``traces``: records (``attempts.from_records``, whose ``state_key`` and ``task_key`` are passed on), or what ``run.load``
    gave. ``keys`` makes state keys of states (``trace.keys``); ``family`` puts states of one kind together, by default equal
    keys, of whatever task; a family is covered with ``min_examples`` ways back. ``found`` says whether recoveries stand out,
    ``verdict`` in words. Raises UserError naming the trace and field that is wrong.
    """
    if min_examples < 1:
        raise UserError(f"min_examples must be at least 1, not {min_examples}")
    if not isinstance(traces, Traces):
        given = list(traces)
        made = [t for t in given if isinstance(t, Trace)]
        own = made if made and len(made) == len(given) else from_records(given, state_key, task_key)  # type: ignore[arg-type]
        traces = Traces(own, keys)
    counted, coverage = _counts(traces), _coverage(traces, family or exact, min_examples)
    stands_out, verdict = _verdict(counted)
    return RecoveryAudit(
        **vars(counted),
        **vars(coverage),
        found=stands_out,
        verdict=verdict,
        dead_end_list=tuple(_dead_ends(traces)),
        per_trace=tuple(_per_trace(traces)),
        caveats=tuple(_caveats(traces, counted, coverage)),
    )


def _counts(t: Traces) -> Counted:
    graph, loops, ways, n = t.graph, t.loops, t.ways, len(t.traces)
    in_loops = np.bincount(t.number, ~loops.kept)
    with_recovery = {int(t.number[r.at]) for r in loops.recoveries}
    again, odd = ambiguous(graph, t.cut)
    over = t.clusters[t.number]  # by step
    recovered = np.isin(np.arange(n), list(with_recovery))
    solved = {graph.visit_task[row] for row in t.first[:-1][t.success]}
    states = int((~graph.group_terminal).sum())
    return Counted(
        states_from="keys",
        traces=n,
        tasks=len(graph.tasks),
        tasks_solved=len(solved),
        intervals_over=t.sampled,
        success_share=clustered_share(t.success, t.clusters),
        success_unknown=sum(trace.success is None for trace in t.traces),
        steps=len(graph.visit_group),
        states=states,
        recoveries=len(loops.recoveries),
        recovery_rate=len(loops.recoveries) / n,
        recovery_traces=clustered_share(recovered, t.clusters),
        mean_depth=_mean([r.depth for r in loops.recoveries]),
        efficiency=_mean([r.steps / r.depth for r in loops.recoveries]),
        loop_free=clustered_share(in_loops == 0, t.clusters),
        stalled_steps=clustered_share(loops.moves == 0, over),
        ambiguity=clustered_share(odd, over[again]),
        off_way_states=int(ways.off.sum()),
        dead_ends=int(ways.dead.sum()),
    )


def _coverage(t: Traces, family: Canonicaliser, min_examples: int) -> Coverage:
    """Of the kinds of state that led nowhere, for how many the way back is shown often enough.
    A step shared by attempts counts once."""
    graph = t.graph
    off = np.flatnonzero(t.ways.off)
    code, names = factorize([family([graph.keys[g]])[0] for g in off.tolist()], plain=True)
    of_group = np.full(len(graph.keys), -1)
    of_group[off] = code
    kinds = of_group[graph.visit_group]
    shown: set[tuple[int, Any]] = set()
    for row in np.flatnonzero((t.loops.moves < 0) & (kinds >= 0)).tolist():
        shown.add((int(kinds[row]), t.steps[row].node or row))
    count = np.bincount([kind for kind, _ in shown], minlength=len(names)) if names else np.zeros(0, np.int64)
    visits = np.bincount(kinds[kinds >= 0], minlength=len(names)) if names else count
    named = {kind: graph.keys[group] for kind, group in zip(code.tolist()[::-1], off.tolist()[::-1], strict=True)}
    lacking = [i for i in np.argsort(-visits, kind="stable").tolist() if count[i] < min_examples]
    return Coverage(
        recovery_coverage=float((count >= min_examples).mean()) if names else 0.0,
        families=len(names),
        families_covered=int((count >= min_examples).sum()),
        min_examples=min_examples,
        lacking=tuple(Lacking(short(named[i], 80), int(visits[i]), int(count[i])) for i in lacking[:_TOP]),
    )


def _verdict(seen: Counted) -> tuple[bool, str]:
    """Whether recoveries stand out. States with the same key look like returns, so such a key shows none for certain."""
    odd, n = seen.ambiguity, seen.recoveries
    if not n:
        return False, "nothing stands out: no trace gets out of a wrong turn"
    if odd is not None and odd.value > _AMBIGUOUS:
        why = f"the same move led elsewhere in {odd.k} of {odd.n} cases, so equal keys may be other states"
        return False, f"nothing stands out: {plural(n, 'return')} seen, but {why}"
    return True, f"{_k(seen.recovery_traces)} of {seen.traces} traces get out of a wrong turn, {plural(n, 'time')}"


def _k(share: ClusteredShare | None) -> int:
    return 0 if share is None else share.k


def _caveats(t: Traces, seen: Counted, coverage: Coverage) -> Iterator[str]:
    yield from t.doubts
    if not t.success.any():
        yield "no trace is known to have succeeded, so which states lead nowhere is not known either"
    elif _k(seen.loop_free) == seen.traces and _k(seen.success_share) == seen.traces:
        yield "every trace is a straight success: nothing here shows how to get out of a wrong turn"
    elif not coverage.families:
        yield "no state that leads nowhere was visited, so there is nothing to cover: coverage is 0 of 0"
    if seen.success_unknown:
        yield f"{plural(seen.success_unknown, 'trace')} without a word on success, counted as not successful"
    if seen.steps > seen.traces and seen.states == seen.steps:
        yield (
            "no state occurs twice: the key may be too fine (a clock, a step counter, the whole history) to see any loop; "
            "--state-pattern REGEX takes the state out of what was observed"
        )
    if t.texts and (t.keys is None or seen.states < seen.steps) and t.graph.starts_apart:
        yield (
            "no trace is ever back in a state that one began in, as where the first observation also holds the task: recoveries "
            "that lead back there are missed or too short; --state-pattern REGEX takes the state out of what was observed"
        )
    odd = seen.ambiguity
    if odd is not None and odd.value > _AMBIGUOUS:
        yield (
            f"the same action in the same state led elsewhere in {odd.k} of {odd.n} moves: the key hides part of the state "
            "(add history), or the environment is random; loops and dead ends are then less certain"
        )


def _dead_ends(t: Traces) -> Iterator[DeadEnd]:
    """The dead ends most often run into."""
    graph = t.graph
    dead = np.flatnonzero(t.ways.dead)
    known = np.array([trace.success is not None for trace in t.traces])
    of_task = np.full(len(t.traces), -1)
    of_task[t.number] = graph.visit_task
    states = int((~graph.group_terminal).sum())
    order = dead[np.argsort(-graph.group_visits[dead], kind="stable")][:_TOP]
    for group in order.tolist():
        rows = np.flatnonzero(graph.visit_group == group)
        steps = [t.steps[row] for row in rows.tolist()]
        through = np.isin(np.arange(len(t.traces)), t.number[rows])
        others = t.success[known & ~through & (of_task == graph.group_task[group])]
        p = fisher(int(t.success[known & through].sum()), int((known & through).sum()), int(others.sum()), len(others))
        options = {option for step in steps for option in step.options or ()}
        untried = tuple(sorted(options - {step.action for step in steps})) if options else None
        node = next((step.node for step in steps if step.node), None)
        key, task = graph.keys[group], graph.tasks[graph.group_task[group]]
        yield DeadEnd(task, short(key, 80), len(steps), untried, min(1.0, p * states), node)


def _per_trace(t: Traces) -> Iterator[TraceAudit]:
    groups, n = len(t.graph.keys), len(t.traces)
    in_loops = np.bincount(t.number, ~t.loops.kept).astype(np.int64).tolist()
    dead = t.ways.dead[t.graph.visit_group]
    met = np.unique(t.number[dead] * groups + t.graph.visit_group[dead])  # (trace, dead end)
    dead_ends = np.bincount(met // max(1, groups), minlength=n).tolist()
    own: list[list[Recovery]] = [[] for _ in t.traces]
    for recovery in t.loops.recoveries:
        own[t.number[recovery.at]].append(recovery)
    for i, trace in enumerate(t.traces):
        yield TraceAudit(
            task=trace.task,
            attempt=trace.attempt,
            success=trace.success,
            steps=len(trace.steps),
            steps_in_loops=in_loops[i],
            recoveries=len(own[i]),
            mean_depth=_mean([r.depth for r in own[i]]),
            efficiency=_mean([r.steps / r.depth for r in own[i]]),
            dead_ends=dead_ends[i],
            loop_free=in_loops[i] == 0,
        )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
