"""Linear probes of hidden states with honest cross-validation, and the controls without which a probe says nothing.

Scores are out of fold: no score comes from a fit that saw the sample, nor another sample of its group. With no signal at all such
scores, pooled over stratified folds, rank *below* one half, so the null is the same probe on shuffled labels, never 0.5. Labels
are shuffled within folds and pools: the folds are stratified by the true labels, so only a shuffle that keeps each fold's counts
is an equal of them. Source: Ri et al. 2026, arXiv 2606.25013, probes;
the controls are this project's. Needs scikit-learn: ``pip install "ramify[interp]"``.

Axis legend: N samples, D width, R labellings.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
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
ALIKE = 0.8
"""Cosine from which two prompts count as one, and are held out together in a control: a template with another name filled in."""
SHUFFLES = 199
"""Shuffled labellings of a null: the least p is then 1 / 200."""
Folds = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class ProbeRecipe:
    """Standardise, reduce to ``pca`` dimensions (0: no reduction),
    logistic regression with inverse penalty ``c``; by the training folds."""

    name: str
    pca: int = 0
    c: float = 1.0
    balanced: bool = False
    iterations: int = 3000


TABLE = ProbeRecipe("table", pca=100, c=0.03, balanced=True)
"""The paper's tables: PCA to 100, C = 0.03, balanced classes."""
STATE_A = ProbeRecipe("state-a")
"""The paper's prompt-only probe: C = 1, which is the penalty |w|^2 / 2n on the mean loss."""
_WORDS = ProbeRecipe("words", balanced=True)


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
    """Why there is no result."""
    null: float | None = None
    """What the AUROC must exceed for p <= 0.05: that on shuffled labels, in this pool (:func:`bar`)."""
    p: float | None = None
    """(1 + shuffles that rank at least as well) / (1 + shuffles),
    not corrected for the number of pools or probes."""
    p_corrected: float | None = None
    """The same, corrected for all of them (:func:`corrected`)."""
    controls: Mapping[str, float | None] = field(default_factory=dict)
    """AUROC of the controls in this pool: what separates pools may separate nothing within one."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe by pool, all samples (``all``) first, and its controls."""

    recipe: str
    pools: tuple[Ranked, ...]
    scores: np.ndarray = field(repr=False, compare=False)
    """Out-of-fold scores (N,), NaN where nothing was fitted."""
    within_pools: float | None = None
    """AUROC over pairs of one pool: what is left when the pools' own shares are taken out."""
    shuffled: tuple[float, ...] = ()
    """AUROC of the same probe on shuffled labels, one a shuffle, sorted: the null."""
    controls: Mapping[str, float | None] = field(default_factory=dict)
    """AUROC of probes that never see a state (text, prompt), and of this one with other groups held together."""
    nulls: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    """AUROC (R,) on each shuffle, in the order they were made, by pool."""

    @property
    def null(self) -> float | None:
        """What the AUROC must exceed for p <= 0.05."""
        return bar(self.shuffled)


