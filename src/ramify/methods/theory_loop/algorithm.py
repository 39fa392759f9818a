"""The numbers of the loop (sections 3.2d, 3.3, 3.4): gate, distances, leaderboard, loss, held-out error, sequence divergence.

Axis legend: O observations, L theories, P pairs of options, S subjects, T trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.special import stdtr

from ramify.base.config import Config

LN2 = math.log(2.0)

CUES = 4
"""Cues of a design that the grammar makes, as in the experiments that it is compared with (Hilbig and Moshagen, 2014)."""
RETRIES = 10
"""Replies that may be unusable before a step takes what it has: a model that fails ten times in a row will not succeed."""
DESIGNS, METRICS = 3, 4
"""Designs that an advocate may propose, and metrics for each; twelve tries at a gate of level .01."""
MUTATE = 0.6
"""Share of the grammar's later candidates that edit the accepted one; the others are new, or a revision would stay near it."""


class LoopConfig(Config):
    """Settings of a loop. A theory has no setting for fitting: its parameters are drawn from the ranges that it declares."""

    BASIC = "rounds participants proposer seed"
    ratings: Literal["binary", "cardinal"] = "binary"
    """What options are rated with: 0 and 1, or whole numbers up to ``rating_max``."""
    rating_max: int = Field(5, ge=1, le=100)
    """Largest rating of cardinal designs."""
    participants: str = "simulated:tallying"
    """Who chooses: simulated:THEORY, agent:MODEL, web (data that `data import` brings), FILE.py:FUNCTION, or people:FILES
    (names or patterns, with commas): experiments that people took part in already, two files a round, instead of proposed
    ones."""
    noise: float = Field(0.0, ge=0, le=1)
    """Of simulated participants: the probability of a uniform choice instead of their own."""
    people: int = Field(25, ge=2, le=5000)
    """Participants of an observation; the gate tests with this many."""
    runs: int = Field(50, ge=2, le=5000)
    """Simulated subjects of every prediction."""
    rounds: int = Field(5, ge=1, le=1000)
    """Rounds; each replaces one theory."""
    iterations: int = Field(10, ge=1, le=100)
    """Candidates of a revision at most."""
    alpha: float = Field(0.01, gt=0, lt=1)
    """Level of the gate: a filter of designs, never evidence."""
    designer: Literal["adversarial", "neutral", "blind"] = "adversarial"
    """Who designs: each theory's advocate, somebody who only separates the two, or chance."""
    searched: int = Field(60, ge=1, le=2000)
    """Random designs that the grammar's designer compares (blind: it takes the first)."""
    proposer: str = "grammar"
    """Who proposes theories, designs, metrics and verdicts: grammar, or a model by name."""
    temperature: float = Field(0.7, ge=0, le=2)
    """Sampling temperature of a model that proposes."""
    max_tokens: int = Field(8192, ge=64)
    """Longest reply of a model that proposes."""
    history: bool = False
    """Whether the grammar also has theories that read earlier choices."""
    seconds: float = Field(20.0, gt=0, le=600)
    """Processor time of one theory or metric for one request."""
    seed: int = Field(0, ge=0)
    """Decides every sample."""

    @property
    def most(self) -> int:
        """Largest rating."""
        return 1 if self.ratings == "binary" else self.rating_max

    @model_validator(mode="after")
    def _fits(self) -> LoopConfig:
        if self.noise and not self.participants.startswith("simulated"):
            raise ValueError("noise is for simulated participants")
        return self


# -- the gate -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricEstimate:
    """A metric on data: on all of it together, and how much it varies between subjects (population variance); None where it has
    none."""

    value: float
    variance: float | None


def welch_p(first: MetricEstimate, second: MetricEstimate, n: int) -> float:
    """Two-sided p of Welch's test from summary statistics, ``n`` subjects each (section 3.2d).
    1 where it is not a number or a variance is missing."""
    if first.variance is None or second.variance is None:
        return 1.0
    own, other = first.variance / n, second.variance / n
    gap = abs(first.value - second.value)
    if not all(map(math.isfinite, (own, other, gap))) or own < 0 or other < 0:
        return 1.0
    if own + other == 0:
        return 0.0 if gap > 0 else 1.0
    freedom = (own + other) ** 2 / ((own**2 + other**2) / (n - 1))
    return float(2 * stdtr(freedom, -gap / math.sqrt(own + other)))


# -- scores ---------------------------------------------------------------------------------------------------------------------


def normalised_distances(real: Sequence[float | None], predicted: Sequence[Sequence[float | None]]) -> np.ndarray:
    """(O, L) distances in [0, 1] from the real values (O,) of the predictions (O, L):
    0 the nearest theory of an observation, 1 the furthest.

    All tied: 0 for everyone. Missing prediction or real value: 1.
    """
    found = np.ones((len(real), len(predicted[0]) if len(predicted) else 0))
    for o, (y, row) in enumerate(zip(real, predicted, strict=True)):
        known = [l for l, v in enumerate(row) if y is not None and v is not None and math.isfinite(v)]  # noqa: E741
        if y is None or not known:
            continue
        distance = np.array([abs(float(row[l] or 0.0) - y) for l in known])  # noqa: E741
        spread = distance.max() - distance.min()
        found[o, known] = (distance - distance.min()) / spread if spread > 0 else 0.0
    return found


