"""crosscoder: find what training changed inside a model, as features of a dictionary of both checkpoints, and turn them up or down.

Paper: Localizing RL-Induced Tool Use to a Single Crosscoder Feature, arXiv 2606.26474. Needs the weights of both models: hidden states are
read from the two and patched in one of them, which no endpoint offers.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of both models."""

_HOMES = {
    "Ranked": "algorithm",
    "rank_features": "algorithm",
    "Cell": "algorithm",
    "search": "algorithm",
    "confirm": "algorithm",
    "Checkpoints": "run",
    "States": "run",
    "capture": "run",
    "Scores": "run",
    "export": "run",
}

__all__ = ["NEEDS", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
