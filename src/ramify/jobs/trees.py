"""Collect trees (``ramify rollout --tree``): the sampling of tree-rollouts, in a run that the same call continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from ramify.base.budget import Budget
from ramify.base.config import check
from ramify.base.errors import BudgetSpentError, UserError
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import Task, close
from ramify.jobs import play
from ramify.jobs.collect import Collection, RolloutConfig, entry_of
from ramify.jobs.results import AttemptEntry, Collected
from ramify.methods.tree_rollouts.algorithm import TreeConfig
from ramify.methods.tree_rollouts.allocator import BudgetAllocator
from ramify.methods.tree_rollouts.record import ENTRY, GrownTree, keep_trees
from ramify.methods.tree_rollouts.run import report
from ramify.methods.tree_rollouts.sampler import Grower, TreeSampler
from ramify.model.protocol import require
from ramify.rollout.attempts import Attempt, Success
from ramify.rollout.components import check_trust
from ramify.rollout.run import Episodes
from ramify.rollout.stored import kept_template
from ramify.trace.db import Run

SPARE = 1.05
"""Most that an allocator may spend, as a multiple of the budget of all tasks together."""


class TreeRolloutConfig(RolloutConfig):
    """Settings of ``ramify rollout``, those of ``--tree`` included."""

    BASIC = (
        "model env tasks task set attempts seed temperature max_reply backend concurrency device budget.tokens "
        "budget.seconds tree_budget tree.rule"
    )
    tree: TreeConfig = TreeConfig(parallel=4)
    """How a tree is sampled."""
    tree_budget: float = Field(64, gt=0)
    """With --tree: budget of each task, in turns or tokens (--tree.unit)."""
    allocate: bool = True
    """With --tree: move budget from tasks whose outcome is settled to undecided ones."""


def flat(config: TreeRolloutConfig) -> RolloutConfig:
    """The settings of a rollout without trees. Raises UserError where a setting of trees is given."""
    values = {name: getattr(config, name) for name in RolloutConfig.model_fields}
    for name in TreeRolloutConfig.model_fields.keys() - values.keys():
        if getattr(config, name) != TreeRolloutConfig.model_fields[name].get_default():
            raise UserError(f"--{name.replace('_', '-')} is a setting of trees: give --tree, too")
    return check(RolloutConfig, {name: value for name, value in values.items() if name in config.model_fields_set})


class TreeCollection(Collection):
    """One collection of trees. An interrupted one is repeated from the start and loads the stored attempts."""

    config: TreeRolloutConfig
    kind = "rollout --tree"
    replays = True

    def __init__(self, config: TreeRolloutConfig, template: Mapping[str, Any] | None = None, weights: bool = True) -> None:
        """As :class:`Collection`. Raises UserError or NeedsError on components that do not exist or do not fit together."""
        if config.attempts != 1:
            raise UserError("--attempts is for rollouts without --tree: --tree-budget bounds the attempts of a tree")
        super().__init__(config, template, weights)
        require(self.agent.model, ("tokens",) if config.tree.unit == "tokens" else (), "a budget in tokens")
        env = self.environment.make()
        self.turns = env.max_turns
        close(env)
        worst = config.tree.worst_attempt or (self.turns if config.tree.unit == "turns" else None)
        self.tree = config.tree.model_copy(update={"worst_attempt": worst})
        if config.tree_budget < (worst or 1):
            raise UserError(
                f"a budget of {config.tree_budget:g} {config.tree.unit} is below one attempt from the root: at least "
                f"{worst or 1:g}"
            )
        self.grown: list[GrownTree] = []

    def plan(self) -> dict[str, int]:
        """The cost estimate before anything runs: upper bounds."""
        c = self.config
        total = c.tree_budget * len(self.task_set) * (SPARE if c.allocate else 1.0)
        calls, tokens = (int(total), int(total) * c.max_reply) if c.tree.unit == "turns" else (int(total), int(total))
        limits = c.budget
        return {
            "tasks": len(self.task_set),
            "calls": calls if limits.calls is None else min(calls, limits.calls),
            "tokens": tokens if limits.tokens is None else min(tokens, limits.tokens),
        }

    def _play(self, run: Run, done: dict[str, AttemptEntry], budget: Budget, progress: Progress) -> str | None:
        """Grow the trees, add the attempts to ``done``, and return the budget that ended it early."""
        c = self.config
        tasks, stored = list(self.task_set), {entry.key: entry.payload for entry in run.journal(ENTRY)}
        if len(stored) == len(tasks):
            self.grown = [GrownTree.from_json(stored[task.id]) for task in tasks]
            return None
        total = c.tree_budget * len(tasks)
        success, cost = Success(), 0
        progress.begin(total, 0, "sample", c.tree.unit)

        def keep(attempt: Attempt) -> None:
            nonlocal cost
            key = f"{attempt.tree}#{attempt.index}"
            done[key] = entry = entry_of(attempt)
            if attempt.failure is None:
                run.log("attempt", key, entry)
            run.commit()
            success.add(attempt)
            cost += len(attempt.turns) if c.tree.unit == "turns" else attempt.sampled_tokens
            progress.at(min(cost, total), success.note)

        with play.open_players(c.backend, c.model, c.env, self.agent, c.seed, c.concurrency, c.compactor) as players:
            player = players.player(Episodes(self.agent, self.environment, run, c.seed), budget)
            sampler = TreeSampler(_Kept(player, keep), self.tree, c.seed)
            growing = BudgetAllocator(sampler, total).run(tasks) if c.allocate else sampler.run_all(tasks, c.tree_budget)
            try:
                self.grown = players.run(growing)
            except BudgetSpentError:
                return budget.spent_out
            finally:
                self.workers_lost = 0 if players.pool is None else players.pool.lost
        if any(leaf.failure is None for tree in self.grown for leaf in tree.leaves):  # else the next call retries them
            with run.transaction():
                for key, entry in done.items():
                    run.log("attempt", key, entry)  # the failed ones, too: they are not retried
                keep_trees(run, self.grown)
        return None

    def _report(self, done: Mapping[str, AttemptEntry]) -> Collected:
        """As for a flat rollout, without the interval: attempts that a selector chose are not independent samples."""
        counted = self._counted(list(done.values()), None)
        return replace(counted, interval=None, trees=report(self.grown) if self.grown else None)


class _Kept:
    """Plays episodes for the sampler and reports each."""

    def __init__(self, grower: Grower, keep: Any) -> None:
        self._grower, self._keep = grower, keep

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """See :class:`Grower`."""
        return self._reported(await self._grower.attempt(tree, task, index))

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """See :class:`Grower`."""
        return self._reported(await self._grower.branch(tree, task, node_id, index))

    def _reported(self, attempt: Attempt) -> Attempt:
        self._keep(attempt)
        return attempt


def resume(path: Path, progress: Progress = SILENT, trust: bool = False) -> Collected:
    """Continue a run of trees with its stored settings; see :func:`ramify.jobs.collect.resume`."""
    with Run.open(path) as run:
        check_trust(run, trust)
        stored = {name: value for name, value in run.config.items() if name in TreeRolloutConfig.model_fields}
        kept = kept_template(run)
    return TreeCollection(check(TreeRolloutConfig, stored, f"the stored settings of {path}"), kept).collect(path, progress)
