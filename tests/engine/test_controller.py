"""The adaptive controller: the faster way continues, the other is tried ever more rarely. No clock: times are given."""

from __future__ import annotations

import pytest

from ramify.engine.controller import LEAST, MARGIN, PATIENCE, TRIAL, AdaptiveController


def run(steps: int, drafting: tuple[int, float], plain: tuple[int, float], requests: int = 4, promise: float = 1.5) -> list[bool]:
    """What the controller decided, when drafting and plain steps bring (tokens, seconds)."""
    controller, found = AdaptiveController(), []
    for _ in range(steps):
        way = controller.drafts(requests, promise)
        found.append(way)
        controller.saw(requests, way, *(drafting if way else plain))
    return found


@pytest.mark.parametrize("promise", [0.6, 1.5])
@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_way_continues_whatever_was_promised(faster: bool, promise: float) -> None:
    slow, quick = (4, 4.0), (16, 8.0)
    ways = run(6000, quick if faster else slow, slow if faster else quick, promise=promise)
    assert {True, False} == set(ways)
    assert sum(way == faster for way in ways) / len(ways) > (0.95 if faster == (promise > 1) else 0.8)
    assert sum(way == faster for way in ways[4000:]) / 2000 > 0.95


def test_what_cannot_pay_is_never_tried() -> None:
    assert not any(run(2000, (16, 1.0), (4, 4.0), promise=0.0))


@pytest.mark.parametrize("gain", [0.3, 0.6, 0.9])
def test_trials_of_a_slower_way_cost_little(gain: float) -> None:
    """Drafting brings ``gain`` times the tokens a second, as promised or not."""
    for promise, most in ((gain, 0.03), (1.2, 0.06)):
        ways = run(20_000, (4, 4.0 / gain), (4, 4.0), promise=promise)
        lost = sum(1 / gain - 1 for way in ways if way)
        assert lost / len(ways) < most


@pytest.mark.parametrize("requests", [1, 32])
def test_trials_are_measured_in_tokens(requests: int) -> None:
    """Drafting first, then no drafts, each for as many tokens;
    what won continues for the patience. A round brings five tokens."""
    trial = max(LEAST, TRIAL * requests)
    ways = run(3 * trial, (5 * requests, 6.0), (requests, 1.0), requests)
    drafts, plain = -(-trial // (5 * requests)), -(-trial // requests)
    drafts, plain = drafts + 1, plain + 1  # the first of a stretch does not count
    assert ways[: drafts + plain] == [True] * drafts + [False] * plain
    after = ways[drafts + plain :]
    stretch = -(-trial * PATIENCE // requests)
    assert after[:stretch] == [False] * min(stretch, len(after))


def test_a_change_is_noticed() -> None:
    controller, ways = AdaptiveController(), []
    for step in range(3000):
        way = controller.drafts(1, 1.5)
        ways.append(way)
        seconds = 1.0 if way == (step < 1000) else 3.0
        controller.saw(1, way, 1, seconds)
    assert sum(ways[500:1000]) > 400
    assert sum(ways[2500:]) < 60


def test_a_promise_that_falls_ends_drafting_at_once_and_one_that_rises_begins_it() -> None:
    controller = AdaptiveController()
    promises = [1.5, 0.9, 1.01, 1 + 2 * MARGIN, 1.01, 0.99]
    assert [controller.drafts(4, promise) for promise in promises] == [True, False, False, True, True, False]
