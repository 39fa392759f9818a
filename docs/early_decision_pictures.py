"""Draw the pictures of docs/methods/early-decision.md: python docs/early_decision_pictures.py (from repro/early-decision-cpu.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.render.charts import Curve, curves_svg

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
KEPT = "share of the thinking kept, %"
Checks = dict[str, dict[str, Any]]


def curve(checks: Checks, label: str, name: str, places: Sequence[int]) -> Curve:
    """One curve with its interval over seeds; ``name`` has a place for the share."""
    points = [checks[name.format(place)] for place in places]
    ends = [point["interval"] or (point["value"],) * 2 for point in points]
    return Curve(label, places, [point["value"] for point in points], [e[0] for e in ends], [e[1] for e in ends])


def separability(checks: Checks) -> str:
    """J and the probe of both organisms along the thinking: the valley of J is none of the probe's."""
    places = range(0, 101, 10)
    curves = [
        curve(checks, f"{kind}: {label}", f"{kind}: {what} at {{}} % of the thinking", places)
        for kind in ("locked", "deliberative")
        for what, label in (("AUROC", "probe, AUROC"), ("J", "J"))
    ]
    return curves_svg(curves, "Separability and decodability along the thinking", "place in the thinking, %", "AUROC, J", False)


def continuation(checks: Checks, who: Sequence[tuple[str, str]], title: str) -> str:
    """Variance of the answer by share kept, closed and open, for each (label, prefix of the checks' names)."""
    curves = [
        curve(checks, f"{label}: {mode}", f"{prefix}: {mode} variance at {{}} %", range(0, 101, 20))
        for label, prefix in who
        for mode in ("closed", "open")
    ]
    return curves_svg(curves, title, KEPT, "variance 4 q (1 - q)", False)


def pictures(checks: Checks) -> dict[str, str]:
    """All of them by name."""
    both = ("locked", "deliberative")
    return {
        "separability": separability(checks),
        "continuation": continuation(checks, [(kind, kind) for kind in both], "Does the rest of the thinking matter?"),
        "ambiguous": continuation(checks, [(kind, f"{kind}, |s| = 0") for kind in both], "Prompts whose cues balance"),
        "hybrid": continuation(
            checks, [(part, f"hybrid, {part}") for part in ("mixed", "cues", "bits")], "A hybrid is its slices"
        ),
    }


def main() -> None:
    """Write the pictures."""
    report = json.loads((ROOT / "repro" / "early-decision-cpu.json").read_text(encoding="utf-8"))
    drawn = pictures({check["name"]: check for check in report["checks"]})
    for name, picture in drawn.items():
        (IMAGES / f"early-decision-{name}.svg").write_text(picture + "\n", encoding="utf-8")
    print(f"wrote {', '.join(drawn)}")


if __name__ == "__main__":
    main()
