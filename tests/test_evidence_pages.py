"""Evidence pages say what the committed figures say: their tables and pictures are what their scripts make of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "diagnose": "diagnose_pictures",
    "earned-code-memory": "earned_code_memory_pictures",
    "early-decision": "early_decision_pictures",
    "judge-evolution": "judge_evolution_pictures",
    "kernel-search": "kernel_search_pictures",
    "orchestrator": "orchestrator_pictures",
    "theory-loop": "theory_loop_pictures",
    "verify-or-ship": "verify_pictures",
    "world-model": "world_model_pictures",
}


def committed(slug: str) -> dict[str, dict[str, Any]]:
    """The checks that a method's page is made of, by name."""
    found: dict[str, dict[str, Any]] = doc_script("picture_files").read_checks(
        *getattr(doc_script(SCRIPTS[slug]), "FILES", (slug,))
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("slug", SCRIPTS)
def test_tables_and_pictures_are_made_of_the_committed_figures(slug: str) -> None:
    script = doc_script(SCRIPTS[slug])
    report = json.loads((ROOT / f"repro/{slug}-cpu.json").read_text(encoding="utf-8"))
    assert (report["passed"], report["size"]) == (True, "cpu")
    checks, page = committed(slug), script.PAGE.read_text(encoding="utf-8")
    tables = script.tables(checks)
    assert page.count("<!-- table: ") == len(tables) > 0
    assert doc_script("picture_files").filled(page, tables) == page
    pages = page + (ROOT / f"docs/methods/{slug}.md").read_text(encoding="utf-8")
    for name, picture in script.pictures(checks).items():
        assert (ROOT / f"docs/images/{slug}-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/{slug}-{name}.svg" in pages


@pytest.mark.parametrize("slug", ["judge-evolution", "kernel-search", "orchestrator", "theory-loop"])
def test_every_figure_with_a_threshold_is_on_the_page(slug: str) -> None:
    text = doc_script(SCRIPTS[slug]).PAGE.read_text(encoding="utf-8")
    judged = [name for name, check in committed(slug).items() if check["op"] != "report" and not name.startswith("exact")]
    assert [name for name in judged if f"| {name} |" not in text] == []


def test_the_page_of_improve_shows_what_the_comparison_says() -> None:
    page = (ROOT / "docs/improve.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "repro/improve-comparison.json").read_text(encoding="utf-8"))
    told = {
        check["name"]: check for check in record["checks"] if check["name"].endswith(": success") and " - " not in check["name"]
    }
    assert len(told) > 2 * 6
    for name, check in told.items():
        low, high = check["interval"]
        assert f"{check['value']:.3f} [{low:.3f}, {high:.3f}]" in page, name
    for name, picture in doc_script("improve_pictures").pictures().items():
        assert (ROOT / f"docs/images/improve-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
