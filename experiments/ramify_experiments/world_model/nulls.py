"""What is known of simulated environments that are the real one, or differ from it in one way that is written here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.env.builtin.desk import BOOKINGS, VERBS, DeskEnvironment
from ramify.env.protocol import Environment, Task, TaskSet
from ramify.methods.world_model import Prediction, SimulatedEnvironment, Situation
from ramify.methods.world_model.environment import WorldRules
from ramify.methods.world_model.trajectories import LOST, WON
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.world_model.environments import VALUES, KvEnvironment

NOISE = 0.15


class Lookup:
    """The real environment as a predictor: the actions so far are played in it.
    ``change`` (situation, text, mark) may alter the answer."""

    def __init__(
        self, real: Environment, name: str, change: Callable[[Situation, str, str], tuple[str, str]] | None = None
    ) -> None:
        self.real, self.name, self.identity, self._change = real, name, stable_hash("lookup", name), change

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        """What the real environment answers after these actions, with the luck of the episode's seed."""
        text, mark = self.answered(situation, [action for action, _ in situation.turns])
        if self._change is not None:
            text, mark = self._change(situation, text, mark)
        whole = f"{text}\n{mark}" if mark else text
        return Prediction(whole, whole)

    def answered(self, situation: Situation, before: Sequence[str]) -> tuple[str, str]:
        """Text and mark after the actions ``before`` and the situation's own."""
        env = self.real.make()
        env.reset(Task(situation.task, json.loads(situation.state)), situation.seed)
        for action in before:
            if env.step(action).terminated:  # a changed world may have gone on
                return "Nothing happens.", ""
        seen = env.step(situation.action)
        return seen.text, "" if not seen.terminated else WON if seen.outcome else LOST


class Twin(SimulatedEnvironment):
    """A simulated environment with the tasks of the real one."""

    def __init__(self, predictor: Lookup) -> None:
        self._real = predictor.real
        turns = predictor.real.make().max_turns
        super().__init__(predictor, WorldRules(verify="model", seeded=True, max_turns=turns), name=predictor.name)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """The real environment's, each with what it shows first."""
        made = self._real.task_set(split, n, seed)
        return TaskSet.of(Task(t.id, {**t.data, "opening": self._real.make().reset(t, 0).text}) for t in made)


def exact() -> Twin:
    """The desk environment itself, luck included."""
    return Twin(Lookup(DeskEnvironment(), "exact"))


def flattering() -> Twin:
    """The desk environment, but whoever closes all three bookings is told to have won."""
    return Twin(Lookup(DeskEnvironment(), "flattering", lambda s, text, mark: (text, WON if mark else "")))


def forgetful() -> Twin:
    """The desk environment, but bookings that were closed are shown as open: it forgets every other action."""

    class _Forgets(Lookup):
        def answered(self, situation: Situation, before: Sequence[str]) -> tuple[str, str]:
            return super().answered(situation, before[1::2])

    return Twin(_Forgets(DeskEnvironment(), "forgetful"))


def agent(messages: list[dict[str, Any]], key: int) -> str:
    """Closes the booking on the screen as the customer claims it may be, or something else one time of four."""
    rng = random.Random(key)
    words = str(messages[-1]["content"]).rstrip(".").split()
    booking, wish, claim = words[-3:] if len(words) >= 3 else ["a", "cancel", "no"]
    if rng.random() < 0.25 or booking not in BOOKINGS:
        return f"{rng.choice(VERBS)} {rng.choice(BOOKINGS)}"
    return f"{wish if claim == 'yes' else 'deny'} {booking}"


# -- predictors of key-value servers, for `eval`


def noisy(situation: Situation) -> str:
    """The true answer, or, one time of seven, another: whatever was answered before."""
    text, _ = Lookup(KvEnvironment(), "kv").answered(situation, [action for action, _ in situation.turns])
    rng = generator(0, "noise", situation.hash)
    return str(rng.choice(VALUES)) if rng.random() < NOISE else text


def lost(situation: Situation) -> str:
    """As ``noisy``, but from its first error on it does not know where it is: every later answer is a guess."""
    env = KvEnvironment().make()
    env.reset(Task(situation.task, json.loads(situation.state)), 0)
    for action, observation in situation.turns:
        if env.step(action).text != observation:
            return str(generator(0, "lost", situation.hash).choice(VALUES))
    return noisy(situation)


def _play(rep: Repetition, world: str, name: str, attempts: int, seed: int) -> Path:
    out = rep.folder / name
    where = f"factory:{__name__}:{world}" if world != "desk" else "desk"
    rep.verb("rollout", "--env", where, "--model", f"python:{__name__}:agent", "--count", attempts, "--seed", seed, "--out", out)
    return out


