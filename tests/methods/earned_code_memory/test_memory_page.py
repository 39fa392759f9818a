"""The page's tables and pictures are what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]


def test_tables_and_pictures_are_made_from_the_committed_results() -> None:
    script = doc_script("earned_code_memory_pictures")
    report = json.loads((ROOT / "repro/earned-code-memory-cpu.json").read_text(encoding="utf-8"))
    page = script.PAGE.read_text(encoding="utf-8")
    checks = {check["name"]: check for check in report["checks"]}
    assert report["passed"]
    assert page.count("<!-- table ") == len(script.tables(checks)) == 4
    assert page == script.filled(page, checks)
    for name, picture in script.pictures(checks).items():
        assert (ROOT / "docs/images" / f"earned-code-memory-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/earned-code-memory-{name}.svg" in page
