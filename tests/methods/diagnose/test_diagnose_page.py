"""The evidence page's tables and pictures are what the committed results say."""

from __future__ import annotations

from pathlib import Path

from tests.doc_scripts import doc_script

ROOT = Path(__file__).parents[3]


def test_tables_and_pictures_are_made_from_the_committed_results() -> None:
    script = doc_script("diagnose_pictures")
    checks, page = script.read_checks("diagnose"), script.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == len(script.tables(checks)) == 4
    assert page == script.filled(page, checks)
    for name, picture in script.pictures(checks).items():
        assert (ROOT / f"docs/images/diagnose-{name}.svg").read_text(encoding="utf-8") == picture + "\n", name
        assert f"images/diagnose-{name}.svg" in page
