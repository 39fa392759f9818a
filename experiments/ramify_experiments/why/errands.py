"""Errands with a known pivotal step: an agent that picks one of some options at every step,
and a rule that says when the errand fails.

The agent's picks do not depend on each other, so the chance of success after every step is known exactly, and with it the step
that lost a failed attempt: the one at which that chance fell most, or none where it nowhere fell by more than ``LEAST``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.jobs.why.records import LEAST
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import Message

KINDS = ("single", "two", "late", "none", "noise")
VERBS = ("open", "search", "read", "write", "move", "call", "mail", "fetch")
LUCK = 20
"""Options of the step that only chance decides."""


@dataclass(frozen=True)
class Errand:
    """One errand and one failed attempt at it. Steps and options count from 0."""

    kind: str
    chances: tuple[tuple[float, ...], ...]
    """The agent's distribution at every step, (T, options)."""
    good: Mapping[int, tuple[int, ...]]
    """Step -> its good options."""
    need: int
    """How many good steps it takes."""
    luck: tuple[int, int] | None
    """The last step succeeds by options below the first number after enough good steps,
    below the second after fewer; None without luck."""
    errors: frozenset[tuple[int, int]]
    """(step, option) that is answered by an error message."""
    picks: tuple[int, ...]
    """What the failed attempt did, (T,)."""
    flaky: float | None = None
    """The chance with which the environment alone lets it succeed at the end, whatever was done; None where it does not."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.chances)

    def succeeds(self, picks: Sequence[int]) -> bool:
        """Whether a whole attempt succeeds."""
        enough = sum(picks[t] in good for t, good in self.good.items()) >= self.need
        if self.luck is None:
            return enough
        return picks[-1] < self.luck[0 if enough else 1]

    def potential(self, t: int) -> float:
        """The chance of success after the first ``t`` steps of the failed attempt, exactly;
        at its end of the same actions again."""
        if self.flaky is not None:
            return self.flaky
        left = np.ones(1)  # distribution of how many good steps follow
        have = 0
        for step, good in self.good.items():
            if step < t:
                have += self.picks[step] in good
            else:
                p = sum(self.chances[step][option] for option in good)
                left = np.convolve(left, [1 - p, p])
        enough = float(left[max(0, self.need - have) :].sum())
        if self.luck is None:
            return enough
        if t == self.steps:
            return float(self.succeeds(self.picks))
        return enough * self.luck[0] / LUCK + (1 - enough) * self.luck[1] / LUCK

    @property
    def potentials(self) -> list[float]:
        """The chance after every step, (T + 1,)."""
        return [self.potential(t) for t in range(self.steps + 1)]

    @property
    def answer(self) -> int | None:
        """The step that lost it, from 1; None where none did."""
        v = self.potentials
        falls = [v[t] - v[t + 1] for t in range(self.steps)]
        worst = int(np.argmax(falls))
        return worst + 1 if falls[worst] > LEAST else None

    def says(self, step: int, option: int) -> str:
        """What the agent says."""
        return f"{VERBS[step % len(VERBS)]} {'abcdefghijklmnopqrstuvwxyz'[option]}"

    def answered(self, step: int, option: int) -> str:
        """What it gets back."""
        return f"error: {option} refused" if (step, option) in self.errors else f"step {step + 1} done"


def errand(kind: str, seed: int) -> Errand:
    """A generated errand of a kind with a failed attempt that shows what the kind says; the same for the same seed."""
    for attempt in range(10_000):
        rng = generator(seed, "errand", kind, attempt)
        made = _sample(kind, rng, none=seed % 4)
        if made is not None:
            return made
    raise RuntimeError(f"no errand of kind {kind} and seed {seed}")


def _sample(kind: str, rng: np.random.Generator, none: int) -> Errand | None:
    steps = int(rng.integers(4, 13))
    chances = [tuple(rng.dirichlet(np.full(int(rng.integers(2, 6)), 2.0)).tolist()) for _ in range(steps)]
    good: dict[int, tuple[int, ...]] = {}
    luck, need, flaky = None, 1, None
    if kind in ("single", "late", "noise"):
        at = int(rng.integers(max(0, steps - 2), steps)) if kind == "late" else int(rng.integers(0, steps - (kind == "noise")))
        chances[at], good[at] = _fork(rng, 0.4, 0.9)
    elif kind == "two":
        for at in sorted(rng.choice(steps, 2, replace=False).tolist()):
            chances[at], good[at] = _fork(rng, 0.3, 0.7)
    elif none == 0:  # nothing helps
        need = 1
    elif none == 1:  # many steps, each of which matters little
        steps = 24
        chances = []
        for t in range(steps):
            picked, good[t] = _fork(rng, 0.4, 0.6)
            chances.append(picked)
        need = int(rng.integers(15, 19))
    elif none == 2:  # the environment alone decides
        flaky = float(rng.uniform(0.3, 0.8))
    else:  # a small chance that the last step decides
        luck = (1, 1)
        need = 0
    if kind == "noise":
        luck = (int(rng.integers(13, 20)), int(rng.integers(1, 3)))
    if luck is not None:
        chances[-1] = tuple([1 / LUCK] * LUCK)
    picks = tuple(int(rng.choice(len(p), p=p)) for p in chances)
    errors = {(t, 0) for t in range(steps) if t not in good and rng.random() < 0.3 and chances[t][0] < 0.5}
    if kind == "late":  # an early slip that costs nothing
        errors |= {(0, picks[0])} if 0 not in good else set()
    errors |= {
        (t, option) for t, ok in good.items() if rng.random() < 0.4 for option in range(len(chances[t])) if option not in ok
    }
    made = Errand(kind, tuple(chances), good, need, luck, frozenset(errors), picks, flaky)
    if made.succeeds(picks):
        return None
    if kind == "none":
        return made if made.answer is None else None
    if kind == "noise" and made.answer != next(iter(good)) + 1:  # luck lost it
        return None
    return made if made.answer is not None else None


def _fork(rng: np.random.Generator, low: float, high: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Three or four options and the good ones among them, which the agent takes with a chance between ``low`` and ``high``."""
    options, p = int(rng.integers(3, 5)), float(rng.uniform(low, high))
    shares = rng.dirichlet(np.full(options - 1, 2.0)) * (1 - p)
    at = int(rng.integers(options))
    return tuple(np.insert(shares, at, p).tolist()), (at,)


