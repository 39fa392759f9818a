from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.engine.controller import MARGIN
from ramify.engine.schedules import (
    FixedSchedule,
    GreedySchedule,
    Off,
    Schedule,
    Stale,
    Threshold,
    counts,
    ranked,
    rates,
    schedule_of,
    survival,
    until_loss,
)
from ramify.stats.tests import chi_square

from .toy_pairs import Biased, Linear, Pair, Table, bigrams, one_cycle, plain_distribution

PRIOR = np.full(2, 0.6)


def admitted(confidence: list[list[float]], seconds: np.ndarray) -> list[int]:
    """The greedy path for given cycle seconds of R, R + 1, ... tokens."""
    rows, values = ranked(survival(np.array(confidence)))
    return counts(rows, until_loss(rates(values, len(confidence), seconds)), len(confidence)).tolist()


def test_path_of_the_specification():
    confidence = np.array([[0.9, 0.8, 0.5, 0.5]])
    _, values = ranked(survival(confidence))
    rate = rates(values, 1, 10 + np.arange(1.0, 6.0))
    assert rate == pytest.approx([1 / 11, 1.9 / 12, 2.62 / 13, 2.98 / 14, 3.16 / 15])
    assert until_loss(rate) == 3
    for n, a in enumerate(values):  # the rule for linear time: admit while a > t1 x rate
        assert (a > rate[n]) == (n < 3)


def test_constant_time_admits_everything_and_proportional_time_nothing():
    confidence = [[0.9, 0.4], [0.2, 0.99]]
    assert admitted(confidence, np.ones(5)) == [2, 2]
    assert admitted(confidence, np.arange(2.0, 7.0)) == [0, 0]


def test_ties_go_to_the_smaller_position_then_the_smaller_row():
    rows, values = ranked(np.array([[0.5, 0.5], [0.5, 0.25], [0.5, 0.5]]))
    assert rows.tolist() == [0, 1, 2, 0, 2, 1]
    assert values.tolist() == [0.5] * 5 + [0.25]


confidences = st.integers(1, 5).flatmap(
    lambda r: st.integers(1, 4).flatmap(
        lambda k: st.lists(st.lists(st.floats(0.01, 0.99), min_size=k, max_size=k), min_size=r, max_size=r)
    )
)


