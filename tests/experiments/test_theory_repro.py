"""The reproduction's parts on small cases; the figures themselves come from `ramify repro maze-recovery`."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify.methods.maze_recovery.algorithm import gradient, search_steps
from ramify.methods.maze_recovery.star import Maze
from ramify_experiments.lab import ResultCache
from ramify_experiments.maze_recovery import repro
from ramify_experiments.maze_recovery.walks import family_rows, star_graph, star_walks


@pytest.mark.parametrize(("policy", "cost"), [("golden_sft", 33.0), ("optimal", 23.0)])
def test_the_wrapper_costs_what_its_closed_form_says(policy: str, cost: float) -> None:
    assert search_steps(Maze(3, 3, 3), policy) == cost
    costs = repro.search(Maze(3, 3, 3), policy, 2000, 0)
    assert abs(np.mean(costs) - cost) < 3 * np.std(costs) / np.sqrt(2000)


def test_rewards_to_go_have_the_gradient_of_whole_rewards() -> None:
    """Both estimate the same direction; the one with less noise is used for networks."""
    graph = star_graph(2, 1, 2)
    state, desired, _ = family_rows(2, 1, graph)
    walks = star_walks(2, 1, graph, graph.uniform, 30_000, 4000, generator(0, "to go"))
    group = np.zeros(30_000, dtype=np.int64)
    found = []
    for to_go in (False, True):
        value = walks.counts(graph, repro.advantages(walks, group, to_go))
        total = value.sum(axis=1, keepdims=True)
        found.append((value - graph.uniform * total)[state, desired].sum(axis=(0, 2)))
    assert (found[0] > 0).all()
    cosine = float(np.dot(found[0], found[1]) / np.linalg.norm(found[0]) / np.linalg.norm(found[1]))
    assert cosine > 0.99
    exact, _ = gradient(Maze(2, 1, 2), Maze(2, 1, 2).base())
    assert float(np.dot(found[1], exact[:, 0]) / np.linalg.norm(found[1]) / np.linalg.norm(exact)) > 0.99


def test_advantages_are_of_each_group_apart() -> None:
    graph = star_graph(2, 1, 2)
    walks = star_walks(2, 1, graph, graph.uniform, 20, 4000, generator(0, "groups"))
    group = np.arange(20) % 2
    for to_go in (False, True):
        whole = repro.advantages(walks, group, to_go)
        moved = repro.advantages(walks, group * 7, to_go)
        assert (whole == moved).all()
    first = np.unique(walks.walker, return_index=True)[1]
    value = repro.advantages(walks, group, to_go=False)[first]
    for g in (0, 1):
        assert value[group == g].mean() == pytest.approx(0, abs=1e-6)
        assert value[group == g].std() == pytest.approx(1, abs=1e-3)


def test_a_small_table_learns_to_come_back_and_repeats() -> None:
    less = {"seed": 0, "updates": 15, "episodes": 64, "steps": 300, "cap": 400}
    found = repro.tabular(**less)
    assert found == repro.tabular(**less)
    assert found["RL"] < found["base"] == 326
    assert found["golden SFT"] > found["distilled"]


def test_a_network_fits_what_it_is_shown() -> None:
    graph = star_graph(2, 1, 2)
    net = repro.make_network(graph, 0, width=16)
    policy = np.exp(repro.network_policy(net, graph))
    assert policy.sum(axis=1) == pytest.approx(1.0)
    taught = repro.imitate(net, graph, graph.uniform, 40, 0, tokens=256, lr=1e-2)
    assert (np.exp(repro.network_policy(net, graph)) == policy).all()  # a copy was taught
    after = np.exp(repro.network_policy(taught, graph))
    seen = graph.uniform.any(axis=1)
    assert np.abs(after - graph.uniform)[seen].max() < 0.25 < np.abs(policy - graph.uniform)[seen].max()

    def play(policy: np.ndarray, update: int) -> tuple[repro.PaddedWalks, np.ndarray]:
        return star_walks(2, 1, graph, policy, 200, 300, generator(0, update)), np.zeros(200, dtype=np.int64)

    better = repro.reinforce(taught, graph, play, 25, 0, 3e-3)
    lengths = [play(np.exp(repro.network_policy(net, graph)), 99)[0].length.mean() for net in (taught, better)]
    assert lengths[1] < 0.8 * lengths[0]


@pytest.mark.slow
def test_printed_figures_are_all_checked() -> None:
    cells = ResultCache()
    checks = {check.name: check for check in repro._theory(cells, 20)}
    assert set(repro.PRINTED) < set(checks)
    assert all(check.status in ("pass", "reported") for name, check in checks.items() if "standard errors" not in name)
