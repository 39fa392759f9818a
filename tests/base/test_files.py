"""Files that are there whole or not at all, at paths that are hard to write to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cut_off import cut_off

from ramify.base.errors import UserError
from ramify.base.files import folder_aside, whole_file, write_whole


def test_names_as_long_as_the_system_allows(tmp_path: Path) -> None:
    for name in ("x" * 255, "\N{GRINNING FACE}" * 63):
        write_whole(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match="a link that leads to itself"):
        write_whole(tmp_path / "a", "x")
    assert (tmp_path / "a").is_symlink()


def test_what_a_kill_left_is_gone_with_the_next_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def fill() -> None:
        with folder_aside(tmp_path) as folder:
            (folder / "b").write_text("x" * 100)

    assert cut_off(10, lambda: write_whole(tmp_path / "a", "x" * 100))
    assert cut_off(10, fill)
    (tmp_path / ".part-mine").write_text("of somebody else")
    assert len(list(tmp_path.iterdir())) > 2
    write_whole(tmp_path / "c", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-mine", "a", "c"]
    assert (tmp_path / "a").read_text() == "old"


def test_what_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with whole_file(tmp_path / "a") as part:
                part.write_text("whole")
                os.read(reading, 1)
        finally:
            os._exit(0)
    while not list(tmp_path.glob(".part-*")):
        time.sleep(0.01)
    write_whole(tmp_path / "b", "whole")
    os.write(writing, b"x")
    os.waitpid(child, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
