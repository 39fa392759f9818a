"""early-decision: find out when in a thinking trace the outcome is decided, and whether the rest of the thinking matters.

Paper: Do Thinking Tokens Help with Safety?, arXiv 2606.25013. Hidden states need a model in this process; continuations need a
model that continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs; hidden states need ``taps`` as well."""
COMPONENTS: dict[str, tuple[str, ...]] = {}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.early_decision.algorithm import chunk_spans as chunk_spans
    from ramify.methods.early_decision.algorithm import continuation_point as continuation_point
    from ramify.methods.early_decision.algorithm import continuation_variance as continuation_variance
    from ramify.methods.early_decision.algorithm import defence as defence
    from ramify.methods.early_decision.algorithm import judge_cuts as judge_cuts
    from ramify.methods.early_decision.algorithm import segments as segments
    from ramify.methods.early_decision.algorithm import settle as settle
    from ramify.methods.early_decision.algorithm import thinking_effect as thinking_effect
    from ramify.methods.early_decision.algorithm import transitions as transitions
    from ramify.methods.early_decision.algorithm import unbiased_variance as unbiased_variance
    from ramify.methods.early_decision.record import Study as Study
    from ramify.methods.early_decision.record import StudyConfig as StudyConfig
    from ramify.methods.early_decision.report import ReportConfig as ReportConfig
    from ramify.methods.early_decision.report import build as build
    from ramify.methods.early_decision.report import continuation_svg as continuation_svg
    from ramify.methods.early_decision.report import html as html
    from ramify.methods.early_decision.report import separability_svg as separability_svg
    from ramify.methods.early_decision.run import ContinueConfig as ContinueConfig
    from ramify.methods.early_decision.run import OscillateConfig as OscillateConfig
    from ramify.methods.early_decision.run import adopt as adopt
    from ramify.methods.early_decision.run import continuations as continuations
    from ramify.methods.early_decision.run import oscillations as oscillations
    from ramify.methods.early_decision.run import rollout as rollout
    from ramify.methods.early_decision.settings import ProbeConfig as ProbeConfig
    from ramify.methods.early_decision.settings import ValleyConfig as ValleyConfig
    from ramify.methods.early_decision.states import capture as capture
    from ramify.methods.early_decision.states import probe_stage as probe_stage
    from ramify.methods.early_decision.states import valley_stage as valley_stage
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "algorithm": "continuation_variance unbiased_variance continuation_point thinking_effect chunk_spans segments "
            "transitions settle judge_cuts defence",
            "record": "StudyConfig Study",
            "run": "ContinueConfig OscillateConfig rollout adopt continuations oscillations",
            "settings": "ProbeConfig ValleyConfig",
            "states": "capture probe_stage valley_stage",
            "report": "ReportConfig build html separability_svg continuation_svg",
        },
    )
