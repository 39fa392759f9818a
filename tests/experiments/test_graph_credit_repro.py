"""The reproduction's environment and estimators on small cases; the figures themselves come from `ramify repro graph-credit`."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify_experiments.graph_credit import repro


def test_walks_obey_the_grid():
    rng = generator(1, "walk")
    grid = repro.GridWorld.sample(rng, 6, 5)
    walks = repro.walk(grid, np.full((6, grid.states, 4), 0.25), rng, 0.1, 4)
    rows = walks.rows()
    cell, held = rows["state"] % 25, rows["state"] // 25
    assert (cell[rows["step"] == 0] == grid.start[rows["task"][rows["step"] == 0]]).all()
    same = np.flatnonzero(rows["step"][1:] > 0)
    assert (np.abs(np.diff(cell)[same] // 5) <= 5).all()
    assert (np.diff(held)[same] >= 0).all()
    assert rows["reward"].sum() == repro.REWARD * walks.success.sum()
    assert (walks.length[~walks.success] == repro.HORIZON).all()


@pytest.mark.parametrize("pick", repro.PICKS)
def test_tree_branches_share_their_prefix(pick):
    rng = generator(2, pick)
    grid = repro.GridWorld.sample(rng, 3, 5)
    tree = repro.grow(grid, np.full((3, grid.states, 4), 0.25), rng, 0.1, 2, 5, pick)
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
    curve = repro.train(**kwargs)
    assert curve == repro.train(**kwargs)
    assert curve[-1] > curve[0] + 0.1
    unique = {**kwargs, "unique": 1.0}
    curves = [repro.train(**(unique | {"config": {"rule": rule, "gamma": 1.0}})) for rule in ("grpo", "gigpo", "g2po")]
    assert curves[0] == curves[1] == curves[2]
    assert repro.single_gap(0) == 0.0


def test_variances():
    found = repro.variances(0, 20_000)
    assert found["Var V(s)"] == pytest.approx(0.031, abs=0.003)
    assert found["Var delta"] == pytest.approx(0.040, abs=0.003)
    assert found["Var delta"] < found["Var V(s)"] + found["Var V(s')"] < found["Var R"]
