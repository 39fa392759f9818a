"""The simple routers that a learned one has to beat, fitted to the same table and tuned on it: RouterBench's (arXiv 2403.12031)
and RouteLLM's (arXiv 2406.18665).

Axis legend: I tasks of the table, Q prompts to route, L workers, V words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import RoutingGain, gain
from ramify.methods.orchestrator.table import RewardTable, mean_known

WORDS = 4096
"""Most words that prompts are compared by: those in most prompts, of those in two or more."""
FOLDS = 5
NEIGHBOURS = (5, 10, 20, 50, 100)
SHARPNESS = (1.0, 2.0, 4.0, 8.0)
"""Exponents of ten at which a task's similarity counts in the weighted Elo; RouteLLM's is 1."""
RIDGES = (0.1, 1.0, 10.0)
RANKS = (1, 2, 4, 8)
LEAST = 20
"""Tasks below which nothing is fitted to prompts."""
Scores = Callable[[Sequence[str]], np.ndarray]
"""Prompts -> (Q, L), the larger the better."""


@dataclass(frozen=True)
class BaselineRouter:
    """A fitted simple router: its ``setting`` was chosen by cross-validation on the table it was fitted to."""

    name: str
    setting: str
    scores: Scores
    usd: np.ndarray
    """(L,): what a call of each worker costs on average, 0 where nobody knows: of equally good workers the cheapest is taken."""

    def ranked(self, prompts: Sequence[str]) -> np.ndarray:
        """(Q, L): numbers of the workers for each prompt, the preferred first."""
        scores = np.round(self.scores(prompts), 12)
        return np.stack([np.lexsort((np.arange(len(self.usd)), self.usd, -row)) for row in scores])

    def choices(self, prompts: Sequence[str]) -> np.ndarray:
        """(Q,): the worker that it asks."""
        return np.asarray(self.ranked(prompts)[:, 0])


@dataclass(frozen=True)
class BaselineRow:
    """What a simple router gets on tasks kept back, beside the learned one."""

    name: str
    setting: str
    reward: float
    usd_a_task: float | None
    gain: RoutingGain | None
    """The learned router's over it."""
    choices: Mapping[str, int]


class WordVectors:
    """Prompts as vectors of their words: term frequency times log inverse document frequency, of length 1."""

    def __init__(self, prompts: Sequence[str]) -> None:
        counts = Counter(word for prompt in prompts for word in set(_words(prompt)))
        kept = [word for word, n in counts.most_common(WORDS) if n > 1]
        self._place = {word: i for i, word in enumerate(kept)}
        self._weight = np.array([math.log((1 + len(prompts)) / (1 + counts[word])) + 1 for word in kept])

    def __call__(self, prompts: Sequence[str]) -> np.ndarray:
        """(Q, V); zeros of a prompt without a known word."""
        rows = np.zeros((len(prompts), len(self._place)))
        for row, prompt in zip(rows, prompts, strict=True):
            for word, n in Counter(_words(prompt)).items():
                if word in self._place:
                    row[self._place[word]] = n
        rows *= self._weight
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(length > 0, length, 1))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def neighbours(near: np.ndarray, means: np.ndarray, k: int) -> np.ndarray:
    """(Q, L): mean reward on the ``k`` tasks that are most alike, of similarities ``near`` (Q, I) and mean rewards (I, L)."""
    top = np.argsort(-near, axis=1, kind="stable")[:, :k]
    return np.asarray(means[top].mean(axis=1))


def bradley_terry(wins: np.ndarray, steps: int = 200) -> np.ndarray:
    """(Q, L): log strengths that make the counted wins (Q, L, L) most likely, of row over column, by the MM algorithm
    (Hunter 2004, equation 3). Half a win either way is added to each pair, so that nobody's is infinite."""
    count = wins.shape[-1]
    wins = wins + 0.5 * (1 - np.eye(count))
    games, total = wins + wins.swapaxes(1, 2), wins.sum(axis=2)
    strength = np.ones(wins.shape[:2])
    for _ in range(steps):
        shared = games / (strength[:, :, None] + strength[:, None, :])
        strength = total / shared.sum(axis=2)
        strength /= strength.mean(axis=1, keepdims=True)
    return np.asarray(np.log(strength))


def won(means: np.ndarray) -> np.ndarray:
    """(I, L, L): 1 where the worker of the row did better on a task than that of the column, half a win each where alike."""
    over = means[:, :, None] - means[:, None, :]
    return np.asarray((over > 0) + 0.5 * (over == 0) * (1 - np.eye(means.shape[1])))


def weighted_wins(near: np.ndarray, wins: np.ndarray, sharpness: float) -> np.ndarray:
    """(Q, L, L): wins (I, L, L), each task weighted by ``10 ** (sharpness * similarity / largest similarity)`` (RouteLLM), and
    as many in all as there were."""
    largest = near.max(axis=1, keepdims=True)
    weights = 10 ** (sharpness * near / np.where(largest > 0, largest, 1))
    weights *= len(wins) / weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("qi,ilm->qlm", weights, wins))


