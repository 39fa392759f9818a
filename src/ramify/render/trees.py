"""The rollout tree of a task: time runs to the right, one row per attempt, steps coloured by credit, outcomes as marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.base.words import plural
from ramify.render.svg import (
    clip,
    credit_colour,
    credit_legend,
    flow,
    frame,
    label,
    number,
    outcome_mark,
    signed,
    tag,
    text_width,
    words,
)

_MARGIN, _HEAD = 16.0, 34.0


@dataclass(frozen=True, slots=True)
class TreeStep:
    """One step of the picture. The first one is the root (the task), every other names an earlier one as its parent."""

    id: str
    parent: str | None
    text: str
    """Shown when the pointer rests on the step."""
    credit: float | None = None
    outcome: str = ""
    """At the end of an attempt: success, failure, cut (no end within the limits), or done (an end without a score)."""
    reward: float | None = None
    href: str = ""
    """Where a click leads, e.g. ``#step-ab12``."""


def tree_svg(steps: Sequence[TreeStep], title: str, scale: float | None = None) -> str:
    """The picture of one tree. ``scale`` is the credit at which colours saturate (default: the largest one of this tree).

    Raises ValueError when ``steps`` is empty or a parent does not come before its children.
    """
    if not steps:
        raise ValueError("a tree picture needs at least its root")
    depth, row, children = _layout(steps)
    leaves = [step for step in steps if not children[step.id]]
    deepest = max(depth.values())
    column = max(30.0, min(64.0, 860.0 / max(1, deepest)))
    height = 22.0 if len(leaves) <= 12 else 17.0 if len(leaves) <= 32 else 14.0
    saturation = scale or max((abs(s.credit) for s in steps if s.credit is not None), default=0.0) or 1.0

    def at(step: TreeStep) -> tuple[float, float]:
        return _MARGIN + 8 + depth[step.id] * column, _HEAD + 12 + row[step.id] * height

    positions = {step.id: at(step) for step in steps}
    width = max(_MARGIN * 2 + deepest * column + 90, 820.0)
    bottom = _HEAD + 12 + (len(leaves) - 1) * height
    edges = "".join(_edge(positions[step.parent], positions[step.id]) for step in steps if step.parent is not None)
    nodes = "".join(_step(step, *positions[step.id], saturation, len(children[step.id])) for step in steps)
    legend, last = flow(_legend_items(saturation), _MARGIN, bottom + 40, width - 2 * _MARGIN)
    counts = {name: sum(step.outcome == name for step in leaves) for name in ("success", "failure", "cut")}
    forks = sum(len(children[step.id]) > 1 for step in steps)
    description = (
        f"{plural(len(leaves), 'attempt')} from one task: {counts['success']} succeed, {counts['failure']} fail, "
        f"{counts['cut']} are cut off. "
        f"{plural(len(steps) - 1, 'step')}, {plural(forks, 'branch point')}. Blue steps raised the chance of success, vermilion "
        "ones lowered it."
    )
    return frame(
        width, last + 16, title, description, _header(deepest, column) + tag("g", edges, stroke_width=1.4) + nodes + legend
    )


def _layout(steps: Sequence[TreeStep]) -> tuple[dict[str, int], dict[str, float], dict[str, list[str]]]:
    """Depth in steps, row in leaves, and children of every step:
    leaves take whole rows in order, a parent the middle of its own."""
    depth: dict[str, int] = {}
    children: dict[str, list[str]] = {}
    for step in steps:
        if step.parent is not None and step.parent not in depth:
            raise ValueError(f"step {step.id} comes before its parent {step.parent}")
        if step.id in depth or (step.parent is None and depth):
            raise ValueError(f"step {step.id} is a second one of its name, or a second root")
        depth[step.id] = 0 if step.parent is None else depth[step.parent] + 1
        children[step.id] = []
        if step.parent is not None:
            children[step.parent].append(step.id)
    order, stack = [], [steps[0].id]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1]]))
    row: dict[str, float] = {}
    for name in order:
        if not children[name]:
            row[name] = float(len(row))
    for name in reversed(order):
        if children[name]:
            row[name] = (row[children[name][0]] + row[children[name][-1]]) / 2
    return depth, row, children


def _header(deepest: int, column: float) -> str:
    every = max(1, round(40 / column))
    ticks = [i for i in range(1, deepest + 1) if i == 1 or i % every == 0]
    return label(_MARGIN, 20, "task", "soft") + "".join(
        label(_MARGIN + 8 + i * column, 20, f"step {i}" if i == 1 else i, "soft mid num") for i in ticks
    )


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    if abs(y1 - y2) < 0.01:
        return tag("path", d=f"M{number(x1)} {number(y1)}H{number(x2)}", class_="edge")
    # The bend ends before the child's column, so that rows read as straight lines.
    middle = x1 + (x2 - x1) * 0.45
    bend = f"C{number(middle)} {number(y1)} {number(middle)} {number(y2)} {number(x1 + (x2 - x1) * 0.8)} {number(y2)}"
    return tag("path", d=f"M{number(x1)} {number(y1)}{bend}H{number(x2)}", class_="edge")


def _step(step: TreeStep, x: float, y: float, scale: float, children: int) -> str:
    colour = credit_colour(step.credit, scale)
    hollow = colour == "none"
    if step.parent is None:
        shape = tag("rect", x=x - 6, y=y - 6, width=12, height=12, rx=2, class_="rim hollow")
    else:
        ring = tag("circle", cx=x, cy=y, r=8.2, class_="rim hollow") if children > 1 else ""
        shape = ring + tag("circle", cx=x, cy=y, r=5.4, class_="rim hollow" if hollow else "rim", fill=None if hollow else colour)
    head = "task" if step.parent is None else "no credit" if step.credit is None else f"credit {signed(step.credit)}"
    hover = f"{head}: {clip(step.text, 300)}"
    end = ""
    if step.outcome:
        end = outcome_mark(x + 18, y, step.outcome)
        if step.reward is not None:
            end += label(x + 29, y + 4, f"{step.reward:.3g}", "soft num")
    body = tag("title", words(hover)) + shape + end
    return tag("a", body, href=step.href, tabindex=-1) if step.href else tag("g", body)


def _legend_items(scale: float) -> list[tuple[str, float]]:
    bar, bar_width = credit_legend(0, 0, scale)
    fork = tag("circle", cx=8.2, cy=-4, r=8.2, class_="rim hollow") + tag(
        "circle", cx=8.2, cy=-4, r=5.4, class_="rim", fill=credit_colour(0, 1)
    )
    items = [(bar, bar_width), (fork + label(22, 0, "branch point"), 22 + text_width("branch point"))]
    for name, text in (("success", "success"), ("failure", "failure"), ("cut", "cut off")):
        items.append((outcome_mark(5, -4, name) + label(16, 0, text), 16 + text_width(text)))
    return [*items, (label(0, 0, "number: reward"), text_width("number: reward"))]