@given(confidences, st.floats(0.1, 50), st.floats(0.1, 5), st.integers(0, 20), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_budget_properties(confidence: list[list[float]], fixed: float, each: float, budget: int, random: object):
    a = survival(np.array(confidence))
    R, K = a.shape
    rows, values = ranked(a)
    lengths = counts(rows, min(budget, R * K), R)
    assert lengths.sum() == min(budget, R * K)
    chosen = [a[r, :n] for r, n in enumerate(lengths)]  # a prefix of every row, and the largest ones
    assert sum(c.sum() for c in chosen) == pytest.approx(values[:budget].sum())
    seconds = fixed + each * (R + np.arange(R * K + 1.0))
    rate = rates(values, R, seconds)
    best = until_loss(rate)
    assert rate[best] == pytest.approx(rate.max())  # linear time: the break finds the best total
    assert until_loss(rates(values, R, 7 * seconds)) in (best, best - 1, best + 1)
    order = np.random.default_rng(0).permutation(R)
    if len(set(a.ravel().tolist())) == a.size:  # without ties
        assert counts(ranked(a[order])[0], best, R).tolist() == counts(rows, best, R)[order].tolist()
    higher = ranked(survival(np.minimum(1.0, np.array(confidence) * 1.1)))[1]
    assert rates(higher, R, seconds).max() >= rate.max() - 1e-12


def test_limits_and_hopeless_drafts_are_left_out():
    costs = Linear(10, 0.01)
    for schedule in (
        FixedSchedule(3),
        Threshold(0.0, 3),
        GreedySchedule(costs, 3, np.full(3, 0.9)),
        Stale(costs, 3, np.full(3, 0.9)),
    ):
        lengths = schedule.admit(np.array([[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]]), np.array([1, 3]))
        assert lengths.tolist() == [1, 3]
    assert GreedySchedule(costs, 3, np.full(3, 0.9)).admit(np.array([[0.9, 0.0, 0.9]]), np.array([3])).tolist() == [1]


def test_threshold_stops_at_the_first_low_confidence():
    assert Threshold(0.5, 4).admit(np.array([[0.9, 0.4, 0.9, 0.9], [0.5, 0.5, 0.6, 0.2]]), np.full(2, 4)).tolist() == [1, 3]


# -- exactness: every schedule leaves the target's distribution as it is, jointly over requests


def stale(share: float, gamma: int = 2) -> Stale:
    """A stale schedule whose last two steps asked for ``share`` drafts a request."""
    schedule = Stale(Linear(4, 1), gamma, PRIOR)
    schedule._shares = deque([share, 0.0], maxlen=2)
    return schedule


EXACT: dict[str, Callable[[], Schedule]] = {
    "off": Off,
    "fixed:1": lambda: FixedSchedule(1),
    "fixed:2": lambda: FixedSchedule(2),
    "threshold": lambda: Threshold(0.5, 2),
    "greedy": lambda: GreedySchedule(Linear(4, 1), 2, PRIOR),
    "greedy, jagged": lambda: GreedySchedule(Table([1, 1, 2, 2.1, 2.2, 3.9]), 2, PRIOR),
    "stale2: 1": lambda: stale(1.0),
    "stale2: 1.5": lambda: stale(1.5),
    "stale2: 2": lambda: stale(2.0),
}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.sum() == pytest.approx(1, abs=1e-12)
    return float(np.abs(a - b).sum() / 2)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("zeros", [False, True])
def test_one_cycle_has_the_targets_distribution(name: str, zeros: bool):
    pair = Pair(5, seed=3, zeros=zeros)
    exact = plain_distribution(pair, 1, 2)
    assert distance(one_cycle(pair, 1, 2, EXACT[name], 1), exact.sum(axis=1)) < 1e-12
    assert distance(one_cycle(pair, 1, 2, EXACT[name], 2), exact) < 1e-12


@pytest.mark.parametrize("name", EXACT)
def test_requests_that_share_a_budget_stay_exact_together(name: str):
    pair = Pair(3, seed=5)
    assert distance(one_cycle(pair, 2, 2, EXACT[name], 2), plain_distribution(pair, 2, 2)) < 1e-12


class SpecExample(Pair):
    """Section 8: two tokens A and B, a_1 = .8, c_2 = .9 after A and 0 after B; p = (.7, .3), q = (.5, .5)."""

    def distributions(self, request: int, seen: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, float]:
        c = 0.8 if not seen else (0.9 if seen[0] == 0 else 0.0)
        return np.array([0.7, 0.3]), np.array([0.5, 0.5]), c


def test_a_search_over_current_confidences_is_biased():
    pair, costs = SpecExample(2), Table([1 / 1.0, 1 / 0.5, 1 / 0.45])
    biased = one_cycle(pair, 1, 2, lambda: Biased(costs, 2, PRIOR), 1)
    assert biased == pytest.approx([0.85, 0.15], abs=1e-12)
    greedy = one_cycle(pair, 1, 2, lambda: GreedySchedule(costs, 2, PRIOR), 1)
    assert greedy == pytest.approx([0.7, 0.3], abs=1e-12)
    assert GreedySchedule(costs, 2, PRIOR).admit(np.array([[0.8, 0.9]]), np.array([2])).tolist() == [0]
    rate = rates(np.array([0.8, 0.72]), 1, costs.cycle(1, np.arange(1.0, 4.0), 2))
    assert rate == pytest.approx([1.0, 0.9, 1.134])


# -- by samples


def exactness(pair: Pair, schedule: Schedule, count: int, **options: object) -> float:
    """p-value of two-token outputs against the distribution of plain sampling."""
    found = bigrams(pair, schedule, 3, count, **options)
    return chi_square(found.ravel(), plain_distribution(pair, 1, 2).ravel())[1]


def jagged(requests: int) -> Table:
    """Target time in steps of an eighth of the requests' tokens."""
    tokens = np.arange(1.0, 5 * requests)
    step = max(1, requests // 8)
    return Table((2 * requests + np.ceil(tokens / step) * step).tolist())


@pytest.mark.parametrize(
    "make", [lambda: GreedySchedule(Linear(2000, 1), 3, np.full(3, 0.6)), lambda: Stale(jagged(1000), 3, np.full(3, 0.6))]
)
def test_samples_have_the_targets_distribution(make: Callable[[], Schedule]):
    assert exactness(Pair(5, seed=3), make(), 12_000) > 0.001


def test_samples_of_the_biased_search_have_not():
    """One request at a time, as in the closed form: what is admitted knows the token drafted."""

    class Alone(Biased):
        def admit(self, confidence: np.ndarray, limits: np.ndarray) -> np.ndarray:
            return np.array([Biased.admit(self, c[None], n[None])[0] for c, n in zip(confidence, limits, strict=True)])

    assert exactness(Pair(5, seed=3), Alone(Table([1, 2, 2.2, 2.3]), 3, np.full(3, 0.6)), 2_000, rows=100) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed", "threshold", "greedy", "stale2"])
def test_two_hundred_thousand_bigrams_of_every_schedule(name: str):
    made: dict[str, Callable[[], Schedule]] = {
        "fixed": lambda: FixedSchedule(3),
        "threshold": lambda: Threshold(0.5, 3),
        "greedy": lambda: GreedySchedule(Linear(4000, 1), 3, np.full(3, 0.6)),
        "stale2": lambda: Stale(jagged(2000), 3, np.full(3, 0.6)),
    }
    assert exactness(Pair(5, seed=3), made[name](), 200_000, rows=2000) > 0.001


@pytest.mark.slow
def test_a_million_samples_under_a_stale_load():
    assert exactness(Pair(5, seed=3), Stale(jagged(8000), 3, np.full(3, 0.6)), 1_000_000, rows=8000) > 0.001


# -- whether to draft at all: counted costs, no clock


class Counted:
    """Costs in counted units: the target's pass, drafting, and the rest, each by the numbers of requests and tokens."""

    def __init__(self, draft: float, host: float) -> None:
        self.draft, self.host = draft, host

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        target = 20.0 + 1.0 * tokens
        host = 0.5 * requests + (self.host * requests if depth else 0.0)
        drafting = (self.draft + 0.3 * requests * depth) if depth else 0.0
        return target + host + drafting


def pays(costs: Counted, requests: int, accept: float, block: int) -> float:
    """Gain of the best uniform draft over none, by hand: tokens a cycle over units a cycle."""
    plain = requests / (20 + requests + 0.5 * requests)
    gains = []
    for drafted in range(1, block + 1):
        for verified in range(drafted + 1):
            made = requests * sum(accept**j for j in range(verified + 1))
            units = (
                20 + requests * (verified + 1) + 0.5 * requests + costs.host * requests + costs.draft + 0.3 * requests * drafted
            )
            gains.append(made / units / plain)
    return max(gains)


@pytest.mark.parametrize(
    ("draft", "host", "accept"), [(3.0, 0.2, 0.6), (3.0, 2.0, 0.6), (25.0, 0.2, 0.8), (3.0, 0.2, 0.2), (40.0, 4.0, 0.7)]
)
def test_no_drafting_exactly_where_break_even_says_so(draft: float, host: float, accept: float):
    costs, block = Counted(draft, host), 7
    choices = []
    for requests in range(1, 33):
        schedule = GreedySchedule(costs, block, np.full(block, accept))
        gain = pays(costs, requests, accept, block)
        assert schedule.outlook(requests)[0] == pytest.approx(gain)
        choices.append(schedule.depth(requests) > 0)
        assert choices[-1] == (gain > 1), requests
    assert choices == sorted(choices, reverse=True)  # these costs: drafting pays up to some load


def test_each_cost_decides():
    """The same pair pays without a cost and does not with it: drafting, verification, the host's share."""
    prior = np.full(7, 0.6)
    assert GreedySchedule(Counted(3, 0.2), 7, prior).depth(8) > 0
    assert GreedySchedule(Counted(40, 0.2), 7, prior).depth(8) == 0
    assert GreedySchedule(Counted(3, 6.0), 7, prior).depth(8) == 0

    class Dear(Counted):
        def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
            return super().cycle(requests, tokens, depth) + 4 * (tokens - requests)

    assert GreedySchedule(Dear(3, 0.2), 7, prior).depth(8) == 0


def test_hysteresis_does_not_flap():
    costs, prior = Counted(3.0, 0.2), np.full(7, 0.6)
    gains = {r: GreedySchedule(costs, 7, prior).outlook(r)[0] for r in range(1, 65)}
    edge = max(r for r, gain in gains.items() if gain > 1)
    assert 1 < gains[edge] < 1 + MARGIN
    schedule = GreedySchedule(costs, 7, prior)
    choices = [schedule.depth(r) > 0 for r in [edge, edge + 1] * 50]
    assert sum(a != b for a, b in itertools.pairwise(choices)) == 1  # on, then off for good at this load
    assert schedule.depth(1) > 0


def test_acceptance_that_falls_ends_drafting_and_one_that_rises_begins_it():
    costs = Counted(3.0, 0.2)
    schedule = GreedySchedule(costs, 3, np.full(3, 0.7))
    limits, drafted = np.full(4, 3), []

    def steps(count: int, accept: float) -> None:
        for _ in range(count):
            depth = schedule.depth(4)
            tokens = 4.0
            if depth:
                lengths = schedule.admit(np.full((4, depth), accept), limits)
                tokens += sum(accept**j for n in lengths for j in range(1, n + 1))
            drafted.append(depth > 0)
            schedule.controller.saw(4, depth > 0, round(tokens), float(costs.cycle(4, np.array([tokens]), depth)[0]))

    steps(300, 0.9)
    assert sum(drafted[100:]) > 150
    steps(3000, 0.05)
    assert 0 < sum(drafted[-2000:]) < 200  # rare trials, ever rarer
    for _ in range(60):
        schedule.admit(np.full((4, 3), 0.9), limits)
    steps(500, 0.9)
    assert sum(drafted[-400:]) > 300


def test_what_is_admitted_depends_on_nothing_sampled_later():
    """Changing a row's later confidences, or another row's less likely ones, leaves what was admitted before them."""
    costs = Linear(10, 1)
    base = GreedySchedule(costs, 3, np.full(3, 0.6))
    confidence = np.array([[0.9, 0.5, 0.4], [0.8, 0.7, 0.9]])
    lengths = copy.deepcopy(base).admit(confidence, np.full(2, 3))
    changed = confidence.copy()
    changed[0, lengths[0] + 1 :] = 0.99
    changed[1, lengths[1] + 1 :] = 0.99
    assert copy.deepcopy(base).admit(changed, np.full(2, 3)).tolist() == lengths.tolist()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fixed:9", "1 to 7"),
        ("fixed:0", "1 to 7"),
        ("threshold:2", "from 0 to 1"),
        ("greedy", "profile"),
        ("gready", "greedy"),
        ("stale2:1", "stale2"),
    ],
)
def test_wrong_schedules_are_refused(name: str, text: str):
    with pytest.raises(UserError, match=text):
        schedule_of(name, 7)


def test_names_make_their_schedules():
    costs = Linear(1, 1)
    made = [schedule_of(name, 7, costs) for name in ("off", "fixed:3", "threshold:0.5", "greedy", "stale2")]
    assert [type(m) for m in made] == [Off, FixedSchedule, Threshold, GreedySchedule, Stale]
    assert [m.depth(1) for m in made[:3]] == [0, 3, 7]
