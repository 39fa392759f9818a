"""Agents whose rates are known, given to the statistics of ``ramify test`` and of the pytest mark ``ramify_rate``: how often
something that is not reliable enough passes, two equal versions differ, and an interval misses the truth."""

from __future__ import annotations

import random
from typing import Any

import ramify
from ramify import Observation
from ramify.stats import Counts, RateTest, all_of, attempts_needed, compare_versions, flips
from ramify.stats.repeats import OverTasks
from ramify.testing.repeated import Repeated
from ramify_experiments.cases import KnownCase, Repetition, SingleReply, first_reply


def _settled(rep: Repetition, rate: float) -> Repeated:
    """A marked test whose runs succeed at ``rate``."""
    rng, repeated = random.Random(f"rate {rep.seed}"), Repeated(RateTest(0.8))
    while not repeated.over:
        repeated.add(rng.random() < rate)
    return repeated


def _missed(rep: Repetition, rate: float) -> bool:
    low, high = _settled(rep, rate).interval
    return not low <= rate <= high


def _tasks(rep: Repetition, n: int, attempts: int) -> list[Counts]:
    """Attempts at ``n`` tasks whose rates are those of a Beta distribution (2, 1)."""
    rng = random.Random(f"tasks {rep.seed}")
    return [_count(rng, rng.betavariate(2, 1), attempts) for _ in range(n)]


def _count(rng: random.Random, rate: float, n: int) -> Counts:
    return Counts.of(rng.random() < rate for _ in range(n))


def _outside(over: OverTasks | None, truth: float) -> bool:
    assert over is not None
    return not over.interval[0] <= truth <= over.interval[1]


def _versions(rep: Repetition, gain: float, attempts: int | None) -> bool:
    """Whether two versions are told apart at 20 tasks; of ``attempts`` None as many as the plan says after four at each."""
    rng = random.Random(f"versions {rep.seed}")
    rates = [0.15 + 0.6 * rng.random() for _ in range(20)]
    n = attempts or attempts_needed([_count(rng, rate, 4) for rate in rates], gain)
    sides = [{str(i): _count(rng, rate + more, n) for i, rate in enumerate(rates)} for more in (0.0, gain)]
    return compare_versions(*sides).p <= 0.05


class Bill(SingleReply):
    """One question, one answer."""

    def reset(self, task: Any, seed: int) -> Observation:
        """The question."""
        return Observation("Pay the bill?")

    def step(self, action: str) -> Observation:
        """The end."""
        return Observation("done", 1.0, terminated=True, outcome=True)


def pays(messages: list[dict[str, Any]], key: int) -> str:
    """Pays four times in five."""
    return "pay" if random.Random(key).random() < 0.8 else "wait"


def _step_passes(rep: Repetition) -> bool:
    ramify.play(pays, Bill, [{"id": "bill"}], attempts=1, out=rep.folder / "run", seed=rep.seed)
    node = first_reply(rep.folder / "run")
    me = "python:ramify_experiments.reliability"
    who = ("--model", f"{me}:pays", "--env", f"{me}:Bill")
    try:
        result = rep.verb("test", str(rep.folder / "run"), node, "--expect", "says:pay", "--at-least", "0.8", *who)
    except SystemExit:
        return False
    return bool(result["verdict"] == "passed")


CASES = (
    KnownCase(
        "the mark ramify_rate: succeeds four times in five",
        "nothing",
        "Runs succeed at a rate of .8; that a rate above .8 is shown is false.",
        lambda rep: _settled(rep, 0.8).settled == "passed",
        0.05,
        full=4000,
        quick=400,
    ),
    KnownCase(
        "the mark ramify_rate: succeeds 19 times in 20",
        "planted",
        "Runs succeed at the usual rate of .95; that a rate above .8 is shown must be found.",
        lambda rep: _settled(rep, 0.95).settled == "passed",
        0.8,
        full=2000,
        quick=200,
    ),
    KnownCase(
        "the mark ramify_rate: the interval after it stopped",
        "nothing",
        "Runs succeed at a rate of .85; an interval of the rate without .85 is false.",
        lambda rep: _missed(rep, 0.85),
        0.05,
        full=4000,
        quick=200,
    ),
    KnownCase(
        "a step at four times in five",
        "nothing",
        "A model takes a step at a rate of .8, asked through the verb; that a rate above .8 is shown is false.",
        _step_passes,
        0.05,
        full=300,
        quick=4,
    ),
    KnownCase(
        "pass^3 of other tasks",
        "nothing",
        "Five attempts at each of 30 tasks whose rates have a known distribution; an interval without its pass^3 (.4) is false.",
        lambda rep: _outside(all_of(_tasks(rep, 30, 5), 3), 0.4),
        0.05,
        full=4000,
        quick=200,
    ),
    KnownCase(
        "the flip rate of other tasks",
        "nothing",
        "The same attempts; an interval without the flip rate (1/3) is false.",
        lambda rep: _outside(flips(_tasks(rep, 30, 5)), 1 / 3),
        0.05,
        full=4000,
        quick=200,
    ),
    KnownCase(
        "two equal versions",
        "nothing",
        "Two versions of the same rates, four attempts each at 20 tasks; that they differ is false.",
        lambda rep: _versions(rep, 0.0, 4),
        0.05,
        full=2000,
        quick=100,
    ),
    KnownCase(
        "as many attempts as planned",
        "planted",
        "One of two versions is better by ten points at 20 tasks, each attempted as often as the plan says after four attempts.",
        lambda rep: _versions(rep, 0.1, None),
        0.8,
        full=2000,
        quick=100,
    ),
)
