"""Write docs/reference/results.md, every result of every committed reproduction: python docs/tables.py.

With files as arguments it prints their rows instead, for a page's own table: python docs/tables.py repro/improve-credits.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "results.md"
HEAD = """# Every result of every reproduction

Written by `python docs/tables.py` from the files under `repro/`, which `ramify repro METHOD` makes. What a result means and why a
threshold is missed is on the method's page. Intervals are 95 %; `report` has no threshold; a known failure keeps its threshold.

A result is of the commit that stands with it. Sample keys changed on 2026-11-29 (the purpose of an attempt is part of them), so
the commands draw other samples than those results did; the quick size of each, which CI runs, shows whether the mechanism still
does.
"""
COLUMNS = "| check | value | n | wanted | status |\n|---|---|---|---|---|"


def row(check: dict[str, Any]) -> str:
    """One Markdown row: name, value with its interval, sample size, what was wanted, status."""
    low_high = "" if check["interval"] is None else f" [{check['interval'][0]:.3f}, {check['interval'][1]:.3f}]"
    wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
    status = "reported" if check["op"] == "report" else check["status"].replace("_", " ")
    return f"| {check['name']} | {check['value']:.4g}{low_high} | {check.get('n') or ''} | {wanted} | {status} |"


def read(path: Path) -> dict[str, Any]:
    """One committed report."""
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for path in sorted((ROOT / "repro").glob("*-*.json")):
        report = read(path)
        slug, size = path.stem.rsplit("-", 1)
        if size == "outside":  # rows of docs/claims.md, no checks
            continue
        seeds = report.get("seeds")
        made = f"`{report.get('command', f'ramify repro {slug} --{size}')}`" + (
            f", seeds {', '.join(map(str, seeds))}" if isinstance(seeds, list) else ""
        )
        made += f", at commit `{report['commit'][:8]}`" if report.get("commit") else ""
        parts.append(f"## {slug} ({size})\n\n{made}\n\n{COLUMNS}\n" + "\n".join(row(check) for check in report["checks"]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(COLUMNS)
        print("\n".join(row(check) for name in sys.argv[1:] for check in read(Path(name))["checks"]))
    else:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
