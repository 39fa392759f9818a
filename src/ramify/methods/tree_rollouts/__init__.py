"""tree-rollouts: spend a fixed rollout budget on a tree of attempts, chosen greedily, and move budget to undecided tasks.

Paper: Maximizing Rollout Informativeness under a Fixed Budget: A Submodular View of Tree Search for Tool-Use Agentic
Reinforcement Learning, arXiv 2605.05262. Needs an environment that can be put back to an earlier state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none. Without ``logprobs`` the selector runs without its entropy term and says so."""

COMPONENTS = {"credit": ("rules",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.tree_rollouts.algorithm import TreeConfig as TreeConfig
    from ramify.methods.tree_rollouts.allocator import BudgetAllocator as BudgetAllocator
    from ramify.methods.tree_rollouts.run import report as report
    from ramify.methods.tree_rollouts.run import to_rows as to_rows
    from ramify.methods.tree_rollouts.sampler import TreeSampler as TreeSampler
else:
    __all__, __getattr__ = declared(__name__, __file__)
