"""Draw the pictures of docs/methods/implicit-advantage.md: python docs/advantage_pictures.py (from
repro/implicit-advantage-cpu.json)."""

from __future__ import annotations

from typing import Any

from picture_files import read_checks, save

from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.svg import frame, label, tag

ARMS = ("N0", "N5")
LEFT, WIDTH, LINE, LOW, HIGH = 270.0, 700.0, 24.0, 0.35, 0.75


def scorers(checks: dict[str, dict[str, Any]]) -> str:
    """Off-policy AUROC of every scorer in both arms, with intervals over seeds."""
    start = "N5, off-policy AUROC, "
    names = [name.removeprefix(start) for name in checks if name.startswith(start) and " - " not in name]
    names.sort(key=lambda name: -checks[start + name]["value"])

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 30) * (min(max(value, LOW), HIGH) - LOW) / (HIGH - LOW)

    bottom = 34 + LINE * len(names)
    body = []
    for mark in (0.4, 0.5, 0.6, 0.7):
        body.append(tag("line", x1=x(mark), x2=x(mark), y1=28, y2=bottom, class_="grid"))
        body.append(label(x(mark), bottom + 16, f"{mark:g}", "soft mid"))
    for i, name in enumerate(names):
        y = 44 + LINE * i
        body.append(label(LEFT - 10, y + 4, name, "end"))
        for j, arm in enumerate(ARMS):
            check = checks[f"{arm}, off-policy AUROC, {name}"]
            at, ink = y - 4 + 8 * j, COLOURS[j]
            body.append(tag("line", x1=x(check["interval"][0]), x2=x(check["interval"][1]), y1=at, y2=at, stroke=ink))
            shape = {"cx": x(check["value"]), "cy": at, "r": 4.0, "stroke": ink}
            body.append(tag("circle", **shape, fill=ink if j else "none"))
    for j, text in enumerate(("without nuisance language (N0)", "with it (N5)")):
        body.append(tag("circle", cx=LEFT + 230 * j, cy=14, r=4.0, stroke=COLOURS[j], fill=COLOURS[j] if j else "none"))
        body.append(label(LEFT + 10 + 230 * j, 18, text, ""))
    body.append(label(x(0.55), bottom + 34, "AUROC against success", "soft mid"))
    title = "How well scorers rank another model's attempts"
    return frame(WIDTH, bottom + 44, title, "AUROC against success, mean and 95 % interval over seeds", "".join(body))


def rounds(checks: dict[str, dict[str, Any]]) -> str:
    """Rank correlation of the log-ratio with A* over rounds of training, with and without a KL to the reference."""
    curves = []
    for arm, name in (("KL", "KL to the reference"), ("clip", "clipping only")):
        start = f"exact, {arm} arm: rank correlation with A*, round "
        found = {int(n.removeprefix(start)): c for n, c in checks.items() if n.startswith(start)}
        y, ends = [c["value"] for c in found.values()], [c["interval"] for c in found.values()]
        curves.append(Curve(name, list(found), y, [low for low, _ in ends], [high for _, high in ends]))
    return curves_svg(curves, "Is the log-ratio still the advantage?", "rounds of training", "rank correlation with A*", False)


def main() -> None:
    """Write both pictures."""
    checks = read_checks("implicit-advantage")
    save("implicit-advantage", {"scorers": scorers(checks), "rounds": rounds(checks)})


if __name__ == "__main__":
    main()
