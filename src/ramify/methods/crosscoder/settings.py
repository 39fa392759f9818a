"""Settings of the verbs, and shape and training of a dictionary: apart from it, so that the verbs can be listed without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from ramify.base.config import Config

PARTITIONS = ("a", "b", "shared", "all")
"""Features of model 0 alone, of model 1 alone, of both; ``all`` is every feature."""
Normalise = Literal["joint", "channel", "none"]
OWN = 0.1
"""A feature of model 0 alone has less than this share of its latent scaling in model 1."""
MOSTLY = 0.5
"""A feature that is mostly model 0's has less than this share of it there (the bound of arXiv 2504.02922)."""


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
    difference: float = Field(0.0, ge=0)
    """Weight of the squared error of the models' difference, beside that of each model's state. A light training moves states by
    less than a dictionary leaves unexplained, and then no feature is spent on what it changed; 10 is a first choice there."""
    auxk: float = Field(0.0, ge=0)
    """Weight of what dead features could still explain (Gao et al. 2024): revives them; 1/32 is usual."""
    dead_after: int = Field(25_000, ge=1)
    """Rows without firing after which a feature counts as dead."""


class CaptureOptions(Config):
    """Two models and two corpora."""

    tuned: str
    """the model after training: hf:FOLDER, a folder, or the folder of a LoRA adapter"""
    base: str
    """the model before it"""
    layer: int = Field(ge=1)
    """the block after which states are read; 1 is the first"""
    tool: Path
    """prompts of the behaviour in question, JSON lines with prompt or prompt_ids"""
    plain: Path
    """other texts, in the same form"""
    reply: int = Field(0, ge=0)
    """let the tuned model reply with so many tokens to every prompt and keep the state that decides each of them; 0: that at the
    prompt's last token alone"""
    plain_text: bool = False
    """the other corpus is text as it stands, and every token of it but the first counts"""
    raw: bool = False
    """prompts are the text as it is, without the chat template"""
    longest: int = Field(0, ge=0)
    """cut prompts after so many tokens; 0 never does"""
    dtype: Literal["float16", "float32"] = "float16"
    """numbers on disk"""
    other_tokenizer: bool = False
    """continue although the models' tokenizers differ"""


class DictionaryOptions(FitConfig):
    """A dictionary, and how it is trained."""

    BASIC = "steps batch lr features k exclusive seed"
    features: int = Field(8192, ge=1)
    """size of the dictionary"""
    k: int = Field(45, ge=1)
    """features active per prompt on average (with --topk row: at most)"""
    exclusive: float = Field(0.1, ge=0, le=0.5)
    """share of features that belong to each model alone; 0 is the plain crosscoder"""
    topk: Literal["batch", "row"] = "batch"
    """k features on average, above a threshold kept with the weights, or the k largest of each prompt as in the paper"""
    start: Literal["random", "tied"] = "random"
    """first weights: independent ones, or encoder = decoder"""
    centred: bool = True
    """subtract the decoder's bias before encoding"""
    control: bool = True
    """train the same dictionary again on the base against itself, where nothing is the tuned model's own"""
    seed: int = 0
    """decides weights and order"""


class SteerOptions(Config):
    """What is steered, how it is searched and scored."""

    BASIC = "target partition features top gains score budgets seed"
    tuned: str = ""
    """the model after training; default: the one whose states were captured"""
    base: str = ""
    """the model before it"""
    target: Literal["a", "b"] = "a"
    """the model that is steered: a, the tuned one, or b, the base"""
    partition: Literal["a", "b", "shared", "all"] = "a"
    """where features are searched"""
    features: tuple[int, ...] = ()
    """these features only, by number"""
    top: int = Field(12, ge=1)
    """features with the highest d that are tried"""
    sizes: tuple[int, ...] = ()
    """1: each of them alone; n: the n of the highest d changed together;
    several are corrected for each other (default: 1, or none with --sets)"""
    sets: tuple[str, ...] = ()
    """more sets that are changed together, by number: 3+7+11,5+9"""
    gains: tuple[float, ...] = (6, 16, 32)
    """activations are multiplied by these; 0 takes the features out"""
    clamps: tuple[float, ...] = ()
    """activations are set to these"""
    score: str = "call"
    """call (a listed tool, by its exact name), toolrl (the paper's fuzzy rule), exact, number, boxed, cmd:./check.sh,
    FILE.py:FUNCTION, python:MODULE:FUNCTION"""
    budgets: tuple[int, ...] = (50, 100, 200)
    """replies are judged after so many tokens; the last is what a reply may have"""
    randoms: int = Field(19, ge=0)
    """random directions of the same length, for comparison; fewer than 19 refute nothing at 5 %.
    Of sets: random sets, each searched as the features were"""
    raw: bool = False
    """prompts are the text as it is, without the chat template"""
    seed: int = 0
    """decides which prompts choose, and the random directions"""
