"""Credit shared over steps: the two that fail only together get theirs, nothing does where nothing was lost,
and what is there is not played again."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramify
from ramify.base import codec
from ramify.base.errors import RamifyError, UserError
from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.jobs.share import Looks, ShareWalk, take, walks
from ramify.jobs.why import found
from ramify.jobs.why.findings import read
from ramify.jobs.why.records import StepShare
from ramify.model.scripted import ScriptedModel
from ramify.rollout.attempts import Attempt
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.web.shares import share_picture


class Room:
    """Six steps; it fails where the second and the fifth are both ``b``. ``chance``: the environment alone decides."""

    max_turns, system = 8, ""

    def __init__(self, chance: np.random.Generator | None, refuses: bool) -> None:
        self.chance, self.refuses = chance, refuses
        self.done: list[str] = []

    def reset(self, task: Task, seed: int) -> Observation:
        self.done = []
        return Observation("start")

    def step(self, action: str) -> Observation:
        if self.refuses and action == "a":
            raise ValueError("refused")
        self.done.append(action)
        end = len(self.done) == 6
        won = not (self.done[1] == self.done[4] == "b") if end else False
        if end and self.chance is not None:
            won = bool(self.chance.random() < 0.5)
        return Observation(f"step {len(self.done)}", float(won), end, outcome=won if end else None)

    def snapshot(self) -> Any:
        return list(self.done)

    def restore(self, snapshot: Any) -> None:
        self.done = list(snapshot)

    def key(self) -> str | None:
        return None


class Rooms:
    name = "rooms"

    def __init__(self, chance: int | None = None, refuses: bool = False) -> None:
        self.chance = None if chance is None else generator(chance, "rooms")
        self.refuses = refuses

    def make(self) -> Room:
        return Room(self.chance, self.refuses)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([Task(f"{split}-{i}") for i in range(n)])


def agent() -> ScriptedModel:
    return ScriptedModel(lambda messages, key: "ab"[generator(key, "room").integers(2)], name="rooms")


def failed_run(path: Path, environment: Rooms | None = None) -> Path:
    """One attempt that picked ``b`` each time, the agent's tokens included."""
    ramify.play(ScriptedModel(["b"] * 6, name="b"), environment or Rooms(), [{"id": "room"}], out=path)
    return path


def test_two_steps_that_fail_together_share_the_loss(tmp_path: Path) -> None:
    run, played = failed_run(tmp_path / "run"), list[Attempt]()
    why = ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, on_attempt=played.append)
    assert why.share is not None
    assert [step.credited for step in why.share.steps] == [t in (1, 4) for t in range(6)]
    values = [step.share or 0.0 for step in why.share.steps]
    # exactly, each of the two has half * (1 - half / 2), and the shares sum to the whole loss
    for step in why.share.steps:
        assert step.interval is not None
        assert step.interval[0] <= (-0.375 if step.credited else 0.0) <= step.interval[1]
    assert why.share.start.p is not None
    assert sum(values) == pytest.approx(-why.share.start.p)
    assert why.share.samples <= 6 * why.share.walks
    # what the two branches of a walk have in common is played once: half of the steps did anyway what was done
    turns = sum(turn.node.provenance is not None for attempt in played for turn in attempt.turns)
    assert turns < 6 * len(played) / 1.5
    with Run.open(run) as stored:
        assert found(stored) == [why]
    assert share_picture(why.share).count("<circle") == 6
    hostile = StepShare("n", "<script>", 0.5, (0.0, 1.0), True)
    assert "<script" not in share_picture(replace(why.share, steps=(hostile,)))
    assert share_picture(None) == share_picture(replace(why.share, steps=())) == ""
    record = codec.to_json(why)
    assert read(Finding("lost here", "why", "", evidence=record)) == why
    for forged in (
        None,
        {"share": 3},
        record | {"share": record["share"] | {"steps": [3]}},
        record | {"share": record["share"] | {"steps": [{**record["share"]["steps"][0], "interval": [0, float("nan")]}]}},
        record | {"share": record["share"] | {"steps": [{**record["share"]["steps"][0], "share": 1e300}]}},
        record | {"before": {**record["before"], "k": -1}},
    ):
        assert read(Finding("lost here", "why", "", evidence=forged)) is None
    # attempts in which steps were held count neither as attempts nor for a later search
    assert ramify.why(run, model=agent(), env=Rooms(), describe=0).free == 0
    played.clear()
    assert ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, on_attempt=played.append) == why
    assert not any(turn.node.provenance for attempt in played for turn in attempt.turns)  # the repetitions of what was done alone


@pytest.mark.slow
def test_an_interrupted_share_continues(tmp_path: Path) -> None:
    whole = ramify.why(failed_run(tmp_path / "whole"), model=agent(), env=Rooms(), share=True, describe=0)
    run, left = failed_run(tmp_path / "run"), 60

    def stop(attempt: Attempt) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, on_attempt=stop)
    sampled: list[Attempt] = []
    again = ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, on_attempt=sampled.append)
    assert replace(again, run=whole.run, commands=whole.commands) == whole
    assert len(sampled) < whole.samples + (0 if whole.share is None else whole.share.samples)


