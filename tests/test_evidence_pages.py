"""Evidence pages say what the committed figures say: their tables and pictures are what their scripts make of these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "diagnose": "diagnose_pictures",
    "early-decision": "early_decision_pictures",
    "judge-evolution": "judge_evolution_pictures",
    "orchestrator": "orchestrator_pictures",
    "verify-or-ship": "verify_pictures",
}


@pytest.mark.parametrize("slug", SCRIPTS)
def test_tables_and_pictures_are_made_of_the_committed_figures(slug: str) -> None:
    script = doc_script(SCRIPTS[slug])
    report = json.loads((ROOT / f"repro/{slug}-cpu.json").read_text(encoding="utf-8"))
    assert (report["passed"], report["size"]) == (True, "cpu")
    checks, page = {check["name"]: check for check in report["checks"]}, script.PAGE.read_text(encoding="utf-8")
    tables = script.tables(checks)
    assert page.count("<!-- table: ") == len(tables) > 0
    assert doc_script("picture_files").filled(page, tables) == page
    pages = page + (ROOT / f"docs/methods/{slug}.md").read_text(encoding="utf-8")
    for name, picture in script.pictures(checks).items():
        assert (ROOT / f"docs/images/{slug}-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/{slug}-{name}.svg" in pages


@pytest.mark.parametrize("slug", ["judge-evolution", "orchestrator"])
def test_every_figure_with_a_threshold_is_on_the_page(slug: str) -> None:
    script = doc_script(SCRIPTS[slug])
    text = script.PAGE.read_text(encoding="utf-8")
    judged = [
        name for name, check in script.read_checks(slug).items() if check["op"] != "report" and not name.startswith("exact")
    ]
    assert [name for name in judged if f"| {name} |" not in text] == []
