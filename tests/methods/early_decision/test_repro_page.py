"""The page's tables say what the committed figures say, and its pictures are what their script draws."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/methods/early-decision.md").read_text(encoding="utf-8")
FIGURES = json.loads((ROOT / "repro/early-decision-cpu.json").read_text(encoding="utf-8"))
CHECKS = {check["name"]: check for check in FIGURES["checks"]}


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]


def same(text: str, value: float) -> bool:
    return text == f"{value:.{len(text.partition('.')[2])}f}"


def test_every_judged_figure_is_on_the_page_as_it_was_measured() -> None:
    seen = set()
    for cells in rows():
        if cells[0] in CHECKS:
            check = CHECKS[cells[0]]
            seen.add(cells[0])
            assert same(cells[1], check["value"]), cells[0]
            if check["interval"]:
                assert all(same(*pair) for pair in zip(cells[2].split(" to "), check["interval"], strict=True)), cells[0]
            assert cells[3] == ("" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}")
    assert {name for name, check in CHECKS.items() if check["op"] != "report"} <= seen
    assert FIGURES["passed"]


def test_curves_in_tables_are_too() -> None:
    seen = 0
    for cells in rows():
        names = [f"{cells[0]} at {share} %" for share in range(0, 101, 20)]
        if names[0] in CHECKS:
            seen += 1
            assert all(same(text, CHECKS[name]["value"]) for text, name in zip(cells[1:7], names, strict=True)), cells[0]
    assert seen >= 12


def test_the_pictures_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("early_decision_pictures", ROOT / "docs/early_decision_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, picture in module.pictures(CHECKS).items():
        assert (ROOT / f"docs/images/early-decision-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/early-decision-{name}.svg" in PAGE
