"""Which features separate two corpora, and what turning one of them does to a score. Pure functions; sections are the specification's.

Axis legend: N prompts, M models, D width, F features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows, latent_scaling
from ramify.methods.crosscoder.steer import Change, along, clamp, random_like, reachless, reconstruct, scale
from ramify.stats.evidence import holm
from ramify.stats.intervals import mean_t
from ramify.stats.ranking import auroc
from ramify.stats.tests import sign_test

Score = Callable[[Change | None], np.ndarray]
"""A score for each of N prompts, float or bool (N,), under a change of one model's states; None is the model as it is."""


# --- choosing features (3.6) ---------------------------------------------------------------------------------------------------


def cohens_d(tool: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """(mean - mean) / sqrt((s^2 + s^2) / 2) of each feature, sample variances; 0 where both are 0. [N, F] and [N', F] to (F,).

    Raises ValueError below two rows of either: they have no variance.
    """
    if min(len(tool), len(plain)) < 2:
        raise ValueError("Cohen's d needs at least 2 rows of each corpus")
    a, b = np.asarray(tool, np.float64), np.asarray(plain, np.float64)
    spread = np.sqrt((a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / 2)
    return np.asarray((a.mean(axis=0) - b.mean(axis=0)) / np.where(spread > 0, spread, np.inf))


@dataclass(frozen=True, slots=True)
class Ranked:
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

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def rank_features(
    dictionary: Dictionary, tool: np.ndarray, plain: np.ndarray, partition: str = "a", threshold: float = 0.0
) -> list[Ranked]:
    """The tool-signed features (d > 0) of a partition, by falling d, from the activations [N, F] and [N', F] of both corpora.

    High d is a good detector, not a good handle: what steering does has to be measured. Raises UserError on an unknown partition.
    """
    d = cohens_d(tool, plain)
    pool = dictionary.partition(partition)
    chosen = pool[d[pool] > 0]
    norms = dictionary.relative_norm().cpu().numpy()
    labels = np.arange(len(tool) + len(plain)) < len(tool)
    return [
        Ranked(
            feature=int(i),
            partition=dictionary.partition_of(int(i)),
            d=float(d[i]),
            auroc=float(auroc(np.concatenate([tool[:, i], plain[:, i]]), labels) or 0.0),
            fires_tool=float((tool[:, i] > threshold).mean()),
            fires_plain=float((plain[:, i] > threshold).mean()),
            mean_tool=float(tool[:, i].mean()),
            relative_norm=float(norms[i]),
        )
        for i in chosen[np.argsort(-d[chosen], kind="stable")]
    ]


@dataclass(frozen=True, slots=True)
class Owned:
    """Whether a feature of a dictionary is the tuned model's own."""

    latent_scaling: float | None
    """How much of it is in the base after all: 0 none, 1 as much; None where it never fires."""
    p: float
    """Of "a tenth of it or more is in the base", Holm's over the partition."""
    own: bool
    """That is refuted: p is at most the level."""


def owned(dictionary: Dictionary, states: np.ndarray, partition: str = "a", level: float = 0.05) -> dict[int, Owned]:
    """Which features of a partition are the tuned model's own by what both models' states [N, 2, D] hold, not by which block they are in.

    ``level`` bounds the chance that any is called so that is not. Raises UserError on an unknown partition.
    """
    pool = dictionary.partition(partition)
    ratio, p = latent_scaling(dictionary, states, pool)
    fires = np.isfinite(ratio)  # a feature that never fires is not tested
    corrected = np.ones(len(pool))
    corrected[fires] = holm(p[fires].tolist())
    return {
        int(i): Owned(float(r) if np.isfinite(r) else None, float(q), bool(q <= level))
        for i, r, q in zip(pool, ratio, corrected, strict=True)
    }


def shortlist(ranked: Iterable[Ranked], on_tool: float = 0.3, on_plain: float = 0.1) -> list[Ranked]:
    """Those that fire on at least ``on_tool`` of the corpus and on at most ``on_plain`` of the other; rank with threshold 0.1 for it."""
    return [one for one in ranked if one.fires_tool >= on_tool and one.fires_plain <= on_plain]


# --- scoring a call (3.7) ------------------------------------------------------------------------------------------------------

_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


def tool_call(text: str, names: Sequence[str], rule: Literal["exact", "toolrl"] = "exact") -> tuple[bool, bool]:
    """(format, tool): whether ``text`` holds ``<tool_call>`` and a JSON name, and whether the first such name is one of ``names``.

    ``toolrl`` is the paper's rule: a name also counts when it contains a listed one or is contained in one, in any case, so that a name of
    one letter matches almost anything.
    """
    found = _NAME.search(text)
    if found is None:
        return False, False
    called = found[1]
    if rule == "exact":
        right = called in names
    else:
        low = called.lower()
        right = any(low in name.lower() or name.lower() in low for name in names)
    return "<tool_call>" in text, right


# --- steering ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to steer: features, ``scale`` by or ``clamp`` to an amount."""

    features: tuple[int, ...]
    mode: Literal["scale", "clamp"]
    amount: float

    @property
    def name(self) -> str:
        """Such as ``scale 32 of 11``."""
        return f"{self.mode} {self.amount:g} of {','.join(map(str, self.features))}"

    def change(self, dictionary: Dictionary, codes: np.ndarray, target: int = 0) -> Change:
        """What it adds at prompts with these activations [N, F]."""
        return (scale if self.mode == "scale" else clamp)(dictionary, codes, self.features, self.amount, target)


def grid(features: Iterable[int], gains: Iterable[float] = (), clamps: Iterable[float] = ()) -> list[Cell]:
    """Every single feature with every gain and every fixed value."""
    chosen = list(features)
    scales, values = list(gains), list(clamps)
    return [Cell((i,), "scale", g) for i in chosen for g in scales] + [Cell((i,), "clamp", c) for i in chosen for c in values]


@dataclass(frozen=True, slots=True)
class Outcome:
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

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def outcome(name: str, clean: np.ndarray, scored: np.ndarray, change: Change, states: np.ndarray) -> Outcome:
    """Compare two scores (N,) of the same prompts, whose states before the change were ``states`` [N, D]."""
    a, b = np.asarray(clean, np.float64), np.asarray(scored, np.float64)
    up, down = int((b > a).sum()), int((b < a).sum())
    return Outcome(
        name=name,
        score=float(b.mean()),
        lift=float((b - a).mean()),
        interval=mean_t(b - a) if len(a) > 1 else None,
        rescued=up,
        broken=down,
        p=sign_test(up, up + down),
        n=len(a),
        coverage=float(change.fired.mean()),
        size=float(change.size(states).mean()),
    )


def search(dictionary: Dictionary, states: np.ndarray, score: Score, cells: Sequence[Cell], target: int = 0) -> list[Outcome]:
    """What every cell does on the prompts that choose (states [N, M, D], which ``score`` scores), in the order given."""
    codes, clean = encode_rows(dictionary, states), score(None)
    out = []
    for cell in cells:
        change = cell.change(dictionary, codes, target)
        # nothing is added, so nothing is run: the clean score is the score
        scored = score(change) if change.moved.any() else clean
        out.append(outcome(cell.name, clean, scored, change, states[:, target]))
    return out


def corrected(outcomes: Sequence[Outcome]) -> list[float]:
    """Holm's p-values over a whole grid."""
    return holm([one.p for one in outcomes])


def best(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> Cell:
    """The cell with the highest score; of equal ones that with the smallest change, then the first."""
    order = sorted(range(len(cells)), key=lambda i: (-outcomes[i].score, outcomes[i].size, i))
    return cells[order[0]]


def confirm(
    dictionary: Dictionary,
    states: np.ndarray,
    score: Score,
    cell: Cell,
    directions: dict[str, np.ndarray],
    target: int = 0,
    randoms: int = 10,
    seed: int = 0,
) -> list[Outcome]:
    """The chosen cell on prompts that did not choose it, beside its controls at the same length on every prompt.

    The controls: ``randoms`` random directions, and each of ``directions`` (name -> [D]), such as the difference of the corpora's means,
    which is the strongest simple baseline. Then the reconstruction. States are [N, M, D].
    """
    clean, own = score(None), states[:, target]
    change = cell.change(dictionary, encode_rows(dictionary, states), target)
    lengths = np.asarray(np.linalg.norm(change.delta, axis=1))
    changes = {cell.name: change}
    changes |= {f"random {i}": random_like(change, seed, i) for i in range(randoms)}
    changes |= {name: Change(along(v, lengths, len(own)).delta, change.fired) for name, v in directions.items()}
    changes["reconstruction"] = reconstruct(dictionary, states, target)
    return [outcome(name, clean, score(one) if one.moved.any() else clean, one, own) for name, one in changes.items()]


def no_reach(dictionary: Dictionary, cells: Iterable[Cell], target: int) -> str:
    """A warning where steering ``target`` with a feature of the other model alone was asked for, else nothing."""
    lost = sorted({i for cell in cells for i in reachless(dictionary, cell.features, target)})
    if not lost:
        return ""
    names = ", ".join(map(str, lost))
    return f"features {names} belong to the other model alone: their effect on this one is exactly zero"
