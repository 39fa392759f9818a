from __future__ import annotations

from pathlib import Path

import pytest
from cut_off import cut_off

from ramify.base.errors import UserError
from ramify.trace.growing import Growing


def test_rows_are_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = Growing(path)
    rows.add("a", {"x": 1})
    rows.add("b", {"x": 2})
    with path.open("ab") as file:
        file.write(b'{"key": "c", "x"')  # what a kill leaves
    again = Growing(path)
    assert list(again.rows) == ["a", "b"]
    assert "c" not in again
    again.add("c", {"x": 3})
    assert [row["x"] for row in Growing(path).rows.values()] == [1, 2, 3]


def test_what_is_no_such_file_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for text in ('{"x": 1}\n', '{"key": "a"}\n{"key": "a"}\n', "[]\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"rows\.jsonl:"):
            Growing(path)
        assert path.read_text() == text
    path.unlink()
    rows = Growing(path)
    rows.add("a", {})
    with pytest.raises(UserError, match="has the row 'a' already"):
        rows.add("a", {})
    with pytest.raises(UserError, match="cannot write"):
        Growing(tmp_path / "no" / "rows.jsonl").add("a", {})


def test_the_first_line_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """What holds no whole line is refused by readers of such files, so a kill must not leave one."""
    assert cut_off(20, lambda: Growing(tmp_path / "rows.jsonl").add("a", {"text": "x" * 100}))
    assert not (tmp_path / "rows.jsonl").exists()
    Growing(tmp_path / "rows.jsonl").add("a", {"text": "x" * 100})
    assert list(Growing(tmp_path / "rows.jsonl").rows) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
