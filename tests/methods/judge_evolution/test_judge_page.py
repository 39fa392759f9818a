"""The page of evidence says what the committed figures say, and its pictures are what its script draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/methods/judge-evolution-evidence.md"


@pytest.fixture(scope="module")
def script():
    return doc_script("judge_evolution_pictures")


def test_tables_and_pictures_are_made_of_the_committed_figures(script) -> None:
    checks, text = script.read_checks("judge-evolution"), PAGE.read_text(encoding="utf-8")
    assert script.page(text, checks) == text
    judged = {name for name, check in checks.items() if check["op"] != "report" and not name.startswith("exact")}
    assert {name for name in judged if f"| {name} |" not in text} == set()
    for name, picture in script.PICTURES.items():
        assert (ROOT / f"docs/images/judge-evolution-{name}.svg").read_text(encoding="utf-8") == picture(checks) + "\n"


def test_the_reproduction_passed(script) -> None:
    report = json.loads((ROOT / "repro/judge-evolution-cpu.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert report["size"] == "cpu"