def probe(
    x: np.ndarray,
    y: Sequence[bool] | np.ndarray,
    groups: Sequence[Any],
    *,
    recipe: ProbeRecipe = TABLE,
    pools: Sequence[str] | None = None,
    sources: Sequence[Any] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    other_groups: Mapping[str, Sequence[Any]] | None = None,
    shuffles: int = SHUFFLES,
    folds: int = 5,
    seed: int = 42,
) -> Probed:
    """Probe states ``x`` (N, D) for the outcome ``y`` bool (N,),
    fitted on all pools together and judged by pool, with every control.

    A pool of several ``sources`` (N,) with 20 of either outcome is judged by their mean as well, as the paper does for benign
    prompts. ``groups`` (N,) are held together in folds (the prompt, at least); ``other_groups`` repeats the probe with others
    (near-duplicate prompts, sources). ``texts`` are texts by name (first token, prompt), each probed as a bag of words on the
    same folds. Where an outcome has fewer than 20 samples nothing is fitted, and the reason is given.
    Raises UserError on shapes, NeedsError without scikit-learn.
    """
    labels = np.asarray(y, bool)
    if x.ndim != 2 or labels.shape != (len(x),) or len(groups) != len(x):
        raise UserError(f"states of shape {x.shape} need as many outcomes ({labels.shape}) and groups ({len(groups)})")
    names = np.array(["all"] * len(x) if pools is None else list(pools))
    reason = too_few(labels)
    if reason:
        return Probed(recipe.name, (Ranked("all", len(x), int(labels.sum()), None, None, None, reason),), _nothing(x))
    split = folds_of(labels, groups, folds, seed)
    every = np.stack([labels, *shuffled_labels(labels, groups, split, names, shuffles, seed)])
    held_out = out_of_fold(x, every, split, recipe)
    scores = held_out[0]
    others = {name: out_of_fold(np.array(list(values), object), labels, split, None) for name, values in (texts or {}).items()}
    for name, held in (other_groups or {}).items():
        others[name] = (
            _nothing(x) if len(set(held)) < folds else out_of_fold(x, labels, folds_of(labels, held, folds, seed), recipe)
        )

    def null_of(on: np.ndarray) -> np.ndarray:
        return np.array([auroc(one[on], mixed[on]) for one, mixed in zip(held_out[1:], every[1:], strict=True)], np.float64)

    def controls(on: np.ndarray) -> dict[str, float | None]:
        return {name: None if np.isnan(values).any() else auroc(values[on], labels[on]) for name, values in others.items()}

    ranked = [_ranked("all", scores, labels, groups, split, seed)]
    within = within_auroc(scores, labels, names.tolist()) if len(set(names.tolist()) - {"all"}) else None
    for pool in sorted(set(names.tolist()) - {"all"}):
        ranked.append(_ranked(pool, scores, labels, groups, split, seed, names == pool))
        parts = [(names == pool) & (np.array(sources) == part) for part in sorted(set(sources or ()), key=str)]
        parts = [part for part in parts if not too_few(labels[part])]
        if len(parts) > 1:
            ranked.append(_mean_of(pool, parts, scores, labels, groups, split, seed))
    nulls: dict[str, np.ndarray] = {}
    for i, one in enumerate(ranked):
        if one.auroc is not None and one.pool in {"all", *names}:
            on = np.ones(len(x), bool) if one.pool == "all" else names == one.pool
            nulls[one.pool] = null_of(on)
            ranked[i] = replace(
                one, null=bar(nulls[one.pool]), p=_p(one.auroc, nulls[one.pool]) if shuffles else None, controls=controls(on)
            )
    shuffled = tuple(np.sort(nulls["all"]).tolist())
    return Probed(recipe.name, tuple(ranked), scores, within, shuffled, controls(np.ones(len(x), bool)), nulls)


