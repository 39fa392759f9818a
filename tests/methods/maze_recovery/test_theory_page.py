"""The page's tables of the theory say what the committed figures say, and its pictures are what its script draws."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/methods/maze-recovery-evidence.md").read_text(encoding="utf-8")
FIGURES = json.loads((ROOT / "repro/maze-recovery-cpu.json").read_text(encoding="utf-8"))
CHECKS = {check["name"]: check for check in FIGURES["checks"]}


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


def same(text: str, value: float) -> bool:
    return text == f"{value:.{len(text.partition('.')[2])}f}"


def test_the_table_is_made_of_the_committed_figures() -> None:
    seen = 0
    for cells in rows():
        if cells[0] in CHECKS:
            seen += 1
            check = CHECKS[cells[0]]
            assert same(cells[1], check["value"]), cells[0]
            if check["interval"]:
                assert all(same(*pair) for pair in zip(cells[2].split(" to "), check["interval"], strict=True)), cells[0]
            assert cells[4] == ("" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}")
    judged = [check for check in CHECKS.values() if check["op"] != "report"]
    assert seen > 40
    assert FIGURES["passed"]
    assert {check["name"] for check in judged} <= {cells[0] for cells in rows()}


def test_the_tables_by_regime_are_too() -> None:
    seen = 0
    for cells in rows():
        name = f"network, {cells[0]}: "
        if len(cells) == 8 and name + "a" in CHECKS:
            seen += 1
            for text, what in zip(cells[1:], ("a", "b", "c", "d", "unfinished", "steps", "refused"), strict=True):
                assert same(text, CHECKS[name + what]["value"]), name + what
        name = f"random grids, {cells[0]}: "
        if len(cells) == 7 and name + "steps" in CHECKS:
            seen += 1
            whats = ("within 1 x", "within 2 x", "within 4 x", "within 8 x", "steps", "unfinished")
            for text, what in zip(cells[1:], whats, strict=True):
                value, low, high = text.replace("(", "").replace(")", "").replace(" to ", " ").split()
                check = CHECKS[name + what]
                assert all(same(*pair) for pair in zip((value, low, high), (check["value"], *check["interval"]), strict=True))
    assert seen == 10


def test_the_pictures_are_up_to_date() -> None:
    module = doc_script("maze_pictures")
    pictures = {"maze": module.maze(), "network": module.network(CHECKS)}
    for name, picture in pictures.items():
        assert (ROOT / f"docs/images/maze-recovery-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