@pytest.mark.slow
def test_no_step_gets_credit_where_the_environment_alone_decides(tmp_path: Path) -> None:
    credited = 0
    for seed in range(4):
        rooms = Rooms(chance=seed)
        run = tmp_path / f"run-{seed}"
        ramify.play(ScriptedModel(["b"] * 6, name="b"), rooms, [{"id": "room"}], attempts=4, out=run)
        why = ramify.why(run, model=agent(), env=rooms, n=12, share=True, describe=0)
        assert why.share is not None
        credited += bool(why.share.credited)
    assert credited <= 1


def test_budgets_and_mistakes(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run")
    why = ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, samples=60)
    assert why.spent
    assert why.share is not None
    assert why.samples + why.share.samples <= 60
    none = ramify.why(run, model=agent(), env=Rooms(), share=True, describe=0, samples=5)
    assert none.share is not None
    assert (none.share.walks, none.share.steps[0].share, none.share.credited) == (0, None, [])
    with Run.open(run) as stored:
        assert found(stored) == [none]
    with pytest.raises(UserError, match="say what plays"):
        ramify.why(run, share=True)
    refusing = failed_run(tmp_path / "refusing", Rooms(refuses=True))
    with pytest.raises(RamifyError, match="every continuation failed"):
        ramify.why(refusing, model=ScriptedModel(["a"] * 6, name="a"), env=Rooms(refuses=True), share=True)


# -- the walks, without a run
# --------------------------------------------------------------------------------------------------------


class Dice:
    """Steps that are 1 with chance 0.5, recorded as 0; ``wins`` decides."""

    def __init__(self, steps: int, wins: Any, seed: int) -> None:
        self.steps, self.wins, self.rng, self.played = steps, wins, np.random.default_rng(seed), 0

    def sample(self, before: tuple[int, ...], held: frozenset[int]) -> Any:
        self.played += 1
        rest = [0 if t in held else int(self.rng.integers(2)) for t in range(len(before), self.steps)]
        return Thrown((*before, *rest), self.wins((*before, *rest)))

    async def free(self, walk: int) -> Any:
        return self.sample((), frozenset())

    async def hold(self, attempt: Any, step: int, held: frozenset[int], walk: int) -> Any:
        return attempt if attempt.dice[step] == 0 else self.sample(attempt.dice[:step], held)

    async def whole(self) -> bool:
        return bool(self.wins((0,) * self.steps))


class Thrown:
    def __init__(self, dice: tuple[int, ...], success: bool) -> None:
        self.dice, self.success = dice, success


def exact(steps: int, wins: Any) -> list[float]:
    """Shapley values by their definition."""

    def value(held: frozenset[int]) -> float:
        return float(np.mean([wins(x) for x in itertools.product((0, 1), repeat=steps) if all(x[t] == 0 for t in held)]))

    def share(t: int) -> float:
        rest = [u for u in range(steps) if u != t]
        total = 0.0
        for size in range(steps):
            weight = factorial(size) * factorial(steps - 1 - size) / factorial(steps)
            for some in itertools.combinations(rest, size):
                total += weight * (value(frozenset({*some, t})) - value(frozenset(some)))
        return total

    return [share(t) for t in range(steps)]


@pytest.mark.parametrize(
    "wins",
    [
        lambda x: sum(x) >= 1,
        lambda x: sum(x) >= 2,
        lambda x: x[0] == 1 or (x[1] == 1 and x[3] == 1),
        lambda x: x[0] == x[2],
        lambda x: False,
    ],
)
def test_walks_come_to_the_shapley_values_by_their_definition(wins: Any) -> None:
    truth = exact(4, wins)
    game, looks = Dice(4, wins, 1), Looks(2000)

    async def work() -> list[ShareWalk]:
        taken = [await take(game, np.random.default_rng(i).permutation(4).tolist(), i) for i in range(1000)]
        return [walk for walk in taken if walk is not None]

    taken = asyncio.run(work())
    for t in range(4):
        value, (low, high) = looks.share(taken, t)
        assert abs(value - truth[t]) < 0.08
        assert low <= truth[t] <= high
    assert game.played <= 4000


def test_false_credit_stays_at_its_level_and_the_budget_holds() -> None:
    """Where no share is beyond the least change, and where all are just there."""
    false = 0
    for seed in range(40):
        game, looks = Dice(5, lambda x: False, seed), Looks(16)
        taken, _ = asyncio.run(walks(game, 5, looks, str(seed)))
        false += any(looks.credited(looks.share(taken, t)[1]) for t in range(5))
        flat = Dice(5, lambda x: x[0] + x[1] + x[2] + x[3] + x[4] >= 5, seed)  # 1 in 32, shared by five
        taken, spent = asyncio.run(walks(flat, 5, looks, str(seed), budget=23))
        assert spent or flat.played <= 23
        assert flat.played <= 23
        false += any(looks.credited(looks.share(taken, t)[1]) for t in range(5))
    assert false <= 4
