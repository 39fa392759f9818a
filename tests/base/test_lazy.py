from __future__ import annotations

import pytest

from ramify.base.lazy import loader
from ramify.stats.drops import Counts
from ramify.stats.intervals import wilson


def test_names_are_found_in_the_package_and_elsewhere() -> None:
    load = loader("ramify.stats", {"wilson": "intervals", "Counts": "ramify.stats.drops"})
    assert (load("wilson"), load("Counts")) == (wilson, Counts)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        load("other")
