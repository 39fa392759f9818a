"""Walkers obey the mazes, and take as long as the exact theory says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.seeds import generator
from ramify.env.builtin.maze import MazeEnvironment, route
from ramify.methods.maze_recovery.star import Maze
from ramify_experiments.maze_recovery.walks import (
    GridTasks,
    family_rows,
    golden_paths,
    path_counts,
    star_graph,
    star_walks,
    walk,
    without_loops,
)  # fmt: skip

W, K, L = 3, 3, 3


def golden_table() -> np.ndarray:
    graph = star_graph(W, K, L)
    state, desired, other = family_rows(W, K, graph)
    policy = graph.uniform.copy()
    for f in (0, 2):
        policy[state[:, f], desired[:, f]], policy[state[:, f], other[:, f]] = 1.0, 0.0
    return policy


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "cap", "steps"), [("base", 6000, 326), ("golden_sft", 20_000, 1310.37)])
def test_walks_take_as_long_as_the_solve_says(policy: str, cap: int, steps: float) -> None:
    graph = star_graph(W, K, L)
    table = graph.uniform if policy == "base" else golden_table()
    walks = star_walks(W, K, graph, table, 3000, cap, generator(0, policy))
    assert walks.done.all()
    error = walks.length.std() / np.sqrt(len(walks.length))
    assert Maze(W, K, L).expected_steps(policy) == pytest.approx(steps, abs=0.01)
    assert abs(walks.length.mean() - steps) < 3 * error


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_rows_of_the_base_are_those_of_the_theory(W: int, K: int, L: int) -> None:
    graph = star_graph(W, K, L)
    state, desired, other = family_rows(W, K, graph)
    base = [float(p) for p in Maze(W, K, L).named("base")]
    for f, p in enumerate(base):
        assert graph.uniform[state[:, f], desired[:, f]] == pytest.approx(p)
        assert graph.uniform[state[:, f], other[:, f]] == pytest.approx(1 - p)
    assert graph.uniform.sum(axis=1) == pytest.approx(1.0)
    assert len(np.unique(state)) == 4 * W * K
    assert len(golden_paths(W, K)) == W
    assert all(len(path) == 2 * K + 3 for path in golden_paths(W, K))


@given(st.integers(0, 999))
@settings(max_examples=8, deadline=None)
def test_walks_become_places_and_counts_again(seed: int) -> None:
    graph = star_graph(2, 2, 2)
    policy = 0.9 * graph.uniform + 0.1 / graph.uniform.shape[1]  # some moves are refused
    walks = star_walks(2, 2, graph, policy, 40, 5000, generator(seed, "walks"))
    assert walks.done.all()
    paths = walks.places(graph)
    moved = graph.follow[walks.state, walks.move] != walks.state
    assert (path_counts(graph, paths) == walks.counts(graph, moved.astype(np.float64))).all()
    assert sum(len(path) - 1 for path in paths) == moved.sum()
    assert walks.counts(graph).sum() == walks.length.sum()
    for path, clean in zip(paths, without_loops(paths), strict=True):
        assert clean in golden_paths(2, 2)
        assert (clean[0], clean[-1]) == (path[0], path[-1])


def test_a_walk_ends_at_its_cap() -> None:
    graph = star_graph(W, K, L)
    start = np.full(5, graph.state_at[-1, 0])
    walks = walk(graph, graph.uniform, start, np.full(5, -9), 7, generator(0, "cap"))
    assert (walks.length == 7).all()
    assert not walks.done.any()
    assert walks.places(graph) == []


def test_grids() -> None:
    tasks = list(MazeEnvironment("grid-4").task_set("train", 6, 0))
    grids = GridTasks.of(tasks)
    assert grids.shortest.tolist() == [len(route(task.data)) for task in tasks]
    counts = path_counts(grids.graph, grids.golden)
    assert counts.sum() == grids.shortest.sum()
    assert (counts[:, 4:] == 0).all()
    assert ((grids.graph.uniform > 0) >= (counts > 0)).all()
    rng = generator(1, "grids")
    walks = walk(grids.graph, grids.graph.uniform, grids.start, grids.goal, 5000, rng)
    assert walks.done.all()
    for path, task in zip(walks.places(grids.graph), tasks, strict=True):
        names = list(task.data["exits"])
        first = tasks.index(task) * 16
        steps = [(names[a - first], names[b - first]) for a, b in itertools.pairwise(path)]
        assert all(b in task.data["exits"][a].values() for a, b in steps)
        assert (steps[0][0], steps[-1][1]) == (task.data["start"], task.data["exit"])
