"""Public names of a package: told without loading anything, loaded from the module they are in."""

from __future__ import annotations

import pytest

from ramify.base.lazy import public


def test_names_are_told_at_once_and_load_from_their_module() -> None:
    names, load = public("ramify.base", {"ids": "stable_hash canonical_json", "no_such_module": "Thing"})
    assert names == ["NEEDS", "stable_hash", "canonical_json", "Thing"]
    assert load("stable_hash").__module__ == "ramify.base.ids"
    with pytest.raises(AttributeError, match=r"'ramify\.base' has no attribute 'json_hash'"):
        load("json_hash")


def test_a_module_with_dots_is_one_of_another_package() -> None:
    names, load = public("ramify.base", {"ids": "stable_hash", "ramify.stats.drops": "Counts"})
    assert names == ["NEEDS", "stable_hash", "Counts"]
    assert load("Counts").__module__ == "ramify.stats.drops"
