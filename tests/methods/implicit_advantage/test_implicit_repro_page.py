"""The page's tables of results say what the committed figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/methods/implicit-advantage-evidence.md").read_text(encoding="utf-8")


def agrees(value: str, interval: str, check: dict[str, Any]) -> bool:
    digits = len(value.partition(".")[2])
    shown = "{:.2f} to {:.2f}".format(*check["interval"]) if check["interval"] else ""
    return value == f"{check['value']:.{digits}f}" and interval == shown


def test_the_tables_are_made_of_the_committed_figures() -> None:
    figures = json.loads((ROOT / "repro/implicit-advantage-cpu.json").read_text(encoding="utf-8"))
    checks = {check["name"]: check for check in figures["checks"]}
    seen = 0
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] in checks:
            assert agrees(cells[1], cells[2], checks[cells[0]]), cells[0]
            seen += 1
        elif line.startswith("| ") and f"N5, {cells[0]}" in checks:
            assert agrees(cells[1], cells[2], checks[f"N0, {cells[0]}"]), cells[0]
            assert agrees(cells[3], cells[4], checks[f"N5, {cells[0]}"]), cells[0]
            seen += 1
    assert seen > 45
    assert figures["passed"]
