"""crosscoder: find what training changed inside a model, as features of a dictionary of both checkpoints, and turn them up or down.

Paper: Localizing RL-Induced Tool Use to a Single Crosscoder Feature, arXiv 2606.26474. Needs the weights of both models: hidden states are
read from the two and patched in one of them, which no endpoint offers.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of both models."""

__all__, __getattr__ = public(
    __name__,
    {
        "algorithm": "Ranked rank_features Cell search confirm",
        "run": "Checkpoints States capture Scores export",
    },
)
