"""The page's tables say what the committed figures say, and its example runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/methods/graph-credit.md").read_text(encoding="utf-8")
EVIDENCE = (ROOT / "docs/methods/graph-credit-evidence.md").read_text(encoding="utf-8")


def test_the_table_is_made_of_the_committed_figures():
    figures = json.loads((ROOT / "repro/graph-credit-cpu.json").read_text(encoding="utf-8"))
    checks = {check["name"]: check for check in figures["checks"]}
    seen = 0
    for line in EVIDENCE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] in checks:
            seen += 1
            check = checks[cells[0]]
            digits = len(cells[1].partition(".")[2])
            assert cells[1] == f"{check['value']:.{digits}f}", cells[0]
            if check["interval"]:
                assert cells[2] == "{:.2f} to {:.2f}".format(*check["interval"]), cells[0]
    assert seen > 25
    assert figures["passed"]


def test_the_example_runs(capsys):
    from ramify.methods.graph_credit import StateGraph

    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    steps = re.findall(r'\{"task_id".*\}', code)
    graph = StateGraph.from_steps(json.loads(step) for step in steps)
    columns = graph.advantages(rule="g2po", gamma=0.95, w=1.0)
    assert columns["A"][0] > columns["A"][4]
    assert graph.why("t", 2, 0).group_size == 3
    assert 0 < len(graph.rows(positive=True)) < len(steps)
