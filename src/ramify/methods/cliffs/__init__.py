"""cliffs: find the tokens at which a chain of thought falls off, by forking it at every token, and confirm them.

Paper: Cliff Tokens: Identifying Single-Token Failure Triggers in LLM Mathematical Reasoning, arXiv 2606.25524. Needs a model that
continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs. Without ``prompt_logprobs`` there is no screen and no class."""

_HOMES = {
    "ZTest": "algorithm",
    "Cliff": "algorithm",
    "detect": "algorithm",
    "confirm": "algorithm",
    "ScanConfig": "run",
    "scan": "run",
    "ablate": "run",
    "examine": "run",
    "pairs": "run",
    "mass_under": "run",
    "summary": "report",
    "ablation_table": "report",
    "picture": "report",
    "read_scan": "report",
}

__all__ = ["NEEDS", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
