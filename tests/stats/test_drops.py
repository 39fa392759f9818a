from __future__ import annotations

from ramify.stats.drops import Counts


def test_scores_are_counted_and_what_has_none_is_missing() -> None:
    assert Counts.of([True, False, None, True]) == Counts(2, 3, 1)
    assert Counts.of(iter([])) == Counts(0, 0)
