"""The progress advantage of each action, ``A = beta log(pi(a|s) / ref(a|s))`` (arXiv 2606.26080, Proposition 1), and its uses.

For the optimum of the KL-regularised objective this is Q*(s,a) - V*(s) whatever the transitions. Inside one action transitions
only append a token, so the sum over an action's tokens is the advantage of the whole action;
every other token aggregator is a heuristic.

Axis legend: T tokens of an attempt, n its actions ("steps").
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config

TokenAgg = Literal["sum", "mean", "last", "min", "max"]
StepAgg = Literal["mean", "sum", "last", "min", "max", "bottom10"]
Rule = Literal["min-cumulative", "sharpest-drop", "sharpest-change"]
TOKEN_AGGS: tuple[TokenAgg, ...] = ("sum", "mean", "last", "min", "max")
STEP_AGGS: tuple[StepAgg, ...] = ("mean", "sum", "last", "min", "max", "bottom10")
RULES: tuple[Rule, ...] = ("min-cumulative", "sharpest-drop", "sharpest-change")
A_PRIORI: tuple[TokenAgg, StepAgg] = ("sum", "mean")
"""The cell fixed before any data: the theory's sum over tokens, and the mean over steps."""
DOMINATED = 0.5
"""A step whose largest single token holds more than this share of the sum of |A| is one token's doing (section 3.3, point 5)."""


class AdvantageConfig(Config):
    """How attempts are graded."""

    beta: float = Field(1.0, gt=0)
    """Weight of the KL term the policy was trained with; a scale, it changes no ranking."""
    order: Literal["ratio", "aggregate"] = "ratio"
    """ratio: aggregate the log-ratios of tokens (the theory). aggregate: aggregate each model's log-probs, then subtract (the
    released code; another number for min and max)."""
    token: TokenAgg = "sum"
    """From the tokens of a step to the step: sum, mean, last, min, max."""
    step: StepAgg = "mean"
    """From the steps to the attempt: mean, sum, last, min, max, or bottom10, the mean of the lowest tenth."""
    keep_special: bool = True
    """Grade special tokens inside an action (its end of turn). Leave them out where the reference never saw a chat template."""
    max_length: int = Field(16_384, ge=2)
    """Longer attempts are cut from the left, in tokens."""
    keep_truncated: bool = False
    """Count steps that the cut touched by what is left of them, 0 where nothing is,
    as the released code does. Else they are left out."""


