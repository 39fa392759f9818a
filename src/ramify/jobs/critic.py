"""A critic shared by all tasks: the chance of success from a state, read from the agent's hidden state before its step.

One small head (tanh units, a logistic output) on the agent's last hidden state at the token that its reply follows, and the share
of turns used. After each update it is trained on the newest states; before any task was won a few times it says nothing, because
a critic that has seen failures only prefers whatever it has seen least of.

Axis legend: N states, F features (the agent's width and one), H units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.seeds import generator
from ramify.env.protocol import tools_of
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.stats.ranking import auroc
from ramify.trace.node import Node
from ramify.trace.tree import Tree
from ramify.train.batch import rows_from_path

if TYPE_CHECKING:
    from ramify.engine.local import LocalModel

BETAS, BATCH = (0.9, 0.99), 256
"""Adam's decay rates and the states of one step."""


class CriticConfig(Config):
    """The critic that credit rules and samplings may ask."""

    wins: int = Field(default=4, ge=1)
    """tasks won before it is asked; until then states that were not seen before are preferred"""
    units: int = Field(default=32, ge=1)
    """units of its head"""
    recent: int = Field(default=4096, ge=1)
    """states it is trained on: the newest"""
    epochs: int = Field(default=8, ge=1)
    """passes over them at each update"""
    lr: float = Field(default=3e-3, gt=0)
    """learning rate of Adam"""
    decay: float = Field(default=1e-2, ge=0)
    """decoupled weight decay"""


