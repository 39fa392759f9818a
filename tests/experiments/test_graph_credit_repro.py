"""The reproduction's environment and estimators on small cases; the figures themselves come from `ramify repro graph-credit`."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify_experiments.graph_credit import defaults, repro
from ramify_experiments.graph_credit import grid as grid_world


def test_walks_obey_the_grid():
    rng = generator(1, "walk")
    grid = grid_world.GridWorld.sample(rng, 6, 5)
    walks = grid_world.walk(grid, np.full((6, grid.states, 4), 0.25), rng, 0.1, 4)
    rows = walks.rows()
    cell, held = rows["state"] % 25, rows["state"] // 25
    assert (cell[rows["step"] == 0] == grid.start[rows["task"][rows["step"] == 0]]).all()
    same = np.flatnonzero(rows["step"][1:] > 0)
    assert (np.abs(np.diff(cell)[same] // 5) <= 5).all()
    assert (np.diff(held)[same] >= 0).all()
    assert rows["reward"].sum() == grid_world.REWARD * walks.success.sum()
    assert (walks.length[~walks.success] == grid_world.HORIZON).all()


@pytest.mark.parametrize("pick", repro.PICKS)
def test_tree_branches_share_their_prefix(pick):
    rng = generator(2, pick)
    grid = grid_world.GridWorld.sample(rng, 3, 5)
    tree = grid_world.grow(grid, np.full((3, grid.states, 4), 0.25), rng, 0.1, 2, 5, pick)
    for task in range(3):
        for leaf in range(7):
            for other in range(leaf):
                n = min(tree.length[task, leaf], tree.length[task, other])
                same = tree.node[task, leaf, :n] == tree.node[task, other, :n]
                assert (np.diff(same.astype(int)) <= 0).all()  # shared first, then apart for good
                assert (tree.state[task, leaf, :n][same] == tree.state[task, other, :n][same]).all()
                assert (tree.action[task, leaf, :n][same] == tree.action[task, other, :n][same]).all()


def test_small_cells_learn_and_repeat():
    kwargs = {"seed": 0, "config": {"rule": "g2po"}, "side": 5, "tasks": 4, "updates": 8}
    curve = grid_world.train(**kwargs)
    assert curve == grid_world.train(**kwargs)
    assert curve[-1] > curve[0] + 0.1
    unique = {**kwargs, "unique": 1.0}
    curves = [grid_world.train(**(unique | {"config": {"rule": rule, "gamma": 1.0}})) for rule in ("grpo", "gigpo", "g2po")]
    assert curves[0] == curves[1] == curves[2]
    assert repro.single_gap(0) == 0.0


def test_variances():
    found = repro.variances(0, 20_000)
    assert found["Var V(s)"] == pytest.approx(0.031, abs=0.003)
    assert found["Var delta"] == pytest.approx(0.040, abs=0.003)
    assert found["Var delta"] < found["Var V(s)"] + found["Var V(s')"] < found["Var R"]


def test_the_exact_gradient_is_that_of_many_attempts():
    rng = generator(3, "exact")
    grid = grid_world.GridWorld.sample(rng, 2, 4)
    policy = grid_world.softmax(rng.normal(size=(2, grid.states, 4)))
    rows = grid_world.paid(grid_world.walk(grid, policy, rng, 0.1, 8000), grid, defaults.PARTIAL)
    reward = np.zeros((2, 8000))
    np.add.at(reward, (rows["task"], rows["attempt"]), rows["reward"])
    advantage = (reward - reward.mean(axis=1, keepdims=True))[rows["task"], rows["attempt"]]
    sampled = grid_world.policy_gradient(policy, rows, advantage) / 8000
    exact = defaults.exact_gradient(grid, policy, 0.1, defaults.PARTIAL)
    assert (sampled * exact).sum() / (np.linalg.norm(sampled) * np.linalg.norm(exact)) > 0.98
    assert np.linalg.norm(sampled) == pytest.approx(np.linalg.norm(exact), rel=0.1)