def factorised(inside: np.ndarray, near: np.ndarray, means: np.ndarray, ridge: float, rank: int) -> np.ndarray:
    """(Q, L): rewards by prompt and worker vectors of length ``rank``, which is RouteLLM's factorisation with a squared loss and
    a ridge on the prompts' side, in closed form (reduced-rank regression).

    ``inside`` (I, I) are the similarities of the table's prompts, ``near`` (Q, I) those to them."""
    middle = means.mean(axis=0)
    dual = np.linalg.solve(inside + ridge * np.eye(len(inside)), means - middle)
    workers = np.linalg.svd(inside @ dual, full_matrices=False)[2][:rank]
    return np.asarray(near @ dual @ workers.T @ workers + middle)


def fit_baselines(table: RewardTable, seed: int = 0) -> list[BaselineRouter]:
    """The simple routers of a table: cheapest, best single, Elo, and where it has prompts of :data:`LEAST` tasks or more, Elo
    weighted by similarity, kNN and matrix factorisation, each with the setting that got most in cross-validation over it.

    Tasks on which a worker has no reward are left out; where none is left there is no baseline. The cheapest is left out where
    no cost is known."""
    every = table.means()
    rows = np.flatnonzero(np.isfinite(every).all(axis=1))
    if not len(rows):
        return []
    means, prompts = every[rows], [table.prompts[i] for i in rows]
    costs = [mean_known(column) for column in np.moveaxis(table.usd, 1, 0)]
    usd, wins = np.array([cost or 0.0 for cost in costs]), won(means)
    routers = [_constant("best single", means.mean(axis=0), usd), _constant("Elo", bradley_terry(wins.sum(0)[None])[0], usd)]
    if any(costs):
        routers.insert(0, _constant("cheapest", -usd, usd))
    if len(rows) < LEAST or not all(prompts):
        return routers
    vectors = WordVectors(prompts)
    x = vectors(prompts)
    alike = x @ x.T
    fold = generator(seed, "baselines").permutation(len(rows)) % FOLDS

    def tuned(name: str, settings: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]) -> BaselineRouter:
        """``settings``: name -> (similarities inside, similarities to them, tasks) -> scores."""
        best, most = "", -math.inf
        for setting, scores in settings.items():
            got = 0.0
            for at in range(FOLDS):
                inside, outside = np.flatnonzero(fold != at), np.flatnonzero(fold == at)
                given = scores(alike[np.ix_(inside, inside)], alike[np.ix_(outside, inside)], inside)
                got += float(means[outside, given.argmax(axis=1)].sum())
            if got > most + 1e-9:
                best, most = setting, got
        chosen, whole = settings[best], np.arange(len(rows))
        return BaselineRouter(name, best, lambda asked: chosen(alike, vectors(asked) @ x.T, whole), usd)

    weighted = {
        f"sharpness {sharpness:g}": lambda _, near, at, s=sharpness: bradley_terry(weighted_wins(near, wins[at], s))
        for sharpness in SHARPNESS
    }
    nearest = {f"k {k}": lambda _, near, at, k=k: neighbours(near, means[at], k) for k in NEIGHBOURS if 2 * k <= len(rows)}
    low_rank = {
        f"rank {rank}, ridge {ridge:g}": lambda inside, near, at, r=ridge, d=rank: factorised(inside, near, means[at], r, d)
        for rank in RANKS
        for ridge in RIDGES
        if rank <= means.shape[1]
    }
    return [*routers, tuned("Elo by similarity", weighted), tuned("kNN", nearest), tuned("matrix factorisation", low_rank)]


def _constant(name: str, scores: np.ndarray, usd: np.ndarray) -> BaselineRouter:
    return BaselineRouter(name, "", lambda asked: np.tile(scores, (len(asked), 1)), usd)


def compared_on(
    baselines: Sequence[BaselineRouter], held: RewardTable, rows: Sequence[int] | np.ndarray, routed: np.ndarray | None = None
) -> tuple[BaselineRow, ...]:
    """What each baseline gets on the tasks ``rows`` of a table of the same workers, and what a router that got ``routed``
    there has over it."""
    means, made = held.means(), []
    prompts, at = [held.prompts[i] for i in rows], np.asarray(rows)
    for simple in baselines:
        chosen = simple.choices(prompts)
        rewards = means[at, chosen]
        paid = [mean_known(held.usd[i, worker]) for i, worker in zip(at, chosen, strict=True)]
        known = [cost for cost in paid if cost is not None]
        counted = {name: int((chosen == worker).sum()) for worker, name in enumerate(held.workers)}
        over = None if routed is None else gain(routed, rewards)
        usd = float(np.mean(known)) if known else None
        made.append(BaselineRow(simple.name, simple.setting, float(rewards.mean()), usd, over, counted))
    return tuple(made)
