"""tree-rollouts: spend a fixed rollout budget on a tree of attempts, chosen greedily, and move budget to undecided tasks.

Paper: Maximizing Rollout Informativeness under a Fixed Budget: A Submodular View of Tree Search for Tool-Use Agentic Reinforcement
Learning, arXiv 2605.05262. Needs an environment that can be put back to an earlier state.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none. Without ``logprobs`` the selector runs without its entropy term and says so."""

_HOMES = {
    "UUCB": "algorithm",
    "TreeConfig": "algorithm",
    "Allocation": "algorithm",
    "GrownTree": "record",
    "read_trees": "record",
    "write_trees": "record",
    "TreeSampler": "sampler",
    "BudgetAllocator": "allocator",
    "to_rows": "run",
    "report": "run",
}

__all__ = ["NEEDS", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
