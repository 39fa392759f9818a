"""Shape and training of a dictionary: apart from the dictionary, so that the verbs can be listed without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ramify.base.config import Config

PARTITIONS = ("a", "b", "shared", "all")
"""Features of model 0 alone, of model 1 alone, of both; ``all`` is every feature."""
Normalise = Literal["joint", "channel", "none"]
OWN = 0.1
"""A feature of model 0 alone has less than this share of its latent scaling in model 1."""


class DictionaryConfig(Config):
    """Shape of a dictionary."""

    width: int = Field(ge=1)
    """D, of each model."""
    features: int = Field(ge=1)
    """F."""
    k: int = Field(ge=1)
    """Features active per row: on average, or at most with ``topk`` row, where F makes TopK a plain ReLU."""
    topk: Literal["batch", "row"] = "batch"
    """Training keeps the B k largest activations of a batch and use those above a kept threshold (arXiv 2412.06410), or both keep
    the k largest of each row (the paper)."""
    models: int = Field(2, ge=1, le=2)
    """M."""
    exclusive: float = Field(0.0, ge=0, le=0.5)
    """Share of features that belong to each model alone; 0 is the plain crosscoder."""
    start: Literal["random", "tied"] = "random"
    """Independent normal weights of variance 1/D and 1/F (the paper; exclusive features write half of that, which is not), or
    encoder = decoder with rows of norm 0.5."""
    centred: bool = True
    """Subtract the decoder's bias before encoding (not in the paper)."""


class FitConfig(Config):
    """How to train one."""

    steps: int = Field(9000, ge=1)
    """Adam steps."""
    batch: int = Field(1024, ge=1)
    """Rows per step."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate."""
    normalise: Normalise = "joint"
    """Per channel: the mean, and one scale per model (joint) or the deviation (channel);
    over all rows together, never per corpus."""
    l1_shared: float = Field(1e-3, ge=0)
    """Weight of the shared features' activations."""
    l1_exclusive: float | None = Field(None, ge=0)
    """Half the weight of the exclusive features' activations; default: twice the shared ones', so that all pay alike. Where
    exclusive features pay less, what is shared moves into twins, one exclusive feature for each model."""
    l1_reduction: Literal["sum", "mean", "norm"] = "sum"
    """Over features: sum; mean (the paper; next to nothing for a large F);
    or sum weighted by decoder norms (Lindsey et al. 2024)."""
    l1_exclusive_covers_shared: bool = False
    """The exclusive term also covers shared features, as in the paper's code, which so presses on them up to twice."""
    auxk: float = Field(0.0, ge=0)
    """Weight of what dead features could still explain (Gao et al. 2024): revives them; 1/32 is usual."""
    dead_after: int = Field(25_000, ge=1)
    """Rows without firing after which a feature counts as dead."""
