"""Draw the pictures and write the tables of docs/methods/orchestrator-evidence.md from repro/orchestrator-cpu.json: python
docs/orchestrator_pictures.py."""

from __future__ import annotations

from picture_files import METHODS, Checks, alike, dots, write

PAGE = METHODS / "orchestrator-evidence.md"
TABLES = {"routing": "A1: ", "composing": "A2: ", "tiny": "A3: ", "exact": "exact: "}
MARKS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BUDGETS = (6_720, 20_160, 80_640)
ARMS = {"evolution": "es", "first stage, then evolution": "sft, es", "random search": "random search", "REINFORCE": "reinforce"}


def routing(checks: Checks) -> str:
    """Success in whole episodes, by arm and training budget."""
    rows = [(name, [checks[f"A1: {name.replace('first stage alone', 'sft')}"]]) for name in ("random", "best single", "oracle")]
    rows.insert(2, ("first stage alone", [checks["A1: sft"]]))
    rows += [(name, [checks[f"A1: {arm} {budget}"] for budget in BUDGETS]) for name, arm in ARMS.items()]
    series = [f"{budget:,} episodes" for budget in BUDGETS]
    return dots("Routing in a harness of two phases", "share of episodes that succeed", rows, series, MARKS)


def composing(checks: Checks) -> str:
    """Share of right answers of composed plans and of what they are compared with."""
    names = {
        "best single worker": "A2: best single", "best worker of each domain": "A2: route to the best",
        "after the warm start": "A2: after the warm start", "composed, isolated": "A2: composed",
        "the best by hand, 4 isolated": "A2: by hand, 4 isolated and the best judge",
        "by hand, 4 all visible": "A2: by hand, 4 visible and the best judge",
        "trained with all visible": "A2: all visible, right", "trained from nothing": "A2: none, right",
    }  # fmt: skip
    rows = [(shown, [checks[name]]) for shown, name in names.items()]
    return dots("What isolation and structure are worth", "share of right answers", rows, [], MARKS)


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {"routing": routing(checks), "composing": composing(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike."""
    return alike(checks, TABLES)


if __name__ == "__main__":
    write("orchestrator", PAGE, pictures, tables)
