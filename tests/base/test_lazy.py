"""Public names of a package: declared once, for type checkers, and loaded from the module they are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.base.lazy import declared

SOURCE = """
if TYPE_CHECKING:
    from ramify.base.ids import canonical_json as canonical_json
    from ramify.base.ids import stable_hash as stable_hash
    from ramify.base.ids import json_hash
    from no_such_module import Thing as Thing
"""


def test_names_are_told_at_once_and_load_from_their_module(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(SOURCE)
    names, load = declared("mine", str(tmp_path / "__init__.py"))
    assert names == ["canonical_json", "stable_hash", "Thing"]
    assert load("stable_hash").__module__ == "ramify.base.ids"
    with pytest.raises(AttributeError, match="'mine' has no attribute 'json_hash'"):
        load("json_hash")
