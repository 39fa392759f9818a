"""The referee: the faster way goes on, the other is tried ever more rarely. No clock: times are told."""

from __future__ import annotations

import pytest

from ramify.engine.referee import Referee


def run(steps: int, drafting: tuple[float, float], plain: tuple[float, float], requests: int = 4) -> list[bool]:
    """What the referee allowed, when drafting and plain steps bring (tokens, seconds)."""
    referee, found = Referee(), []
    for _ in range(steps):
        way = referee.allows(requests)
        found.append(way)
        referee.saw(requests, way, *(drafting if way else plain))
    return found


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_way_goes_on(faster: bool) -> None:
    slow, quick = (4, 4.0), (16, 8.0)
    ways = run(4000, quick if faster else slow, slow if faster else quick)
    assert {True, False} == set(ways[:16])
    share = sum(way == faster for way in ways) / len(ways)
    assert share > 0.95
    assert (sum(way == faster for way in ways[2000:]) / 2000) > 0.98


def test_a_change_is_noticed() -> None:
    referee, ways = Referee(), []
    for step in range(3000):
        way = referee.allows(1)
        ways.append(way)
        seconds = 1.0 if way == (step < 1000) else 3.0
        referee.saw(1, way, 1, seconds)
    assert sum(ways[500:1000]) > 450
    assert sum(ways[2500:]) < 50
