"""The page of the threat model names tests that exist, and says of every promise whether it is covered."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    """The cells of each row, without heads and rules."""
    found = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
    return [cells for cells in found if cells[-1] != "status" and set(cells[-1]) != {"-"}]


def test_every_row_has_a_status() -> None:
    assert len(rows()) > 30
    assert [cells for cells in rows() if not re.match(r"covered\b|partly\b|not covered\b", cells[-1])] == []


def test_every_test_it_names_exists() -> None:
    named = set(re.findall(r"`((?:tests|repro)/[\w/.-]+)`", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_what_is_covered_names_its_test() -> None:
    assert [
        c for c in rows() if re.match(r"covered\b", c[-1]) and not any("tests/" in cell or cell.startswith("same") for cell in c)
    ] == []