def peers_case(bad: float, both: bool) -> Errand:
    """A synthetic case of causal-agent-replay's tests: three steps, of which the second is picked badly with this chance;
    ``both``: the first as well, and only both together fail."""
    pick = (bad, 1 - bad)
    if both:
        return Errand("both", (pick, pick, (1.0,)), {0: (1,), 1: (1,)}, 1, None, frozenset(), (0, 0, 0))
    return Errand("pivotal", ((1.0,), pick, (1.0,)), {1: (1,)}, 1, None, frozenset(), (0, 0, 0))


# -- the same as an environment and an agent
# --------------------------------------------------------------------------------------


class ErrandEnv:
    """One episode. ``states``: whether it reports its state, so that attempts that come to the same are one."""

    system = ""

    def __init__(self, errand: Errand, states: bool = False, chance: np.random.Generator | None = None) -> None:
        self.errand, self.states, self.chance = errand, states, chance
        self.max_turns = errand.steps + 1
        self.picks: list[int] = []

    def reset(self, task: Task, seed: int) -> Observation:
        """See :class:`ramify.env.protocol.Env`."""
        self.picks = []
        return Observation("the errand begins")

    def step(self, action: str) -> Observation:
        """See :class:`ramify.env.protocol.Env`."""
        t, option = len(self.picks), "abcdefghijklmnopqrstuvwxyz".index(action[-1])
        self.picks.append(option)
        done = len(self.picks) == self.errand.steps
        won = done and self.errand.succeeds(self.picks)
        if done and self.errand.flaky is not None and self.chance is not None:
            won = bool(self.chance.random() < self.errand.flaky)
        return Observation(self.errand.answered(t, option), float(won), done, outcome=won if done else None)

    def snapshot(self) -> Any:
        """See :class:`ramify.env.protocol.Env`."""
        return list(self.picks)

    def restore(self, snapshot: Any) -> None:
        """See :class:`ramify.env.protocol.Env`."""
        self.picks = list(snapshot)

    def key(self) -> str | None:
        """The step and how many good ones there were."""
        if not self.states:
            return None
        have = sum(self.picks[t] in good for t, good in self.errand.good.items() if t < len(self.picks))
        end = self.errand.succeeds(self.picks) if len(self.picks) == self.errand.steps else ""
        return f"{len(self.picks)} {have} {end}"


class ErrandEnvironment:
    """The environment of one errand. ``seed`` is that of its own chance,
    which goes on from episode to episode; None while it fails."""

    name = "errand"

    def __init__(self, errand: Errand, states: bool = False, seed: int | None = None) -> None:
        self.errand, self.states = errand, states
        self.chance = None if seed is None else generator(seed, "flaky")

    def make(self) -> ErrandEnv:
        """See :class:`ramify.env.protocol.Environment`."""
        return ErrandEnv(self.errand, self.states, self.chance)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """See :class:`ramify.env.protocol.Environment`."""
        return TaskSet.of([Task(f"{split}-{i}") for i in range(n)])


def agent(errand: Errand) -> ScriptedModel:
    """The agent, without tokens."""

    def reply(messages: Sequence[Message], key: int) -> str:
        t = sum(message.role == "assistant" for message in messages)
        p = errand.chances[t]
        pick = int(np.searchsorted(np.cumsum(p), generator(key, "pick").random() * sum(p), side="right"))
        return errand.says(t, min(pick, len(p) - 1))

    return ScriptedModel(reply, tokens=False, name=f"errand {derive_key(0, repr(errand)) % 10**9}")


def recorded(errand: Errand) -> ScriptedModel:
    """What plays the failed attempt again."""
    return ScriptedModel([errand.says(t, option) for t, option in enumerate(errand.picks)], tokens=False, name="recorded")
