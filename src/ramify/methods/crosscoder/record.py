"""What is measured of dictionaries, features and changes, as records: of files, journals and results. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramify.methods.crosscoder.settings import FitConfig


@dataclass(frozen=True)
class CapturedFrom:
    """Where hidden states came from."""

    tuned: str = ""
    base: str = ""
    layer: int = 0
    """The block after which they were read; 1 is the first."""
    weights: tuple[str, ...] = ()
    """Hashes of both models' weights; none where they are not known."""
    tokenizer: str = ""
    other_tokenizer: bool = False


@dataclass(frozen=True, slots=True)
class KeptScores:
    """An entry of a study's journal: the scores of some prompts under one change."""

    place: str
    """Hash of what they depend on beside the change."""
    change: str
    scores: list[list[float]]
    """[prompts, budgets]"""
    judge: str


@dataclass(frozen=True)
class Quality:
    """How well hidden states come back, in the models' own units."""

    fve: tuple[float, ...]
    """Per model: 1 - squared error over squared distance from the mean."""
    cosine: tuple[float, ...]
    """Per model: mean over rows."""
    l0: Mapping[str, float]
    """Active features per row, by partition."""
    never: float
    """Share of features that fire on no row."""


@dataclass(frozen=True)
class FitQuality(Quality):
    """The same of a dictionary that was trained on them."""

    dead: float
    """Share of features that did not fire in the last rows of training."""
    loss: tuple[tuple[int, float], ...]
    """(step, loss) at a hundred steps."""


@dataclass(frozen=True)
class OwnFeatures:
    """Which features are the tuned model's own, and active features per row."""

    l0: Mapping[str, float]
    own: tuple[int, ...]
    tested: int
    """Features of the block that fire."""
    highest_d: float | None
    """The highest d in the block, which needs no difference of the models."""
    mostly: tuple[int, ...] = field(default=(), kw_only=True)
    """Features of which most is the tuned model's own; those that are its own wholly are among them."""


@dataclass(frozen=True)
class DictionaryAbout(CapturedFrom):
    """What is kept with a dictionary: whose states it was trained on, how, and what came of it."""

    fit: FitConfig | None = None
    seed: int = 0
    quality: FitQuality | None = None
    own: OwnFeatures | None = None
    base_against_base: OwnFeatures | None = None


@dataclass(frozen=True)
class RankedFeature:
    """One feature as a detector of the corpus that is of interest."""

    feature: int
    partition: str
    d: float
    """Cohen's d."""
    auroc: float
    """Ties counted half, so a feature that fires on 43 % and 1 % has 0.71."""
    fires_tool: float
    """Share of the corpus' rows on which it is above ``threshold``."""
    fires_plain: float
    mean_tool: float
    """Mean activation on the corpus."""
    relative_norm: float
    """1 writes to the tuned model alone, 0 to the base alone, 0.5 to both alike."""


@dataclass(frozen=True)
class Owned:
    """Whether a feature of a dictionary is the tuned model's own."""

    latent_scaling: float | None
    """How much of it is in the base after all: 0 none, 1 as much; None where it never fires."""
    p: float
    """Of "a tenth of it or more is in the base", Holm's over the partition."""
    own: bool
    """That is refuted: p is at most the level."""
    mostly: bool = field(default=False, kw_only=True)
    """Refuted alike is "half of it or more is in the base"."""


@dataclass(frozen=True)
class ListedFeature(Owned, RankedFeature):
    """Both."""


@dataclass(frozen=True, slots=True)
class Steering:
    """One way to steer: features, ``scale`` by or ``clamp`` to an amount."""

    features: tuple[int, ...]
    mode: Literal["scale", "clamp"]
    amount: float

    @property
    def name(self) -> str:
        """Such as ``scale 32 of 11``."""
        return f"{self.mode} {self.amount:g} of {','.join(map(str, self.features))}"


@dataclass(frozen=True, slots=True)
class SteeringOutcome:
    """What a change did to the score of N prompts, against the clean model on the same prompts."""

    name: str
    score: float
    lift: float
    """Mean difference to the clean score."""
    interval: tuple[float, float] | None
    """Student interval of the paired difference; None below two prompts."""
    rescued: int
    """Prompts with a higher score than clean ..."""
    broken: int
    """... and with a lower one."""
    p: float
    """Two-sided sign test of the two (McNemar's exact test where scores are right or wrong)."""
    n: int
    coverage: float
    """Share of prompts on which a feature fired, so that scaling can do anything at all."""
    size: float
    """Mean length of the change over that of the state it is added to."""
    p_holm: float | None = None
    """Of a search: p, Holm's over all its cells."""

    @property
    def is_random(self) -> bool:
        """Whether it is that of random directions."""
        return self.name.startswith("random ")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The best cell of one set (or size) on prompts that did not choose it, and what chance comes to over all sets."""

    name: str
    cell: Steering
    p_holm: float
    """Sign test of the cell's outcome, Holm's over the sets."""
    p_random: float
    """Chance that random directions instead of all features, searched in the same way, have a set that lifts the score as much:
    (1 + samples with one) / (1 + samples). Counting the best set of each sample corrects over the sets."""
    stands_out: bool
    """It raises the score, by more than chance and by more than random sets, at 5 % over all sets together."""
    confirmed: tuple[SteeringOutcome, ...]
    """The cell's outcome, those of its random sets, the simple directions', the reconstruction's."""
