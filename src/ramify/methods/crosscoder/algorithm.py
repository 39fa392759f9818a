"""Which features separate two corpora, and what turning one of them does to a score.
Pure functions; sections are the specification's.

Axis legend: N prompts, M models, D width, F features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows, latent_scaling
from ramify.methods.crosscoder.record import Confirmed, Owned, RankedFeature, Steering, SteeringOutcome
from ramify.methods.crosscoder.settings import MOSTLY, OWN
from ramify.methods.crosscoder.steer import StateChange, along, change_of, random_change, random_like, reachless, reconstruct
from ramify.stats.evidence import holm
from ramify.stats.intervals import mean_t
from ramify.stats.ranking import auroc
from ramify.stats.tests import sign_test

Objective = Callable[[StateChange | None], np.ndarray]
"""A score for each of N prompts, float or bool (N,), under a change of one model's states; None is the model as it is."""
LEVEL = 0.05
"""What stands out does so at this level."""


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


def rank_features(
    dictionary: Dictionary, tool: np.ndarray, plain: np.ndarray, partition: str = "a", threshold: float = 0.0
) -> list[RankedFeature]:
    """The tool-signed features (d > 0) of a partition, by falling d, from the activations [N, F] and [N', F] of both corpora.

    High d is a good detector, not a good handle: what steering does has to be measured. Raises UserError on an unknown partition.
    """
    d = cohens_d(tool, plain)
    pool = dictionary.partition(partition)
    chosen = pool[d[pool] > 0]
    norms = dictionary.relative_norm().cpu().numpy()
    labels = np.arange(len(tool) + len(plain)) < len(tool)
    return [
        RankedFeature(
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


def owned(
    dictionary: Dictionary, states: np.ndarray, partition: str = "a", level: float = 0.05, text: np.ndarray | None = None
) -> dict[int, Owned]:
    """Which features of a partition are the tuned model's own by what both models' states [N, 2, D] hold,
    not by which block they are in.

    ``text`` int [N]: which text a row is of, where several are of one. ``level`` bounds the chance that any is called so that is
    not. Raises UserError on an unknown partition.
    """
    pool = dictionary.partition(partition)
    corrected = np.ones((2, len(pool)))
    for row, share in zip(corrected, (OWN, MOSTLY), strict=True):
        ratio, p = latent_scaling(dictionary, states, pool, text, share)
        fires = np.isfinite(ratio)  # a feature that never fires is not tested
        row[fires] = holm(p[fires].tolist())
    return {
        int(i): Owned(float(r) if np.isfinite(r) else None, float(least), bool(least <= level), mostly=bool(most <= level))
        for i, r, least, most in zip(pool, ratio, *corrected, strict=True)
    }


def shortlist(ranked: Iterable[RankedFeature], on_tool: float = 0.3, on_plain: float = 0.1) -> list[RankedFeature]:
    """Those that fire on at least ``on_tool`` of the corpus and on at most ``on_plain`` of the other;
    rank with threshold 0.1 for it."""
    return [one for one in ranked if one.fires_tool >= on_tool and one.fires_plain <= on_plain]


# --- scoring a call (3.7) ------------------------------------------------------------------------------------------------------

_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


def tool_call(text: str, names: Sequence[str], rule: Literal["exact", "toolrl"] = "exact") -> tuple[bool, bool]:
    """(format, tool): whether ``text`` holds ``<tool_call>`` and a JSON name,
    and whether the first such name is one of ``names``.

    ``toolrl`` is the paper's rule: a name also counts when it contains a listed one or is contained in one, in any case, so that
    a name of one letter matches almost anything.
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


def grid(features: Iterable[int | Sequence[int]], gains: Iterable[float] = (), clamps: Iterable[float] = ()) -> list[Steering]:
    """Every feature, or set of features changed together, with every gain and every fixed value."""
    chosen = [(one,) if isinstance(one, int) else tuple(one) for one in features]
    scales, values = list(gains), list(clamps)
    return [Steering(one, "scale", g) for one in chosen for g in scales] + [
        Steering(one, "clamp", c) for one in chosen for c in values
    ]


def feature_sets(
    features: Sequence[int], sizes: Iterable[int] = (1,), sets: Iterable[str] = ()
) -> dict[str, list[tuple[int, ...]]]:
    """What is searched together, by name: ``1 feature`` (each of ``features`` alone), ``4 features`` (the first four of them
    together), and each of ``sets``, such as ``3+7+11``.

    Raises UserError on a size that is not to be had and on a set that names none.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for size in dict.fromkeys(sizes):
        if not 1 <= size <= len(features):
            raise UserError(f"there is no set of {size} features: {len(features)} are tried (--top, --features)")
        name = f"{size} feature{'s'[: size > 1]}"
        found[name] = [(i,) for i in features] if size == 1 else [tuple(features[:size])]
    for text in sets:
        parts = text.split("+")
        if not all(part.strip().isdigit() for part in parts) or len(set(map(int, parts))) < len(parts):
            raise UserError(f"--sets: '{text}' is not a set of features: write numbers with '+', each once, such as 3+7+11")
        found[text] = [tuple(map(int, parts))]
    return found


def outcome(name: str, clean: np.ndarray, scored: np.ndarray, change: StateChange, states: np.ndarray) -> SteeringOutcome:
    """Compare two scores (N,) of the same prompts, whose states before the change were ``states`` [N, D]."""
    a, b = np.asarray(clean, np.float64), np.asarray(scored, np.float64)
    up, down = int((b > a).sum()), int((b < a).sum())
    return SteeringOutcome(
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


def search(
    dictionary: Dictionary, states: np.ndarray, score: Objective, cells: Sequence[Steering], target: int = 0
) -> list[SteeringOutcome]:
    """What every cell does on the prompts that choose (states [N, M, D], which ``score`` scores), in the order given."""
    codes, clean = encode_rows(dictionary, states), score(None)
    out = []
    for cell in cells:
        change = change_of(cell, dictionary, codes, target)
        # nothing is added, so nothing is run: the clean score is the score
        scored = score(change) if change.moved.any() else clean
        out.append(outcome(cell.name, clean, scored, change, states[:, target]))
    return out


def corrected(outcomes: Sequence[SteeringOutcome]) -> list[SteeringOutcome]:
    """The outcomes of a whole grid with Holm's p-values over it."""
    return [replace(one, p_holm=p) for one, p in zip(outcomes, holm([one.p for one in outcomes]), strict=True)]


def best(cells: Sequence[Steering], outcomes: Sequence[SteeringOutcome]) -> Steering:
    """The cell with the highest score; of equal ones that with the smallest change, then the first."""
    order = sorted(range(len(cells)), key=lambda i: (-outcomes[i].score, outcomes[i].size, i))
    return cells[order[0]]


def confirm(
    dictionary: Dictionary,
    states: np.ndarray,
    score: Objective,
    cell: Steering,
    directions: dict[str, np.ndarray],
    target: int = 0,
    randoms: int = 10,
    seed: int = 0,
) -> list[SteeringOutcome]:
    """The chosen cell on held-out prompts, compared with controls of the same length on every prompt.

    The controls: ``randoms`` random directions, and each of ``directions`` (name -> [D]), such as the difference of the corpora's
    means, which is the strongest simple baseline. Then the reconstruction. States are [N, M, D].
    """
    clean, own = score(None), states[:, target]
    change = change_of(cell, dictionary, encode_rows(dictionary, states), target)
    changes = {cell.name: change}
    changes |= {f"random {i}": random_like(change, seed, i) for i in range(randoms)}
    changes |= _controls(dictionary, states, change, directions, target)
    return [outcome(name, clean, score(one) if one.moved.any() else clean, one, own) for name, one in changes.items()]


def _controls(
    dictionary: Dictionary, states: np.ndarray, change: StateChange, directions: dict[str, np.ndarray], target: int
) -> dict[str, StateChange]:
    """Each of ``directions`` at the length that ``change`` has on every prompt, and the reconstruction of ``states``."""
    lengths = np.asarray(np.linalg.norm(change.delta, axis=1))
    found = {name: StateChange(along(v, lengths, len(lengths)).delta, change.fired) for name, v in directions.items()}
    return found | {"reconstruction": reconstruct(dictionary, states, target)}


def confirm_sets(
    dictionary: Dictionary,
    states: tuple[np.ndarray, np.ndarray],
    scores: tuple[Objective, Objective],
    groups: Mapping[str, Sequence[Steering]],
    directions: dict[str, np.ndarray],
    target: int = 0,
    randoms: int = 19,
    seed: int = 0,
) -> list[Confirmed]:
    """Of each group of cells the best by the first prompts, on the second ones,
    compared with sets of random directions that were searched alike.

    ``states`` [N, M, D] and ``scores`` are those of the prompts that choose and of those that confirm. Sample j puts one random
    direction of the same norm instead of every feature (:func:`ramify.methods.crosscoder.steer.random_set`), chooses among the
    same cells on the first prompts and is scored on the second:
    what the features' set must beat is the best group of each sample.
    """
    codes = [encode_rows(dictionary, one) for one in states]
    clean = [score(None) for score in scores]

    def scored(at: int, change: StateChange) -> np.ndarray:
        return np.asarray(scores[at](change) if change.moved.any() else clean[at], np.float64)

    def choose(cells: Sequence[Steering], completion: int | None) -> Steering:
        if len(cells) == 1:
            return cells[0]
        changes = [
            change_of(cell, dictionary, codes[0], target)
            if completion is None
            else random_change(cell, dictionary, codes[0], seed, completion, target)
            for cell in cells
        ]
        own = states[0][:, target]
        return best(cells, [outcome("", clean[0], scored(0, change), change, own) for change in changes])

    def confirmed(name: str, change: StateChange) -> SteeringOutcome:
        return outcome(name, clean[1], scored(1, change), change, states[1][:, target])

    chosen = {name: choose(cells, None) for name, cells in groups.items()}
    sampled = [
        {
            name: confirmed(
                f"random {completion}", random_change(choose(cells, completion), dictionary, codes[1], seed, completion, target)
            )
            for name, cells in groups.items()
        }
        for completion in range(randoms)
    ]
    tops = [max(row.lift for row in completion.values()) for completion in sampled]
    rows = {}
    for name, cell in chosen.items():
        change = change_of(cell, dictionary, codes[1], target)
        others = _controls(dictionary, states[1], change, directions, target)
        controls = [confirmed(label, one) for label, one in others.items()]
        rows[name] = (confirmed(cell.name, change), *(completion[name] for completion in sampled), *controls)
    found = []
    for (name, some), p in zip(rows.items(), holm([some[0].p for some in rows.values()]), strict=True):
        p_random = (1 + sum(top >= some[0].lift for top in tops)) / (1 + randoms)
        stands_out = some[0].lift > 0 and max(p, p_random) <= LEVEL
        found.append(Confirmed(name, chosen[name], p, p_random, stands_out, some))
    return found


def sets_best(sets: Sequence[Confirmed]) -> Confirmed:
    """The set that is reported first: one that stands out before others, then by lift, then the shortest change."""
    return min(sets, key=lambda one: (not one.stands_out, -one.confirmed[0].lift, one.confirmed[0].size))


def no_reach(dictionary: Dictionary, cells: Iterable[Steering], target: int) -> str:
    """A warning where steering ``target`` with a feature of the other model alone was requested, else nothing."""
    lost = sorted({i for cell in cells for i in reachless(dictionary, cell.features, target)})
    if not lost:
        return ""
    names = ", ".join(map(str, lost))
    return f"features {names} belong to the other model alone: their effect on this one is exactly zero"
