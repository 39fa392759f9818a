"""governance: measure which of an agent's rules compaction drops, what it does then, and keep them by pinning.

Paper: Governance Decay: How Context Compaction Silently Erases Safety Constraints in Long-Horizon LLM Agents, arXiv 2606.22528.
Needs any model or endpoint that answers messages, or only logs of conversations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""
COMPONENTS = {"judge": ("middleware",), "middleware": ("middleware",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.governance.run import Bench as Bench
    from ramify.methods.governance.run import BenchConfig as BenchConfig
    from ramify.rollout.pins import Pin as Pin
    from ramify.rollout.pins import Pins as Pins
    from ramify.rollout.pins import pin as pin
else:
    __all__, __getattr__ = declared(__name__, __file__)
