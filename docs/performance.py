"""Write docs/performance.md from the committed results of the benchmarks: python docs/performance.py.

Each file under ``benchmarks/results/`` is what ``benchmarks/NAME.py --save`` wrote: title, command, note, columns, rows, machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
HEAD = """# Performance

Written by `python docs/performance.py` from `benchmarks/results/`. Where ramify is compared with another tool, the two ran
alternately in one run on one machine: read the ratio; absolute times are context.
CPU time is user + system. Nothing here fails a build.
"""


def section(record: dict[str, Any]) -> str:
    """One benchmark: what was run, the table, the machine."""
    rows = ["| " + " | ".join(record["columns"]) + " |", "|" + "---|" * len(record["columns"])]
    rows += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in record["rows"]]
    machine = ", ".join(f"{value}" for value in record["machine"].values())
    return f"## {record['title']}\n\n`{record['command']}` ({machine})\n\n" + "\n".join(rows) + f"\n\n{record['note']}\n"


def page() -> str:
    """The whole page."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return "\n".join([HEAD, *(section(json.loads(file.read_text(encoding="utf-8"))) for file in files)])


def _cell(value: Any) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
