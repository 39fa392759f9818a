"""Routing, evolution and workflows as arithmetic: no model is called and nothing is written here.

Sources: [F] Sakana Fugu Technical Report (arXiv 2606.21228), [T] TRINITY (2512.04695), [C] Conductor (2512.04388).

Axis legend: L workers, I tasks, R repeats, K candidates of a generation, N parameters, G group.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.score.group import normalise
from ramify.stats.intervals import mean_t

STEPS = 5
"""Most steps of a workflow, and most turns of the turn loop."""
LEAST_REPEATS = 5
"""Repeats a cell needs before an oracle is reported."""
SPLITS = 20
"""Random halvings of the repeats that an oracle is averaged over."""

# -- choosing


def soft_targets(rewards: np.ndarray, tau: float) -> np.ndarray:
    """Targets of the first stage, softmax(r / tau) over workers, (..., L) [F].
    ``tau`` 0: the best, ties split; infinity: uniform."""
    if not tau >= 0 or not np.isfinite(rewards).all():
        raise UserError("targets need finite rewards and a temperature of 0 or more")
    top = rewards - rewards.max(axis=-1, keepdims=True)
    weights = (top == 0).astype(float) if tau == 0 else np.exp(top / tau)
    found: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return found


def informative(rewards: np.ndarray) -> np.ndarray:
    """Which tasks tell workers apart, bool (I,), of mean rewards (I, L):
    where all are equal the target would teach indecision."""
    found: np.ndarray = rewards.max(axis=-1) > rewards.min(axis=-1)
    return found


def masked(logits: np.ndarray, available: Sequence[bool] | np.ndarray) -> np.ndarray:
    """Logits with minus infinity at workers that may not be chosen. Raises UserError where none is left."""
    allowed = np.asarray(available, bool)
    if not allowed.any():
        raise UserError("every worker is excluded, unavailable or has failed: none is left to choose")
    return np.where(allowed, logits, -np.inf)


def choose(logits: np.ndarray, available: Sequence[bool] | np.ndarray) -> int:
    """The likeliest worker that may be chosen; of equals the one of the lowest index."""
    return int(np.argmax(masked(logits, available)))


def probabilities(logits: np.ndarray, available: Sequence[bool] | np.ndarray) -> np.ndarray:
    """Softmax over the workers that may be chosen."""
    held = masked(logits, available)
    weights = np.exp(held - held.max())
    found: np.ndarray = weights / weights.sum()
    return found


# -- evolution


def population(n: int, up: bool = True) -> int:
    """Candidates of a generation for ``n`` parameters: 4 + 3 ln n, rounded up [T] or down."""
    return (math.ceil if up else math.floor)(4 + 3 * math.log(n))


def recombination(mu: int) -> np.ndarray:
    """Weights of the best ``mu`` candidates, proportional to ln(mu + 1/2) - ln i, summing to 1; (mu,)."""
    raw = math.log(mu + 0.5) - np.log(np.arange(1, mu + 1))
    found: np.ndarray = raw / raw.sum()
    return found


@dataclass(frozen=True)
class SearchState:
    """A search as it continues: what :class:`SepCma` holds, arrays as tuples of length N."""

    sigma: float
    seed: int
    size: int
    generation: int
    mean: tuple[float, ...]
    variance: tuple[float, ...]
    path: tuple[float, ...]
    step_path: tuple[float, ...]


class SepCma:
    """Separable CMA-ES that maximises (Ros and Hansen 2008): ``ask`` gives candidates, ``tell`` takes their fitness.

    ``mean`` (N,) is the incumbent. Candidates of a generation depend on the seed and its number alone, so a run that was cut off
    continues from its :attr:`state` as if it had not been.
    """

    def __init__(self, mean: np.ndarray, sigma: float, seed: int = 0, size: int | None = None) -> None:
        n = len(mean)
        self.mean, self.sigma, self.seed, self.generation = np.array(mean, np.float64), float(sigma), seed, 0
        self.size = size or population(n)
        if not self.sigma > 0 or self.size < 4:
            raise UserError(f"evolution needs a step size above 0 and 4 candidates or more, not {sigma:g} and {self.size}")
        self.weights = recombination(self.size // 2)
        mass = 1 / float((self.weights**2).sum())
        self._cs, self._cc = (mass + 2) / (n + mass + 5), (4 + mass / n) / (n + 4 + 2 * mass / n)
        self._damps = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + self._cs
        faster = (n + 2) / 3  # a diagonal covariance is learned so much faster
        self._c1 = min(1.0, 2 / ((n + 1.3) ** 2 + mass) * faster)
        self._cmu = min(1 - self._c1, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass) * faster)
        self._mass, self._norm = mass, math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self.variance, self.path, self.step_path = np.ones(n), np.zeros(n), np.zeros(n)

    def ask(self) -> np.ndarray:
        """The candidates of this generation, (K, N)."""
        z = generator(self.seed, "generation", self.generation).standard_normal((self.size, len(self.mean)))
        found: np.ndarray = self.mean + self.sigma * np.sqrt(self.variance) * z
        return found

    def tell(self, candidates: np.ndarray, fitness: Sequence[float] | np.ndarray) -> None:
        """Move towards the better half. Raises UserError on a fitness that is not a finite number."""
        values = np.asarray(fitness, float)
        if not np.isfinite(values).all():
            raise UserError("a candidate's fitness is not a finite number")
        best = candidates[np.argsort(-values, kind="stable")[: len(self.weights)]]
        steps = (best - self.mean) / self.sigma
        move = self.weights @ steps
        self.generation += 1
        self.step_path = (1 - self._cs) * self.step_path + math.sqrt(self._cs * (2 - self._cs) * self._mass) * move / np.sqrt(
            self.variance
        )
        length = float(np.linalg.norm(self.step_path))
        settled = length / math.sqrt(1 - (1 - self._cs) ** (2 * self.generation)) < (1.4 + 2 / (len(self.mean) + 1)) * self._norm
        self.path = (1 - self._cc) * self.path + settled * math.sqrt(self._cc * (2 - self._cc) * self._mass) * move
        kept = 1 - self._c1 - self._cmu + (not settled) * self._c1 * self._cc * (2 - self._cc)
        self.variance = kept * self.variance + self._c1 * self.path**2 + self._cmu * (self.weights @ steps**2)
        self.mean = self.mean + self.sigma * move
        self.sigma *= math.exp(min(1.0, self._cs / self._damps * (length / self._norm - 1)))

    @property
    def state(self) -> SearchState:
        """Everything needed to continue."""
        arrays = (tuple(array.tolist()) for array in (self.mean, self.variance, self.path, self.step_path))
        return SearchState(self.sigma, self.seed, self.size, self.generation, *arrays)

    @classmethod
    def of(cls, state: SearchState) -> SepCma:
        """The search that is in ``state``."""
        search = cls(np.array(state.mean), state.sigma, state.seed, state.size)
        search.generation = state.generation
        search.variance, search.path, search.step_path = map(np.array, (state.variance, state.path, state.step_path))
        return search


def group_advantages(rewards: Sequence[float] | np.ndarray) -> np.ndarray:
    """(r - mean) / standard deviation of a group, (G,); zeros where all are equal [C]."""
    return normalise(np.asarray(rewards, np.float64), ddof=0, eps=1e-12)


def composer_reward(parsed: bool, value: float) -> float:
    """0 of a reply that is not a workflow, .5 of a wrong answer, 1 of a right one [C]; values between are between."""
    return 0.5 + 0.5 * value if parsed else 0.0


# -- headroom


def split_halves(repeats: int, seed: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """A random halving of repeats 0..R-1."""
    order = generator(seed, "halves", split).permutation(repeats)
    return order[: repeats // 2], order[repeats // 2 :]


def cross_fitted(rewards: np.ndarray, seed: int = 0, splits: int = SPLITS) -> tuple[np.ndarray, np.ndarray]:
    """Of rewards (I, L, R): what the per-task best worker and the best single worker get, (I,) each, both chosen on one half of
    the repeats and scored on the other. Raises UserError below two repeats.

    Chosen and scored on the same repeats, five equal workers that are right 7 times in 10 make an "oracle" of .92 to 1.00.
    """
    if rewards.ndim != 3 or rewards.shape[2] < 2:
        raise UserError("an oracle is cross-fitted over at least 2 repeats of every worker on every task")
    oracle, single = np.zeros(len(rewards)), np.zeros(len(rewards))
    rows = np.arange(len(rewards))
    for split in range(splits):
        halves = split_halves(rewards.shape[2], seed, split)
        for one, other in (halves, halves[::-1]):
            seen, scored = rewards[:, :, one].mean(axis=2), rewards[:, :, other].mean(axis=2)
            tied = seen == seen.max(axis=1, keepdims=True)
            oracle += (scored * tied).sum(axis=1) / tied.sum(axis=1)
            single += scored[rows, int(seen.mean(axis=0).argmax())]
    return oracle / (2 * splits), single / (2 * splits)


def by_group(rewards: np.ndarray, groups: Sequence[str], seed: int = 0, folds: int = 5) -> np.ndarray:
    """What each group's best worker gets, (I,), chosen on the tasks of the other folds:
    what a mere classifier of tasks can reach."""
    means, names = rewards.mean(axis=2), np.asarray(groups)
    fold = generator(seed, "folds").permutation(len(means)) % min(folds, len(means))
    found = np.zeros(len(means))
    for at in range(int(fold.max()) + 1):
        for name in np.unique(names[fold == at]):
            others = (fold != at) & (names == name)
            chosen = int(means[others if others.any() else fold != at].mean(axis=0).argmax())
            here = (fold == at) & (names == name)
            found[here] = means[here, chosen]
    return found


@dataclass(frozen=True)
class RoutingGain:
    """Mean difference of two systems on the same tasks."""

    value: float
    interval: tuple[float, float] | None
    """Student's at 95 %; None of a single task."""
    n: int
    tie: bool
    """0 lies in the interval, or there is none."""

    def __str__(self) -> str:
        ends = "" if self.interval is None else " [{:+.3f}, {:+.3f}]".format(*self.interval)
        return f"{self.value:+.3f}{ends}{' tie' if self.tie and ends else ''}"


