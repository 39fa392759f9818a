"""What the verbs say: a policy in words, tables of policies, the map of regimes, a comment for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramify.methods.verify_or_ship.algorithm import (
    FIRST,
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ControlConfig,
    ControlState,
    Plan,
    Tables,
    Tracker,
)
from ramify.methods.verify_or_ship.replay import AWARE, GREEDY
from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.markdown import markdown
from ramify.render.svg import flow, frame, label, tag, text_width
from ramify.trace.node import Finding

REPLAYED = "verify-or-ship replay"
SHADOW = "verify-or-ship shadow"
MOST_LINES = 60
"""Of a policy written out from the prior."""


def action_text(action: str) -> str:
    """An action in words."""
    return {STOP: "stop", VERIFY: "verify", SHIP: "ship unverified", REWRITE: "rewrite"}.get(action, f"ask {action}")


def _level(tables: Tables, name: str, level: int) -> str:
    levels = len(tables.critics[name].right)
    return ("fails", "passes")[level] if levels == 2 else f"level {level + 1} of {levels}"


def intervals(plan: Plan) -> list[dict[str, Any]]:
    """The policy as belief intervals, before any critic was asked: one row a step, history and interval."""
    rows = []
    for step in range(plan.config.horizon):
        for history in dict.fromkeys(plan.tables.after(rejected) for rejected in (False, True)) if step else (FIRST,):
            state = ControlState(0.5, step, frozenset(plan.names), history=history)
            for low, high, action in plan.intervals(state):
                rows.append({"candidate": step + 1, "history": history, "from": low, "to": high, "action": action})
    return rows


def walk(plan: Plan) -> Iterator[tuple[int, str, float, str]]:
    """(depth, what was seen, belief, action) of everything that the plan does with a first candidate."""

    def below(tracker: Tracker, depth: int, seen: str) -> Iterator[tuple[int, str, float, str]]:
        state = tracker.state
        action = plan.decide(state)
        yield depth, seen, state.belief, action
        if action in plan.names:
            for level in reversed(range(len(plan.tables.critics[action].right))):
                inner = Tracker(plan.tables)
                inner.state = state
                inner.observe(action, level)
                yield from below(inner, depth + 1, f"{action} {_level(plan.tables, action, level)}")

    yield from below(Tracker(plan.tables), 0, "")


def policy_text(plan: Plan) -> str:
    """What to do with a first candidate, from the prior on."""
    lines = []
    for depth, seen, belief, action in walk(plan):
        start = f"at the start, belief {belief:.2f}" if not seen else f"{seen}, belief {belief:.2f}"
        lines.append(f"{'  ' * depth}{start}: {action_text(action)}")
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"... and {more} more"] if more > 0 else [])])


def lines_text(found: Mapping[str, Any], config: ControlConfig) -> list[str]:
    """The computable lines, one sentence each."""
    lines = [f"verifying beats stopping above belief {found['verify_from']:.3f} (cost of the verifier over reward)"]
    if "ship_from" in found:
        lines.append(
            f"shipping beats stopping above {found['ship_from']:.3f}; verifying beats shipping below "
            f"{max(0.0, found['verify_up_to']):.3f}"
        )
    for name, ends in found["gates"].items():
        lines.append(
            f"'{name}' alone as a gate never pays at {config.cost(name):g}"
            if ends is None
            else f"'{name}' alone as a gate pays between {ends[0]:.3f} and {ends[1]:.3f}"
        )
    return lines


# -- pictures


def _colours(names: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def price_svg(rows: Sequence[Mapping[str, Any]], shown: Sequence[str] = ()) -> str:
    """Utility of each policy over the price of the verifier, one prior."""
    names = list(shown) or _worth_showing(rows)
    prices = [float(row["c_ver"]) for row in rows]
    curves = [Curve(name, prices, [float(row["values"][name]) for row in rows]) for name in names]
    return curves_svg(
        curves, "What each policy is worth, by the price of the verifier", "cost of the verifier", "utility", percent=False
    )


def _worth_showing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The optimum, greedy, and the fixed rules that are best somewhere, at most seven."""
    best = dict.fromkeys(str(row["best_fixed"]) for row in rows)
    return [AWARE, GREEDY, *[name for name in best if name not in (AWARE, GREEDY)]][:7]


def map_svg(rows: Sequence[Mapping[str, Any]], title: str = "Which policy to use") -> str:
    """The regimes over price (across) and prior (up)."""
    prices = sorted({float(row["c_ver"]) for row in rows})
    priors = sorted({float(row["prior"]) for row in rows})
    names = list(dict.fromkeys(str(row["regime"]) for row in rows))
    colours = _colours(names)
    left, top, wide, high = 64.0, 30.0, 520.0, 26.0 * max(len(priors), 3)
    cell_w, cell_h = wide / len(prices), high / len(priors)
    body = []
    for row in rows:
        x = left + cell_w * prices.index(float(row["c_ver"]))
        y = top + high - cell_h * (priors.index(float(row["prior"])) + 1)
        about = (
            f"price {row['c_ver']:g}, prior {row['prior']:.2f}: {row['regime']}; the best fixed rule ({row['best_fixed']}) "
            f"loses {row['loss_of_best_fixed']:.2f}"
        )
        body.append(
            tag("rect", tag("title", about), x=x, y=y, width=cell_w + 0.3, height=cell_h + 0.3, fill=colours[str(row["regime"])])
        )
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


def gain_finding(row: Mapping[str, Any], name: str, best: str, config: ControlConfig, n: int) -> Finding | None:
    """What a replay shows, where the interval of the gain leaves 0 out."""
    gain = row["gain_over_best_fixed"]
    if gain["interval"] is None or gain["interval"][0] <= 0 <= gain["interval"][1]:
        return None
    low, high = gain["interval"]
    better = gain["value"] > 0
    why = (
        f"{name} gains {gain['value']:+.2f} a task over {best}, the best fixed rule, [{low:+.2f}, {high:+.2f}], at a verifier "
        f"that costs {config.c_ver:g}"
    )
    action = "plan with `ramify verify-or-ship plan`" if better else f"use {best}: no planning is needed"
    return Finding(
        "planning pays" if better else "a fixed rule is better",
        REPLAYED,
        why,
        value=gain["value"],
        unit="utility",
        action=action,
        evidence={"n": n, "interval": gain["interval"], "best_fixed": best},
        identity=config.to_json(),
    )


def comment(rows: Sequence[Mapping[str, Any]], config: ControlConfig) -> str:
    """Beliefs as Markdown for a pull request."""
    cells = [
        [
            f"{row['instance']}, {row['place'] + 1}".replace("`", "'"),
            f"{row['belief']:.0%}",
            ", ".join(f"{critic} {value}" for critic, value in row["checks"].items()) or "nothing",
            action_text(row["action"]),
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
