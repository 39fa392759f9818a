"""implicit-advantage: grade every action of an agent by how much more likely training made it,
read off a policy and its reference.

Paper: Neglected Free Lunch from Post-training: Progress Advantage for LLM Agents, arXiv 2606.26080. Needs the log-probs that two
models with one tokenizer give to the tokens of finished attempts; no labels, no reward model, no further rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ("tokens", "prompt_logprobs")
"""Model capabilities the method needs of both models; attempts that carry stored log-probs of both need no model."""
COMPONENTS = {"credit": ("rules",), "middleware": ("middleware",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.implicit_advantage.algorithm import AdvantageConfig as AdvantageConfig
    from ramify.methods.implicit_advantage.algorithm import blame as blame
    from ramify.methods.implicit_advantage.monitor import Monitor as Monitor
    from ramify.methods.implicit_advantage.run import AdvantageScorer as AdvantageScorer
    from ramify.methods.implicit_advantage.run import GradedAttempt as GradedAttempt
else:
    __all__, __getattr__ = declared(__name__, __file__)
