"""Draw the pictures and write the tables of docs/methods/diagnose-evidence.md: python docs/diagnose_pictures.py.

Both are made from repro/diagnose-cpu.json. A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from typing import Any

from picture_files import METHODS, Checks, curve, rows, two_bars, write

from ramify.render.charts import COLOURS, curves_svg
from ramify_experiments.diagnose.measure import RHOS

CONDITIONS = {
    "baseline": "told nothing",
    "shuffled": "told another issue's finding",
    "all": "told every finding",
    "gated": "told what the gate lets through",
    "filtered": "told what a judge with the patch lets through",
    "oracle": "told the truth",
}


PAGE = METHODS / "diagnose-evidence.md"
LOCALIZERS = {
    "BM25": "BM25 over functions, no tools",
    "L0": "L0: words only",
    "L1": "L1: the rules",
    "L1 masked": "L1, paths masked",
    "L2": "L2: trained",
    "L2 masked": "L2, paths masked",
    "L2 no tools": "L2 without tools",
    "L2 with the encoder": "L2 with the encoder",
    "Ochiai": "Ochiai, which runs the tests",
}


def tables(checks: Checks) -> dict[str, str]:
    """The page's tables, as Markdown."""

    def value(check: dict[str, Any]) -> str:
        return f"{check['value']:.4g}" + (" [{:.3f}, {:.3f}]".format(*check["interval"]) if check["interval"] else "")

    judged = [one for name, one in checks.items() if one["op"] != "report" and not name.startswith("the paper's table")]
    places = [
        (text, [checks.get(f"{name}: {what} of the first place right") for what in ("file", "function")])
        for name, text in LOCALIZERS.items()
    ]
    lost = sorted((name for name in checks if name.startswith("ablation, loss ")), key=lambda name: -checks[name]["value"])
    return {
        "judged": rows(
            "| check | value | n | wanted | status |",
            [
                [one["name"], value(one), str(one["n"]), f"{one['op']} {one['threshold']:g}", one["status"].replace("_", " ")]
                for one in judged
            ],
        ),
        "localizers": rows(
            "| localizer | file right | function right |",
            [[text, *(f"{one['value']:.3f}" for one in both if one)] for text, both in places if all(both)],
        ),
        "others": rows(
            "| | value | n |",
            [
                [name, value(checks[name]), str(checks[name]["n"])]
                for name in ("L2: turns", "L2: composite at least 4", "ablation, whole: file F1")
            ],
        ),
        "ablation": rows(
            "| L2 under faults | file F1 lost | 95 % interval |",
            [
                [
                    name.removeprefix("ablation, loss "),
                    f"{checks[name]['value']:.3f}",
                    "{:.3f} to {:.3f}".format(*checks[name]["interval"]),
                ]
                for name in lost
            ],
        ),
    }


def conditions(checks: Checks) -> str:
    """Issues solved by both agents under each condition."""
    agents = ("weak", "strong")
    found = [(text, [checks[f"{kind} agent, {name}: solved"] for kind in agents]) for name, text in CONDITIONS.items()]
    heads = [f"{kind} agent, % solved" for kind in agents]
    title, about = "What telling a finding is worth", "Share of issues solved with 95 % interval"
    return two_bars(title, about, found, heads, (COLOURS[1], COLOURS[0]), (300.0, 580.0))


def anchoring(checks: Checks) -> str:
    """Gain of the strong agent over the share of its budget that it trusts a finding with."""
    curves = []
    for name, text in (("high", "findings judged 4 or better"), ("every", "every finding"), ("low", "findings judged worse")):
        found = [checks[f"strong agent, rho {rho:g}, {name} findings: all - baseline"] for rho in RHOS]
        curves.append(curve(text, RHOS, found, 100))
    title = "A strong agent told a finding, compared with told nothing"
    return curves_svg(
        curves, title, "share of the budget spent on the finding first", "gain in solved issues, points", percent=False
    )


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {"conditions": conditions(checks), "anchoring": anchoring(checks)}


if __name__ == "__main__":
    write("diagnose", PAGE, pictures, tables)
