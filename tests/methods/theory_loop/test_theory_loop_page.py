"""The page of evidence says what the committed results say, and its picture is what its script draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/methods/theory-loop-evidence.md"


@pytest.fixture(scope="module")
def script():
    return doc_script("theory_loop_pictures")


def test_tables_and_pictures_are_made_of_the_committed_results(script) -> None:
    checks, text = script.read_checks("theory-loop"), PAGE.read_text(encoding="utf-8")
    assert script.page(text, checks) == text
    assert {name for name, check in checks.items() if check["op"] != "report" and f"| {name} |" not in text} == set()
    for name, picture in script.PICTURES.items():
        assert (ROOT / f"docs/images/theory-loop-{name}.svg").read_text(encoding="utf-8") == picture(checks) + "\n"


def test_the_reproduction_passed() -> None:
    report = json.loads((ROOT / "repro/theory-loop-cpu.json").read_text(encoding="utf-8"))
    assert [check["name"] for check in report["checks"] if check["status"] == "miss"] == []
