"""Fill the tables and draw the pictures of docs/methods/earned-code-memory-evidence.md: python
docs/earned_code_memory_pictures.py.

From repro/earned-code-memory-cpu.json, which `ramify repro earned-code-memory --cpu --out FILE` makes.
"""

from __future__ import annotations

import re
from typing import Any

from picture_files import METHODS, Checks, write

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag

PAGE = METHODS / "earned-code-memory-evidence.md"
NAMES = {
    "none": "no memory",
    "text": "`text-only`",
    "safe": "**`safe`** (default)",
    "paper": "`paper`",
    "eager": "`eager`",
    "code-only": "`code-only`",
    **{f"retrieval, m = {m}": f"past tasks in the prompt: the {m} nearest (BM25)" for m in (1, 4, 16)},
    **{f"recency, m = {m}": f"past tasks in the prompt: the last {m}" for m in (1, 4, 16)},
    "full history": "past tasks in the prompt: all",
}


HEADS = {
    "checks": "| check | here | wanted | status |",
    "arms": "| arm | same families: solved | tokens a task | tokens a solved task | new, APIs changed: solved | tokens a task |",
    "built": "| arm | construction tokens | tools | saved a recurring task | paid back after tasks | calls silently wrong, same "
    "families | and with APIs changed |",
    "gates": "| arm | accuracy | tokens a task | construction tokens |",
}


