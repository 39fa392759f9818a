"""Budget between prompts: totals, caps, determinism, the learned form."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import Allocation, TreeConfig, is_mixed
from ramify.methods.tree_rollouts.allocator import BudgetAllocator
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify_experiments.tree_rollouts.toy import MIXTURE, ToyGrower, make_prompts
from tree_rollouts.growers import Scrambled, Words, check_accounting

TASKS = [Task(f"{i:04d}") for i in range(12)]


def allocate(
    rule: str = "uucb",
    seed: int = 5,
    kinds: tuple[str, ...] = MIXTURE,
    order: int | None = None,
    parallel: int = 1,
    **config: object,
) -> tuple[list[GrownTree], BudgetAllocator]:
    prompts = make_prompts(len(TASKS), seed, kinds)
    grower = ToyGrower(prompts, seed)
    if order is not None:
        grower = Scrambled(prompts, seed)
        grower.order = order
    settled = TreeConfig.model_validate({"rule": rule, "worst_attempt": 8, "parallel": parallel})
    allocator = BudgetAllocator(TreeSampler(grower, settled, seed), 64.0 * len(TASKS), Allocation.model_validate(config))
    trees = asyncio.run(allocator.run(TASKS))
    for tree in trees:
        check_accounting(tree, settled)
    return trees, allocator


@pytest.mark.parametrize(("rule", "overhead"), list(itertools.product(["uucb", "flat"], [0.0, 0.05])))
def test_the_total_and_its_overhead_are_kept_and_spent(rule: str, overhead: float) -> None:
    trees, allocator = allocate(rule, overhead=overhead)
    spent = sum(tree.cost for tree in trees)
    most = allocator.total * (1 + overhead)
    assert most - 8 < spent <= most
    assert [tree.prompt_id for tree in trees] == [task.id for task in TASKS]
    assert spent == pytest.approx(
        sum(entry["cost"] for entry in allocator.log) + sum(t.cost - spent_later(t, allocator) for t in trees)
    )


def spent_later(tree: GrownTree, allocator: BudgetAllocator) -> float:
    return sum(entry["cost"] for entry in allocator.log if entry["task"] == tree.prompt_id)


def test_uniform_prompts_come_first_by_gain_per_cost_then_the_lopsided() -> None:
    _, allocator = allocate("flat", width=1, overhead=0.0)
    chances = [entry["chance"] for entry in allocator.log]
    undecided = [chance for chance in chances if chance < 1]
    # one attempt after n equal ones has chance 1/(n+2): each choice takes the fewest, and mixed prompts (chance 1) come last
    assert undecided == sorted(undecided, reverse=True)
    assert undecided[0] == pytest.approx(1 / 6)
    assert chances == undecided + [1.0] * (len(chances) - len(undecided))


def test_unsolvable_prompts_are_abandoned_at_the_cap() -> None:
    # one prompt that never succeeds among easy ones: its share stops at the cap and is said
    trees, _ = allocate("flat", kinds=("hard", *["easy"] * 11), cap=1.5, overhead=0.0, seed=1)
    assert all(tree.cost <= 1.5 * 64 for tree in trees)
    assert any(tree.abandoned for tree in trees)
    assert [tree.prompt_id for tree in trees if tree.abandoned] == [tree.prompt_id for tree in trees if not tree.mixed]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 3])
def test_arrival_order_changes_nothing(parallel: int) -> None:
    plain = [tree.to_json() for tree in allocate(parallel=parallel)[0]]
    for order in range(3):
        assert [tree.to_json() for tree in allocate(order=order, parallel=parallel)[0]] == plain


@pytest.mark.slow
def test_allocation_raises_the_mixed_share_at_equal_cost() -> None:
    prompts = make_prompts(150, 2)
    tasks = [Task(name) for name in prompts]
    sampler = TreeSampler(ToyGrower(prompts), TreeConfig(rule="flat", worst_attempt=8))
    plain = asyncio.run(sampler.run_all(tasks, 64))
    moved = asyncio.run(BudgetAllocator(sampler, 64 * len(tasks), Allocation(overhead=0)).run(tasks))
    assert sum(tree.cost for tree in moved) == sum(tree.cost for tree in plain)
    assert np.mean([tree.mixed for tree in moved]) > np.mean([tree.mixed for tree in plain]) + 0.04


def test_the_learned_form_moves_its_weights_and_remembers_prompts() -> None:
    prompts = make_prompts(len(TASKS), 5)
    sampler = TreeSampler(ToyGrower(prompts), TreeConfig(worst_attempt=8))
    allocator = BudgetAllocator(sampler, 64.0 * len(TASKS), Allocation(learned=True))
    for epoch in range(3):
        sampler.prefix = f"{epoch}/"
        asyncio.run(allocator.run(TASKS))
    assert np.abs(allocator.weights).sum() > 0
    assert all(seen == 3 and 0 <= mixed <= 3 for seen, mixed in allocator.history.values())
    assert len(allocator.history) == len(TASKS)


def test_an_untrained_learned_form_without_floor_is_the_closed_form() -> None:
    learned = allocate(learned=True, rate=0.0, floor=0.0)[0]
    assert [tree.to_json() for tree in learned] == [tree.to_json() for tree in allocate()[0]]


def test_dead_prompts_and_no_prompts_end_cleanly() -> None:
    sampler = TreeSampler(Words(empty=True), TreeConfig(unit="tokens"))
    trees = asyncio.run(BudgetAllocator(sampler, 100, Allocation()).run(TASKS[:3]))
    assert [tree.cost for tree in trees] == [0, 0, 0]
    assert not any(is_mixed(tree.root.s, tree.root.n) for tree in trees)
    assert asyncio.run(BudgetAllocator(sampler, 100).run([])) == []
    with pytest.raises(UserError, match="fraction"):
        check(Allocation, {"fraction": 0})


def test_token_budgets_overshoot_by_at_most_one_round() -> None:
    sampler = TreeSampler(Words(7), TreeConfig(unit="tokens", rule="flat"))
    trees = asyncio.run(BudgetAllocator(sampler, 30.0 * len(TASKS), Allocation(overhead=0, width=4)).run(TASKS))
    # each tree's first share, and each chunk of the last round, may end inside an attempt (at most 12 tokens)
    assert sum(tree.cost for tree in trees) <= 30 * len(TASKS) + 4 * 12
