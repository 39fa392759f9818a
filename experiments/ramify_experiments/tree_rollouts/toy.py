"""A toy with irrevocable, invisible mistakes, played through the interface of a language-model agent by the real sampler and
allocator.

An attempt has 8 turns of 4 actions and succeeds when it was right at every critical turn; the policy is a table per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.seeds import derive_key, generator, uniforms
from ramify.base.waiting import wait_for
from ramify.env.protocol import Task
from ramify.methods.tree_rollouts.algorithm import Allocation, TreeConfig
from ramify.methods.tree_rollouts.allocator import BudgetAllocator
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify.rollout.attempts import Attempt, Turn
from ramify.trace.node import Node

TURNS, ACTIONS, BUDGET = 8, 4, 64
#: kind of prompt -> (critical turns, lowest and highest probability of the right action there)
KINDS = {"hard": (4, 0.15, 0.6), "medium": (3, 0.4, 0.9), "easy": (3, 0.85, 0.995), "harder": (4, 0.1, 0.5)}
MIXTURE = ("hard", "medium", "easy")
#: arm -> (rule, changed coefficients, with allocator)
ARMS: dict[str, tuple[str, dict[str, float], bool]] = {
    "flat": ("flat", {}, False),
    "random": ("random", {}, False),
    "uucb": ("uucb", {}, False),
    "uucb, no entropy": ("uucb", {"lam": 0.0}, False),
    "uucb, no value": ("uucb", {"alpha": 0.0}, False),
    "flat + allocator": ("flat", {}, True),
    "uucb + allocator": ("uucb", {}, True),
    "uucb + learned allocator": ("uucb", {}, True),
    "no shrinkage, c = 1": ("uucb", {"kappa": 1e-9, "lam": 0.0, "c": 1.0}, False),
    "entropy alone": ("uucb", {"alpha": 0.0, "c": 0.0}, False),
    "no shrinkage, score per cost": ("uucb", {"kappa": 1e-9, "lam": 0.0, "cost_aware": True}, False),
}


@dataclass
class ToyPrompt:
    """One prompt's policy: logits (8, 4), action 0 is right; only critical turns (8,) decide."""

    kind: str
    logits: np.ndarray
    critical: np.ndarray

    @property
    def policy(self) -> np.ndarray:
        """Action probabilities, shape (8, 4)."""
        weight = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    @property
    def success(self) -> float:
        """Exact success probability."""
        return float(self.policy[self.critical, 0].prod())


def make_prompts(n: int, seed: int, kinds: Sequence[str] = MIXTURE) -> dict[str, ToyPrompt]:
    """``n`` prompts by task id, the kinds in turn."""
    prompts = {}
    for i in range(n):
        kind = kinds[i % len(kinds)]
        rng = generator(seed, "toy", kind, i)
        count, low, high = KINDS[kind]
        right = np.full(TURNS, 0.98)
        critical = np.zeros(TURNS, bool)
        critical[rng.choice(TURNS, count, replace=False)] = True
        right[critical] = rng.uniform(low, high, count)
        probabilities = np.repeat(((1 - right) / (ACTIONS - 1))[:, None], ACTIONS, axis=1)
        probabilities[:, 0] = right
        prompts[f"{i:04d}"] = ToyPrompt(kind, np.log(probabilities), critical)
    return prompts


class ToyGrower:
    """Plays prompts; samples are keyed by position (seed, tree, node, index), so arms of one seed share their first attempts."""

    def __init__(self, prompts: dict[str, ToyPrompt], seed: int = 0) -> None:
        self.prompts, self.seed = prompts, seed
        self._policy = {name: prompt.policy for name, prompt in prompts.items()}
        self._states: dict[tuple[str, str], tuple[int, bool]] = {}

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """Play from the beginning."""
        return self._play(tree, task, "start", 0, True, index)

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """Continue from the state after ``node_id``."""
        return self._play(tree, task, node_id, *self._states[tree, node_id], index)

    def _play(self, tree: str, task: Task, start: str, turn: int, right: bool, index: int) -> Attempt:
        prompt, policy = self.prompts[task.id], self._policy[task.id][turn:]
        left = TURNS - turn
        sampled = uniforms(np.full(left, derive_key(self.seed, tree, start, index)), np.arange(left))
        actions = (sampled[:, None] > policy.cumsum(axis=1)[:, :-1]).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropies = -np.nan_to_num(policy * np.log(policy)).sum(axis=1)
        turns, parent = [], start
        for step, (action, entropy) in enumerate(zip(actions.tolist(), entropies.tolist(), strict=True), turn):
            right = right and not (prompt.critical[step] and action)
            name = f"{index:04d}.{step}"
            reply = Node(name + "a", tree, parent, 1, "assistant", str(action))
            seen = Node(name, tree, reply.id, 1, "user", "", stop="terminated" if step == TURNS - 1 else "")
            self._states[tree, name] = (step + 1, right)
            turns.append(Turn(reply, seen, entropy, "exact"))
            parent = name
        return Attempt(tree, task, index, start, tuple(turns), 1.0 if right else -1.0, right, False, None, parent)


def grow(
    prompts: dict[str, ToyPrompt], arm: str, seed: int, epoch: str = "", budget: float = BUDGET, **coefficients: float
) -> list[GrownTree]:
    """Grow every prompt's tree with one arm; the total is ``budget`` turns a prompt, the allocator's too."""
    rule, changed, allocated = ARMS[arm]
    config = TreeConfig.model_validate({"rule": rule, "selector": {**changed, **coefficients}, "worst_attempt": TURNS})
    sampler = TreeSampler(ToyGrower(prompts, seed), config, seed, epoch)
    tasks = [Task(name) for name in prompts]
    if not allocated:
        return wait_for(sampler.run_all(tasks, budget))
    allocation = Allocation(overhead=0.0, learned="learned" in arm)
    return wait_for(BudgetAllocator(sampler, budget * len(tasks), allocation).run(tasks))
