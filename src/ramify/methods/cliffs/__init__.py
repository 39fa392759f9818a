"""cliffs: find the tokens at which a chain of thought falls off, by forking it at every token, and confirm them.

Paper: Cliff Tokens: Identifying Single-Token Failure Triggers in LLM Mathematical Reasoning, arXiv 2606.25524. Needs a model that
continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs. Without ``prompt_logprobs`` there is no screen and no class."""

__all__, __getattr__ = public(
    __name__,
    {
        "algorithm": "ZTest Cliff detect confirm",
        "run": "ScanConfig scan ablate examine pairs mass_under",
        "report": "summary ablation_table picture read_scan",
    },
)