def _share(check: dict[str, Any]) -> str:
    low, high = check["interval"]
    return f"{check['value']:.3f} [{low:.3f}, {high:.3f}]"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name."""
    judged = [
        f"| {name} | {check['value']:.3f} | {check['op']} {check['threshold']:g} | {check['status'].replace('_', ' ')} |"
        for name, check in checks.items()
        if check["op"] != "report"
    ]
    arms = [
        f"| {text} | {_share(checks[f'recurring, {name}: solved'])} | "
        f"{_count(checks[f'recurring, {name}: tokens a task']['value'])} | "
        f"{_count(checks[f'recurring, {name}: tokens a solved task']['value'])} | {_share(checks[f'shifted, {name}: solved'])} | "
        f"{_count(checks[f'shifted, {name}: tokens a task']['value'])} |"
        for name, text in NAMES.items()
    ]
    built = []
    for name in ("text", "safe", "paper", "eager", "code-only", "paper, all tasks reflected on", "eager, all tasks reflected on"):
        pays = checks.get(f"{name}: break-even, recurring tasks")
        wrong = checks[f"recurring, {name}: silently wrong of tool calls"]
        moved = checks[f"shifted, {name}: silently wrong of tool calls"]
        cells = [f"{one['value']:.3f} of {one['n']}" if one["n"] else "-" for one in (wrong, moved)]
        built.append(
            f"| {name} | {_count(checks[f'{name}: construction tokens']['value'])} | {checks[f'{name}: tools']['value']:.1f} | "
            f"{_count(checks[f'{name}: tokens saved a recurring task']['value'])} | "
            f"{'never' if pays is None else _count(pays['value'])} | {' | '.join(cells)} |"
        )
    gates = [
        f"| {name} | {_share(checks[f'a1, {name}: accuracy'])} | {_count(checks[f'a1, {name}: tokens a task']['value'])} | "
        f"{_count(checks[f'a1, {name}: construction tokens']['value'])} |"
        for name in (
            *("none", "text", "code-only", "eager", "gated, K = 2", "gated", "gated, K = 4", "gated, K = 6", "gated, safe"),
            *("disjoint, none", "disjoint, eager", "disjoint, gated", "disjoint, gated, safe"),
        )
    ]
    rows = {"checks": judged, "arms": arms, "built": built, "gates": gates}
    return {name: "\n".join([head, re.sub(r"[^|]+", "---", head), *rows[name]]) for name, head in HEADS.items()}


def arms(checks: Checks) -> str:
    """Solved tasks and tokens of each arm on both splits."""
    shown = ("none", "retrieval, m = 1", "retrieval, m = 4", "text", "safe", "paper", "eager", "code-only")
    names = {
        **NAMES,
        "retrieval, m = 1": "nearest past task in the prompt",
        "retrieval, m = 4": "4 nearest past tasks in the prompt",
    }
    left, middle, row = 250.0, 560.0, 40.0
    bottom = 44 + row * len(shown)
    body = [label(left, 18, "solved, %"), label(middle, 18, "tokens a task, thousands")]
    body += [tag("rect", x=left + 120 * i, y=24, width=11, height=8, fill=COLOURS[i], rx=2) for i in (0, 1)]
    body += [label(left + 16 + 120 * i, 32, text) for i, text in enumerate(("same families", "new, APIs changed"))]
    for start, size in ((left, 240), (middle, 160)):
        body += [tag("line", x1=start + size * m, x2=start + size * m, y1=40, y2=bottom, class_="grid") for m in (0, 0.5, 1)]
    for i, name in enumerate(shown):
        y = 52 + row * i
        body.append(label(left - 10, y + 12, re.sub(r"[`*]", "", names[name]), "end"))
        for j, split in enumerate(("recurring", "shifted")):
            top, ink = y + 15 * j, COLOURS[j]
            solved, spent = checks[f"{split}, {name}: solved"], checks[f"{split}, {name}: tokens a task"]["value"]
            low, high = (left + 240 * end for end in solved["interval"])
            body.append(tag("rect", x=left, y=top - 6, width=240 * solved["value"], height=12, fill=ink, rx=2))
            body.append(tag("line", x1=low, x2=high, y1=top, y2=top, stroke="#1b2333", stroke_width=2))
            body.append(label(left + 246, top + 4, f"{100 * solved['value']:.0f}", "soft num"))
            body.append(tag("rect", x=middle, y=top - 6, width=160 * spent / 16000, height=12, fill=ink, rx=2))
            body.append(label(middle + 160 * spent / 16000 + 6, top + 4, f"{spent / 1000:.1f}", "soft num"))
    title = "What a memory gives, by what it holds"
    return frame(
        780, bottom + 8, title, "Share of tasks solved with 95 % interval, and mean tokens, by arm and split", "".join(body)
    )


def gates(checks: Checks) -> str:
    """Accuracy of the simulation over the gate."""
    left, top, size, high = 60.0, 40.0, 420.0, 200.0
    body = [label(left, 20, "accuracy of the simulated memory, by the requests that a tool was made of (K)")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + high * (1 - share)
        body.append(tag("line", x1=left, x2=left + size, y1=y, y2=y, class_="grid"))
        body.append(label(left - 8, y + 4, f"{100 * share:.0f} %", "soft end num"))
    points = [(1, "gated, K = 1"), (2, "gated, K = 2"), (3, "gated"), (4, "gated, K = 4"), (6, "gated, K = 6")]
    at = lambda k, value: (left + 30 + (k - 1) * 72, top + high * (1 - value))  # noqa: E731
    found = [(k, checks[f"a1, {name}: accuracy"]) for k, name in points]
    line = " ".join(
        f"{'M' if i == 0 else 'L'}{at(k, c['value'])[0]:.1f} {at(k, c['value'])[1]:.1f}" for i, (k, c) in enumerate(found)
    )
    body.append(tag("path", d=line, fill="none", stroke=COLOURS[0], stroke_width=2.2))
    for k, check in found:
        x, y = at(k, check["value"])
        low, top_ = (at(k, end)[1] for end in check["interval"])
        body += [
            tag("line", x1=x, x2=x, y1=low, y2=top_, stroke=COLOURS[0], stroke_width=2),
            tag("circle", cx=x, cy=y, r=3.5, fill=COLOURS[0]),
        ]
        body.append(label(x, top + high + 18, f"K = {k}", "soft mid num"))
    for name, text, ink in (("text", "text alone", COLOURS[2]), ("none", "no memory", COLOURS[6])):
        y = at(1, checks[f"a1, {name}: accuracy"]["value"])[1]
        body.append(tag("line", x1=left, x2=left + size, y1=y, y2=y, stroke=ink, stroke_width=1.6, stroke_dasharray="6 4"))
        body.append(label(left + size + 6, y + 4, text))
    return frame(
        590, top + high + 30, "Why a tool is to be earned", "Accuracy over the gate, with intervals over 40 seeds", "".join(body)
    )


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures, by name."""
    return {"arms": arms(checks), "gates": gates(checks)}


if __name__ == "__main__":
    write("earned-code-memory", PAGE, pictures, tables)
