"""Draw the pictures of docs/methods/implicit-advantage.md: python docs/advantage_pictures.py (from
repro/implicit-advantage-cpu.json)."""

from __future__ import annotations

from picture_files import Checks, curve, dots, read_checks, save

from ramify.render.charts import curves_svg


def scorers(checks: Checks) -> str:
    """Off-policy AUROC of every scorer in both arms, with intervals over seeds."""
    start = "N5, off-policy AUROC, "
    names = [name.removeprefix(start) for name in checks if name.startswith(start) and " - " not in name]
    names.sort(key=lambda name: -checks[start + name]["value"])
    drawn = [(name, [checks[f"{arm}, off-policy AUROC, {name}"] for arm in ("N0", "N5")]) for name in names]
    arms = ["without nuisance language (N0)", "with it (N5)"]
    title = "How well scorers rank another model's attempts"
    return dots(title, "AUROC against success", drawn, arms, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8))


def rounds(checks: Checks) -> str:
    """Rank correlation of the log-ratio with A* over rounds of training, with and without a KL to the reference."""
    curves = []
    for arm, name in (("KL", "KL to the reference"), ("clip", "clipping only")):
        start = f"exact, {arm} arm: rank correlation with A*, round "
        found = {int(n.removeprefix(start)): c for n, c in checks.items() if n.startswith(start)}
        curves.append(curve(name, list(found), list(found.values())))
    return curves_svg(curves, "Is the log-ratio still the advantage?", "rounds of training", "rank correlation with A*", False)


if __name__ == "__main__":
    checks = read_checks("implicit-advantage")
    save("implicit-advantage", {"scorers": scorers(checks), "rounds": rounds(checks)})
