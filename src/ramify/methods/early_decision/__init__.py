"""early-decision: find out when in a thinking trace the outcome is decided, and whether the rest of the thinking matters.

Paper: Do Thinking Tokens Help with Safety?, arXiv 2606.25013. Hidden states need a model in this process; continuations need a model that
continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs; hidden states need ``taps`` as well."""

_HOMES = {
    "continuation_variance": "algorithm",
    "unbiased_variance": "algorithm",
    "continuation_point": "algorithm",
    "thinking_effect": "algorithm",
    "chunk_spans": "algorithm",
    "segments": "algorithm",
    "transitions": "algorithm",
    "settle": "algorithm",
    "judge_cuts": "algorithm",
    "defence": "algorithm",
    "RolloutConfig": "run",
    "ContinueConfig": "run",
    "OscillateConfig": "run",
    "Study": "run",
    "rollout": "run",
    "adopt": "run",
    "continuations": "run",
    "oscillations": "run",
    "ProbeConfig": "states",
    "ValleyConfig": "states",
    "capture": "states",
    "probe_stage": "states",
    "valley_stage": "states",
    "ReportConfig": "report",
    "build": "report",
    "html": "report",
    "separability_svg": "report",
    "continuation_svg": "report",
}

__all__ = ["NEEDS", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
