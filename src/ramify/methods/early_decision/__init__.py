"""early-decision: find out when in a thinking trace the outcome is decided, and whether the rest of the thinking matters.

Paper: Do Thinking Tokens Help with Safety?, arXiv 2606.25013. Hidden states need a model in this process; continuations need a
model that continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs; hidden states need ``taps`` as well."""
COMPONENTS: dict[str, tuple[str, ...]] = {"middleware": ("middleware",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.early_decision.record import Study as Study
    from ramify.methods.early_decision.record import StudyConfig as StudyConfig
    from ramify.methods.early_decision.report import build as build
    from ramify.methods.early_decision.run import continuations as continuations
    from ramify.methods.early_decision.run import rollout as rollout
else:
    __all__, __getattr__ = declared(__name__, __file__)
