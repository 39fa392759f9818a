"""What the verbs say: a policy in words, tables of policies, the map of regimes, a comment for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ramify.methods.verify_or_ship.algorithm import (
    FIRST,
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ComputableLines,
    ControlConfig,
    ControlState,
    Plan,
    Tables,
    Tracker,
)
from ramify.methods.verify_or_ship.replay import AWARE, GREEDY, PolicyWorth, Regime
from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.markdown import markdown
from ramify.render.result import CurveLine, Curves
from ramify.render.svg import flow, frame, label, tag, text_width
from ramify.trace.node import Finding

REPLAYED = "verify-or-ship replay"
SHADOW = "verify-or-ship replay shadow"
MOST_LINES = 60
"""Of a policy written out from the prior."""


def action_text(action: str) -> str:
    """An action in words."""
    return {STOP: "stop", VERIFY: "verify", SHIP: "ship unverified", REWRITE: "rewrite"}.get(action, f"ask {action}")


def _level(tables: Tables, name: str, level: int) -> str:
    levels = len(tables.critics[name].right)
    return ("fails", "passes")[level] if levels == 2 else f"level {level + 1} of {levels}"


class PolicyInterval(NamedTuple):
    """What to do with a candidate of this number and history between two beliefs, before any critic was asked."""

    candidate: int
    history: str
    low: float
    high: float
    action: str


class PolicyStep(NamedTuple):
    """What the plan does after what was ``seen``, ``depth`` critics deep."""

    depth: int
    seen: str
    belief: float
    action: str


def intervals(plan: Plan) -> Iterator[PolicyInterval]:
    """The policy as belief intervals, before any critic was asked: one row a step, history and interval."""
    for step in range(plan.config.horizon):
        for history in dict.fromkeys(plan.tables.after(rejected) for rejected in (False, True)) if step else (FIRST,):
            state = ControlState(0.5, step, frozenset(plan.names), history=history)
            for low, high, action in plan.intervals(state):
                yield PolicyInterval(step + 1, history, low, high, action)


def walk(plan: Plan) -> Iterator[PolicyStep]:
    """Everything that the plan does with a first candidate."""

    def below(tracker: Tracker, depth: int, seen: str) -> Iterator[PolicyStep]:
        state = tracker.state
        action = plan.decide(state)
        yield PolicyStep(depth, seen, state.belief, action)
        if action in plan.names:
            for level in reversed(range(len(plan.tables.critics[action].right))):
                inner = Tracker(plan.tables)
                inner.state = state
                inner.observe(action, level)
                yield from below(inner, depth + 1, f"{action} {_level(plan.tables, action, level)}")

    yield from below(Tracker(plan.tables), 0, "")


def policy_text(steps: Sequence[PolicyStep]) -> str:
    """What to do with a first candidate, from the prior on: the steps of :func:`walk` in words."""
    lines = []
    for depth, seen, belief, action in steps[:MOST_LINES]:
        start = f"at the start, belief {belief:.2f}" if not seen else f"{seen}, belief {belief:.2f}"
        lines.append(f"{'  ' * depth}{start}: {action_text(action)}")
    more = len(steps) - MOST_LINES
    return "\n".join([*lines, *([f"... and {more} more"] if more > 0 else [])])


def lines_text(found: ComputableLines, config: ControlConfig) -> list[str]:
    """The computable lines, one sentence each."""
    lines = [f"verifying beats stopping above belief {found.verify_from:.3f} (cost of the verifier over reward)"]
    if found.ship_from is not None and found.verify_up_to is not None:
        lines.append(
            f"shipping beats stopping above {found.ship_from:.3f}; verifying beats shipping below "
            f"{max(0.0, found.verify_up_to):.3f}"
        )
    for name, ends in found.gates.items():
        lines.append(
            f"'{name}' alone as a gate never pays at {config.cost(name):g}"
            if ends is None
            else f"'{name}' alone as a gate pays between {ends[0]:.3f} and {ends[1]:.3f}"
        )
    return lines


# -- pictures


def price_curves(rows: Sequence[Regime]) -> Curves:
    """Utility of each policy over the price of the verifier, one prior: the optimum, greedy, and the fixed rules that are best
    somewhere, at most seven."""
    best = dict.fromkeys(row.best_fixed for row in rows)
    names = [AWARE, GREEDY, *[name for name in best if name not in (AWARE, GREEDY)]][:7]
    prices = tuple(row.c_ver for row in rows)
    lines = tuple(CurveLine(name, prices, tuple(row.values[name] for row in rows)) for name in names)
    title = "What each policy is worth, by the price of the verifier"
    return Curves(title, "cost of the verifier", "utility", lines, percent=False)


def price_svg(rows: Sequence[Regime]) -> str:
    """:func:`price_curves` as a picture."""
    drawn = price_curves(rows)
    curves = [Curve(name, prices, [row.values[name] for row in rows]) for name, prices in ((o.name, o.x) for o in drawn.lines)]
    return curves_svg(curves, drawn.title, drawn.x_name, drawn.y_name, percent=False)


def map_svg(rows: Sequence[Regime], title: str = "Which policy to use") -> str:
    """The regimes over price (across) and prior (up)."""
    prices = sorted({row.c_ver for row in rows})
    priors = sorted({row.prior for row in rows})
    names = list(dict.fromkeys(row.regime for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    left, top, wide, high = 64.0, 30.0, 520.0, 26.0 * max(len(priors), 3)
    cell_w, cell_h = wide / len(prices), high / len(priors)
    body = []
    for row in rows:
        x = left + cell_w * prices.index(row.c_ver)
        y = top + high - cell_h * (priors.index(row.prior) + 1)
        about = (
            f"price {row.c_ver:g}, prior {row.prior:.2f}: {row.regime}; the best fixed rule ({row.best_fixed}) "
            f"loses {row.loss_of_best_fixed:.2f}"
        )
        body.append(tag("rect", tag("title", about), x=x, y=y, width=cell_w + 0.3, height=cell_h + 0.3, fill=colours[row.regime]))
    for i, price in enumerate(prices):
        if i % max(1, len(prices) // 8) == 0:
            body.append(label(left + cell_w * (i + 0.5), top + high + 16, f"{price:g}", "soft mid num"))
    for i, prior in enumerate(priors):
        if i % max(1, len(priors) // 8) == 0:
            body.append(label(left - 8, top + high - cell_h * (i + 0.5) + 4, f"{prior:.2f}", "soft end num"))
    body += [
        label(left + wide / 2, top + high + 34, "cost of the verifier", "soft mid"),
        label(left - 48, 18, "P(first candidate right)", "soft"),
    ]
    keys = [
        (tag("rect", x=0, y=-10, width=12, height=12, fill=colours[name]) + label(18, 0, name), 18 + text_width(name))
        for name in names
    ]
    legend, last = flow(keys, left, top + high + 56, wide)
    return frame(left + wide + 20, last + 12, title, f"Regimes: {', '.join(names)}", "".join(body) + legend)


# -- findings and comments


def gain_finding(row: PolicyWorth, name: str, best: str, config: ControlConfig, n: int) -> Finding | None:
    """What a replay shows, where the interval of the gain leaves 0 out."""
    gain = row.gain_over_best_fixed
    if gain.interval is None or gain.interval[0] <= 0 <= gain.interval[1]:
        return None
    low, high = gain.interval
    better = gain.value > 0
    why = (
        f"{name} gains {gain.value:+.2f} a task over {best}, the best fixed rule, [{low:+.2f}, {high:+.2f}], at a verifier "
        f"that costs {config.c_ver:g}"
    )
    action = "plan with `ramify verify-or-ship plan`" if better else f"use {best}: no planning is needed"
    return Finding(
        "planning pays" if better else "a fixed rule is better",
        REPLAYED,
        why,
        value=gain.value,
        unit="utility",
        action=action,
        evidence={"n": n, "interval": list(gain.interval), "best_fixed": best},
        identity=config.to_json(),
    )


@dataclass(frozen=True)
class CandidateBelief:
    """How likely a candidate is right by all that its critics said, what to do next, and the truth where it is known."""

    instance: str
    place: int
    node: str
    belief: float
    checks: Mapping[str, bool | float | None]
    action: str
    right: bool | None


def comment(rows: Sequence[CandidateBelief], config: ControlConfig) -> str:
    """Beliefs as Markdown for a pull request."""
    cells = [
        [
            f"{row.instance}, {row.place + 1}".replace("`", "'"),
            f"{row.belief:.0%}",
            ", ".join(f"{critic} {value}" for critic, value in row.checks.items()) or "nothing",
            action_text(row.action),
        ]
        for row in rows
    ]
    lines = [
        "### How sure are we?",
        "",
        *markdown(["candidate", "probability that it is right", "said", "next"], cells),
        "",
        f"The full check costs {config.c_ver:g} and a right delivery is worth {config.reward:g}. Made by `ramify verify-or-ship "
        "score`.",
    ]
    return "\n".join(lines) + "\n"
