"""Draw the pictures of docs/methods/verify-or-ship.md: python docs/verify_pictures.py (from repro/verify-or-ship-cpu.json).

With --tables it prints the page's tables instead.
"""

from __future__ import annotations

import sys

from picture_files import Checks, read_checks, save

from ramify.methods.verify_or_ship.algorithm import Kernel
from ramify.methods.verify_or_ship.replay import regimes
from ramify.methods.verify_or_ship.report import map_svg
from ramify.render.charts import Curve, curves_svg
from ramify_experiments.verify_or_ship.programs import TESTS
from ramify_experiments.verify_or_ship.repro import PRICES, REAL_PRICES, closed_case

PROGRAMS = ("bayes", "greedy", "one table", "gate", "best of 3", "always", "null")
REAL = ("bayes", "bayes greedy", "gate(tests)", "gate(types)", "best of 3", "always verify", "stop at once")
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


def tables(checks: Checks) -> str:
    """The page's tables, as Markdown."""

    def cell(name: str, interval: bool = False) -> str:
        one = checks[name]
        low_high = " ({:.1f} to {:.1f})".format(*one["interval"]) if interval and one["interval"] else ""
        return f"{one['value']:.1f}{low_high}"

    lines = []
    for test in TESTS:
        lines += [
            f"\n{test}\n",
            "| c_v | null | always | best of 3 | gate(tests) | greedy | one table | bayes | over always | over best fixed rule |",
        ]
        lines.append("|---|---|---|---|---|---|---|---|---|---|")
        for price in PRICES:
            start = f"{test}, c_v {price:g}"
            values = [
                cell(f"{start}: utility, {name}")
                for name in ("null", "always", "best of 3", "gate", "greedy", "one table", "bayes")
            ]
            gains = [cell(f"{start}: bayes - always verify"), cell(f"{start}: bayes - best fixed rule", True)]
            lines.append(f"| {price:g} | {' | '.join([*values, *gains])} |")
    lines += [
        "\nreal\n",
        "| c_v | null | always | best of 3 | gate(tests) | gate(types) | all critics | greedy | bayes | over always | over best fixed rule |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for price in REAL_PRICES:
        start = f"real modules, c_v {price:g}"
        names = (
            "stop at once",
            "always verify",
            "best of 3",
            "gate(tests)",
            "gate(types)",
            "all critics",
            "bayes greedy",
            "bayes",
        )
        gains = [cell(f"{start}: bayes - always verify"), cell(f"{start}: bayes - best fixed rule", True)]
        lines.append(f"| {price:g} | {' | '.join([*(cell(f'{start}: utility, {name}') for name in names), *gains])} |")
    return "\n".join(lines)


def main() -> None:
    """Write the pictures, or print the tables."""
    checks = read_checks("verify-or-ship")
    if "--tables" in sys.argv[1:]:
        print(tables(checks))
        return
    made = {
        "programs": curves(checks, "weak", PRICES, PROGRAMS, "Made-up programs, a weak public test"),
        "real": curves(checks, "real modules", REAL_PRICES, REAL, "Mutants of 21 modules of mpmath and networkx"),
        "map": regime_map(),
    }
    save("verify-or-ship", made)


if __name__ == "__main__":
    main()
