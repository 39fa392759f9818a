"""How much a set of traces shows of getting out of wrong turns: coverage, dead ends, loops, ambiguity, trace by trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.maze_recovery.attempts import Key, Trace, Traces, from_records
from ramify.methods.maze_recovery.loops import Recovery, ambiguous
from ramify.stats.intervals import clustered_proportion
from ramify.stats.tests import fisher
from ramify.trace.graph import factorize, short
from ramify.trace.keys import Canonicaliser, exact

_TOP = 10
_AMBIGUOUS = 0.05
"""Above this share of ambiguous moves the audit warns."""


def audit_traces(
    traces: Iterable[Mapping[str, Any]] | Sequence[Trace] | Traces,
    state_key: Key | None = None,
    task_key: Key | None = None,
    *,
    keys: Canonicaliser | None = None,
    family: Canonicaliser | None = None,
    min_examples: int = 3,
) -> dict[str, Any]:
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
    report = _counts(traces) | _coverage(traces, family or exact, min_examples)
    report |= _verdict(report)
    return report | {"warnings": _warnings(traces, report), "dead_end_list": _dead_ends(traces), "per_trace": _per_trace(traces)}


def _counts(t: Traces) -> dict[str, Any]:
    graph, loops, ways, n = t.graph, t.loops, t.ways, len(t.traces)
    in_loops = np.bincount(t.number, ~loops.kept)
    with_recovery = {int(t.number[r.at]) for r in loops.recoveries}
    again, odd = ambiguous(graph, t.cut)
    over = t.clusters[t.number]  # by step
    recovered = np.isin(np.arange(n), list(with_recovery))
    solved = {graph.visit_task[row] for row in t.first[:-1][t.success]}
    states = int((~graph.group_terminal).sum())
    return {
        "states_from": "keys",
        "traces": n,
        "tasks": len(graph.tasks),
        "tasks_solved": len(solved),
        "intervals_over": t.sampled,
        "success_share": clustered_proportion(t.success, t.clusters),
        "success_unknown": sum(trace.success is None for trace in t.traces),
        "steps": len(graph.visit_group),
        "states": states,
        "recoveries": len(loops.recoveries),
        "recovery_rate": len(loops.recoveries) / n,
        "recovery_traces": clustered_proportion(recovered, t.clusters),
        "mean_depth": _mean([r.depth for r in loops.recoveries]),
        "efficiency": _mean([r.steps / r.depth for r in loops.recoveries]),
        "loop_free": clustered_proportion(in_loops == 0, t.clusters),
        "stalled_steps": clustered_proportion(loops.moves == 0, over),
        "ambiguity": clustered_proportion(odd, over[again]),
        "off_way_states": int(ways.off.sum()),
        "dead_ends": int(ways.dead.sum()),
    }


def _coverage(t: Traces, family: Canonicaliser, min_examples: int) -> dict[str, Any]:
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
    return {
        "recovery_coverage": float((count >= min_examples).mean()) if names else 0.0,
        "families": len(names),
        "families_covered": int((count >= min_examples).sum()),
        "min_examples": min_examples,
        "lacking": [{"state": short(named[i], 80), "visits": int(visits[i]), "examples": int(count[i])} for i in lacking[:_TOP]],
    }


def _verdict(report: Mapping[str, Any]) -> dict[str, Any]:
    """Whether recoveries stand out. States with the same key look like returns, so such a key shows none for certain."""
    odd, n, total = report["ambiguity"], report["recoveries"], report["traces"]
    if not n:
        return {"found": False, "verdict": "nothing stands out: no trace gets out of a wrong turn"}
    if odd is not None and odd["value"] > _AMBIGUOUS:
        why = f"the same move led elsewhere in {odd['k']} of {odd['n']} cases, so equal keys may be other states"
        return {"found": False, "verdict": f"nothing stands out: {plural(n, 'return')} seen, but {why}"}
    return {
        "found": True,
        "verdict": f"{report['recovery_traces']['k']} of {total} traces get out of a wrong turn, {plural(n, 'time')}",
    }


def _warnings(t: Traces, report: Mapping[str, Any]) -> list[str]:
    found = list(t.doubts)
    if not t.success.any():
        found.append("no trace is known to have succeeded, so which states lead nowhere is not known either")
    elif report["loop_free"]["k"] == report["traces"] and report["success_share"]["k"] == report["traces"]:
        found.append("every trace is a straight success: nothing here shows how to get out of a wrong turn")
    elif not report["families"]:
        found.append("no state that leads nowhere was visited, so there is nothing to cover: coverage is 0 of 0")
    if report["success_unknown"]:
        found.append(f"{plural(report['success_unknown'], 'trace')} without a word on success, counted as not successful")
    if report["steps"] > report["traces"] and report["states"] == report["steps"]:
        found.append(
            "no state occurs twice: the key may be too fine (a clock, a step counter, the whole history) to see any loop; "
            "--state-pattern REGEX takes the state out of what was observed"
        )
    if t.texts and (t.keys is None or report["states"] < report["steps"]) and t.graph.starts_apart:
        found.append(
            "no trace is ever back in a state that one began in, as where the first observation also holds the task: recoveries "
            "that "
            "lead back there are missed or too short; --state-pattern REGEX takes the state out of what was observed"
        )
    odd = report["ambiguity"]
    if odd is not None and odd["value"] > _AMBIGUOUS:
        found.append(
            f"the same action in the same state led elsewhere in {odd['k']} of {odd['n']} moves: the key hides part of the state "
            "(add history), or the environment is random; loops and dead ends are then less certain"
        )
    return found


def _dead_ends(t: Traces) -> list[dict[str, Any]]:
    """The dead ends most often run into; ``untried`` is None where the traces do not say what could have been done there.

    ``p``: the chance (Fisher, times the states of all tasks) that as many attempts at the task fail by luck as went through it.
    """
    graph = t.graph
    dead = np.flatnonzero(t.ways.dead)
    known = np.array([trace.success is not None for trace in t.traces])
    of_task = np.full(len(t.traces), -1)
    of_task[t.number] = graph.visit_task
    states = int((~graph.group_terminal).sum())
    order = dead[np.argsort(-graph.group_visits[dead], kind="stable")][:_TOP]
    found = []
    for group in order.tolist():
        rows = np.flatnonzero(graph.visit_group == group)
        steps = [t.steps[row] for row in rows.tolist()]
        through = np.isin(np.arange(len(t.traces)), t.number[rows])
        others = t.success[known & ~through & (of_task == graph.group_task[group])]
        p = fisher(int(t.success[known & through].sum()), int((known & through).sum()), int(others.sum()), len(others))
        options = {option for step in steps for option in step.options or ()}
        untried = sorted(options - {step.action for step in steps}) if options else None
        found.append(
            {
                "task": graph.tasks[graph.group_task[group]],
                "state": short(graph.keys[group], 80),
                "visits": len(steps),
                "untried": untried,
                "p": min(1.0, p * states),
                "node": next((step.node for step in steps if step.node), None),
            }
        )
    return found


def _per_trace(t: Traces) -> list[dict[str, Any]]:
    groups, n = len(t.graph.keys), len(t.traces)
    in_loops = np.bincount(t.number, ~t.loops.kept).astype(np.int64).tolist()
    dead = t.ways.dead[t.graph.visit_group]
    met = np.unique(t.number[dead] * groups + t.graph.visit_group[dead])  # (trace, dead end)
    dead_ends = np.bincount(met // max(1, groups), minlength=n).tolist()
    own: list[list[Recovery]] = [[] for _ in t.traces]
    for recovery in t.loops.recoveries:
        own[t.number[recovery.at]].append(recovery)
    return [
        {
            "task": trace.task,
            "attempt": trace.attempt,
            "success": trace.success,
            "steps": len(trace.steps),
            "steps_in_loops": in_loops[i],
            "recoveries": len(own[i]),
            "mean_depth": _mean([r.depth for r in own[i]]),
            "efficiency": _mean([r.steps / r.depth for r in own[i]]),
            "dead_ends": dead_ends[i],
            "loop_free": in_loops[i] == 0,
        }
        for i, trace in enumerate(t.traces)
    ]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
