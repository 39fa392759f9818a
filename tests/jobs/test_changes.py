"""What training changed: which states are named, what is said of them, and that nothing is where nothing changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_improve_job import hashes, killed

from ramify.base import codec
from ramify.engine.checkpoints import load_model, model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.changes import (
    FORKS,
    LEAST,
    BehaviourChange,
    judged,
    named,
    probabilities,
    replies,
    screened,
    sentence,
    states_for,
)
from ramify.jobs.curve import curves
from ramify.jobs.improve import ImproveConfig, improve, resume
from ramify.model.protocol import Sampling
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.stats.drops import Counts
from ramify.trace.db import Run

ONE = BehaviourChange("eval-after/t", "t", "hall. exits attic.", "n", "go attic", 0.12, 0.61)


def view(task: str, success: bool, *nodes: str) -> Any:
    """An attempt whose replies are ``nodes``, each after the observation of that name with a prime."""
    tree = SimpleNamespace(node=lambda name: SimpleNamespace(parent=f"{name}'"))
    steps = [SimpleNamespace(node=name, observation=f"saw {name}", action=f"did {name}") for name in nodes]
    return SimpleNamespace(task=task, success=success, steps=steps, tree=tree, info=SimpleNamespace(name=f"eval/{task}"))


def test_the_largest_rise_of_each_success_is_named_and_the_first_of_what_was_unlearned() -> None:
    attempts = [
        view("a", True, "a1", "a2"),
        view("b", False, "b1", "b2"),
        view("b", True, "b3"),
        view("c", False, "c1"),
        view("d", True, "d1"),
    ]
    after = {"a1": 0.5, "a2": 0.9, "b1": 0.4, "b2": 0.9, "b3": LEAST / 2, "c1": 1.0, "d1": 0.3}
    before = dict.fromkeys(after, 0.0)
    found = named(attempts, before, after, 9)
    assert [(one.task, one.at, one.action) for one in found] == [
        ("a", "a2'", "did a2"),
        ("d", "d1'", "did d1"),
        ("b", "b1'", "did b1"),
    ]
    assert [one.task for one in named(attempts, before, after, 2)] == ["a", "d"]
    assert named(attempts, after, after, 9) == [], "an agent against itself"
    assert named(attempts, after, before, 9) == [], "what became rarer is not a new habit"


def test_success_is_said_with_its_interval_and_chance_is_called_chance() -> None:
    sharp, dull, thin = judged(
        [ONE] * 3, [Counts(4, 20), Counts(8, 20), Counts(0, 4)], [Counts(17, 20), Counts(9, 20), Counts(4, 4)]
    )
    assert str(sharp).startswith(
        "In `hall. exits attic.` the agent now does `go attic` (12% -> 61%); success from there 20% -> 85% (+"
    )
    assert sharp.matters
    assert str(dull).endswith("no more than chance.")
    assert not dull.matters
    assert thin.difference is None
    assert "success" not in str(thin)
    assert sharp.told.success_after.n == 20
    assert codec.from_json(BehaviourChange, codec.to_json(sharp)) == sharp
    assert sentence([sharp, dull, thin], 10).endswith(
        "both agents continued from 2, 20 times each, and success from there changed in 1:"
    )
    assert sentence([], 10).startswith("No action")
    assert "not looked for" in sentence([], 0)


def test_the_states_that_differ_most_in_a_few_continuations_are_kept_in_order() -> None:
    states = [BehaviourChange("t", name, "", name, "", 0, 1) for name in "abcd"]
    before, after = [Counts(0, 3)] * 4, [Counts(k, 3) for k in (1, 3, 0, 3)]
    assert [one.at for one in screened(states, before, after, 2)] == ["b", "d"]
    assert [one.at for one in screened(states, after, before, 3)] == ["a", "b", "d"], "a loss counts as a gain does"
    assert [states_for(10, episodes) for episodes in (400, 120, 39)] == [10, 3, 0]


def test_false_claims_stay_below_the_level_where_both_agents_are_one() -> None:
    """Ten states of any chance of success, 150 times: how often any of the ten is said to have changed."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(150):
        chances = rng.random(10)
        before, after = ([Counts(int(k), FORKS) for k in rng.binomial(FORKS, chances)] for _ in range(2))
        wrong += any(
            one.matters for one in judged([BehaviourChange("t", str(i), "", str(i), "", 0, 1) for i in range(10)], before, after)
        )
    assert wrong <= 15, "150 times at 5 % are 7.5"


def test_probabilities_are_those_that_the_sampler_used(tmp_path: Path) -> None:
    model, template = load_model(model_folder("builtin"))
    settings = Sampling(temperature=0.7, max_tokens=24, stop_tokens=template.stop_tokens)
    with Run.create(tmp_path / "run", {}) as run:
        episodes = Episodes(Agent(model, template, settings), HouseholdEnvironment(), run, group="eval-before")

        async def play() -> None:
            for task in HouseholdEnvironment().task_set("eval", 2):
                await episodes.attempt(f"eval-before/{task.id}", task, 0)

        asyncio.run(play())
        attempts = replies(run, "eval-before")
        found = asyncio.run(probabilities(model, run, attempts, 0.7))
        nodes = [run.node(name) for name in found]
        wanted = [float(np.exp(node.logprobs[node.sampled].sum())) for node in nodes]
    assert len(nodes) == sum(len(one.steps) for one in attempts) > 10
    assert list(found.values()) == pytest.approx(wanted, abs=1e-4)


SMALL = {"arm": "imitate", "updates": 2, "tokens": 1500, "tasks_per_update": 8, "train_tasks": 24, "eval_episodes": 40}


@pytest.mark.slow
def test_a_job_says_what_it_changed_and_a_killed_one_says_the_same(tmp_path: Path) -> None:
    result = improve(ImproveConfig(**SMALL), tmp_path / "whole")
    (state,) = result.changes.states
    assert state.after - state.before >= LEAST
    assert state.success_before.n == state.success_after.n == FORKS
    with Run.open(tmp_path / "whole") as run:
        (finding,) = run.findings(maker="improve")
        assert finding.why == state.text
        assert finding.node == state.at
        points = curves(run)["imitate"]
        assert [points[0][1:], points[-1][1:]] == [(round(one.success * 40), 40) for one in (result.before, result.after)]
    killed(improve, ImproveConfig(**SMALL), tmp_path / "cut", path=tmp_path / "cut", after=6)
    for _ in range(2):
        killed(resume, tmp_path / "cut", path=tmp_path / "cut", after=5)
    assert resume(tmp_path / "cut").changes == result.changes
    assert hashes(tmp_path / "cut") == hashes(tmp_path / "whole")


@pytest.mark.slow
def test_training_that_changes_nothing_names_nothing(tmp_path: Path) -> None:
    for seed in range(2):
        result = improve(ImproveConfig(**SMALL, seed=seed, train={"lr": 1e-9, "epochs": 1}), tmp_path / str(seed))
        assert result.changes.states == ()
        assert result.changes.why.startswith("No action")
