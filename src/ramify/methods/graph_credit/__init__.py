"""graph-credit: merge the attempts at one task into a state graph and credit each action by its progress.

Paper: Group-Graph Policy Optimization for Long-Horizon Agentic Reinforcement Learning (G2PO), arXiv 2606.22995. No critic, no
reward model, no extra rollouts: only states that several attempts pass through, and a terminal reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none, it reads finished attempts."""

COMPONENTS = {"credit": ("rules",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.graph_credit.algorithm import CreditConfig as CreditConfig
    from ramify.methods.graph_credit.algorithm import credit as credit
    from ramify.methods.graph_credit.run import StateGraph as StateGraph
else:
    __all__, __getattr__ = declared(__name__, __file__)
