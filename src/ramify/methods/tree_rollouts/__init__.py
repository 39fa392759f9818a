"""tree-rollouts: spend a fixed rollout budget on a tree of attempts, chosen greedily, and move budget to undecided tasks.

Paper: Maximizing Rollout Informativeness under a Fixed Budget: A Submodular View of Tree Search for Tool-Use Agentic Reinforcement
Learning, arXiv 2605.05262. Needs an environment that can be put back to an earlier state.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none. Without ``logprobs`` the selector runs without its entropy term and says so."""

__all__, __getattr__ = public(
    __name__,
    {
        "algorithm": "UUCB TreeConfig Allocation",
        "record": "GrownTree read_trees write_trees",
        "sampler": "TreeSampler",
        "allocator": "BudgetAllocator",
        "run": "to_rows report",
    },
)
