"""What tools lost: by the attempts that are there, and by the answers about several attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ramify.jobs.why.alternatives import tools_of
from ramify.jobs.why.answer import Why
from ramify.jobs.why.attempts import attempts_in
from ramify.jobs.why.records import LostByTool, ToolMove
from ramify.score.steps import columns_of, step_records
from ramify.trace.db import Run
from ramify.trace.outcome import Decider


def worst_moves(run: Run, deciding: Decider) -> tuple[ToolMove, ...]:
    """Where attempts of a run part: for each tool how many steps call it, and the worst of its moves,
    by what attempts did in one state.

    From the attempts that are there, without forks (:class:`ramify.methods.graph_credit.run.StateGraph`). The tool that loses
    most comes first.
    """
    from ramify.methods.graph_credit.algorithm import CreditConfig
    from ramify.methods.graph_credit.run import StateGraph

    infos = sorted(run.trees(), key=lambda one: one.name)
    views = (view for info in infos for view in attempts_in(run, info, deciding) if not view.fork)
    columns = columns_of(step_records(views), cohorts=True)
    if not columns["action"]:
        return ()
    graph = StateGraph.of_attempts(columns)
    graph.assign(CreditConfig())
    tools = tools_of([str(action) for action in columns["action"]])
    worst: dict[str, Any] = {}
    for move in graph.comparison.moves:
        tool = tools[move.row]
        if tool not in worst or (move.difference, move.p) < (worst[tool].difference, worst[tool].p):
            worst[tool] = move
    found = []
    for tool, steps in Counter(tools).items():
        one, where = ToolMove(tool, steps), worst.get(tool)
        if where is not None:
            action, task, node = (columns[name][where.row] for name in ("action", "task_id", "node"))
            took = where.difference, where.takers, where.others, where.p_corrected
            one = ToolMove(tool, steps, str(action), task, node, *took)
        found.append(one)
    return tuple(sorted(found, key=lambda one: (one.difference is None, one.difference or 0.0, one.tool)))


def lost_by_tool(found: Sequence[Why]) -> tuple[LostByTool, ...]:
    """For each tool: how many attempts were lost at a step that calls it, the mean change there,
    and the worst step; most lost first."""
    by_tool: dict[str, list[Why]] = {}
    lost = [one for one in found if one.verdict == "step" and not one.success]
    for tool, one in zip(tools_of([one.action or "" for one in lost]), lost, strict=True):
        by_tool.setdefault(tool, []).append(one)
    rows = []
    for tool, ones in by_tool.items():
        worst = min(ones, key=lambda one: one.change or 0.0)
        mean = sum(one.change or 0.0 for one in ones) / len(ones)
        rows.append(LostByTool(tool, len(ones), mean, worst.action or "", worst.tree, worst.node or ""))
    return tuple(sorted(rows, key=lambda row: (-row.lost, row.change, row.tool)))
