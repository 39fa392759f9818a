"""Agents trained in a real search environment and in simulations of it:
how often a snippet holds the answer decides what they learn.

The agent is a softmax policy over what it has seen, not a language model (see the evidence page);
episodes are played side by side.

Axis legend: B episodes, S what the agent has seen, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.methods.world_model.control import Moment, Stingy
from ramify.methods.world_model.environment import SimulatedEnv
from ramify.methods.world_model.store import EnvCall
from ramify_experiments.world_model.environments import KINDS, NAMES, VALUES, page
from ramify_experiments.world_model.fidelity import WorldRecipe, simulated

NOTHING, CUT, PRICE = range(3)
"""What the agent has seen: nothing, a snippet without the price, the price."""
SEARCH, OPEN, ANSWER = range(3)
START = np.log(np.array([[0.90, 0.05, 0.05], [0.45, 0.10, 0.45], [0.10, 0.10, 0.80]]))
"""(S, A): what demonstrations teach: it searches first, and seldom opens a page."""
TURNS = 4
REAL, STINGY = 0.775, 0.1
"""Share of names whose snippet holds the price: in the real environment (70 to 85 %), in the stingy simulation."""


@dataclass(frozen=True)
class ShownPrices:
    """What an environment shows of each of its names, and the truth."""

    truth: np.ndarray
    """int (N,): the price of each name."""
    snippet: np.ndarray
    """int (N,): the price as an uncut snippet shows it; -1 where it shows none."""
    page: np.ndarray
    """int (N,): the same of the page."""


def rows(seed: int) -> dict[str, dict[str, str]]:
    """A world of fifty invented rows."""
    rng = generator(seed, "stingy rows")
    return {name: {kind: str(rng.choice(VALUES)) for kind in KINDS} for name in NAMES}


def exact_answers(seed: int) -> ShownPrices:
    """What the real environment shows."""
    truth = np.array([VALUES.index(row["price"]) for row in rows(seed).values()])
    return ShownPrices(truth, truth, truth)


def learned_answers(seed: int, recipe: dict[str, Any]) -> ShownPrices:
    """What the world model of the fidelity experiment shows of the same rows,
    which the state store gives it; the truth is the store's."""
    environment, made = simulated(WorldRecipe(**recipe).model()), rows(seed)  # one model for all seeds
    shown: dict[str, list[int]] = {"search": [], "open": []}
    for name, row in made.items():
        for verb, found in shown.items():
            env = SimulatedEnv(environment)
            env.reset(Task(f"{verb} {name}", {"opening": "search"}), 0)
            found.append(price_in(env.step(f"{verb} {name} {page(name, row)}").text))
    truth = np.array([VALUES.index(row["price"]) for row in made.values()])
    return ShownPrices(truth, np.array(shown["search"]), np.array(shown["open"]))


def price_in(text: str) -> int:
    """The price that a text shows; -1 where it shows none."""
    words = text.split()
    value = words[words.index("price") + 1] if "price" in words[:-1] else ""
    return VALUES.index(value) if value in VALUES else -1


def cut(name: str, share: float, rng: np.random.Generator) -> bool:
    """Whether the control of the library cuts a snippet of ``name``."""
    text = f"{name} price v0"
    return Stingy(share, 1).after(EnvCall("search", {"1": name}), text, Moment(0, rng, {})) != text


def played(
    policy: np.ndarray, answers: ShownPrices, whole: float, rng: np.random.Generator, batch: int
) -> tuple[np.ndarray, ...]:
    """A batch of episodes: success (B,), pages opened (B,), and the steps as (episode, seen, action).

    Success is the verifier's: the answer against the truth of the rows, never the text of the simulation.
    """
    names = rng.integers(0, len(answers.truth), batch)
    withheld = np.array([cut(NAMES[i], whole, rng) for i in names])
    seen, value = np.zeros(batch, int), np.full(batch, -1)
    done, success, opened = np.zeros(batch, bool), np.zeros(batch, bool), np.zeros(batch)
    steps: list[tuple[int, int, int]] = []
    searched = np.zeros(batch, bool)
    for _ in range(TURNS):
        chances = np.exp(policy - policy.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        actions = (rng.random(batch)[:, None] > chances[seen].cumsum(axis=1)).sum(axis=1).clip(max=2)
        for i in np.flatnonzero(~done):
            steps.append((int(i), int(seen[i]), int(actions[i])))
        live = ~done
        search = live & (actions == SEARCH)
        searched |= search
        shown = np.where(search & ~withheld, answers.snippet[names], -1)
        shown = np.where(live & (actions == OPEN) & searched, answers.page[names], shown)
        opened += live & (actions == OPEN) & searched
        value = np.where(shown >= 0, shown, value)
        seen = np.where(value >= 0, PRICE, np.where(searched, CUT, NOTHING))
        answered = live & (actions == ANSWER)
        guess = rng.integers(0, len(VALUES), batch)
        success |= answered & (np.where(value >= 0, value, guess) == answers.truth[names])
        done |= answered
    return success, opened, np.array(steps)


def trained(seed: int, arm: str, updates: list[int], recipe: dict[str, Any], batch: int, lr: float, test: int) -> dict[str, Any]:
    """REINFORCE with the batch's mean as baseline, in the environment of ``arm``; success and pages opened in the real one after
    each of ``updates``, and before."""
    answers = learned_answers(seed, recipe) if arm == "learned, stingy" else exact_answers(seed)
    whole = {"real": REAL, "uncontrolled": 1.0}.get(arm, STINGY)
    policy, rng = START.copy(), generator(seed, "stingy", arm)
    real = exact_answers(seed)

    def tested(count: int) -> dict[str, float]:
        success, opened, _ = played(policy, real, REAL, generator(seed, "stingy test", count), test)
        return {"success": float(success.mean()), "opens": float(opened.mean())}

    found = {"0": tested(0)}
    for update in range(1, max(updates) + 1):
        success, _, steps = played(policy, answers, whole, rng, batch)
        advantage = success - success.mean()
        gradient = np.zeros_like(policy)
        chances = np.exp(policy) / np.exp(policy).sum(axis=1, keepdims=True)
        weights = advantage[steps[:, 0]]
        np.add.at(gradient, (steps[:, 1], steps[:, 2]), weights)
        visits = np.bincount(steps[:, 1], weights, len(policy))
        gradient -= visits[:, None] * chances
        policy += lr * gradient / batch
        if update in updates:
            found[str(update)] = tested(update)
    right = float(np.mean(answers.page == answers.truth))
    return {**found, "pages right": right}