def norms(distances: np.ndarray) -> np.ndarray:
    """(L,) Euclidean norm of each theory's normalised distances (O, L)."""
    return np.asarray(np.sqrt((distances**2).sum(axis=0)))


def leaderboard(distances: np.ndarray) -> np.ndarray:
    """(L,) scores in [0, 1]: 1 - norm / largest norm. The worst theory has 0;
    all have 1 where no theory is ever away from the best."""
    found = norms(distances)
    worst = found.max(initial=0.0)
    return np.ones_like(found) if worst == 0 else 1 - found / worst


def candidate_loss(real: Sequence[float | None], own: Sequence[float | None], stored: Sequence[Sequence[float | None]]) -> float:
    """Mean over the observations of a candidate's distance over the spread of all values there (section 3.3).

    ``real`` (O,), ``own`` (O,) its predictions (None: it failed, which counts 1), ``stored`` (O, L) those of the admitted
    theories. Spread 0: the plain distance. No observation with a real value: infinity.
    """
    losses = []
    for y, v, others in zip(real, own, stored, strict=True):
        if y is None:
            continue
        if v is None or not math.isfinite(v):
            losses.append(1.0)
            continue
        values = [y, v, *(one for one in others if one is not None and math.isfinite(one))]
        spread = max(values) - min(values)
        losses.append(abs(v - y) / spread if spread > 0 else abs(v - y))
    return float(np.mean(losses)) if losses else math.inf


def accepted(iteration: int, loss: float, best: float) -> bool:
    """The accept gate: the first candidate always; later ones where the loss is finite and below the best, strictly."""
    return iteration == 0 or (math.isfinite(loss) and loss < best)


# -- outside the loop -----------------------------------------------------------------------------------------------------------


def mse_pb(first: np.ndarray, second: np.ndarray) -> float:
    """Mean squared difference of two vectors (P,) of the proportion of B choices."""
    return float(np.mean((np.asarray(first, float) - np.asarray(second, float)) ** 2))


def correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's r of two vectors (P,); None where one is flat, as that of a theory which repeats or alternates is."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.std() < 1e-12 or b.std() < 1e-12:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence in nats between distributions along the last axis; at most ln 2."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    middle = (p + q) / 2

    def against(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(x > 0, x * np.log(x / middle), 0.0).sum(axis=-1))

    return np.asarray((against(p) + against(q)) / 2)


def static_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Mean over trials of the divergence of choice alone; ``first`` and ``second`` are choices (S,
    T) of 0 and 1, trials in one order."""
    rates = [np.stack([1 - one.mean(axis=0), one.mean(axis=0)], axis=-1) for one in (first, second)]
    return float(divergence(*rates).mean())


def sequence_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Mean over trials of the divergence of (previous choice, choice), four cells; the first trial has its own choice only.

    Choices (S, T) of 0 and 1, trials in one order for everybody.
    Plug-in: biased upwards at few subjects, so compare only at equal ``S``.
    """
    found = [static_divergence(first[:, :1], second[:, :1])]
    if first.shape[1] > 1:
        cells = [
            np.stack([(2 * one[:, :-1] + one[:, 1:] == c).mean(axis=0) for c in range(4)], axis=-1) for one in (first, second)
        ]
        found += divergence(*cells).tolist()
    return float(np.mean(found))


def switch_rate(choices: np.ndarray) -> float:
    """Share of choices (S, T) that differ from the one before."""
    return float((choices[:, 1:] != choices[:, :-1]).mean()) if choices.shape[1] > 1 else 0.0


@dataclass(frozen=True, slots=True)
class ScoredTheory:
    """A theory on the leaderboard: 1 is the best possible score, 0 the worst of those here."""

    label: str
    score: float
    norm: float
    mean_distance: float | None


def scoreboard(
    labels: Sequence[str], real: Sequence[float | None], predicted: Sequence[Mapping[str, float | None]]
) -> list[ScoredTheory]:
    """Theories by score, the best first: score, norm and mean normalised distance over all observations."""
    table = [[row.get(label) for label in labels] for row in predicted]
    distances = normalised_distances(real, table) if table else np.zeros((0, len(labels)))
    means = distances.mean(axis=0).tolist() if len(distances) else [None] * len(labels)
    scores = zip(labels, leaderboard(distances).tolist(), norms(distances).tolist(), means, strict=True)
    return sorted((ScoredTheory(*one) for one in scores), key=lambda row: (-row.score, labels.index(row.label)))