def corrected(found: Sequence[Probed]) -> list[Probed]:
    """The probes with the p of every pool of theirs corrected for having looked at all of them (Westfall and Young 1993,
    single-step max T).

    The probes are of the same samples and labels, so the shuffle of one number is the same labelling in all of them, and how
    alike they are is taken into account: many layers that say the same cost little. AUROCs are standardised by their own nulls
    first. Raises UserError where the probes were shuffled otherwise.
    """
    cells = [
        (i, one.pool, one.auroc, got.nulls[one.pool]) for i, got in enumerate(found) for one in got.pools if one.pool in got.nulls
    ]
    sizes = {len(null) for *_, null in cells}
    if len(sizes) > 1:
        raise UserError("probes are corrected together only where they have the same number of shuffles")
    if not cells or sizes == {0}:
        return list(found)
    areas = np.array([[area, *null] for _, _, area, null in cells], np.float64)
    spread = areas.std(axis=1, keepdims=True)
    z = (areas - areas.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    highest = z[:, 1:].max(axis=0)
    ps = {(i, pool): _p(own, highest) for (i, pool, *_), own in zip(cells, z[:, 0].tolist(), strict=True)}
    return [
        replace(got, pools=tuple(replace(one, p_corrected=ps.get((i, one.pool))) for one in got.pools))
        for i, got in enumerate(found)
    ]


def bar(null: Sequence[float] | np.ndarray, level: float = 0.05) -> float | None:
    """The least value that a statistic must exceed for p <= ``level`` under its ``null`` (R,);
    None where R is too small for it."""
    rank = math.ceil((1 - level) * (len(null) + 1) - 1e-9)
    return float(np.sort(np.asarray(null))[rank - 1]) if rank <= len(null) else None


def _p(value: float, null: np.ndarray) -> float:
    """(1 + shuffles at or above ``value``) / (1 + shuffles):
    at most its level under the null, whatever the number of shuffles."""
    return (1 + int((null >= value - 1e-12).sum())) / (1 + len(null))


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


def out_of_fold(x: np.ndarray, y: np.ndarray, folds: Folds, recipe: ProbeRecipe | None = TABLE) -> np.ndarray:
    """Logits (N,) of ``y`` bool (N,) from fits that saw neither the sample nor its fold, its scaling and reduction included.

    ``y`` (R, N) gives (R, N): scaling and reduction do not see labels, and all R regressions of a fold are solved together.
    ``recipe`` None takes ``x`` as texts: a bag of words weighted by TF-IDF.
    A training fold of one class, or of blank texts, scores 0.
    """
    labels = np.atleast_2d(y)
    scores = np.zeros(labels.shape)
    for train, held in folds:
        rows = np.flatnonzero(labels[:, train].any(axis=1) & ~labels[:, train].all(axis=1))
        if not len(rows) or (recipe is None and not any(text.split() for text in x[train])):
            continue
        known = labels[np.ix_(rows, train)]
        if recipe is None:
            vectors = _sklearn("feature_extraction.text").TfidfVectorizer(token_pattern=r"\S+", lowercase=False)
            seen, unseen = vectors.fit_transform(x[train]), vectors.transform(x[held])
            if seen.shape[1] <= len(train):  # few words: as dense as states
                found = _logits(seen.toarray(), unseen.toarray(), known, _WORDS)
            else:
                fits = (_sklearn("linear_model").LogisticRegression(class_weight="balanced", max_iter=3000) for _ in rows)
                found = np.stack([fit.fit(seen, one).decision_function(unseen) for fit, one in zip(fits, known, strict=True)])
        else:
            steps = [_sklearn("preprocessing").StandardScaler()]
            if recipe.pca:
                steps.append(_sklearn("decomposition").PCA(min(recipe.pca, len(train), x.shape[1]), random_state=0))
            reduce = _sklearn("pipeline").make_pipeline(*steps).fit(np.asarray(x[train], np.float64))
            seen, unseen = (reduce.transform(np.asarray(x[side], np.float64)) for side in (train, held))
            found = _logits(seen, unseen, known, recipe)
        scores[np.ix_(rows, held)] = found
    return scores.reshape(np.shape(y))


def _logits(seen: np.ndarray, unseen: np.ndarray, y: np.ndarray, recipe: ProbeRecipe) -> np.ndarray:
    """Logits (R, M) at ``unseen`` (M, D) of logistic regressions on ``seen`` (N, D), one for each labelling of ``y`` bool (R, N).

    All are minimised at once: one bound of all their curvatures (Boehning and Lindsay 1988) is factorised, and steps
    preconditioned by it are accelerated (Nesterov), each labelling starting anew where its momentum climbs (O'Donoghue and Candes
    2015).
    """
    from scipy.linalg import cho_factor, cho_solve
    from scipy.special import expit

    if seen.shape[1] > len(
        seen
    ):  # more dimensions than samples: the penalty does not change under a rotation into the samples' span
        basis = np.linalg.qr(seen.T)[0]
        seen, unseen = seen @ basis, unseen @ basis
    a = np.column_stack([seen, np.ones(len(seen))])
    target = y.T.astype(np.float64)
    share = target.mean(axis=0)
    weight = np.where(target > 0, 0.5 / share, 0.5 / (1 - share)) if recipe.balanced else np.ones_like(target)
    penalty = np.append(np.full(seen.shape[1], 1 / recipe.c), 0.0)[:, None]  # the constant is free
    factor = cho_factor(weight.max() / 4 * a.T @ a + np.diag(penalty[:, 0]))
    w = ahead = np.zeros((a.shape[1], target.shape[1]))
    pace, before = np.ones(target.shape[1]), np.full_like(target, np.inf)
    for _ in range(recipe.iterations):
        logits = a @ ahead
        if np.abs(logits - before).max() < 1e-6:
            break
        slope = a.T @ (weight * (expit(logits) - target)) + penalty * ahead
        new = ahead - cho_solve(factor, slope)
        pace = np.where((slope * (new - w)).sum(axis=0) > 0, 1.0, pace)
        following = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        w, ahead, pace, before = new, new + (pace - 1) / following * (new - w), following, logits
    return np.round((np.column_stack([unseen, np.ones(len(unseen))]) @ w).T, 6)  # states that are the same rank the same


def near_duplicates(texts: Sequence[str]) -> np.ndarray:
    """Group numbers int (N,) in which texts whose TF-IDF vectors of character 4-grams have a cosine of :data:`ALIKE` are
    together."""
    from scipy.sparse.csgraph import connected_components

    try:
        vectors = _sklearn("feature_extraction.text").TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 4)).fit_transform(texts)
    except ValueError:  # no text holds a word
        return np.unique(np.asarray(list(texts)), return_inverse=True)[1]
    near = (vectors @ vectors.T) >= ALIKE
    return np.asarray(connected_components(near, directed=False)[1])


