"""Files that are there whole or not at all, at paths that are hard to write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.base.errors import UserError
from ramify.base.files import write_whole


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
