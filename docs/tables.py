"""Print the rows of a results table from committed figures: python docs/tables.py repro/improve-cpu.json."""

import json
import sys
from pathlib import Path


def row(check: dict) -> str:
    """One Markdown row: name, value with its interval, what was wanted, status."""
    low_high = "" if check["interval"] is None else f" [{check['interval'][0]:.3f}, {check['interval'][1]:.3f}]"
    wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
    return f"| {check['name']} | {check['value']:.3f}{low_high} | {wanted} | {check['status'].replace('_', ' ')} |"


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("| check | value | wanted | status |\n|---|---|---|---|")
    print("\n".join(row(check) for check in report["checks"]))
