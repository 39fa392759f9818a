"""The referee: the faster way goes on, the other is tried ever more rarely. No clock: times are told."""

from __future__ import annotations

import pytest

from ramify.engine.referee import LEAST, PATIENCE, TRIAL, Referee


def run(steps: int, drafting: tuple[int, float], plain: tuple[int, float], requests: int = 4) -> list[bool]:
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
    assert {True, False} == set(ways[:32])
    share = sum(way == faster for way in ways) / len(ways)
    assert share > 0.95
    assert (sum(way == faster for way in ways[2000:]) / 2000) > 0.98


@pytest.mark.parametrize("requests", [1, 32])
def test_trials_are_measured_in_tokens(requests: int) -> None:
    """Drafting first, then no drafts, each for as many tokens; what won goes on for the patience. A round brings five tokens."""
    trial = max(LEAST, TRIAL * requests)
    ways = run(3 * trial, (5 * requests, 6.0), (requests, 1.0), requests)
    drafts, plain = -(-trial // (5 * requests)), -(-trial // requests)
    drafts, plain = drafts + 1, plain + 1  # the first of a stretch does not count
    assert ways[: drafts + plain] == [True] * drafts + [False] * plain
    after = ways[drafts + plain :]
    stretch = -(-trial * PATIENCE // requests)
    assert after[:stretch] == [False] * min(stretch, len(after))


def test_a_change_is_noticed() -> None:
    referee, ways = Referee(), []
    for step in range(3000):
        way = referee.allows(1)
        ways.append(way)
        seconds = 1.0 if way == (step < 1000) else 3.0
        referee.saw(1, way, 1, seconds)
    assert sum(ways[500:1000]) > 450
    assert sum(ways[2500:]) < 50
