"""The page's tables say what the committed figures say, and its pictures are what its script draws."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/methods/governance-evidence.md").read_text(encoding="utf-8")
FIGURES = json.loads((ROOT / "repro/governance-cpu.json").read_text(encoding="utf-8"))
CHECKS = {check["name"]: check for check in FIGURES["checks"]}
SHOWN = ("violation, soft", "violation, hard", "rule survived", "allowed actions completed", "queries answered")


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


def test_the_tables_are_made_of_the_committed_figures() -> None:
    seen = 0
    for name, *cells in rows():
        if f"{name}: violation" in CHECKS:
            check = CHECKS[f"{name}: violation"]
            low, high = check["interval"]  # Student's, over seeds, which knows not that a share is at least 0
            assert cells[:2] == [f"{check['value']:.3f}", f"{max(low, 0):.3f} to {high:.3f}"], name
            assert cells[2:] == [f"{CHECKS[f'{name}: {what}']['value']:.3f}" for what in SHOWN], name
            seen += 1
        elif name in CHECKS:
            check = CHECKS[name]
            assert cells == [f"{check['value']:.4f}", f"{check['op']} {check['threshold']:g}"], name
        elif name.endswith(" actions") and len(cells) == 3:
            agents = ("50 %", "90 %", "99 %")
            found = [CHECKS[f"crossing, summariser {name}, agent {agent} caution: violation"] for agent in agents]
            assert cells == [f"{check['value']:.3f}" for check in found]
        elif name in ("learned summariser", "ideal summariser"):
            found = [CHECKS[f"rule survived {r} rounds, b = 16, {name}"] for r in range(5)]
            assert cells == [f"{check['value']:.3f}" for check in found]
    assert seen > 20
    assert FIGURES["passed"]
    assert {name for name, check in CHECKS.items() if check["op"] != "report"} <= {cells[0] for cells in rows()}


def test_the_costs_are_those_of_the_benchmark() -> None:
    saved = json.loads((ROOT / "benchmarks/results/governance.json").read_text(encoding="utf-8"))
    _, most, _, each, hardened = saved["rows"][0]
    page = " ".join(PAGE.split())
    assert f"at most {most} tokens beyond" in page
    assert f"together {each}, with the hardened wording at most {hardened}, by" in page
    seconds = saved["note"].split(" for 1,000;")[0].rsplit(" ", 1)[1]
    assert f"1,000 graded episodes take {seconds} CPU seconds" in page


def test_the_pictures_are_up_to_date() -> None:
    module = doc_script("governance_pictures")
    for name in ("budget", "conditions"):
        sampled = getattr(module, name)(CHECKS) + "\n"
        assert (ROOT / f"docs/images/governance-{name}.svg").read_text(encoding="utf-8") == sampled, name
