"""Draw the picture and write the tables of docs/methods/theory-loop-evidence.md from repro/theory-loop-cpu.json: python
docs/theory_loop_pictures.py."""

from __future__ import annotations

import json

from picture_files import METHODS, ROOT, Checks, alike, bars, write

from ramify.render.charts import COLOURS

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
    rows = [(name, checks[key], COLOURS[0] if "survivor" in name else COLOURS[1]) for name, key in BARS]
    about = (
        "Mean squared error on 24 stimuli of a coin, the seeds, a baseline without revision, the survivors and the rule itself."
    )
    axis = "mean squared error of the proportions of B choices, 24 stimuli"
    return bars("Error before and after the loop", axis, about, rows, (0.0, 0.04, 0.08, 0.12), left=250.0)


def pictures(checks: Checks) -> dict[str, str]:
    """The picture by name."""
    return {"recovery": recovery(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike, and those of real people."""
    return alike(checks, TABLES, digits=4) | {"outside": outside()}


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


if __name__ == "__main__":
    write("theory-loop", PAGE, pictures, tables)
