"""Linear probes of hidden states with honest cross-validation, and the controls without which a probe says nothing.

Scores are out of fold: no score comes from a fit that saw the sample, nor another sample of its group. With no signal at all such scores,
pooled over stratified folds, rank *below* one half, so the null is the same probe on shuffled labels, never 0.5.
Source: Ri et al. 2026, arXiv 2606.25013, probes; the controls are this project's. Needs scikit-learn: ``pip install "ramify[interp]"``.

Axis legend: N samples, D width.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import generator
from ramify.stats.intervals import Interval
from ramify.stats.ranking import auroc, auroc_interval, within_auroc

MINORITY = 20
"""Fewest samples of the rarer outcome that a probe is fitted to."""
Folds = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Standardise, reduce to ``pca`` dimensions (0: no reduction), logistic regression with inverse penalty ``c``; by the training folds."""

    name: str
    pca: int = 0
    c: float = 1.0
    balanced: bool = False
    iterations: int = 3000


TABLE = Recipe("table", pca=100, c=0.03, balanced=True)
"""The paper's tables: PCA to 100, C = 0.03, balanced classes."""
STATE_A = Recipe("state-a")
"""The paper's prompt-only probe: C = 1, which is the penalty |w|^2 / 2n on the mean loss."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """How well scores rank an outcome in one pool of samples."""

    pool: str
    n: int
    positive: int
    auroc: float | None
    interval: Interval | None
    """Resamples whole groups."""
    balanced: float | None
    """Balanced accuracy with a threshold (Youden 1950) from the other folds' samples of this pool."""
    reason: str = ""
    """Why there is no figure."""
    null: float | None = None
    """95th percentile of the AUROC on shuffled labels, in this pool."""
    controls: dict[str, float | None] = field(default_factory=dict)
    """AUROC of the controls in this pool: what tells pools apart may tell nothing within one."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe by pool, all samples (``all``) first, and its controls."""

    recipe: str
    pools: list[Ranked]
    within_pools: float | None
    """AUROC over pairs of one pool: what is left when the pools' own shares are taken out."""
    shuffled: list[float]
    """AUROC of the same probe on shuffled labels, one a shuffle, sorted: the null."""
    controls: dict[str, float | None]
    """AUROC of probes that never see a state (text, prompt), and of this one with other groups held together."""
    scores: np.ndarray = field(repr=False, compare=False)
    """Out-of-fold scores (N,), NaN where nothing was fitted."""

    @property
    def null(self) -> float | None:
        """95th percentile of the shuffled labels' AUROC."""
        return _percentile(self.shuffled)

    def to_json(self) -> dict[str, Any]:
        """JSON form, without the scores."""
        pools = [{name: getattr(pool, name) for name in Ranked.__dataclass_fields__} for pool in self.pools]
        rest = {name: getattr(self, name) for name in ("recipe", "within_pools", "shuffled", "controls", "null")}
        return {"pools": pools} | rest


