"""Potential per agent step, through environment forks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.env.protocol import Observation, Task
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.fork import fork
from ramify.rollout.potential import Fixed, RunCounts, UntilLost, potential
from ramify.rollout.run import Episodes
from ramify.rollout.steps import StepForks, StepTrace, step_trace
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from tests.halls import Hall, Halls

TASK = Task("hall")


def mostly_left(messages: Any, key: int) -> str:
    return "left" if key % 10 < 7 else "right"


def played(run: Run, wanted: bool, truncated: bool = False) -> tuple[Episodes, Attempt]:
    """An attempt of that outcome."""
    made = Episodes(Agent(ScriptedModel(mostly_left, tokens=False), None, Sampling()), Halls(), run, seed=1)

    async def find() -> Attempt:
        for index in range(50):
            attempt = await made.attempt("t", TASK, index)
            if attempt.outcome is wanted:
                return attempt
        raise AssertionError

    return made, asyncio.run(find())


def count(forks: StepForks, trace: StepTrace, n: int, purpose: str = "scan") -> list[Counts]:
    async def work() -> list[Counts]:
        return list(await asyncio.gather(*(forks.count(trace, t, n, purpose) for t in range(trace.length + 1))))

    return asyncio.run(work())


def test_the_potential_falls_at_the_step_that_decides(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made, attempt = played(run, False)
        trace = step_trace(made, attempt)
        assert (trace.length, trace.correct, trace.actions[1]) == (3, False, "right")
        forks = StepForks(made)
        before, first, second, last = count(forks, trace, 40)
        assert abs(before.rate - 0.7) < 0.25
        assert abs(first.rate - 0.7) < 0.25
        assert second == last == Counts(0, 40)
        assert forks.spent().forks == 120  # the last position is known
        assert forks.spent().turns == 40 * (3 + 2 + 1)
        again = asyncio.run(forks.count(trace, 0, 40, "scan"))
        assert again == before  # the same samples, found in the run
        assert asyncio.run(forks.count(trace, 0, 40, "confirm")) != before


def test_a_purpose_has_samples_of_its_own(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made, attempt = played(run, False)
        trace = step_trace(made, attempt)
        node = trace.nodes[0]
        for purpose in ("scan 2", "scan 9"):
            count(StepForks(made), trace, 20, purpose)
        plain = asyncio.run(fork(made, "t", TASK, node, None, 4))
        assert sorted(a.index for a in plain.arm.attempts) == [0, 1, 2, 3]
        again = asyncio.run(fork(made, "t", TASK, node, None, 4))
        assert sorted(a.index for a in again.arm.attempts) == [4, 5, 6, 7], "the same purpose takes new samples"
        below = made.load("t").children(node)
        assert {p: sorted(one.index for one in below if one.purpose == p) for p in {one.purpose for one in below}} == {
            "rollout": [*range(attempt.index + 1)],
            "scan 2": [*range(20)],
            "scan 9": [*range(20)],
            "fork": [*range(8)],
        }
        said = {p: [one.text for one in below if one.purpose == p] for p in ("scan 2", "scan 9")}
        assert said["scan 2"] != said["scan 9"], "equal indices of two purposes are two samples"
        assert {one.purpose for one in run.attempts() if not one.fork} == {"rollout"}
        assert {one.purpose for one in run.attempts() if one.fork} == {"scan 2", "scan 9", "fork"}


def test_counts_stay_in_the_run_and_a_second_call_samples_the_rest(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made, attempt = played(run, False)
        trace, store = step_trace(made, attempt), RunCounts(run)

        def measured(steps: StepForks, n: int) -> dict[int, Counts]:
            return asyncio.run(potential(steps, trace, range(trace.length + 1), Fixed(n), store=store))[0]

        few = measured(StepForks(made), 4)
        more = StepForks(made)
        assert measured(more, 10)[0] != few[0]
        assert more.spent().forks == 3 * 6  # four of ten were there, and the last position is known
        again = StepForks(made)
        assert measured(again, 10) == measured(StepForks(made), 10)
        assert again.spent().forks == 0
        run.commit()
        assert [mark.value for mark in run.annotations(name="potential", node=trace.nodes[2])] == [{"k": 0, "n": 10}]
        _, lost = asyncio.run(potential(StepForks(made), trace, range(trace.length + 1), UntilLost(6, 1), "other", store))
        assert lost == 2
        assert run.annotations(name="potential:other")


def test_limits_and_failures_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made, attempt = played(run, True)
        trace = step_trace(made, attempt)
        monkeypatch.setattr(Hall, "max_turns", 2)
        assert count(StepForks(made), trace, 4)[0] == Counts(0, 0, truncated=4)
        assert count(StepForks(made, "graded"), trace, 4, "other")[0] == Counts(0, 4)
        monkeypatch.setattr(Hall, "max_turns", 10)

        def broken(self: Hall, action: str) -> Observation:
            raise ValueError("the door is stuck")

        monkeypatch.setattr(Hall, "step", broken)
        forks = StepForks(made)
        assert asyncio.run(forks.count(trace, 1, 4, "broken")) == Counts(0, 0, missing=4)
        assert "the door is stuck" in forks.first_failure
        with pytest.raises(UserError, match="positions 0 to 3"):
            asyncio.run(forks.count(trace, 4, 4, "scan"))
