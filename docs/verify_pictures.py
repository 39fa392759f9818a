"""Draw the pictures of verify-or-ship's pages and write the tables of docs/methods/verify-or-ship-evidence.md: python
docs/verify_pictures.py.

Both are made from repro/verify-or-ship-cpu.json. A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from typing import Any

from picture_files import METHODS, Checks, rows, write

from ramify.methods.verify_or_ship.algorithm import Kernel
from ramify.methods.verify_or_ship.replay import regimes
from ramify.methods.verify_or_ship.report import map_svg
from ramify.render.charts import Curve, curves_svg
from ramify_experiments.verify_or_ship.repro import PRICES, REAL_PRICES, closed_case

PROGRAMS = ("bayes", "greedy", "one table", "gate", "best of 3", "always", "null")
REAL = ("bayes", "bayes greedy", "gate(tests)", "gate(types)", "best of 3", "always verify", "stop at once")
PAGE = METHODS / "verify-or-ship-evidence.md"
MADE_UP = {
    "null": "null",
    "always": "always",
    "best of 3": "best of 3",
    "gate": "gate(tests)",
    "greedy": "greedy",
    "one table": "one table",
    "bayes": "bayes",
}
REAL_NAMES = {
    "stop at once": "null",
    "always verify": "always",
    "best of 3": "best of 3",
    "gate(tests)": "gate(tests)",
    "gate(types)": "gate(types)",
    "all critics": "all critics",
    "bayes greedy": "greedy",
    "bayes": "bayes",
}
JUDGED = {
    "regime 1: distance to always verify beyond the gain of critics": (
        "cheap verifier, good generator: distance to always verifying beyond what critics are worth",
        1,
    ),
    "regime 1: questions to critics that toss coins": ("critics that toss coins are asked", 0),
    "regime 2: gate(tests) - bayes where it is best": ("the gate ties or beats planning somewhere", 1),
    "regime 3: prices of 15 to 50 at which planning gains 1.5 or more over the best fixed rule": (
        "prices of 15 to 50 at which planning gains 1.5 or more over the best fixed rule",
        0,
    ),
    "order of winners along the price: steps back from null, gate, verify": (
        "steps back in the order verify, gate, stop along the price",
        0,
    ),
    "PRR: belief - best critic": ("PRR of the belief - best critic", 2),
    "PRR with two coins: belief - share of critics passed": (
        "PRR of the belief - share of critics passed, two coins among them",
        2,
    ),
}
NAMES = {"one table": "bayes, one table", "gate": "gate(tests)", "always": "always verify", "null": "stop at once"}


def curves(checks: Checks, start: str, prices: tuple[float, ...], names: tuple[str, ...], title: str) -> str:
    """Utility of each policy over the price of the verifier."""
    drawn = [
        Curve(NAMES.get(name, name), prices, [checks[f"{start}, c_v {price:g}: utility, {name}"]["value"] for price in prices])
        for name in names
    ]
    return curves_svg(drawn, title, "cost of the verifier", "utility a task", percent=False)


def regime_map() -> str:
    """Which policy to use over price and prior, for the three critics of the closed cases."""
    tables, config = closed_case("pi .4, c_v 30")
    rows = []
    for prior in [i / 10 for i in range(1, 10)]:
        own = tables.model_copy(update={"prior": prior, "kernel": Kernel(fix=0.6 * prior, broken=0.08)})
        rows += regimes(own, config, [2.0 + 4 * i for i in range(25)])
    return map_svg(rows, "Which policy is within 1 of the optimum: syntax, tests and review of the closed cases")


def _cell(check: dict[str, Any], digits: int = 1) -> str:
    low_high = " ({:.{d}f} to {:.{d}f})".format(*check["interval"], d=digits) if check["interval"] else ""
    return f"{check['value']:.{digits}f}{low_high}"


def _prices(checks: Checks, start: str, prices: tuple[float, ...], names: dict[str, str]) -> str:
    """One row a price: what each policy got, and the gains of planning."""
    found = []
    for price in prices:
        own = f"{start}, c_v {price:g}"
        gains = [_cell(checks[f"{own}: bayes - {over}"]) for over in ("always verify", "best fixed rule")]
        found.append([f"{price:g}", *(_cell(checks[f"{own}: utility, {name}"]) for name in names), *gains])
    return rows(f"| c_v | {' | '.join(names.values())} | over always | over best fixed rule |", found)


def tables(checks: Checks) -> dict[str, str]:
    """The page's tables, as Markdown."""
    made = {start: _prices(checks, start, PRICES, MADE_UP) for start in ("weak", "strong", "learned")}
    made["real"] = _prices(checks, "real modules", REAL_PRICES, REAL_NAMES)
    wanted = {"<=": "at most", ">=": "at least", "==": ""}
    made["judged"] = rows(
        "| what was to be reproduced | here | wanted |",
        [
            [text, _cell(checks[name], digits), f"{wanted[checks[name]['op']]} {checks[name]['threshold']:g}"]
            for name, (text, digits) in JUDGED.items()
        ],
    )
    learnt = [name for name in checks if name.startswith("learned rewriter: ")]
    made["rewriter"] = rows(
        "| | here | wanted |",
        [
            [
                name.removeprefix("learned rewriter: "),
                _cell(checks[name], 0 if checks[name]["value"] >= 10 else 2),
                "" if checks[name]["op"] == "report" else f"{wanted[checks[name]['op']]} {checks[name]['threshold']:g}",
            ]
            for name in learnt
        ],
    )
    return made


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {
        "programs": curves(checks, "weak", PRICES, PROGRAMS, "Made-up programs, a weak public test"),
        "learned": curves(checks, "learned", PRICES, PROGRAMS, "Made-up programs, rewritten by a small transformer"),
        "real": curves(checks, "real modules", REAL_PRICES, REAL, "Mutants of 21 modules of mpmath and networkx"),
        "map": regime_map(),
    }


if __name__ == "__main__":
    write("verify-or-ship", PAGE, pictures, tables)