def probe(
    x: np.ndarray,
    y: Sequence[bool] | np.ndarray,
    groups: Sequence[Any],
    *,
    recipe: Recipe = TABLE,
    pools: Sequence[str] | None = None,
    sources: Sequence[Any] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    other_groups: Mapping[str, Sequence[Any]] | None = None,
    shuffles: int = 20,
    folds: int = 5,
    seed: int = 42,
) -> Probed:
    """Probe states ``x`` (N, D) for the outcome ``y`` bool (N,), fitted on all pools together and judged by pool, with every control.

    A pool of several ``sources`` (N,) with 20 of either outcome is judged by their mean as well, as the paper does for benign prompts.
    ``groups`` (N,) are held together in folds (the prompt, at least); ``other_groups`` repeats the probe with others (near-duplicate
    prompts, sources). ``texts`` are texts by name (first token, prompt), each probed as a bag of words on the same folds. Where an outcome
    has fewer than 20 samples nothing is fitted, and the reason is given. Raises UserError on shapes, NeedsError without scikit-learn.
    """
    labels = np.asarray(y, bool)
    if x.ndim != 2 or labels.shape != (len(x),) or len(groups) != len(x):
        raise UserError(f"states of shape {x.shape} need as many outcomes ({labels.shape}) and groups ({len(groups)})")
    names = np.array(["all"] * len(x) if pools is None else list(pools))
    reason = too_few(labels)
    if reason:
        return Probed(
            recipe.name, [Ranked("all", len(x), int(labels.sum()), None, None, None, reason)], None, [], {}, _nothing(x)
        )
    split = folds_of(labels, groups, folds, seed)
    scores = out_of_fold(x, labels, split, recipe)
    null = []
    for i in range(shuffles):
        mixed = shuffled_groups(labels, groups, generator(seed, "shuffled labels", i))
        null.append((out_of_fold(x, mixed, split, recipe), mixed))
    others = {name: out_of_fold(np.array(list(said), object), labels, split, None) for name, said in (texts or {}).items()}
    for name, held in (other_groups or {}).items():
        others[name] = (
            _nothing(x) if len(set(held)) < folds else out_of_fold(x, labels, folds_of(labels, held, folds, seed), recipe)
        )

    def shuffled(on: np.ndarray) -> list[float]:
        return sorted(v for said, mixed in null if (v := auroc(said[on], mixed[on])) is not None)

    def controls(on: np.ndarray) -> dict[str, float | None]:
        return {name: None if np.isnan(said).any() else auroc(said[on], labels[on]) for name, said in others.items()}

    every = np.ones(len(x), bool)
    ranked = [_ranked("all", scores, labels, groups, split, seed)]
    within = within_auroc(scores, labels, names.tolist()) if len(set(names.tolist()) - {"all"}) else None
    for pool in sorted(set(names.tolist()) - {"all"}):
        ranked.append(_ranked(pool, scores, labels, groups, split, seed, names == pool))
        parts = [(names == pool) & (np.array(sources) == part) for part in sorted(set(sources or ()), key=str)]
        parts = [part for part in parts if not too_few(labels[part])]
        if len(parts) > 1:
            ranked.append(_mean_of(pool, parts, scores, labels, groups, split, seed))
    for i, one in enumerate(ranked):
        if not one.reason and one.pool in {"all", *names}:
            on = every if one.pool == "all" else names == one.pool
            ranked[i] = replace(one, null=_percentile(shuffled(on)), controls=controls(on))
    return Probed(recipe.name, ranked, within, shuffled(every), controls(every), scores)


def too_few(y: np.ndarray) -> str:
    """Why outcomes ``y`` bool (N,) cannot be probed, one clause; "" where they can."""
    fewest = int(min(y.sum(), (~y).sum()))
    if not fewest:
        return "all outcomes are the same"
    return f"only {fewest} samples have the rarer outcome; {MINORITY} are needed" if fewest < MINORITY else ""


def folds_of(y: np.ndarray, groups: Sequence[Any], folds: int = 5, seed: int = 42) -> Folds:
    """(training, held-out) rows of each fold, stratified by ``y`` bool (N,), no group on both sides.

    Raises UserError where there are fewer groups than folds, NeedsError without scikit-learn.
    """
    selection = _sklearn("model_selection")
    count = len(set(groups))
    if count < folds:
        raise UserError(f"{count} groups cannot be held out in {folds} folds")
    if count == len(y):
        return list(selection.StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(y)), y))
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    return list(selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(y)), y, codes))


def out_of_fold(x: np.ndarray, y: np.ndarray, folds: Folds, recipe: Recipe | None = TABLE) -> np.ndarray:
    """Logits (N,) of ``y`` bool (N,) from fits that saw neither the sample nor its fold, its scaling and reduction included.

    ``recipe`` None takes ``x`` as texts: a bag of words weighted by TF-IDF. A training fold of one class, or of blank texts, scores 0.
    """
    scores = np.zeros(len(y))
    for train, held in folds:
        if y[train].all() or not y[train].any() or (recipe is None and not any(text.split() for text in x[train])):
            continue
        pipeline = _pipeline(recipe, len(train), 0 if x.ndim < 2 else x.shape[1])
        scores[held] = pipeline.fit(x[train], y[train]).decision_function(x[held])
    return scores


def near_duplicates(texts: Sequence[str], threshold: float = 0.8) -> np.ndarray:
    """Group numbers int (N,) in which texts whose TF-IDF vectors of character 4-grams have a cosine of ``threshold`` are together."""
    from scipy.sparse.csgraph import connected_components

    try:
        vectors = _sklearn("feature_extraction.text").TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 4)).fit_transform(texts)
    except ValueError:  # no text holds a word
        return np.unique(np.asarray(list(texts)), return_inverse=True)[1]
    near = (vectors @ vectors.T) >= threshold
    return np.asarray(connected_components(near, directed=False)[1])


