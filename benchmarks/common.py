"""What the benchmarks share: saving a table for docs/performance.md, the machine, and statistics of paired ratios."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return median, low, high


def spread(values: Sequence[float], digits: int = 2) -> str:
    """``median [lower quartile, upper quartile]``."""
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*quartiles(values), d=digits)


def save(name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str) -> None:
    """Write ``results/NAME.json``; ``python docs/performance.py`` makes the page from these."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    machine = {"cpu": model, "cores": f"{os.cpu_count()} cores", "python": f"Python {platform.python_version()}"}
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    record = {"title": title, "command": command, "machine": machine, "columns": columns, "rows": rows, "note": note}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RESULTS / name}.json")
