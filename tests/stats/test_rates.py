"""The sequential test of a rate: its error, power and interval summed over all ways to stop, by its own answers alone."""

from __future__ import annotations

from collections import defaultdict

import pytest
from scipy.stats import binom

import ramify.stats
from ramify.base.errors import UserError
from ramify.stats.drops import Counts
from ramify.stats.intervals import clopper_pearson
from ramify.stats.rates import RateTest, runs_needed


def stops(test: RateTest, rate: float) -> dict[tuple[int, int, str], float]:
    """Chance of every way to stop, walked run for run."""
    alive, ended = {0: 1.0}, dict[tuple[int, int, str], float]()
    for n in range(1, test.most + 1):
        now: dict[int, float] = defaultdict(float)
        for k, chance in alive.items():
            now[k] += chance * (1 - rate)
            now[k + 1] += chance * rate
        alive = {}
        for k, chance in now.items():
            settled = test.settled(Counts(k, n))
            if settled is None:
                alive[k] = chance
            else:
                ended[k, n, settled] = chance
    assert not alive  # it ends
    return ended


@pytest.mark.parametrize(("at_least", "usual"), [(0.8, 0.95), (0.8, 0.9), (0.5, 0.7), (0.95, 0.99), (0.1, 0.3)])
def test_error_power_and_interval_hold(at_least: float, usual: float) -> None:
    test = RateTest(at_least, usual=usual)
    for rate in (at_least / 2, at_least, (at_least + usual) / 2, usual, 0.5):
        ways = stops(test, rate)
        assert sum(ways.values()) == pytest.approx(1)
        passed = sum(chance for (_, _, settled), chance in ways.items() if settled == "passed")
        assert test.chance(rate) == pytest.approx(passed, abs=1e-7)
        assert test.runs(rate) == pytest.approx(sum(n * chance for (_, n, _), chance in ways.items()), rel=1e-6)
        covered = sum(c for (k, n, _), c in ways.items() if (e := test.interval(Counts(k, n)))[0] <= rate <= e[1])
        assert covered >= 0.949
        assert passed <= 0.05 or rate > at_least
        assert passed >= 0.8 or rate < usual
    assert test.runs(at_least / 2) < test.most / 2


def test_looking_after_every_run_without_a_boundary_passes_too_often() -> None:
    test, alive, passed = RateTest(0.8), {0: 1.0}, 0.0
    for n in range(1, test.most + 1):
        now: dict[int, float] = defaultdict(float)
        for k, chance in alive.items():
            now[k] += chance * 0.2
            now[k + 1] += chance * 0.8
        over = {k for k in now if clopper_pearson(k, n, 0.9)[0] >= 0.8}
        passed += sum(now[k] for k in over)
        alive = {k: chance for k, chance in now.items() if k not in over}
    assert passed > 0.08 > test.chance(0.8)


def test_it_says_how_many_runs_it_takes_at_least() -> None:
    test, counts = RateTest(0.8), Counts(0, 0)
    while test.settled(counts) is None:
        ahead = test.ahead(counts)
        assert ahead >= 1
        for m in range(1, ahead):
            assert {test.settled(counts + Counts(k, m)) for k in range(m + 1)} == {None}
        counts += Counts(ahead, ahead)
    assert test.settled(counts) == "passed"
    assert test.ahead(counts) == 0
    assert test.settled(Counts(0, test.most + 5)) == "failed"
    assert RateTest(0.8).settled(Counts(0, 0)) is None


def test_runs_of_a_test_that_does_not_stop() -> None:
    n = runs_needed(0.8, 0.95)
    for m, enough in ((n, True), (n - 1, False)):
        wanted = next(k for k in range(m + 2) if binom.sf(k - 1, m, 0.8) <= 0.05)
        assert (binom.sf(wanted - 1, m, 0.95) >= 0.8) == enough


def test_what_no_number_of_runs_shows_is_refused() -> None:
    for at_least, more in ((1.0, {}), (0.0, {}), (0.8, {"usual": 0.7}), (0.8, {"confidence": 1.0}), (0.8, {"usual": 0.801})):
        with pytest.raises(UserError):
            RateTest(at_least, **more)
    with pytest.raises(UserError, match="further away"):
        runs_needed(0.8, 0.801)
    with pytest.raises(UserError, match="numbers"):
        RateTest("0.8")  # type: ignore[arg-type]


def test_the_public_names_load() -> None:
    assert ramify.stats.pass_hat(Counts(3, 4), 2) == 0.5
    assert ramify.stats.RateTest is RateTest
    assert {"flip_rate", "attempts_needed", "clustered_share", "runs_needed"} <= set(dir(ramify.stats))
    with pytest.raises(AttributeError):
        ramify.stats.nothing  # noqa: B018
