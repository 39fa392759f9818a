"""Draw the pictures of docs/methods/maze-recovery.md: python docs/maze_pictures.py (from repro/maze-recovery-cpu.json and exact
theory)."""

from __future__ import annotations

import math
from typing import Any

from picture_files import read_checks, save

from ramify.methods.maze_recovery.algorithm import train_exact
from ramify.methods.maze_recovery.star import Maze
from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.svg import frame, label, tag

REGIMES = ("pretrained", "golden SFT", "RL", "distilled", "distilled, loop-erased")


def maze() -> str:
    """The maze with two branches of two diamonds, and where the four decisions of the policy lie."""

    def line(x1: float, y1: float, x2: float, y2: float, bend: float = 0.0) -> str:
        middle = f"Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 + bend:.1f} {x2:.1f} {y2:.1f}"
        return tag("path", d=f"M{x1:.1f} {y1:.1f}{middle}", class_="edge", stroke_width=1.5)

    def dot(x: float, y: float, text: str, fill: str = "#e8ecf4") -> str:
        return tag("circle", cx=x, cy=y, r=13, fill=fill, stroke="#5b6785") + tag(
            "text", text, x=x, y=y + 4, text_anchor="middle", font_size=10, fill="#1b2333"
        )

    edges, dots = line(40, 110, 110, 110), dot(40, 110, "start") + dot(110, 110, "fork")
    for y, end, fill in ((50.0, "exit", "#d3efd6"), (170.0, "leaf", "#fbdcc0")):
        before = (110.0, 110.0)
        for j in range(2):
            left, right = 190.0 + 180 * j, 280.0 + 180 * j
            edges += line(*before, left, y) + "".join(line(left, y, right, y, bend) for bend in (-26.0, 0.0, 26.0))
            dots += dot(left, y, f"l{j}") + dot(right, y, f"r{j}")
            before = (right, y)
        edges += line(*before, 540, y)
        dots += dot(540, y, end, fill)
    notes = "".join(label(x, 24, text, "mid") for x, text in ((235, "c →"), (325, "a →"), (415, "c →"), (500, "a →")))
    notes += "".join(label(x, 205, text, "mid") for x, text in ((150, "← d"), (235, "← b"), (325, "← d"), (415, "← b")))
    said = (
        "Continuing: c crosses a diamond (3 edges of 4), a leaves it (1 of 4). Going back: b crosses, d leaves.",
        "A walker knows the place it stands at and the one before. A clean solution shows a and c;",
        "b and d are only met on the way back from a wrong leaf.",
    )
    notes += "".join(label(10, 234 + 16 * i, text) for i, text in enumerate(said))
    return frame(
        640,
        276,
        "The maze",
        "A fork with branches of diamonds joined by parallel edges; one leaf is the exit",
        edges + dots + notes,
    )


def growth() -> str:
    """log10 of expected steps over the number of diamonds, W = 15, L = 5."""
    sizes = list(range(1, 16))
    names = {"base": "base model", "golden_sft": "SFT on clean paths (limit)", "optimal": "optimum, where RL goes"}
    curves = [
        Curve(name, sizes, [Maze(15, k, 5).log_steps(policy) / math.log(10) for k in sizes]) for policy, name in names.items()
    ]
    return curves_svg(curves, "Expected steps to the exit, 15 branches", "diamonds a branch", "log10 of expected steps", False)


def training() -> str:
    """The desired probabilities while RL trains with exact gradients: hard decisions are learned later and matter more."""
    steps = list(range(0, 1201, 100))
    kept = [train_exact(Maze(15, 15, 5), "rlvr", steps=n, lr=0.01)[0].families() for n in steps]
    names = {"a": "leave on (a) and leave back (d)", "b": "cross back (b) and cross on (c)"}
    curves = [Curve(name, steps, [float(found[f].min()) for found in kept]) for f, name in names.items()]
    return curves_svg(
        curves, "Probability of the desired move under RL", "sign-gradient steps of 0.01", "probability, least over diamonds"
    )


def network(checks: dict[str, dict[str, Any]]) -> str:
    """Share of walks that a small network does not finish within 2,000 steps, and its mean steps, by regime."""
    left, width, height = 170.0, 640.0, 30.0
    body = []
    for mark in (0, 0.25, 0.5, 0.75, 1):
        x = left + 300 * mark
        body.append(tag("line", x1=x, x2=x, y1=24, y2=30 + height * len(REGIMES), class_="grid"))
        body.append(label(x, 18, f"{100 * mark:.0f} %", "soft mid"))
    for i, name in enumerate(REGIMES):
        y = 50 + height * i
        lost, steps = checks[f"network, {name}: unfinished"], checks[f"network, {name}: steps"]
        low, high = (left + 300 * min(1.0, max(0.0, end)) for end in lost["interval"])
        body.append(label(left - 10, y + 4, name, "end"))
        body.append(tag("rect", x=left, y=y - 8, width=max(1.0, 300 * lost["value"]), height=16, fill=COLOURS[i], rx=2))
        body.append(tag("line", x1=low, x2=high, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
        body.append(label(left + 320, y + 4, f"{steps['value']:,.0f} steps on average", ""))
    title = "Walks not finished within 2,000 steps"
    body.append(label(left, 46 + height * len(REGIMES), title.lower(), "soft"))
    return frame(width, 56 + height * len(REGIMES), title, "A small network, mean and 95 % interval over seeds", "".join(body))


if __name__ == "__main__":
    checks = read_checks("maze-recovery")
    save("maze-recovery", {"maze": maze(), "growth": growth(), "training": training(), "network": network(checks)})
