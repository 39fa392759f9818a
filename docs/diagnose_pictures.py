"""Draw the pictures of docs/methods/diagnose.md: python docs/diagnose_pictures.py (from repro/diagnose-cpu.json)."""

from __future__ import annotations

from picture_files import Checks, read_checks, save

from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.svg import frame, label, tag
from ramify_experiments.diagnose.measure import RHOS

CONDITIONS = {
    "baseline": "told nothing",
    "shuffled": "told another issue's finding",
    "all": "told every finding",
    "gated": "told what the gate lets through",
    "filtered": "told what a judge with the patch lets through",
    "oracle": "told the truth",
}


def conditions(checks: Checks) -> str:
    """Issues solved by both agents under each condition."""
    left, middle, height = 300.0, 580.0, 26.0
    bottom = 40 + height * len(CONDITIONS)
    body = [label(left, 18, "weak agent, % solved"), label(middle, 18, "strong agent, % solved")]
    for start in (left, middle):
        body += [tag("line", x1=start + 200 * m, x2=start + 200 * m, y1=26, y2=bottom, class_="grid") for m in (0, 0.5, 1)]
    for i, (name, text) in enumerate(CONDITIONS.items()):
        y = 46 + height * i
        body.append(label(left - 10, y + 4, text, "end"))
        for start, kind, ink in ((left, "weak", COLOURS[1]), (middle, "strong", COLOURS[0])):
            check = checks[f"{kind} agent, {name}: solved"]
            low, high = (start + 200 * end for end in check["interval"])
            body.append(tag("rect", x=start, y=y - 7, width=max(1.0, 200 * check["value"]), height=14, fill=ink, rx=2))
            body.append(tag("line", x1=low, x2=high, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
            body.append(label(start + 208, y + 4, f"{100 * check['value']:.1f}", "soft num"))
    return frame(840, bottom + 8, "What telling a finding is worth", "Share of issues solved with 95 % interval", "".join(body))


def anchoring(checks: Checks) -> str:
    """Gain of the strong agent over the share of its budget that it trusts a finding with."""
    curves = []
    for name, text in (("high", "findings judged 4 or better"), ("every", "every finding"), ("low", "findings judged worse")):
        found = [checks[f"strong agent, rho {rho:g}, {name} findings: all - baseline"] for rho in RHOS]
        low, high = ([100 * check["interval"][side] for check in found] for side in (0, 1))
        curves.append(Curve(text, RHOS, [100 * check["value"] for check in found], low, high))
    title = "A strong agent told a finding, compared with told nothing"
    return curves_svg(
        curves, title, "share of the budget spent on the finding first", "gain in solved issues, points", percent=False
    )


def main() -> None:
    """Write the pictures."""
    checks = read_checks("diagnose")
    save("diagnose", {"conditions": conditions(checks), "anchoring": anchoring(checks)})


if __name__ == "__main__":
    main()