def gain(values: np.ndarray, baseline: np.ndarray) -> RoutingGain:
    """What the first system has over the second."""
    differences = np.asarray(values, float) - np.asarray(baseline, float)
    low, high = mean_t(differences) if len(differences) > 1 else (-math.inf, math.inf)
    interval = (float(low), float(high)) if len(differences) > 1 else None
    return RoutingGain(float(differences.mean()), interval, len(differences), bool(low <= 0 <= high))


# -- workflows


@dataclass(frozen=True, slots=True)
class Workflow:
    """Steps in order: what is to be done, by which worker, and the earlier steps whose outputs that worker sees [C]."""

    subtasks: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    access: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.subtasks)

    def waves(self) -> list[list[int]]:
        """Steps that may run at the same time, wave after wave: each sees outputs of earlier waves only."""
        depth: list[int] = []
        for seen in self.access:
            depth.append(1 + max((depth[one] for one in seen), default=-1))
        return [[step for step, own in enumerate(depth) if own == wave] for wave in range(max(depth, default=-1) + 1)]

    def written(self) -> str:
        """As a composer writes it."""
        return json.dumps(codec.to_json(self), ensure_ascii=False)


_OPENS = re.compile(r"\{\s*\"(?:subtasks|workers|access)\"")
_TRIES = 8


