"""How a router is fitted: apart from the router, so that the verbs can be listed without torch."""

from __future__ import annotations

from pydantic import Field

from ramify.base.config import Config

POSITION = -2
"""Which token's hidden state is read: the last but one; the last gives less [T]."""


class RouterFitConfig(Config):
    """The first stage: soft targets (section 3.3)."""

    lr: float = Field(1e-3, gt=0)
    """Learning rate of AdamW, of head and scales."""
    steps: int = Field(400, ge=1)
    """Steps."""
    batch: int = Field(32, ge=1)
    """Texts of a step where singular values are tuned; the head alone takes all at once."""
