"""Small files that would become large runs, or take long: refused in one sentence, with nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.node import Node

pytestmark = pytest.mark.slow

pa = pytest.importorskip("pyarrow")


def refused(file: Path, capsys: pytest.CaptureFixture) -> str:
    """The sentence that refuses an import of ``file``; there is no run afterwards."""
    folder = file.parent / "run"
    assert main(["import", str(file), "--run", str(folder)]) == 2
    assert not folder.exists()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def parquet(file: Path, **columns: list[object]) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), file, compression="zstd")
    return file


def test_a_text_that_lies_in_the_file_once_and_in_the_rows_often(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = parquet(tmp_path / "a.parquet", prompt=["x" * 200_000] * 2000, completion=["y"] * 2000)
    assert file.stat().st_size < 1000
    assert "unpack to over 200 times its size" in refused(file, capsys)


def test_a_row_that_takes_no_room_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = parquet(tmp_path / "a.parquet", prompt=["x"] * 300_000, completion=["y"] * 300_000)
    assert file.stat().st_size < 3000
    assert "unpack to over 200 times its size" in refused(file, capsys)


def test_brackets_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    many = "[" + ",".join(["[]"] * 1_000_001) + "]"
    for name, text in (
        ("a.jsonl", f'{{"prompt": "a", "completion": "b", "x": {many}}}\n'),
        ("b.json", f'[\n{{"messages": {many}}}]'),
    ):
        (tmp_path / name).write_text(text)
        assert "more than 1,000,000 lists and objects" in refused(tmp_path / name, capsys)


def test_a_log_that_repeats_itself_is_read(tmp_path: Path) -> None:
    """A long prompt under many completions, as trainers write them, packed well."""
    replies = [f"it is {i * 7919 % 1_000_003}" for i in range(3000)]
    file = parquet(tmp_path / "a.parquet", prompt=["Count the stars. " * 200] * 3000, completion=replies, reward=[1.0] * 3000)
    assert file.stat().st_size < 60_000
    assert main(["import", str(file), "--run", str(tmp_path / "run")]) == 0
    with Run.open(tmp_path / "run") as run:
        assert len(list(run.trees())) == 1
        assert sum(1 for node in run.each(Node) if node.role == "assistant") == 3000