def token_advantages(policy: np.ndarray, reference: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """A of each token, float64 (T,), from log-probs at temperature 1 over the whole vocabulary (section 3.2)."""
    ratio: np.ndarray = beta * (np.asarray(policy, np.float64) - np.asarray(reference, np.float64))
    return ratio


def by_step(values: np.ndarray, step: np.ndarray, n: int, kind: TokenAgg) -> np.ndarray:
    """Aggregate token ``values`` (T,) to the steps that ``step`` (T,) names, -1 for none:
    (n,), 0.0 for a step without a token."""
    on = step >= 0
    values, step = np.asarray(values, np.float64)[on], np.asarray(step)[on]
    count = np.bincount(step, minlength=n)
    if kind in ("sum", "mean"):
        total = np.bincount(step, values, n)
        return total if kind == "sum" else total / np.maximum(count, 1)
    out = np.zeros(n)
    if kind == "last":
        out[step] = values  # of several tokens of a step the last assignment stays
        return out
    reduce = np.minimum if kind == "min" else np.maximum
    out[:] = np.inf if kind == "min" else -np.inf
    reduce.at(out, step, values)
    return np.where(count > 0, out, 0.0)


def step_columns(
    policy: np.ndarray, reference: np.ndarray, step: np.ndarray, n: int, config: AdvantageConfig | None = None
) -> dict[str, np.ndarray]:
    """Columns of the n steps of one attempt, from the log-probs of its tokens under both models, each (T,).

    ``step`` (T,): which step each token belongs to, -1 for tokens that are no action. Returned: n_tokens, logp_theta and logp_ref
    (sums), A_sum, A_mean, A_last, A_min, A_max, and top_share, the share of the sum of |A| that the largest token holds.
    """
    config = config or AdvantageConfig()
    ratio = token_advantages(policy, reference, config.beta)
    size = np.abs(ratio)
    columns = {
        "n_tokens": np.bincount(step[step >= 0], minlength=n),
        "logp_theta": by_step(policy, step, n, "sum"),
        "logp_ref": by_step(reference, step, n, "sum"),
    }
    for kind in TOKEN_AGGS:
        if config.order == "ratio":
            columns[f"A_{kind}"] = by_step(ratio, step, n, kind)
        else:
            columns[f"A_{kind}"] = config.beta * (by_step(policy, step, n, kind) - by_step(reference, step, n, kind))
    total = by_step(size, step, n, "sum")
    columns["top_share"] = by_step(size, step, n, "max") / np.where(total > 0, total, 1.0)
    return columns


def attempt_score(values: np.ndarray, kind: StepAgg = "mean") -> float | None:
    """Aggregate the grades of an attempt's steps, (n,); None without a step (last in a choice, left out of an AUROC)."""
    if not len(values):
        return None
    if kind == "bottom10":
        lowest = np.sort(values)[: max(1, -(-len(values) // 10))]
        return float(lowest.mean())
    if kind == "last":
        return float(values[-1])
    return float(getattr(values, kind)())


def blame(values: np.ndarray, rule: Rule = "sharpest-drop", top: int = 1) -> list[int]:
    """The steps most to blame for a failure, worst first, at most ``top`` of them; [] without a step. Ties: the earliest first.

    ``values`` (n,) are the grades of the action steps in order (other messages are no steps, so none of them can be named).
    min-cumulative: where the running sum is lowest. sharpest-drop: the most negative step; the first step where none is negative.
    sharpest-change: the step after the most negative difference; the first where no difference is <= 0 or there is one step only.
    """
    values = np.asarray(values, np.float64)
    n = len(values)
    if n == 0:
        return []
    if rule == "min-cumulative":
        blamed = np.cumsum(values)
    elif rule == "sharpest-drop":
        blamed = values if values.min() < 0 else np.arange(n, dtype=np.float64)
    else:
        change = np.diff(values)
        steady = n < 2 or change.min() > 0
        blamed = np.arange(n, dtype=np.float64) if steady else np.concatenate(([np.inf], change))
    return [int(i) for i in np.argsort(blamed, kind="stable")[:top]]


def floor_of(failed: Sequence[np.ndarray], ordinary: Sequence[np.ndarray], level: float) -> float | None:
    """The grade at or below which a step of a failed attempt stands out from those of ``ordinary`` attempts; None where none
    does.

    Each attempt is the grades of its steps, (n,). A grade's p-value is conformal: one more than the ordinary attempts that are
    expected to hold a step as low, had they as many steps as the failed ones have on average, over one more than there are. The
    lowest steps of all ``failed`` attempts are then tested together (Benjamini and Hochberg 1995): where failed attempts are like
    ordinary ones, any step at all is named with a chance of at most ``level``;
    else at most that share of the attempts in which one is named.
    """
    failed, ordinary = ([grades for grades in side if len(grades)] for side in (failed, ordinary))
    if not failed or not ordinary:
        return None
    lowest = np.sort([grades.min() for grades in failed])
    length = float(np.mean([len(grades) for grades in failed]))
    steps = np.concatenate(ordinary)
    order = np.argsort(steps)
    below = np.cumsum([0.0, *np.concatenate([np.full(len(grades), length / len(grades)) for grades in ordinary])[order]])
    p = (1 + below[np.searchsorted(steps[order], lowest, side="right")]) / (1 + len(ordinary))
    rank = np.searchsorted(lowest, lowest, side="right")
    # the tolerance keeps a bound that is met exactly, 1 / 20 at a level of .05, whatever the last bit says
    out = np.flatnonzero((lowest < 0) & (len(failed) * p <= level * rank * (1 + 1e-9)))
    return float(lowest[out[-1]]) if len(out) else None


def best_of(scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """How much of a group's choice each attempt is, (N,): 1 for the one with the highest score in its group, an equal part for
    each of several that tie. A NaN score is the lowest."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    codes = np.unique(groups, return_inverse=True)[1]
    highest = np.full(codes.max(initial=-1) + 1, -np.inf)
    np.maximum.at(highest, codes, scores)
    parts: np.ndarray = (scores == highest[codes]).astype(float)
    if len(codes):
        parts /= np.bincount(codes, parts)[codes]
    return parts


def chance_of_choice(won: np.ndarray, chosen: np.ndarray, successes: np.ndarray, attempts: np.ndarray) -> float:
    """Two-sided p-value of a choice that is not better than chance, each (tasks,).

    ``won``: success of what was chosen, averaged where ``chosen`` attempts of a task tie; ``successes`` of its ``attempts``
    succeeded. By chance the chosen ones are any of them, so their successes are hypergeometric. Exact for up to ten that tie:
    the sum is counted in 2,520ths, to which averages over more are rounded.
    """
    unit = 2520  # of which one part in 1 to 10 is whole
    distribution, low = np.ones(1), 0
    for k, m, n in zip(chosen.tolist(), successes.tolist(), attempts.tolist(), strict=True):
        counts = np.arange(max(0, k - (n - m)), min(k, m) + 1)
        weights = np.array([comb(m, c) * comb(n - m, k - c) / comb(n, k) for c in counts.tolist()])
        places = np.round(counts * unit / k).astype(int)
        grown = np.zeros(len(distribution) + places[-1] - places[0])
        for place, weight in zip((places - places[0]).tolist(), weights.tolist(), strict=True):
            grown[place : place + len(distribution)] += weight * distribution
        distribution, low = grown, low + int(places[0])
    at = int(np.round(won * unit).sum()) - low
    return float(min(1.0, 2 * min(distribution[: at + 1].sum(), distribution[at:].sum())))


def noise_floor(n_tokens: np.ndarray, sd_per_token: float, beta: float = 1.0) -> np.ndarray:
    """How large |A_sum| of a step of ``n_tokens`` (n,) can be by rounding alone:
    three deviations of that many independent errors."""
    floor: np.ndarray = 3.0 * beta * sd_per_token * np.sqrt(n_tokens)
    return floor
