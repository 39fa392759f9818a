"""governance: measure which of an agent's rules compaction drops, what it does then, and keep them by pinning.

Paper: Governance Decay: How Context Compaction Silently Erases Safety Constraints in Long-Horizon LLM Agents, arXiv 2606.22528. Needs any
model or endpoint that answers messages, or only logs of conversations.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""

_HOMES = {"Bench": "run", "BenchConfig": "run", "Player": "run", "summary": "algorithm"}
_KERNEL = {
    "Pin": "pins",
    "Pins": "pins",
    "View": "pins",
    "pin": "pins",
    "Compaction": "views",
    "compact_chat": "views",
    "survives": "carriage",
}

__all__ = ["NEEDS", *_HOMES, *_KERNEL]

_load, _kernel = loader(__name__, _HOMES), loader("ramify.rollout", _KERNEL)


def __getattr__(name: str) -> object:
    return (_kernel if name in _KERNEL else _load)(name)
