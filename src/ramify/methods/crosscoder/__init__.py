"""crosscoder: find what training changed inside a model, as features of a dictionary of both checkpoints, and turn them up or
down.

Paper: Localizing RL-Induced Tool Use to a Single Crosscoder Feature, arXiv 2606.26474. Needs the weights of both models: hidden
states are read from the two and patched in one of them, which no endpoint offers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of both models."""

COMPONENTS: dict[str, tuple[str, ...]] = {}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.crosscoder.algorithm import confirm as confirm
    from ramify.methods.crosscoder.algorithm import rank_features as rank_features
    from ramify.methods.crosscoder.algorithm import search as search
    from ramify.methods.crosscoder.run import Checkpoints as Checkpoints
    from ramify.methods.crosscoder.run import capture as capture
else:
    __all__, __getattr__ = declared(__name__, __file__)
