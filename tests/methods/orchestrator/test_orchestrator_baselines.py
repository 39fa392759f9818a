"""The simple routers: closed forms, specialists that words tell apart, and nothing where prompts say nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import gain
from ramify.methods.orchestrator.baselines import (
    LEAST,
    bradley_terry,
    compared_on,
    factorised,
    fit_baselines,
    neighbours,
    weighted_wins,
    won,
)
from ramify.methods.orchestrator.table import RewardTable, subset
from ramify.methods.orchestrator.table import table_of as read_run
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Provenance, Score, make_node

NAMES = ["cheapest", "best single", "Elo", "Elo by similarity", "kNN", "matrix factorisation"]
FITTED = NAMES[3:]
WORDS = ("add carry sum digits number", "verse rhyme poem line stanza")


def table_of(skill: np.ndarray, prompts: list[str], seed: int, usd: tuple[float, ...] = (2.0, 1.0, 3.0)) -> RewardTable:
    """Three workers that are right with chances ``skill`` (I, L)."""
    rewards = (generator(seed, "rewards").random(skill.shape) < skill).astype(float)[:, :, None]
    count, workers = skill.shape
    costs = np.tile(usd[:workers], (count, 1))[:, :, None]
    names = [f"w{i}" for i in range(workers)]
    return RewardTable([f"t{i}" for i in range(count)], names, rewards, costs, [Counter()] * workers, prompts, [""] * count)


def told(kind: int, rng: np.random.Generator) -> str:
    return " ".join(rng.permutation([*WORDS[kind].split(), *rng.choice(["please", "now", "here", "give", "me"], 3)]))


def kinds(count: int, seed: int, says: bool = True) -> tuple[RewardTable, np.ndarray]:
    """Two kinds of tasks with a specialist each, and a third worker between; ``says``: whether the prompt tells the kind."""
    rng = generator(seed, "kinds")
    kind = rng.integers(0, 2, count)
    skill = np.where(kind[:, None] == np.arange(2), 0.9, 0.3)
    prompts = [told(int(k if says else rng.integers(0, 2)), rng) for k in kind]
    return table_of(np.column_stack([skill, np.full(count, 0.55)]), prompts, seed), kind


def test_strengths_are_those_that_make_the_wins_most_likely() -> None:
    wins = np.array([[[0.0, 29.5], [9.5, 0.0]]])  # and half a win added either way: 30 to 10
    strength = bradley_terry(wins)[0]
    assert strength[0] - strength[1] == pytest.approx(np.log(3))
    assert bradley_terry(np.zeros((1, 3, 3)))[0] == pytest.approx([0, 0, 0])
    means = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert won(means).sum(axis=0).tolist() == [[0, 1.5], [0.5, 0]]
    even = weighted_wins(np.zeros((1, 2)), won(means), 3.0)
    assert even[0].tolist() == [[0, 1.5], [0.5, 0]], "without similarity every task counts alike"


def test_neighbours_and_factors_in_closed_form() -> None:
    means = np.array([[1.0, 0.0], [0.0, 1.0], [0.2, 0.4]])
    near = np.array([[0.9, 0.1, 0.8]])
    assert neighbours(near, means, 1)[0].tolist() == [1, 0]
    assert neighbours(near, means, 2)[0] == pytest.approx([0.6, 0.2])
    inside = np.eye(3)
    assert factorised(inside, inside, means, 1e-9, 2) == pytest.approx(means, abs=1e-6)
    low = factorised(inside, inside, means, 1e-9, 1) - means.mean(axis=0)
    assert np.linalg.matrix_rank(low, tol=1e-9) == 1


def test_specialists_that_words_tell_apart_are_chosen() -> None:
    fit, _ = kinds(120, 1)
    test, kind = kinds(200, 2)
    rows = {one.name: one for one in fit_baselines(fit)}
    assert list(rows) == NAMES
    for name in FITTED:
        assert (rows[name].choices(test.prompts) == kind).mean() > 0.95, rows[name]
    assert set(rows["cheapest"].choices(test.prompts)) == {1}
    compared = {one.name: one for one in compared_on(list(rows.values()), test, range(200), test.means()[np.arange(200), kind])}
    for name in ("best single", "Elo", "cheapest"):
        assert compared[name].gain is not None
        assert compared[name].gain.value > 0.15
    assert compared["kNN"].gain is not None
    assert compared["kNN"].gain.tie
    assert compared["cheapest"].usd_a_task == 1
    assert compared["cheapest"].choices == {"w0": 0, "w1": 200, "w2": 0}


def test_where_prompts_say_nothing_nothing_is_gained() -> None:
    """Null: of sixty fits the share whose gain over the best single worker excludes 0 is that of the level, 2.5 % each side."""
    found = 0
    for seed in range(20):
        fit, _ = kinds(60, 10 + seed, says=False)
        test, _ = kinds(100, 110 + seed, says=False)
        means = test.means()
        single = means[:, fit.means().mean(axis=0).argmax()]
        for one in fit_baselines(fit, seed):
            if one.name in FITTED:
                chosen = means[np.arange(100), one.choices(test.prompts)]
                over = gain(chosen, single)
                found += not over.tie and over.value > 0
    assert found <= 5, f"{found} of 60"


def test_of_equally_good_workers_the_cheapest_is_taken() -> None:
    count = 2 * LEAST
    made = table_of(np.ones((count, 3)), ["say it"] * count, 0)
    assert {int(one.choices(["say it"])[0]) for one in fit_baselines(made)} == {1}


def test_what_cannot_be_fitted_is_left_out() -> None:
    few, _ = kinds(LEAST - 1, 3)
    assert [one.name for one in fit_baselines(few)] == NAMES[:3]
    many, _ = kinds(LEAST, 3)
    assert [one.name for one in fit_baselines(many)] == NAMES
    many.prompts[0] = ""
    assert [one.name for one in fit_baselines(many)] == NAMES[:3]
    free = subset(many, range(5))
    free.usd[:] = np.nan
    assert [one.name for one in fit_baselines(free)] == NAMES[1:3]
    free.rewards[:, 0] = np.nan
    assert fit_baselines(free) == []
    assert compared_on([], many, range(3)) == ()


def test_forks_label_the_model_that_was_not_used(tmp_path: Path) -> None:
    """From the first step they are rewards of the other model; further on two models have a part, so they are of neither."""
    with Run.create(tmp_path / "run", {}) as run:
        one, two = (Provenance(name, "", {}, 0) for name in ("one", "two"))
        run.add(one, two)
        for i in range(2):
            run.add_tree(f"t{i}", {"id": f"t{i}", "data": {"prompt": f"question {i}"}})
            root = make_node(f"t{i}", None, 0, "root", "")
            first = make_node(f"t{i}", root.id, 0, "assistant", "look", provenance=one.hash)
            last = make_node(f"t{i}", first.id, 0, "assistant", "take", provenance=one.hash)
            fork = make_node(f"t{i}", root.id, 0, "assistant", "ask", provenance=two.hash, purpose="fork")
            late = make_node(f"t{i}", first.id, 0, "assistant", "guess", provenance=two.hash, purpose="fork")
            run.add(root, first, last, fork, late)
            ends = ((last, None, "rollout", one), (fork, root.id, "fork", two), (late, first.id, "fork", two))
            for at, (leaf, start, purpose, who) in enumerate(ends):
                run.add(AttemptRecord(leaf.id, f"t{i}", start, 0, purpose, 0, None, None, False, None, who.hash))
                run.add(Score(leaf.id, "env", at / 2, judges={"env": "x"}))
        table = read_run(run)
    assert table.workers == ["one", "two"]
    assert table.rewards[:, :, 0].tolist() == [[0, 0.5], [0, 0.5]]
    assert table.rewards.shape == (2, 2, 1), "what came of a late fork is nobody's"
