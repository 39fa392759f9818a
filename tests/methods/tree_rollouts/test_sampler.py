"""One prompt's tree: accounting, determinism, the rule's limits, faults (section 8, items 8 to 12)."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import TreeConfig
from ramify.methods.tree_rollouts.record import ENTRY, GrownTree, keep_trees, read_trees
from ramify.methods.tree_rollouts.sampler import Grower, TreeSampler
from ramify.trace.convert import write_lines
from ramify.trace.db import Run
from ramify_experiments.tree_rollouts.toy import ToyGrower, make_prompts
from tree_rollouts.growers import TASK, Scrambled, Words, check_accounting

TOY = {"worst_attempt": 8.0}


def sample(grower: Grower, budget: float = 64, seed: int = 0, task: Task = TASK, **config: object) -> GrownTree:
    settled = TreeConfig.model_validate(config)
    tree = asyncio.run(TreeSampler(grower, settled, seed).run(task, budget))
    check_accounting(tree, settled)
    return tree


def toy(**config: object) -> GrownTree:
    return sample(ToyGrower(make_prompts(1, 3)), **TOY, **config)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["uucb", "random", "flat"]),
    st.sampled_from(["turns", "tokens"]),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(0, 4)),
    st.booleans(),
)
def test_accounting(seed: int, rule: str, unit: str, parallel: int, tau: int | None, bounded: bool) -> None:
    worst = {"turns": 4.0, "tokens": 12.0}[unit] if bounded else None
    faults = {"unscored": 0.2, "truncated": 0.2}
    tree = sample(
        Words(seed, **faults),
        30,
        seed,
        rule=rule,
        unit=unit,
        parallel=parallel,
        tau=tau,
        worst_attempt=worst,
        truncated="exclude",
    )
    assert all(leaf.counted == (leaf.outcome is not None and not leaf.truncated) for leaf in tree.leaves)
    assert len(tree.log) == len(tree.leaves)


def test_same_seed_same_tree() -> None:
    assert toy().to_json() == toy().to_json()
    assert toy().to_json() != toy(rule="random").to_json()


@pytest.mark.parametrize("parallel", [2, 5])
def test_tau_0_is_the_sequential_tree_bit_for_bit(parallel: int) -> None:
    assert toy(parallel=parallel, tau=0).to_json() == toy().to_json()


def test_arrival_order_changes_nothing() -> None:
    trees = []
    for order in range(5):
        grower = Scrambled(make_prompts(1, 3))
        grower.order = order
        trees.append(sample(grower, **TOY, parallel=4).to_json())
    assert all(tree == trees[0] for tree in trees)
    # four at once decide on older statistics, so the tree is another one than the sequential
    assert trees[0] != toy().to_json()


def test_pending_counts_keep_workers_off_one_node() -> None:
    # exploration alone, all four chosen on the same statistics: with counts of what is in flight they spread over four nodes
    tree = toy(parallel=4, roots=1, selector={"alpha": 0, "lam": 0, "c": 0.1})
    first = [entry["node"] for entry in tree.log[1:5]]
    assert len(set(first)) == 4


def test_no_coefficients_is_shallowest_first() -> None:
    tree = toy(selector={"alpha": 0, "c": 0, "lam": 0})
    assert {entry["node"] for entry in tree.log} == {"root"}
    assert len(tree.leaves) == 8


def test_ties_go_to_the_shallowest_then_the_lowest_id() -> None:
    # exploration alone is at its ceiling wherever one leaf passed, so all those places tie
    selector = {"alpha": 0, "lam": 0, "c": 0.1}
    before = sample(ToyGrower(make_prompts(1, 3)), 16, selector=selector, **TOY)
    chosen = toy(selector=selector).log[2]
    assert chosen["score_terms"]["explore"] == pytest.approx(0.1)
    assert chosen["node"] == min((p.depth, p.id) for p in before.places.values() if p.forkable and p.n == 1)[1]


def test_score_terms_are_logged_and_the_highest_sum_won() -> None:
    tree = toy()
    assert all(set(entry["score_terms"]) == {"value", "explore", "entropy"} for entry in tree.log[2:])
    assert [entry["step"] for entry in tree.log] == list(range(len(tree.log)))


def test_frozen_statistics_within_a_round() -> None:
    # with four in flight, the choices made on the same merged results see the same N: equal exploration at equal counts
    tree = toy(parallel=4, roots=4, selector={"alpha": 0, "lam": 0, "c": 0.1})
    assert len(tree.log) > 4
    assert tree.log[0]["score_terms"] == {}


def test_cost_aware_prefers_cheap_nodes() -> None:
    def mean_depth(tree: GrownTree) -> float:
        return float(np.mean([tree.places[entry["node"]].depth for entry in tree.log]))

    assert mean_depth(toy(selector={"cost_aware": True})) > mean_depth(toy())


def test_equal_turns_are_one_place_and_every_leaf_counts() -> None:
    tree = sample(Words(1), 60, worst_attempt=4.0)
    assert any(place.duplicate for place in tree.places.values())
    assert len({leaf.node for leaf in tree.leaves}) < len(tree.leaves) == tree.root.n
    assert len({leaf.stored for leaf in tree.leaves}) == len(tree.leaves)


def test_trees_read_back_exactly_from_their_run_and_from_an_export_of_it(tmp_path: Path) -> None:
    trees = [toy(), sample(Words(4, unscored=0.3, no_logprobs=True), 40, unit="tokens")]
    with Run.create(tmp_path / "run", {}) as run:
        trees[1].prompt_id = "other"
        keep_trees(run, trees)
        with pytest.raises(UserError, match="holds a tree of task 'other' already"):
            keep_trees(run, trees[1:])
        write_lines(run, tmp_path / "run.jsonl")
    assert read_trees(tmp_path / "run") == read_trees(tmp_path / "run.jsonl") == trees


@pytest.mark.parametrize(
    "record", [{"nodes": [], "leaves": []}, {"nodes": [{"id": 1}], "leaves": []}, {"nodes": 3, "leaves": []}]
)
def test_what_is_no_tree_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        run.log(ENTRY, "p", {"prompt_id": "p", "tree": "t", "selector": {}, **record})
    with pytest.raises(UserError, match="not a grown tree"):
        read_trees(tmp_path / "run")
    with pytest.raises(UserError, match="cannot read"):
        read_trees(tmp_path / "none.jsonl")


def test_a_budget_below_one_attempt_names_the_minimum() -> None:
    with pytest.raises(UserError, match="at least 8"):
        toy(budget=7)
    with pytest.raises(UserError, match="at least 1"):
        sample(Words(), 0.5)
    with pytest.raises(UserError, match="roots"):
        check(TreeConfig, {"roots": 0})


def test_unforkable_nodes_are_marked_and_noted_once() -> None:
    tree = sample(Words(2, unforkable=True), 40)
    assert len(tree.notes) == 1
    assert "replay differs at step 1" in tree.notes[0]
    assert all(leaf.node and leaf.origin == leaf.index for leaf in tree.leaves)
    assert tree.leaves


def test_attempts_that_sample_nothing_end_the_tree() -> None:
    tree = sample(Words(empty=True), 40)
    assert (tree.cost, tree.leaves) == (0, [])
    assert "engine: gone" in tree.notes[0]


def test_unscored_leaves_are_paid_but_in_no_group() -> None:
    tree = sample(Words(3, unscored=1.0), 40)
    assert tree.leaves
    assert tree.group == []
    assert not tree.mixed
    assert tree.cost > 30


def test_truncated_leaves_count_by_policy() -> None:
    counted = sample(Words(3, truncated=1.0), 40)
    left_out = sample(Words(3, truncated=1.0), 40, truncated="exclude")
    assert len(counted.group) == len(counted.leaves)
    assert left_out.group == []


def test_without_logprobs_the_entropy_term_is_0_with_a_note() -> None:
    tree = sample(Words(2, no_logprobs=True), 40)
    assert any("no log-probs" in note for note in tree.notes)
    assert all(entry["score_terms"].get("entropy", 0.0) == 0.0 for entry in tree.log)


def test_nothing_more_is_started_before_a_cost_is_known() -> None:
    tree = sample(Words(5), 9, rule="flat", parallel=8, roots=2)
    assert tree.cost <= 9 + 4


def test_random_trees_are_unbiased() -> None:
    # section 8, item 12: with random node selection every new leaf succeeds with the prompt's own probability, at every depth
    prompts = make_prompts(1, 3, ("medium",))
    truth = prompts["0000"].success
    outcomes: dict[int, list[bool]] = {}
    for seed in range(500):
        sampler = TreeSampler(ToyGrower(prompts, seed), TreeConfig(rule="random", worst_attempt=8, roots=1), seed)
        tree = asyncio.run(sampler.run(TASK, 24))
        for entry, leaf in zip(tree.log[1:], tree.leaves[1:], strict=True):
            outcomes.setdefault(tree.places[entry["node"]].depth, []).append(bool(leaf.outcome))
    assert set(outcomes) == set(range(8))
    for depth, seen in outcomes.items():
        # leaves that share a prefix are correlated: one per tree would be a binomial, so allow for the design
        error = math.sqrt(truth * (1 - truth) / len(seen)) * (1 + depth / 8)
        assert abs(np.mean(seen) - truth) < 3 * error, depth


def test_score_per_cost_without_shrinkage_only_buys_short_branches() -> None:
    # trap T2: many leaves, nearly all from the last turns of failed attempts
    prompts = make_prompts(1, 0, ("hard",))
    greedy = sample(ToyGrower(prompts), 128, selector={"kappa": 1e-9, "lam": 0, "cost_aware": True}, **TOY)
    settled = sample(ToyGrower(prompts), 128, **TOY)
    assert len(greedy.leaves) > 1.5 * len(settled.leaves)
