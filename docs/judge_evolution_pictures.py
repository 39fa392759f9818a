"""Draw the pictures and write the tables of docs/methods/judge-evolution-evidence.md from repro/judge-evolution-cpu.json: python docs/judge_evolution_pictures.py."""

from __future__ import annotations

import re
from typing import Any

from picture_files import METHODS, Checks, read_checks, save

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag

PAGE = METHODS / "judge-evolution-evidence.md"
TABLES = {
    "arms": ("arms: ",),
    "gaming": ("gaming: quality",),
    "judges": ("gaming: anchor", "gaming: judges", "gaming: outcomes", "gaming: rank", "gaming: acceptance"),
    "promotions": ("false promotions",),
    "learned": ("learned: ",),
}
CAPS = ("none", ".10", ".15", ".20", ".25", ".50", "no cap")
ARMS = ("fixed", "no-erasure", "labelled from the start", "full")


def _dots(
    title: str,
    axis: str,
    rows: list[tuple[str, list[dict[str, Any] | None]]],
    series: list[str],
    low: float,
    high: float,
    marks: list[float],
) -> str:
    """One line a row, one dot with its interval a series."""
    left, width, line = 280.0, 720.0, 26.0

    def x(value: float) -> float:
        return left + (width - left - 24) * (min(max(value, low), high) - low) / (high - low)

    top, bottom = 34.0, 34.0 + line * len(rows)
    body = []
    for mark in marks:
        body += [
            tag("line", x1=x(mark), x2=x(mark), y1=top - 6, y2=bottom, class_="grid"),
            label(x(mark), bottom + 16, f"{mark:g}", "soft mid"),
        ]
    for i, (name, checks) in enumerate(rows):
        y = top + 14 + line * i
        body.append(label(left - 12, y + 4, name, "end"))
        for j, check in enumerate(checks):
            if check is None:
                continue
            at, ink = y + (7 * j - 3.5 * (len(checks) - 1)), COLOURS[j]
            if check["interval"]:
                body.append(
                    tag(
                        "line", x1=x(check["interval"][0]), x2=x(check["interval"][1]), y1=at, y2=at, stroke=ink, stroke_width=1.6
                    )
                )
            body.append(
                tag("circle", cx=x(check["value"]), cy=at, r=4.0, stroke=ink, fill=ink if j == 0 else "none", stroke_width=1.6)
            )
    for j, name in enumerate(series):
        body += [
            tag("circle", cx=left + 210 * j, cy=12, r=4.0, stroke=COLOURS[j], fill=COLOURS[j] if j == 0 else "none"),
            label(left + 10 + 210 * j, 16, name, ""),
        ]
    body.append(label(x((low + high) / 2), bottom + 34, axis, "soft mid"))
    return frame(width, bottom + 44, title, f"{axis}, mean and 95 % interval over seeds", "".join(body))


def learned(checks: Checks) -> str:
    """Acceptance by the judge and true correctness, by arm."""
    rows = [
        (arm, [checks[f"learned: true correctness, {arm}"], checks[f"learned: acceptance by its own judge, {arm}"]])
        for arm in ARMS
    ]
    return _dots(
        "What the judge says and what is true",
        "share of derivations",
        rows,
        ["truly correct", "accepted by its judge"],
        0,
        1,
        [0, 0.25, 0.5, 0.75, 1],
    )


def bias(checks: Checks) -> str:
    """Parity by the pool's share, for two rules."""
    rows = [
        (f"pool {cap}", [checks[f"bias: machine / human, pool {cap}{more}"] for more in ("", ", paired test")]) for cap in CAPS
    ]
    return _dots(
        "How much the pool may weigh",
        "acceptance of machines / of people",
        rows,
        ["best belief", "paired test"],
        0,
        1.75,
        [0, 0.5, 1, 1.5],
    )


def gaming(checks: Checks) -> str:
    """Quality of the writer at the end, by arm."""
    names = [
        name.removeprefix("gaming: quality at the end, ") for name in checks if name.startswith("gaming: quality at the end, ")
    ]
    rows = [
        (
            name.replace("hill climbing and the judge with most items right", "climbing, judge replaced")
            .replace("outcomes a child", "a child")
            .replace("nodes chosen by their own outcomes", "by own outcomes"),
            [checks[f"gaming: quality at the end, {name}"]],
        )
        for name in names
    ]
    return _dots(
        "What a writer becomes under a judge that pays for gloss",
        "true quality at the end (the seed has 0)",
        rows,
        [],
        -1.5,
        1.5,
        [-1, 0, 1],
    )


PICTURES = {"learned": learned, "bias": bias, "gaming": gaming}


def row(check: dict[str, Any]) -> str:
    """One Markdown row of a table."""
    span = "" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])
    wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
    return f"| {check['name']} | {check['value']:.3f} | {span} | {check['n']} | {wanted} |"


def table(checks: Checks, starts: tuple[str, ...]) -> str:
    """The figures whose names begin so."""
    rows = [row(check) for name, check in checks.items() if name.startswith(starts)]
    return "\n".join(["| | value | 95 % interval | n | wanted |", "|---|---|---|---|---|", *rows])


def bias_table(checks: Checks) -> str:
    """Parity and accuracy by the pool's share."""
    rows = [
        "| pool's share of the anchor | machine / human | accuracy | machine / human, paired test | accuracy, paired test |",
        "|---|---|---|---|---|",
    ]
    for cap in CAPS:
        values = [
            checks[f"bias: {what}, pool {cap}{more}"]["value"]
            for more in ("", ", paired test")
            for what in ("machine / human", "accuracy")
        ]
        rows.append(f"| {cap} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    judged = [row(check) for name, check in checks.items() if name.startswith("bias: ") and check["op"] != "report"]
    return "\n".join([*rows, "", "| | value | 95 % interval | n | wanted |", "|---|---|---|---|---|", *judged])


def page(text: str, checks: Checks) -> str:
    """The page with its tables as the figures have them."""
    made = {name: table(checks, starts) for name, starts in TABLES.items()} | {"bias": bias_table(checks)}
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text, flags=re.S
    )


def main() -> None:
    """Write pictures and tables."""
    checks = read_checks("judge-evolution")
    save("judge-evolution", {name: picture(checks) for name, picture in PICTURES.items()})
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), checks), encoding="utf-8")


if __name__ == "__main__":
    main()
