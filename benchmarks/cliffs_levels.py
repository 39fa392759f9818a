"""What the settings of the budgeted scan of cliffs find and cost, on replies whose potentials are known exactly.

    python benchmarks/cliffs_levels.py [--replies 200] [--seeds 1000 1001] [--json]

The defaults of ``ScanConfig`` were chosen here, on seeds that no reproduction uses. ``found``: share of the cliffs that a
faithful scan found and 128 fresh forks confirmed, on other forks than the budgeted scan's. ``false``: share of the confirmed ones
that lose at most a tenth. ``forks``: share of the faithful scan's.
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

from ramify.methods.cliffs.run import ScanConfig
from ramify_experiments.cliffs.repro import FORKS, TOKENS, process_cell

GRID: dict[str, tuple[float, ...]] = {
    "candidate": (0.05, 0.1, 0.2, 0.3, 0.4),
    "miss": (0.01, 0.05, 0.1, 0.2),
    "confirm": (128, 256),
}


def row(settings: dict[str, Any], replies: int, seeds: list[int]) -> dict[str, Any]:
    """One line of the table."""
    cells = [process_cell(replies, seed, settings)["budgeted"] for seed in seeds]
    total = {name: sum(cell[name] for cell in cells) for name in cells[0]}
    return settings | {
        "found": total["hits"] / total["reference"],
        "of": total["reference"],
        "false": total["false"] / max(1, total["confirmed"]),
        "forks": total["forks"] / (FORKS * (TOKENS + 1) * replies * len(seeds)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for values in itertools.product(*GRID.values()):
        rows.append(row(dict(zip(GRID, values, strict=True)), options.replies, options.seeds))
        if not options.json:
            shown = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in rows[-1].items()}
            print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
    if options.json:
        print(json.dumps({"defaults": ScanConfig().to_json(), "rows": rows}))


if __name__ == "__main__":
    main()
