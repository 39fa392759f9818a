"""How long exact planning takes: CPU milliseconds of one plan, by horizon and critics.

    python benchmarks/verify_or_ship.py [--save]

Four critics of two levels. "one table": the paper's model. "histories": other tables for rewritten candidates and for those that
follow a rejected one. "same text": a rewrite may also bring the same text back,
which multiplies what has to be remembered. The median of 15 plans.
"""

from __future__ import annotations

import argparse
import statistics
import time

from common import save

from ramify.methods.verify_or_ship.algorithm import ControlConfig, Kernel, Likelihood, Plan, Tables

CRITICS = {"syntax": (0.99, 0.90), "tests": (0.90, 0.35), "review": (0.75, 0.35), "types": (0.80, 0.50)}


def tables(critics: int, histories: bool, same: bool) -> Tables:
    """Tables with so many critics."""

    def scaled(by: float) -> dict[str, Likelihood]:
        return {name: Likelihood.of(t, f * by) for name, (t, f) in list(CRITICS.items())[:critics]}

    kernel = Kernel(fix=0.2, broken=0.1, same_right=0.2 * same, same_wrong=0.3 * same)
    more = {"rewritten": scaled(0.8), "rejected": scaled(0.6), "kernel_rejected": kernel, "gate": "syntax"} if histories else {}
    return Tables(prior=0.4, critics=scaled(1.0), kernel=kernel, **more)


def milliseconds(known: Tables, config: ControlConfig) -> float:
    """The median over 15 plans."""
    found = []
    for _ in range(15):
        began = time.process_time()
        Plan(known, config)
        found.append(1000 * (time.process_time() - began))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/verify_or_ship.json")
    options = parser.parse_args()
    rows = []
    for name, histories, same in (("one table", False, False), ("histories", True, False), ("histories, same text", True, True)):
        for horizon, critics in ((3, 3), (5, 3), (5, 4)):
            known, config = tables(critics, histories, same), ControlConfig(horizon=horizon)
            sizes = Plan(known, config).sizes()
            rows.append([name, horizon, critics, f"{milliseconds(known, config):.1f}", sizes.functions, sizes.lines])
            print(*rows[-1])
    if options.save:
        note = (
            "The target is 50 ms at a horizon of 5 with 4 critics. Lines are those of all value functions together; there is no "
            "grid."
        )
        save(
            "verify_or_ship",
            "Planning when to verify",
            ["model", "horizon", "critics", "CPU ms", "value functions", "lines"],
            rows,
            note,
        )


if __name__ == "__main__":
    main()