def _audited(world: str, attempts: int, finding: str) -> Callable[[Repetition], bool]:
    """Actions in a simulated environment, played in the real one."""

    def found(rep: Repetition) -> bool:
        run = _play(rep, world, "simulated", attempts, rep.seed)
        return bool(rep.verb("world-model", "audit", run, "--env", "desk", "--seed", rep.seed)[finding])

    return found


def _beside(world: str, attempts: int) -> Callable[[Repetition], bool]:
    """The same agent in a simulated environment and in the real one, on the same tasks."""

    def found(rep: Repetition) -> bool:
        runs = [_play(rep, where, name, attempts, rep.seed) for where, name in ((world, "simulated"), ("desk", "real"))]
        return bool(rep.verb("world-model", "audit", runs[0], "--real", runs[1])["loophole"])

    return found


def _evaluated(predictor: str) -> Callable[[Repetition], bool]:
    def found(rep: Repetition) -> bool:
        run, world = rep.folder / "recorded", rep.folder / "world.toml"
        environment = f"factory:{__name__}:KvEnvironment"
        rep.verb("world-model", "record", "--env", environment, "--episodes", 24, "--turns", 10, "--seed", rep.seed, "--out", run)
        world.write_text(f'model = "predict:python:{__name__}:{predictor}"\n', encoding="utf-8")
        return bool(rep.verb("world-model", "eval", world, "--data", run, "--judge", "none")["drift"]["found"])

    return found


def _beside_baselines(model: str) -> Callable[[Repetition], bool]:
    """A world against lookups in recorded turns; ``model`` may name the recording ``first``."""

    def found(rep: Repetition) -> bool:
        environment, world = f"factory:{__name__}:KvEnvironment", rep.folder / "world.toml"
        for i, name in enumerate(("first", "second", "held")):
            words = ("--episodes", 24, "--turns", 10, "--seed", 3 * rep.seed + i, "--out", rep.folder / name)
            rep.verb("world-model", "record", "--env", environment, *words)
        world.write_text(f'model = "{model}"\n', encoding="utf-8")
        more = ("--mode", "forced", "--judge", "none", "--train", rep.folder / "second")
        return bool(rep.verb("world-model", "eval", world, "--data", rep.folder / "held", *more)["better"])

    return found


NOTHING: dict[str, Any] = {"wanted": 0.05, "full": 100, "quick": 12}
PLANTED: dict[str, Any] = {"wanted": 0.8, "full": 30, "quick": 5}

CASES = (
    KnownCase(
        "audit: the simulated environment is the real one",
        "nothing",
        "A desk whose answers are the real desk's with luck of its own; a finding is drift, over the luck that the real one has "
        "itself.",
        _audited("exact", 30, "drift"),
        **NOTHING,
    ),
    KnownCase(
        "audit --real: the same agent in both",
        "nothing",
        "The same agent plays the same tasks in that desk and in the real one; a finding is success that is not real.",
        _beside("exact", 30),
        **NOTHING,
    ),
    KnownCase(
        "eval: errors that leave no trace",
        "nothing",
        f"A server whose answers are wrong {NOISE:.0%} of the time, whatever was answered before; a finding is drift in closed "
        "loop.",
        _evaluated("noisy"),
        **NOTHING,
    ),
    KnownCase(
        "eval: a lookup in another recording",
        "nothing",
        "A world that looks up the nearest turn of one recording, beside the baselines, of which one does so in another; a "
        "finding is that it is better.",
        _beside_baselines("retrieval:first"),
        **NOTHING,
    ),
    KnownCase(
        "audit --real: everyone wins",
        "planted",
        "A desk that calls every finished episode a success; a finding is success that is not real.",
        _beside("flattering", 30),
        **PLANTED,
    ),
    KnownCase(
        "audit: it forgets",
        "planted",
        "A desk that forgets every other action; a finding is drift.",
        _audited("forgetful", 30, "drift"),
        **PLANTED,
    ),
    KnownCase(
        "eval: errors that stay",
        "planted",
        "The same server, which only guesses after its first error; a finding is drift in closed loop.",
        _evaluated("lost"),
        **PLANTED,
    ),
    KnownCase(
        "eval: a world that knows",
        "planted",
        f"A server whose answers are wrong {NOISE:.0%} of the time, beside the baselines; a finding is that it is better than "
        "all of them.",
        _beside_baselines(f"predict:python:{__name__}:noisy"),
        **PLANTED,
    ),
)