def _pipeline(recipe: Recipe | None, rows: int, width: int) -> Any:
    linear, pipeline = _sklearn("linear_model"), _sklearn("pipeline")
    if recipe is None:
        words = _sklearn("feature_extraction.text").TfidfVectorizer(token_pattern=r"\S+", lowercase=False)
        return pipeline.make_pipeline(words, linear.LogisticRegression(class_weight="balanced", max_iter=3000))
    weight = "balanced" if recipe.balanced else None
    steps = [_sklearn("preprocessing").StandardScaler()]
    if recipe.pca:
        steps.append(_sklearn("decomposition").PCA(min(recipe.pca, rows, width), random_state=0))
    steps.append(linear.LogisticRegression(C=recipe.c, class_weight=weight, max_iter=recipe.iterations))
    return pipeline.make_pipeline(*steps)


def _ranked(
    pool: str, scores: np.ndarray, y: np.ndarray, groups: Sequence[Any], folds: Folds, seed: int, mask: np.ndarray | None = None
) -> Ranked:
    on = np.ones(len(y), bool) if mask is None else mask
    reason = too_few(y[on])
    if reason:
        return Ranked(pool, int(on.sum()), int(y[on].sum()), None, None, None, reason)
    held = [group for group, inside in zip(groups, on, strict=True) if inside]
    interval = auroc_interval(scores[on], y[on], held, draws=500, seed=seed)
    balanced = balanced_accuracy(scores, y, folds, on)
    return Ranked(pool, int(on.sum()), int(y[on].sum()), auroc(scores[on], y[on]), interval, balanced)


def _mean_of(
    pool: str, parts: list[np.ndarray], scores: np.ndarray, y: np.ndarray, groups: Sequence[Any], folds: Folds, seed: int
) -> Ranked:
    """Mean over the sources of a pool, each a mask (N,); the interval resamples sources, and groups within each of them."""
    held = np.unique(np.asarray(groups), return_inverse=True)[1]
    members = [[np.flatnonzero(part & (held == group)) for group in np.unique(held[part])] for part in parts]
    rng = generator(seed, "mean of sources", pool)
    draws = []
    for _ in range(500):
        areas = []
        for at in rng.integers(0, len(parts), len(parts)):
            rows = np.concatenate([members[at][i] for i in rng.integers(0, len(members[at]), len(members[at]))])
            areas.append(auroc(scores[rows], y[rows]))
        draws.append(np.mean([area for area in areas if area is not None]))
    low, high = np.quantile(draws, [0.025, 0.975])
    on = np.any(parts, axis=0)
    area = float(np.mean([auroc(scores[part], y[part]) for part in parts]))
    balanced = float(np.mean([balanced_accuracy(scores, y, folds, part) for part in parts]))
    name = f"{pool}, mean of {len(parts)} sources"
    return Ranked(name, int(on.sum()), int(y[on].sum()), area, (float(low), float(high)), balanced)


def balanced_accuracy(scores: np.ndarray, y: np.ndarray, folds: Folds, on: np.ndarray) -> float:
    """Mean of sensitivity and specificity over the samples ``on`` bool (N,), with Youden's threshold of each fold's training side."""
    said = np.zeros(len(y), bool)
    for train, held in folds:
        rows = train[on[train]]
        said[held] = scores[held] >= youden(scores[rows], y[rows])
    return float((said[on & y].mean() + (~said[on & ~y]).mean()) / 2)


def youden(scores: np.ndarray, y: np.ndarray) -> float:
    """The threshold with the largest true positive rate minus false positive rate (Youden 1950); inf where a class is missing."""
    if y.all() or not y.any():
        return float("inf")
    false, true, thresholds = _sklearn("metrics").roc_curve(y, scores)
    return float(thresholds[np.argmax(true - false)])


def shuffled_groups(y: np.ndarray, groups: Sequence[Any] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels ``y`` (N,) with whole groups' stretches put in another order: outcomes of one group stay about as alike as they are."""
    _, codes, lengths = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    stretches = np.split(y[order], np.cumsum(lengths)[:-1])
    mixed = np.empty_like(y)
    mixed[order] = np.concatenate([stretches[i] for i in rng.permutation(len(stretches))])
    return mixed


def _percentile(null: list[float]) -> float | None:
    return float(np.quantile(null, 0.95)) if null else None


def _nothing(x: np.ndarray) -> np.ndarray:
    return np.full(len(x), np.nan)


def _sklearn(module: str) -> Any:
    if importlib.util.find_spec("sklearn") is None:
        raise NeedsError("probes need scikit-learn: pip install 'ramify[interp]'")
    return importlib.import_module(f"sklearn.{module}")