class SharedCritic:
    """The head, the states it was trained on last, and the success rate of independent attempts. Deterministic given its seed."""

    def __init__(self, config: CriticConfig | None = None, seed: int = 0) -> None:
        self.config, self.seed = config or CriticConfig(), seed
        self.won = 0
        """Tasks won so far, a task once an update."""
        self.fits = 0
        self.flat = np.zeros(2)
        """Wins and number of attempts from the start to the end, older ones counting less."""
        self._weights: dict[str, np.ndarray] = {}
        self._x, self._y = np.zeros((0, 0), np.float32), np.zeros(0, np.float32)

    @property
    def speaks(self) -> bool:
        """Whether it has seen enough wins to be asked."""
        return bool(self._weights) and self.won >= self.config.wins

    @property
    def rate(self) -> float:
        """Success rate of independent attempts; 1 in 10 before any was made."""
        return float((1 + self.flat[0]) / (10 + self.flat[1]))

    def value(self, features: np.ndarray) -> np.ndarray:
        """Chance of success from states, float64 (N,), from ``features`` (N, F). Only where it :attr:`speaks`."""
        return np.asarray(1 / (1 + np.exp(-self._head(self._inputs(features))[1])))

    def note(self, won: int, outcomes: Sequence[bool]) -> None:
        """``won`` tasks were won at an update, and independent attempts ended with ``outcomes``."""
        self.won += won
        self.flat = 0.8 * self.flat + [sum(outcomes), len(outcomes)]

    def learn(self, features: np.ndarray, targets: np.ndarray) -> float | None:
        """Train on ``features`` (N, F), whose states led to success with frequency ``targets`` (N,),
        and on states of earlier updates.

        Returns how well it told them apart before it saw them (area under the ROC curve of those above and below one half), None
        where it did not speak or all ended alike. Nothing is learned before there was a win."""
        quality = auroc(self.value(features), targets > 0.5) if self.speaks and len(targets) else None
        if len(features):
            if self._x.shape[1:] != features.shape[1:]:
                self._x, self._y = features[:0].astype(np.float32), np.zeros(0, np.float32)
            self._x = np.concatenate([self._x, features.astype(np.float32)])[-self.config.recent :]
            self._y = np.concatenate([self._y, targets.astype(np.float32)])[-self.config.recent :]
        if self.won and len(self._y):
            self._fit()
        return quality

    def _inputs(self, features: np.ndarray) -> np.ndarray:
        """Features on the scale of those it was trained on."""
        return np.asarray((features - self._weights["mean"]) / self._weights["scale"])

    def _head(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Units (N, H) and logits (N,)."""
        w = self._weights
        units = np.tanh(inputs @ w["into"] + w["bias"])
        return units, units @ w["out"] + w["base"]

    def _fit(self) -> None:
        c, x, y = self.config, self._x.astype(np.float64), self._y.astype(np.float64)
        if not self._weights:
            rate, rng = float(y.mean().clip(0.01, 0.99)), generator(self.seed, "critic")
            self._weights = {
                "into": rng.normal(size=(x.shape[1], c.units)) / np.sqrt(x.shape[1]),
                "bias": np.zeros(c.units),
                "out": np.zeros(c.units),
                "base": np.full((), np.log(rate / (1 - rate))),
            }
        self._weights |= {"mean": x.mean(axis=0), "scale": x.std(axis=0) + 1e-3}
        inputs = self._inputs(x)
        trained = ("into", "bias", "out", "base")
        moments = {name: [np.zeros_like(self._weights[name]), np.zeros_like(self._weights[name])] for name in trained}
        step = 0
        for epoch in range(c.epochs):
            order = generator(self.seed, "critic order", self.fits, epoch).permutation(len(x))
            for start in range(0, len(order), BATCH):
                rows, step = order[start : start + BATCH], step + 1
                for name, slope in self._slopes(inputs[rows], y[rows]).items():
                    first, second = moments[name]
                    first += (1 - BETAS[0]) * (slope - first)
                    second += (1 - BETAS[1]) * (slope**2 - second)
                    change = first / (1 - BETAS[0] ** step) / (np.sqrt(second / (1 - BETAS[1] ** step)) + 1e-8)
                    shrink = c.decay if name in ("into", "out") else 0.0
                    self._weights[name] = self._weights[name] - c.lr * (change + shrink * self._weights[name])
        self.fits += 1

    def _slopes(self, inputs: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Gradient of the mean cross-entropy."""
        units, logits = self._head(inputs)
        error = (1 / (1 + np.exp(-logits)) - y) / len(y)
        back = np.outer(error, self._weights["out"]) * (1 - units**2)
        return {"into": inputs.T @ back, "bias": back.sum(axis=0), "out": units.T @ error, "base": error.sum()}

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything needed to continue: arrays by name and a JSON record."""
        arrays = {f"critic.{name}": np.asarray(value) for name, value in self._weights.items()}
        arrays |= {"critic.states": self._x, "critic.targets": self._y}
        return arrays, {"won": self.won, "fits": self.fits, "flat": self.flat.tolist()}

    def restore(self, arrays: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        stored = {
            name.removeprefix("critic."): np.asarray(value).copy() for name, value in arrays.items() if name.startswith("critic.")
        }
        self._x, self._y = stored.pop("states"), stored.pop("targets")
        self._weights = stored
        self.won, self.fits, self.flat = int(record["won"]), int(record["fits"]), np.array(record["flat"], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class StepStates:
    """The states in which the steps of an update were taken."""

    at: Mapping[str, int]
    """Node of the step -> its row."""
    features: np.ndarray
    """float32 (N, F)."""

    def of(self, nodes: Iterable[str]) -> np.ndarray:
        """The features of steps."""
        return self.features[np.array([self.at[node] for node in nodes], dtype=np.int64)]


async def states_of(
    model: LocalModel, episodes: Episodes, trees: Mapping[str, Tree], ends: Sequence[Attempt], max_turns: int
) -> StepStates:
    """The state before every step on the paths to ``ends``; paths are run through the agent once each."""
    at: dict[str, int] = {}
    used: list[float] = []
    rows, positions = [], []
    for attempt in ends:
        tree = trees[attempt.tree]
        path = tree.path(attempt.leaf)
        steps = [node for node, _ in path.segments if node.role == "assistant" and node.sampled_tokens]
        fresh = {node.id: number for number, node in enumerate(steps) if node.id not in at}
        marks = {node.id: np.full(len(node), fresh[node.id] + 1, np.float32) for node in steps if node.id in fresh}
        for row in rows_from_path(path, tree.node, episodes.run.context, {"step": marks}, model.context) if fresh else ():
            number = np.where(row.mask, row.token_values["step"], 0).astype(np.int64)
            codes, first = np.unique(number, return_index=True)
            chosen = [(int(n) - 1, int(where) - 1) for n, where in zip(codes, first, strict=True) if n]
            if chosen:
                rows.append(row.tokens)
                positions.append([where for _, where in chosen])
                for step, _ in chosen:
                    at[steps[step].id] = len(at)
                    used.append(step / max_turns)
    if not rows:
        return StepStates({}, np.zeros((0, 0), np.float32))
    return StepStates(at, _features(await model.hidden(rows, positions), used))


def outcomes_of(
    critic: SharedCritic, states: StepStates, trees: Mapping[str, Tree], ends: Sequence[Attempt]
) -> tuple[np.ndarray, np.ndarray]:
    """What the critic learns from an update: features (N, F) of its states and how often each led to success (N,).

    Equal states of one tree share their outcomes (graph-credit's merge). An attempt that was dropped counts as the critic's value
    of the state before its last step; where the critic does not speak it counts for nothing."""
    results: dict[tuple[str, str], list[float]] = {}
    where: dict[str, tuple[str, str]] = {}
    for attempt in ends:
        tree = trees[attempt.tree]
        steps = [node for node, _ in tree.path(attempt.leaf).segments if node.id in states.at]
        if not steps or attempt.failure is not None or (attempt.paused and not critic.speaks):
            continue
        result = float(critic.value(states.of([steps[-1].id]))[0]) if attempt.paused else float(bool(attempt.outcome))
        passed = {}
        for node in steps:
            key = tree.node(str(node.parent)).state_key
            where[node.id] = passed[node.id] = attempt.tree, node.id if key is None else key
        for state in dict.fromkeys(passed.values()):
            results.setdefault(state, []).append(result)
    return states.of(where), np.array([np.mean(results[state]) for state in where.values()])


async def states_at(model: LocalModel, episodes: Episodes, nodes: Sequence[Node], max_turns: int) -> np.ndarray:
    """The states in which the agent would continue after ``nodes``, float32 (N, F)."""
    positions = [episodes.prompts.at(node) for node in nodes]
    tools = tools_of(episodes.environment)
    prefixes = [episodes.prompts.prompt(position, tools).prefix.tokens for position in positions]
    rows = [prefix for prefix in prefixes if prefix is not None]
    hidden = await model.hidden(rows, [[len(row) - 1] for row in rows])
    return _features(hidden, [position.turns / max_turns for position in positions])


def _features(states: Sequence[np.ndarray], used: Sequence[float]) -> np.ndarray:
    return np.concatenate([np.concatenate(states), np.asarray(used, np.float32)[:, None]], axis=1)
