"""The state graph of a task: equal states of all attempts merged, laid out by the earliest step that reached them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

_MARGIN, _HEAD = 28.0, 34.0


@dataclass(frozen=True, slots=True)
class State:
    """One merged state, or an end of attempts (``outcome`` success, failure or cut)."""

    id: str
    depth: int
    """Earliest step after which an attempt was here; the start is 0."""
    visits: int
    text: str
    """Shown when the pointer rests on the state."""
    value: float | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class StateMove:
    """All steps that led from one state to another."""

    source: str
    target: str
    visits: int
    credit: float | None
    """Mean credit over the visits."""
    text: str


def graph_svg(states: Sequence[State], moves: Sequence[StateMove], title: str, scale: float | None = None) -> str:
    """The picture of one state graph. ``scale`` is the credit at which colours saturate (default: the largest one shown).

    Raises ValueError when there is no state or a move names an unknown one.
    """
    known = {state.id: state for state in states}
    if not known:
        raise ValueError("a graph picture needs at least one state")
    for move in moves:
        if not {move.source, move.target} <= known.keys():
            raise ValueError(f"a move from {move.source} to {move.target} names an unknown state")
    layers = _layers(states, moves)
    tallest = max(len(layer) for layer in layers.values())
    column = max(54.0, min(140.0, 860.0 / max(1, len(layers) - 1)))
    gap = 60.0 if tallest <= 5 else 46.0 if tallest <= 8 else 34.0 if tallest <= 16 else 26.0
    height = (tallest - 1) * gap
    most = max(state.visits for state in states)
    positions = {
        name: (_MARGIN + 8 + i * column, _HEAD + 34 + height / 2 + (j - (len(layer) - 1) / 2) * gap)
        for i, layer in enumerate(layers.values())
        for j, name in enumerate(layer)
    }
    radius = {state.id: 4 + 7 * math.sqrt(state.visits / most) for state in states}
    saturation = scale or max((abs(m.credit) for m in moves if m.credit is not None), default=0.0) or 1.0
    busiest = max((move.visits for move in moves), default=1)
    width = max(_MARGIN * 2 + 16 + (len(layers) - 1) * column + 24, 820.0)
    heads = "".join(
        label(_MARGIN + 8 + i * column, 20, _column_name(i, depth, [known[name] for name in layer]), "soft mid num")
        for i, (depth, layer) in enumerate(layers.items())
    )
    # Heavy moves are drawn first, so that rare ones stay visible on top of them.
    edges = "".join(
        _move(move, positions, radius, saturation, busiest)
        for move in sorted(moves, key=lambda m: (-m.visits, m.source, m.target))
    )
    nodes = "".join(_state(state, *positions[state.id], radius[state.id]) for state in states)
    bottom = _HEAD + 34 + height
    legend, last = flow(_legend_items(saturation, busiest), _MARGIN, bottom + 58, width - 2 * _MARGIN)
    merged = sum(state.visits for state in states if not state.outcome)
    description = (
        f"{plural(merged, 'visit')} merged into {plural(sum(not s.outcome for s in states), 'state')}, "
        f"{plural(len(moves), 'different move')}. "
        "Position from left to right: the earliest step that reached a state. Width of a move: how often it was taken."
    )
    return frame(width, last + 16, title, description, heads + edges + nodes + legend)


def _column_name(column: int, depth: int, layer: Sequence[State]) -> str:
    if all(state.outcome for state in layer):
        return "end"
    return "start" if depth == 0 else f"step {depth}" if column == 1 else f"{depth}"


def _layers(states: Sequence[State], moves: Sequence[StateMove]) -> dict[int, list[str]]:
    """States by depth, ordered inside each depth so that neighbours' mean positions agree (the barycentre rule, four sweeps)."""
    layers: dict[int, list[str]] = {}
    for state in sorted(states, key=lambda s: (s.depth, -s.visits, s.id)):
        layers.setdefault(state.depth, []).append(state.id)
    near: dict[str, list[tuple[str, int]]] = {state.id: [] for state in states}
    for move in moves:
        near[move.source].append((move.target, move.visits))
        near[move.target].append((move.source, move.visits))
    for sweep in range(4):
        depths = list(layers) if sweep % 2 == 0 else list(layers)[::-1]
        for depth in depths:
            positions = {name: j - (len(layer) - 1) / 2 for layer in layers.values() for j, name in enumerate(layer)}
            pull = {name: _mean_position(near[name], positions, positions[name]) for name in layers[depth]}
            layers[depth].sort(key=lambda name, pull=pull: (pull[name], name))  # type: ignore[misc]
    return layers


