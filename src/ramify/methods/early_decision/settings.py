"""Which hidden states are probed, and how: apart from the states, so that the verbs can be listed without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ramify.base.config import Config
from ramify.methods.early_decision.probe import SHUFFLES

At = Literal["h0", "state_a", "hop", "prompt"]


class ProbeConfig(Config):
    """Which states are probed, and how (3.3, 3.4)."""

    at: tuple[At, ...] = ("h0", "state_a")
    """h0: the first thinking token, the paper's headline; state_a: the last of the prompt; prompt:
    20 positions spread over the prompt"""
    layers: tuple[int, ...] = (-1,)
    """-1 is after the final norm, 0 the embedding, l the output of block l"""
    shuffles: int = Field(SHUFFLES, ge=0)
    """shuffled labellings that a probe must beat, at least 199; 0 for no null and no test"""


class ValleyConfig(Config):
    """Separability along the thinking (3.5)."""

    points: int = Field(100, ge=6)
    """positions along the thinking"""
    samples: int = Field(200, ge=20)
    """shuffled labellings for the floor, and random halves of the prompts for the intervals"""
    textbook: bool = False
    """the textbook's Bhattacharyya distance instead of the paper's, whose first term is twice as large"""