def _ranked(
    pool: str, scores: np.ndarray, y: np.ndarray, groups: Sequence[Any], folds: Folds, seed: int, mask: np.ndarray | None = None
) -> Ranked:
    on = np.ones(len(y), bool) if mask is None else mask
    reason = too_few(y[on])
    if reason:
        return Ranked(pool, int(on.sum()), int(y[on].sum()), None, None, None, reason)
    held = [group for group, inside in zip(groups, on, strict=True) if inside]
    interval = auroc_interval(scores[on], y[on], held, samples=500, seed=seed)
    balanced = balanced_accuracy(scores, y, folds, on)
    return Ranked(pool, int(on.sum()), int(y[on].sum()), auroc(scores[on], y[on]), interval, balanced)


def _mean_of(
    pool: str, parts: list[np.ndarray], scores: np.ndarray, y: np.ndarray, groups: Sequence[Any], folds: Folds, seed: int
) -> Ranked:
    """Mean over the sources of a pool, each a mask (N,); the interval resamples sources, and groups within each of them."""
    held = np.unique(np.asarray(groups), return_inverse=True)[1]
    members = [[np.flatnonzero(part & (held == group)) for group in np.unique(held[part])] for part in parts]
    rng = generator(seed, "mean of sources", pool)
    samples = []
    for _ in range(500):
        areas = []
        for at in rng.integers(0, len(parts), len(parts)):
            rows = np.concatenate([members[at][i] for i in rng.integers(0, len(members[at]), len(members[at]))])
            areas.append(auroc(scores[rows], y[rows]))
        samples.append(np.mean([area for area in areas if area is not None]))
    low, high = np.quantile(samples, [0.025, 0.975])
    on = np.any(parts, axis=0)
    area = float(np.mean([auroc(scores[part], y[part]) for part in parts]))
    balanced = float(np.mean([balanced_accuracy(scores, y, folds, part) for part in parts]))
    name = f"{pool}, mean of {len(parts)} sources"
    return Ranked(name, int(on.sum()), int(y[on].sum()), area, (float(low), float(high)), balanced)


def balanced_accuracy(scores: np.ndarray, y: np.ndarray, folds: Folds, on: np.ndarray) -> float:
    """Mean of sensitivity and specificity over the samples ``on`` bool (N,),
    with Youden's threshold of each fold's training side."""
    predicted = np.zeros(len(y), bool)
    for train, held in folds:
        rows = train[on[train]]
        predicted[held] = scores[held] >= youden(scores[rows], y[rows])
    return float((predicted[on & y].mean() + (~predicted[on & ~y]).mean()) / 2)


def youden(scores: np.ndarray, y: np.ndarray) -> float:
    """The threshold with the largest true positive rate minus false positive rate (Youden 1950); inf where a class is missing."""
    if y.all() or not y.any():
        return float("inf")
    false, true, thresholds = _sklearn("metrics").roc_curve(y, scores)
    return float(thresholds[np.argmax(true - false)])


def shuffled_labels(
    y: np.ndarray,
    groups: Sequence[Any] | np.ndarray,
    folds: Folds,
    pools: Sequence[str] | np.ndarray | None,
    n: int,
    seed: int = 42,
) -> np.ndarray:
    """``n`` shuffles bool (n, N) of ``y`` (N,) that are equally likely where it is independent of the states.

    Groups are moved whole, among those of their fold and pool:
    each fold keeps the counts it was stratified for, and each pool its share.
    """
    strata = np.zeros(len(y), np.int64) if pools is None else np.unique(np.asarray(pools), return_inverse=True)[1]
    for i, (_, held) in enumerate(folds):
        strata[held] += i * len(y)
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    mixed = np.repeat(np.asarray(y, bool)[None], n, axis=0)
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    for i in range(n):
        rng = generator(seed, "shuffled labels", i)
        for rows in members:
            mixed[i, rows] = shuffled_groups(y[rows], codes[rows], rng)
    return mixed


def shuffled_groups(y: np.ndarray, groups: Sequence[Any] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels ``y`` (N,) with whole groups' stretches put in another order:
    outcomes of one group stay about as alike as they are."""
    _, codes, lengths = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    stretches = np.split(y[order], np.cumsum(lengths)[:-1])
    mixed = np.empty_like(y)
    mixed[order] = np.concatenate([stretches[i] for i in rng.permutation(len(stretches))])
    return mixed


def _nothing(x: np.ndarray) -> np.ndarray:
    return np.full(len(x), np.nan)


def _sklearn(module: str) -> Any:
    if importlib.util.find_spec("sklearn") is None:
        raise NeedsError("probes need scikit-learn: pip install 'ramify[interp]'")
    return importlib.import_module(f"sklearn.{module}")
