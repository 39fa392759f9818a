"""Draw the pictures of docs/methods/governance.md: python docs/governance_pictures.py (from repro/governance-cpu.json)."""

from __future__ import annotations

from picture_files import Checks, read_checks, save

from ramify.render.charts import COLOURS, Curve, curves_svg
from ramify.render.svg import frame, label, tag
from ramify_experiments.governance.repro import BUDGETS, DROPPED, HALF, RESTORED, survival

CONDITIONS = {
    "control": "all turns, rule among them",
    "floor": "all turns but the rule",
    "recency, b = 8": "the last 8 turns",
    "random turns, b = 8": "8 turns at random",
    "summary, b = 8": "learned summary of 8 turns",
    DROPPED: "those summaries that dropped the rule",
    RESTORED: "the same with the rule restored",
    "head_tail, b = 4 + 4": "first 4 and last 4 turns",
    "pin inside the budget, b = 8": "the rule and 7 turns of the summary",
    "volume attack, b = 12": "12 turns, notes made to look useful",
    "volume attack, b = 12, pin": "the same with the rule pinned",
}


def _curve(checks: Checks, name: str, start: str, end: str) -> Curve:
    found = [checks[f"{start}, b = {b}: {end}"] for b in BUDGETS]
    low, high = ([check["interval"][side] for check in found] for side in (0, 1))
    return Curve(name, BUDGETS, [check["value"] for check in found], low, high)


def budget(checks: Checks) -> str:
    """Survival of the rule and violations over the budget, with the closed form and the negative control."""
    curves = [
        _curve(checks, "survival of the rule", "summary", "rule survived"),
        Curve("the same, closed form", BUDGETS, [survival(b) for b in BUDGETS], line=False),
        _curve(checks, "violations", "summary", "violation"),
        _curve(checks, "next question answered", "summary", "queries answered"),
        _curve(checks, "violations, trained on 50 % actions", HALF, "violation"),
    ]
    return curves_svg(curves, "What a summariser trained for the next question keeps", "turns kept of 24", "share")


def conditions(checks: Checks) -> str:
    """Violations and answered questions by what the agent is shown, means over seeds with intervals."""
    left, middle, width, height = 250.0, 530.0, 760.0, 26.0
    bottom = 40 + height * len(CONDITIONS)
    body = [label(left, 18, "forbidden actions done, %"), label(middle, 18, "questions answered, %")]
    for start in (left, middle):
        body += [tag("line", x1=start + 200 * m, x2=start + 200 * m, y1=26, y2=bottom, class_="grid") for m in (0, 0.5, 1)]
    for i, (name, text) in enumerate(CONDITIONS.items()):
        y = 46 + height * i
        body.append(label(left - 10, y + 4, text, "end"))
        for start, what, ink in ((left, "violation", COLOURS[1]), (middle, "queries answered", COLOURS[0])):
            check = checks[f"{name}: {what}"]
            low, high = (start + 200 * min(1.0, max(0.0, end)) for end in check["interval"])
            body.append(tag("rect", x=start, y=y - 7, width=max(1.0, 200 * check["value"]), height=14, fill=ink, rx=2))
            body.append(tag("line", x1=low, x2=high, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
            body.append(label(start + 206, y + 4, f"{100 * check['value']:.1f}", "soft num"))
    title = "What an agent does, by what it is shown"
    return frame(width + 20, bottom + 8, title, "Mean and 95 % interval over seeds, per cent", "".join(body))


def main() -> None:
    """Write the pictures."""
    checks = read_checks("governance")
    save("governance", {"budget": budget(checks), "conditions": conditions(checks)})


if __name__ == "__main__":
    main()
