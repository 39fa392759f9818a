"""crosscoder: find what training changed inside a model, as features of a dictionary of both checkpoints, and turn them up or
down.

Paper: Localizing RL-Induced Tool Use to a Single Crosscoder Feature, arXiv 2606.26474. Needs the weights of both models: hidden
states are read from the two and patched in one of them, which no endpoint offers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of both models."""

COMPONENTS: dict[str, tuple[str, ...]] = {}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.crosscoder.algorithm import confirm as confirm
    from ramify.methods.crosscoder.algorithm import confirm_sets as confirm_sets
    from ramify.methods.crosscoder.algorithm import rank_features as rank_features
    from ramify.methods.crosscoder.algorithm import search as search
    from ramify.methods.crosscoder.record import Confirmed as Confirmed
    from ramify.methods.crosscoder.record import RankedFeature as RankedFeature
    from ramify.methods.crosscoder.record import Steering as Steering
    from ramify.methods.crosscoder.run import CachedScores as CachedScores
    from ramify.methods.crosscoder.run import Checkpoints as Checkpoints
    from ramify.methods.crosscoder.run import States as States
    from ramify.methods.crosscoder.run import capture as capture
    from ramify.methods.crosscoder.run import export as export
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "algorithm": "rank_features search confirm confirm_sets",
            "record": "Confirmed RankedFeature Steering",
            "run": "Checkpoints States capture CachedScores export",
        },
    )
