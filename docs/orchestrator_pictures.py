"""Draw the pictures and write the tables of docs/methods/orchestrator-evidence.md from repro/orchestrator-cpu.json: python docs/orchestrator_pictures.py."""

from __future__ import annotations

import re
from typing import Any

from picture_files import METHODS, Checks, read_checks, save

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag

PAGE = METHODS / "orchestrator-evidence.md"
TABLES = {"routing": ("A1: ",), "composing": ("A2: ",), "tiny": ("A3: ",), "exact": ("exact: ",)}
BUDGETS = (6_720, 20_160, 80_640)
ARMS = {"evolution": "es", "first stage, then evolution": "sft, es", "random search": "random search", "REINFORCE": "reinforce"}


def _dots(title: str, axis: str, rows: list[tuple[str, list[dict[str, Any]]]], series: list[str]) -> str:
    """One line a row, one dot with its interval a series; values from 0 to 1."""
    left, width, line = 250.0, 720.0, 28.0

    def x(value: float) -> float:
        return left + (width - left - 24) * min(max(value, 0.4), 1.0) / 0.6 - (width - left - 24) * 0.4 / 0.6

    top, bottom = 34.0, 34.0 + line * len(rows)
    body = []
    for mark in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        body += [
            tag("line", x1=x(mark), x2=x(mark), y1=top - 6, y2=bottom, class_="grid"),
            label(x(mark), bottom + 16, f"{mark:g}", "soft mid"),
        ]
    for i, (name, checks) in enumerate(rows):
        y = top + 14 + line * i
        body.append(label(left - 12, y + 4, name, "end"))
        for j, check in enumerate(checks):
            at, ink = y + (7 * j - 3.5 * (len(checks) - 1)), COLOURS[j] if len(checks) == max(1, len(series)) else "#777"
            if check["interval"]:
                low, high = check["interval"]
                body.append(tag("line", x1=x(low), x2=x(high), y1=at, y2=at, stroke=ink, stroke_width=1.6))
            body.append(tag("circle", cx=x(check["value"]), cy=at, r=4.0, stroke=ink, fill=ink, stroke_width=1.6))
    for j, name in enumerate(series):
        body += [
            tag("circle", cx=left + 160 * j, cy=12, r=4.0, stroke=COLOURS[j], fill=COLOURS[j]),
            label(left + 10 + 160 * j, 16, name, ""),
        ]
    body.append(label(x(0.7), bottom + 34, axis, "soft mid"))
    return frame(width, bottom + 44, title, f"{axis}, mean and 95 % interval over seeds", "".join(body))


def routing(checks: Checks) -> str:
    """Success in whole episodes, by arm and training budget."""
    rows = [(name, [checks[f"A1: {name.replace('first stage alone', 'sft')}"]]) for name in ("random", "best single", "oracle")]
    rows.insert(2, ("first stage alone", [checks["A1: sft"]]))
    rows += [(name, [checks[f"A1: {arm} {budget}"] for budget in BUDGETS]) for name, arm in ARMS.items()]
    series = [f"{budget:,} episodes" for budget in BUDGETS]
    return _dots("Routing in a harness of two phases", "share of episodes that succeed", rows, series)


def composing(checks: Checks) -> str:
    """Share of right answers of composed plans and of what they are compared with."""
    names = {
        "best single worker": "A2: best single", "best worker of each domain": "A2: route to the best",
        "after the warm start": "A2: after the warm start", "composed, isolated": "A2: composed",
        "the best by hand, 4 isolated": "A2: by hand, 4 isolated and the best judge",
        "by hand, 4 all visible": "A2: by hand, 4 visible and the best judge",
        "trained with all visible": "A2: all visible, right", "trained from nothing": "A2: none, right",
    }  # fmt: skip
    rows = [(shown, [checks[name]]) for shown, name in names.items()]
    return _dots("What isolation and structure are worth", "share of right answers", rows, [])


PICTURES = {"routing": routing, "composing": composing}


def row(check: dict[str, Any]) -> str:
    """One Markdown row of a table."""
    span = "" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
    wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
    value = f"{check['value']:.3f}" if check["value"] == 0 or abs(check["value"]) >= 0.0005 else f"{check['value']:.2g}"
    status = "" if check["op"] == "report" else check["status"].replace("_", " ")
    return f"| {check['name']} | {value} | {span} | {check['n']} | {wanted} | {status} |"


def table(checks: Checks, starts: tuple[str, ...]) -> str:
    """The figures whose names begin so."""
    rows = [row(check) for name, check in checks.items() if name.startswith(starts)]
    return "\n".join(["| | value | 95 % interval | n | wanted | |", "|---|---|---|---|---|---|", *rows])


def page(text: str, checks: Checks) -> str:
    """The page with its tables as the figures have them."""
    made = {name: table(checks, starts) for name, starts in TABLES.items()}
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text, flags=re.S
    )


def main() -> None:
    """Write pictures and tables."""
    checks = read_checks("orchestrator")
    save("orchestrator", {name: picture(checks) for name, picture in PICTURES.items()})
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), checks), encoding="utf-8")


if __name__ == "__main__":
    main()