def parse_workflow(text: str, workers: Collection[int], steps: int = STEPS, again: bool = False) -> Workflow:
    """The workflow at the end of a reply: a JSON object of three lists of one length, after any reasoning.

    ``workers`` are the numbers that may be named. Three empty lists accept the last answer, where ``again`` says that there is
    one. Raises ValueError, one clause, on anything else.
    """
    why = "it holds no JSON object with the lists 'subtasks', 'workers' and 'access'"
    for start in [found.start() for found in _OPENS.finditer(text)][: -_TRIES - 1 : -1]:
        try:
            record = json.JSONDecoder().raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            why = "its JSON is not closed or not valid"
            continue
        return read_workflow(record, workers, steps, again)
    raise ValueError(why)


def read_workflow(record: Any, workers: Collection[int], steps: int = STEPS, again: bool = False) -> Workflow:
    """The workflow that three lists are. Raises ValueError as :func:`parse_workflow`."""
    found = record if isinstance(record, Mapping) else {}
    subtasks, named, access = (found.get(name) for name in ("subtasks", "workers", "access"))
    if not isinstance(subtasks, list) or not isinstance(named, list) or not isinstance(access, list):
        raise ValueError("one of the lists 'subtasks', 'workers' and 'access' is missing")
    if not len(subtasks) == len(named) == len(access):
        raise ValueError(f"its lists have lengths {len(subtasks)}, {len(named)} and {len(access)}")
    if not subtasks:
        if again:
            return Workflow()
        raise ValueError("it has no step, and there is no earlier answer to accept")
    if len(subtasks) > steps:
        raise ValueError(f"it has {len(subtasks)} steps, and {steps} is the most")
    for step, (subtask, worker) in enumerate(zip(subtasks, named, strict=True)):
        if not isinstance(subtask, str) or not subtask.strip():
            raise ValueError(f"step {step} has no subtask")
        if type(worker) is not int or worker not in workers:
            raise ValueError(f"step {step} names worker {worker!r}, which is none of {sorted(workers)}")
    return Workflow(tuple(subtasks), tuple(named), tuple(_seen(step, one) for step, one in enumerate(access)))


