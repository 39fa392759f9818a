"""Runs, trees, attempts, forks and results as HTML for the cell of a notebook.

A run is its whole page in a frame of its own, which has no access to the notebook; the others are plain tables and pictures.
Every text goes through the one escape function, as on the pages.
"""

from __future__ import annotations

import functools
from typing import Any

from ramify.base.registry import register
from ramify.render.escape import visible
from ramify.render.result import Result, to_html
from ramify.render.svg import clip
from ramify.render.trees import TreeStep, tree_svg
from ramify.rollout.attempts import Attempt
from ramify.rollout.commands import run_name
from ramify.trace.db import Run
from ramify.trace.tree import Tree
from ramify.web import pages

MOST_PAGE = 8 << 20
"""Bytes of a run's page that a cell holds; of larger runs it holds the picture of one tree."""
_MOST_STEPS = 300


@register("renderer", "notebook")
@functools.singledispatch
def shown(value: object) -> str:
    """``value`` as HTML. Raises TypeError where it is nothing that a notebook shows."""
    raise TypeError(f"a {type(value).__name__} has no page")


def _cell(**values: Any) -> str:
    return pages.cell_html(**values)


@shown.register
def _run(run: Run) -> str:
    page = pages.report_html(run)
    if len(page) <= MOST_PAGE:
        return _cell(kind="run", page=page, name=run_name(run.folder))
    return _cell(kind="text", lines=[f"{run_name(run.folder)}: too large for a cell. Open it with `ramify show RUN --web`."])


@shown.register
def _result(result: Result) -> str:
    return _cell(kind="result", result=to_html(result.sections()), lines=list(result.caveats))


@shown.register
def _tree(tree: Tree) -> str:
    steps: list[TreeStep] = []
    above: dict[str, str] = {}
    stack = [(tree.root, "")] if len(tree) else []
    while stack and len(steps) <= _MOST_STEPS:
        node, parent = stack.pop()
        if not steps:
            steps.append(TreeStep("root", None, clip(node.text or tree.name, 300)))
            parent = "root"
        if node.role == "assistant" and node.id not in above:
            ends = "" if any(child.offset >= len(node) for child in tree.children(node.id)) else "done"
            steps.append(TreeStep(node.id, parent, clip(node.message.spoken(), 300) or "(nothing)", None, ends))
            above[node.id] = parent
            parent = node.id
        # What hangs inside a reply replaces the rest of it: it stands beside the reply.
        stack += [
            (child, above[node.id] if node.id in above and child.offset < len(node) else parent)
            for child in reversed(tree.children(node.id))
        ]
    picture = tree_svg(steps, f"Steps of {visible(tree.name)}") if steps else ""
    left = [f"The first {_MOST_STEPS} steps; `ramify show RUN --web` has them all."] if stack else []
    return _cell(kind="tree", name=tree.name, picture=picture, lines=left)


@shown.register
def _attempt(attempt: Attempt) -> str:
    how = {True: "succeeded", False: "failed", None: "has no outcome"}[attempt.outcome]
    head = f"Attempt {attempt.index} at {attempt.task.id} {how}, reward {attempt.reward:g}."
    lines = [head + (f" An infrastructure failure ended it: {attempt.failure}" if attempt.failure else "")]
    rows = [
        [str(at), turn.node.message.spoken(), turn.answer.text, "" if turn.answer.reward is None else f"{turn.answer.reward:g}"]
        for at, turn in enumerate(attempt.turns, 1)
    ]
    return _cell(kind="table", lines=lines, head=["step", "the agent wrote", "the environment answered", "reward"], rows=rows)
