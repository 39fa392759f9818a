"""governance: measure which of an agent's rules compaction drops, what it does then, and keep them by pinning.

Paper: Governance Decay: How Context Compaction Silently Erases Safety Constraints in Long-Horizon LLM Agents, arXiv 2606.22528.
Needs any model or endpoint that answers messages, or only logs of conversations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""
COMPONENTS = {"judge": ("middleware",), "middleware": ("middleware",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.governance.algorithm import summary as summary
    from ramify.methods.governance.carriage import survives as survives
    from ramify.methods.governance.run import Bench as Bench
    from ramify.methods.governance.run import BenchConfig as BenchConfig
    from ramify.methods.governance.run import NamedModel as NamedModel
    from ramify.rollout.compact import Compaction as Compaction
    from ramify.rollout.compact import compact_chat as compact_chat
    from ramify.rollout.pins import Pin as Pin
    from ramify.rollout.pins import PinKeeper as PinKeeper
    from ramify.rollout.pins import Pins as Pins
    from ramify.rollout.pins import pin as pin
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "run": "Bench BenchConfig NamedModel",
            "algorithm": "summary",
            "ramify.rollout.pins": "Pin PinKeeper Pins pin",
            "ramify.rollout.compact": "Compaction compact_chat",
            "ramify.methods.governance.carriage": "survives",
        },
    )