def _mean_position(neighbours: Sequence[tuple[str, int]], positions: Mapping[str, float], default: float) -> float:
    weight = sum(visits for _, visits in neighbours)
    return sum(positions[name] * visits for name, visits in neighbours) / weight if weight else default


def _move(
    move: StateMove,
    positions: Mapping[str, tuple[float, float]],
    radius: Mapping[str, float],
    scale: float,
    busiest: int,
) -> str:
    (x1, y1), (x2, y2) = positions[move.source], positions[move.target]
    size = 1.2 + 6.8 * math.sqrt(move.visits / busiest)
    r1 = radius[move.source]
    if move.source == move.target:
        reach = r1 + 16
        d = f"M{number(x1 - 4)} {number(y1 - r1)}C{number(x1 - 16)} {number(y1 - reach)} {number(x1 + 16)} {number(y1 - reach)} "
        d += f"{number(x1 + 4)} {number(y1 - r1)}"
    elif x2 > x1:
        middle = (x1 + x2) / 2
        d = f"M{number(x1)} {number(y1)}C{number(middle)} {number(y1)} {number(middle)} {number(y2)} {number(x2)} {number(y2)}"
    else:
        # A move back: an arc above the row, dashed, so that it is not read as progress.
        lift = min(y1, y2) - 18 - 0.12 * (x1 - x2) if x1 > x2 else (y1 + y2) / 2
        bulge = 26.0 if x1 == x2 else 0.0
        start, end = (x1 + bulge, lift) if bulge else (x1, lift), (x2 + bulge, lift) if bulge else (x2, lift)
        d = (
            f"M{number(x1)} {number(y1)}C{number(start[0])} {number(start[1])} {number(end[0])} {number(end[1])} {number(x2)} "
            f"{number(y2)}"
        )
    back = x2 <= x1
    size = min(size, 3.0) if back else size
    colour = credit_colour(move.credit, scale)
    mean = "no credit" if move.credit is None else f"mean credit {signed(move.credit)}"
    hover = f"{plural(move.visits, 'time')}, {mean}: {clip(move.text, 160)}"
    return tag(
        "path",
        tag("title", words(hover)),
        d=d,
        fill="none",
        stroke="var(--line)" if colour == "none" else colour,
        stroke_width=size,
        stroke_opacity=0.9,
        stroke_linecap="butt" if back else "round",
        stroke_dasharray="5 4" if back else None,
    )


def _state(state: State, x: float, y: float, r: float) -> str:
    value = "" if state.value is None else f", value {state.value:.3g}"
    hover = tag("title", words(f"{plural(state.visits, 'visit')}{value}: {clip(state.text, 300)}"))
    if state.outcome:
        box = tag("rect", x=x - 9, y=y - 9, width=18, height=18, rx=4, class_="rim hollow")
        return tag("g", hover, box, outcome_mark(x, y, state.outcome), label(x, y + 23, state.visits, "soft mid num halo"))
    shown = "" if state.value is None else label(x, y + r + 13, f"{state.value:.2f}", "soft mid num halo", font_size=10.5)
    return tag("g", hover, tag("circle", cx=x, cy=y, r=r, class_="rim hollow"), shown)


def _legend_items(scale: float, busiest: int) -> list[tuple[str, float]]:
    bar, bar_width = credit_legend(0, 0, scale, "mean credit of a move")
    items = [(bar, bar_width)]
    thick = tag("path", d="M0 -4h24", class_="edge", stroke_width=8) + label(30, 0, f"taken {plural(busiest, 'time')}")
    thin = tag("path", d="M0 -4h24", class_="edge", stroke_width=1.2 + 6.8 * math.sqrt(1 / busiest)) + label(30, 0, "once")
    back = tag("path", d="M0 -4h24", class_="edge", stroke_width=2, stroke_dasharray="5 4") + label(
        30, 0, "back to an earlier state"
    )
    if busiest > 1:
        items.append((thick, 30 + text_width(f"taken {plural(busiest, 'time')}")))
    items += [(thin, 30 + text_width("once")), (back, 30 + text_width("back to an earlier state"))]
    state = tag("circle", cx=7, cy=-4, r=7, class_="rim hollow") + label(19, 0, "state (size: visits, number: value)")
    items.append((state, 19 + text_width("state (size: visits, number: value)")))
    for name, text in (("success", "success"), ("failure", "failure"), ("cut", "cut off")):
        items.append((outcome_mark(5, -4, name) + label(16, 0, text), 16 + text_width(text)))
    return items
