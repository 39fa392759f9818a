"""Draw the picture and write the tables of docs/methods/theory-loop-evidence.md from repro/theory-loop-cpu.json: python
docs/theory_loop_pictures.py."""

from __future__ import annotations

import json

from picture_files import METHODS, ROOT, Checks, read_checks, table, write

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag

PAGE = METHODS / "theory-loop-evidence.md"
TABLES = {
    "recovery": ("recovery: ",),
    "blind": ("blind: ",),
    "noise": ("noise: ",),
    "exact": ("dial: ", "gate: ", "H2: ", "H3: "),
}
BARS = (
    ("a coin", "recovery: MSE_pB, floor: a coin"),
    ("seeds", "recovery: MSE_pB of the seeds, at least"),
    ("baseline: best whole-range theory", "recovery: MSE_pB, baseline: the best whole-range theory on the same data"),
    ("both survivors", "recovery: MSE_pB of both survivors"),
    ("both survivors, blind designs", "blind: MSE_pB of both survivors"),
    ("the better survivor", "recovery: MSE_pB of the better survivor"),
    ("the better survivor, blind designs", "blind: MSE_pB of the better survivor"),
    ("the rule against itself", "recovery: MSE_pB, ceiling: the rule against itself"),
)


def recovery(checks: Checks) -> str:
    """A bar for each arm, with its interval."""
    left, width, line, most = 250.0, 720.0, 28.0, 0.12

    def x(value: float) -> float:
        return left + (width - left - 24) * min(max(value, 0.0), most) / most

    bottom = 20.0 + line * len(BARS)
    body = []
    for mark in (0.0, 0.04, 0.08, 0.12):
        body += [
            tag("line", x1=x(mark), x2=x(mark), y1=14.0, y2=bottom, class_="grid"),
            label(x(mark), bottom + 16, f"{mark:g}", "soft mid"),
        ]
    for i, (name, key) in enumerate(BARS):
        check, y = checks[key], 20.0 + line * i
        ink = COLOURS[0] if "survivor" in name else COLOURS[1]
        body.append(label(left - 12, y + 15, name, "end"))
        body.append(tag("rect", x=left, y=y + 3, width=max(1.0, x(check["value"]) - left), height=16.0, fill=ink))
        if check["interval"]:
            ends = [x(end) for end in check["interval"]]
            body.append(tag("line", x1=ends[0], x2=ends[1], y1=y + 11, y2=y + 11, stroke="currentColor", stroke_width=1.4))
    body.append(
        label((left + width - 24) / 2, bottom + 34, "mean squared error of the proportions of B choices, 24 stimuli", "soft mid")
    )
    about = (
        "Mean squared error on 24 stimuli of a coin, the seeds, a baseline without revision, the survivors and the rule itself."
    )
    return frame(width, bottom + 44, "Error before and after the loop", about, "".join(body))


def pictures(checks: Checks) -> dict[str, str]:
    """The picture by name."""
    return {"recovery": recovery(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike."""
    return {
        name: table((check for key, check in checks.items() if key.startswith(starts)), digits=4)
        for name, starts in TABLES.items()
    }


def outside() -> str:
    """Errors on the held-out experiments of real people, by theory."""
    told = json.loads((ROOT / "repro" / "theory-loop-outside.json").read_text(encoding="utf-8"))
    columns = [(ratings, ranges) for ratings in ("binary", "cardinal") for ranges in ("declared", "wide", "shuffled")]
    lines = ["| | " + " | ".join(f"{ratings}, {ranges}" for ratings, ranges in columns) + " |", "|---" * 7 + "|"]
    for name in ("best", "survivors"):
        cells = [told[ratings][ranges][name] for ratings, ranges in columns]
        shown = [f"{cell['mean']:.4f} ({cell['low']:.4f} to {cell['high']:.4f})" for cell in cells]
        lines.append(f"| {'better survivor' if name == 'best' else 'both survivors'} | {' | '.join(shown)} |")
    for name in dict.fromkeys(name for ratings, ranges in columns for name in told[ratings][ranges]["others"]):
        values = [told[ratings][ranges]["others"].get(name) for ratings, ranges in columns]
        lines.append(f"| {name} | {' | '.join('' if value is None else f'{value:.4f}' for value in values)} |")
    floors = [f"{told[ratings]['floor']:.4f}" if ranges != "shuffled" else "" for ratings, ranges in columns]
    return "\n".join([*lines, f"| as many other people | {' | '.join(floors)} |"])


def main() -> None:
    """Write picture and tables."""
    checks = read_checks("theory-loop")
    write("theory-loop", PAGE, pictures(checks), {**tables(checks), "outside": outside()})


if __name__ == "__main__":
    main()
