"""Draw the pictures of docs/methods/early-decision.md and fill its tables: python docs/early_decision_pictures.py.

Both are made from repro/early-decision-cpu.json. A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from picture_files import METHODS, Checks, curve, rows, write

from ramify.render.charts import Curve, curves_svg

PAGE = METHODS / "early-decision-evidence.md"
KEPT = "share of the thinking kept, %"


def placed(checks: Checks, label: str, name: str, places: Sequence[int]) -> Curve:
    """One curve with its interval over seeds, none of it below 0; ``name`` has a place for the share."""
    return curve(label, places, [checks[name.format(place)] for place in places], least=0.0)


def along(checks: Checks, what: str, title: str, axis: str, top: float | None = None) -> str:
    """One measure of both organisms along the thinking; the valley of J is none of the probe's."""
    curves = [
        placed(checks, kind, f"{kind}: {what} at {{}} % of the thinking", range(0, 101, 10))
        for kind in ("locked", "deliberative")
    ]
    return curves_svg(curves, title, "place in the thinking, %", axis, False, top=top)


def continuation(checks: Checks, who: Sequence[tuple[str, str]], title: str) -> str:
    """Variance of the answer by share kept, closed and open, for each (label, prefix of the checks' names)."""
    curves = [
        placed(checks, f"{label}: {mode}", f"{prefix}: {mode} variance at {{}} %", range(0, 101, 20))
        for label, prefix in who
        for mode in ("closed", "open")
    ]
    return curves_svg(curves, title, KEPT, "variance 4 q (1 - q)", False, top=1.0)


def pictures(checks: Checks) -> dict[str, str]:
    """All of them by name."""
    both = ("locked", "deliberative")
    return {
        "separability": along(checks, "J", "Separability of the two answers along the thinking", "J"),
        "decodability": along(checks, "AUROC", "What a probe reads along the thinking", "AUROC", top=1.0),
        "continuation": continuation(checks, [(kind, kind) for kind in both], "Does the rest of the thinking matter?"),
        "ambiguous": continuation(checks, [(kind, f"{kind}, |s| = 0") for kind in both], "Prompts whose cues balance"),
        "hybrid": continuation(
            checks, [(part, f"hybrid, {part}") for part in ("mixed", "cues", "bits")], "A hybrid is its slices"
        ),
    }


def _ends(check: dict[str, Any]) -> str:
    return "" if check["interval"] is None else "{:.3f} to {:.3f}".format(*check["interval"])


def judged(checks: Checks) -> str:
    """Every check with a threshold."""
    found = [
        [name, f"{c['value']:.3f}", _ends(c), f"{c['op']} {c['threshold']:g}", c["status"].replace("_", " ")]
        for name, c in checks.items()
        if c["op"] != "report"
    ]
    return rows("| result | here | 95 % interval | wanted | |", found)


def by_share(checks: Checks, names: Sequence[str]) -> str:
    """Curves in numbers: one row for each name, by the share of the thinking kept."""
    found = [[name, *(f"{checks[f'{name} at {s} %']['value']:.3f}" for s in range(0, 101, 20))] for name in names]
    return rows("| kept | 0 % | 20 % | 40 % | 60 % | 80 % | 100 % |", found)


def beside(checks: Checks, names: Sequence[str]) -> str:
    """Figures without a threshold, of both organisms."""

    def cell(kind: str, name: str) -> str:
        c = checks.get(f"{kind}: {name}")
        return (
            "" if c is None or c["value"] is None else f"{c['value']:.3f} ({_ends(c)})" if c["interval"] else f"{c['value']:.3f}"
        )

    return rows(
        "| result | locked | deliberative |", ([name, cell("locked", name), cell("deliberative", name)] for name in names)
    )


def tables(checks: Checks) -> dict[str, str]:
    """All tables by name."""
    kinds = ("locked", "deliberative")
    told = [name.removeprefix("locked: ") for name, c in checks.items() if name.startswith("locked: ") and c["op"] == "report"]
    return {
        "ambiguous": by_share(
            checks, [f"{kind}, |s| = {s}: {mode} variance" for s in (0, 1) for kind in kinds for mode in ("closed", "open")]
        ).replace("|s|", "\\|s\\|"),
        "judged": judged(checks).replace("|s|", "\\|s\\|"),
        "curves": by_share(
            checks, [f"{kind}: {what}" for kind in kinds for what in ("closed variance", "open variance", "open flip rate")]
        ),
        "beside": beside(checks, [name for name in told if not re.search(r"at \d+ %", name)]),
        "hybrid": by_share(
            checks, [f"hybrid, {part}: {mode} variance" for part in ("mixed", "cues", "bits") for mode in ("closed", "open")]
        ),
    }


if __name__ == "__main__":
    write("early-decision", PAGE, pictures, tables)
