"""The evidence page's tables and pictures are what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]


def test_tables_and_pictures_are_made_from_the_committed_results() -> None:
    script = doc_script("verify_pictures")
    checks, page = script.read_checks("verify-or-ship"), script.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == len(script.tables(checks)) == 6
    assert page == script.filled(page, checks)
    pages = page + (ROOT / "docs/methods/verify-or-ship.md").read_text(encoding="utf-8")
    for name, picture in script.pictures(checks).items():
        assert (ROOT / f"docs/images/verify-or-ship-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/verify-or-ship-{name}.svg" in pages


def test_the_reproduction_passed() -> None:
    report = json.loads((ROOT / "repro/verify-or-ship-cpu.json").read_text(encoding="utf-8"))
    assert (report["passed"], report["size"]) == (True, "cpu")