def _seen(step: int, given: Any) -> tuple[int, ...]:
    if given == "all":
        return tuple(range(step))
    if not isinstance(given, list) or any(type(one) is not int or not 0 <= one < step for one in given):
        raise ValueError(f'the access of step {step} is {str(given)[:40]}: it is [], "all", or earlier steps')
    return tuple(sorted(set(given)))


# -- who sees what


@dataclass(frozen=True, slots=True)
class CallEvent:
    """One entry of a conversation's only log. Nothing is copied out of it: what a worker sees is :func:`view` of it."""

    workflow: int
    """Number of the workflow in the conversation."""
    step: int
    """Step whose event it is; -1: the user's."""
    kind: str
    """query, subtask, output, call (of a tool, or of what else a worker says before its output) or result (of a tool)."""
    text: str
    node: str = ""
    """Its node in the run, where there is one."""
    data: Mapping[str, Any] | None = None


OWN = ("subtask", "call", "result")


def view(log: Sequence[CallEvent], workflow: int, step: int, access: Collection[int]) -> list[CallEvent]:
    """What the worker of ``step`` sees, in order [F 3.8]: queries and tool calls with results of earlier workflows and their last
    outputs (shared memory); of this one the query, subtasks and outputs of the steps in ``access``,
    and its own events. Nothing else.
    """
    last = {event.workflow: event.step for event in log if event.kind == "output" and event.workflow < workflow}
    found = []
    for event in log:
        if event.workflow < workflow:
            answer = event.kind == "output" and event.step == last.get(event.workflow)
            seen = event.kind in ("query", "call", "result") or answer
        elif event.workflow > workflow:
            seen = False
        elif event.kind == "query":
            seen = True
        elif event.step == step:
            seen = event.kind in OWN
        else:
            seen = event.step in access and event.kind in ("subtask", "output")
        if seen:
            found.append(event)
    return sorted(
        found, key=lambda event: (event.workflow, event.step >= 0, event.step == step and event.workflow == workflow, event.step)
    )
