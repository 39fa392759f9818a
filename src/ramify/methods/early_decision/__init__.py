"""early-decision: find out when in a thinking trace the outcome is decided, and whether the rest of the thinking matters.

Paper: Do Thinking Tokens Help with Safety?, arXiv 2606.25013. Hidden states need a model in this process; continuations need a model that
continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs; hidden states need ``taps`` as well."""

__all__, __getattr__ = public(
    __name__,
    {
        "algorithm": "continuation_variance unbiased_variance continuation_point thinking_effect chunk_spans segments "
        "transitions settle judge_cuts defence",
        "run": "RolloutConfig ContinueConfig OscillateConfig Study rollout adopt continuations oscillations",
        "states": "ProbeConfig ValleyConfig capture probe_stage valley_stage",
        "report": "ReportConfig build html separability_svg continuation_svg",
    },
)
