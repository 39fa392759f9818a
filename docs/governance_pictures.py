"""Draw the pictures of docs/methods/governance.md: python docs/governance_pictures.py (from repro/governance-cpu.json)."""

from __future__ import annotations

from picture_files import Checks, curve, read_checks, save, two_bars

from ramify.render.charts import COLOURS, Curve, curves_svg
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
    return curve(name, BUDGETS, [checks[f"{start}, b = {b}: {end}"] for b in BUDGETS])


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
    whats = ("violation", "queries answered")
    rows = [(text, [checks[f"{name}: {what}"] for what in whats]) for name, text in CONDITIONS.items()]
    heads = ["forbidden actions done, %", "questions answered, %"]
    title, about = "What an agent does, by what it is shown", "Mean and 95 % interval over seeds, per cent"
    return two_bars(title, about, rows, heads, (COLOURS[1], COLOURS[0]), (250.0, 530.0))


if __name__ == "__main__":
    checks = read_checks("governance")
    save("governance", {"budget": budget(checks), "conditions": conditions(checks)})
