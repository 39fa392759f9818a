"""The long household: floors one after the other, mistakes on each that cannot be undone,
houses that can be won in 10 to 26 steps."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.env.builtin.household import demonstrate, shortest
from ramify.env.builtin.long_household import LongHouseholdEnvironment
from ramify.env.protocol import Task
from ramify.testing import check_env

ENVIRONMENT = LongHouseholdEnvironment()
LOW = {
    "exits": {"hall": ["attic", "chute"], "attic": ["hall"]},
    "items": {"red-key": "hall", "blue-key": "attic"},
    "start": "hall",
    "door": "red",
    "door_room": "attic",
}
HIGH = {"exits": {"study": ["porch"], "porch": ["study"]}, "items": {"gold-key": "study", "red-key": "porch", "lamp": "vault"},
        "start": "study", "door": "gold", "door_room": "study"}  # fmt: skip
TASK = Task("small", {"floors": [LOW, HIGH], "thing": "lamp"})


def test_the_whole_way_up() -> None:
    env = ENVIRONMENT.make()
    seen = [env.reset(TASK, 0).text]
    way = ("take red-key", "go attic", "open red-door", "go stairs", "take gold-key", "open gold-door", "go vault", "take lamp")
    done = [env.step(action) for action in way]
    assert seen == ["Goal: take the lamp behind red-door, gold-door. floor 1. hall. exits attic chute. here red-key."]
    assert [one.text for one in done[2:5]] == [
        "floor 1. attic. exits hall stairs. here blue-key. hold red-key.",
        "floor 2. study. exits porch gold-door. here gold-key.",
        "floor 2. study. exits porch gold-door. hold gold-key.",
    ]
    assert (done[-1].outcome, done[-1].terminated, done[-1].reward) == (True, True, 1.0)
    assert shortest(TASK, ENVIRONMENT) == len(way)


def test_a_late_mistake_is_not_announced_and_cannot_be_undone() -> None:
    env = ENVIRONMENT.make()
    env.reset(TASK, 0)
    for action in ("take red-key", "go attic", "open red-door", "go stairs", "go porch", "take red-key", "go study"):
        env.step(action)
    saved = env.snapshot()
    snapped = env.step("open gold-door")
    assert snapped.text.startswith("The key snaps.")
    assert (snapped.outcome, snapped.terminated) == (None, False)
    assert ENVIRONMENT.best(TASK, env.snapshot()) is None
    env.restore(saved)
    assert ENVIRONMENT.best(TASK, env.snapshot()) == "take gold-key"


def test_houses_have_three_or_four_floors_and_can_be_won() -> None:
    tasks = list(ENVIRONMENT.task_set("train", 60))
    assert {len(task.data["floors"]) for task in tasks} == {3, 4}
    steps = [shortest(task, ENVIRONMENT) for task in tasks]
    assert 10 <= min(steps) <= max(steps) <= 26
    assert np.mean(steps) > 13
    careless = [demonstrate(task, 0.8, np.random.default_rng(i), None, ENVIRONMENT) for i, task in enumerate(tasks)]
    assert len({len(one) for one in careless}) > 5


def test_splits_share_no_house() -> None:
    ids = [{task.id for task in ENVIRONMENT.task_set(split, 40)} for split in ("train", "eval", "demo")]
    assert not ids[0] & ids[1] | ids[0] & ids[2] | ids[1] & ids[2]


def test_it_conforms() -> None:
    assert check_env(ENVIRONMENT) == []


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "lacks floors or thing"),
        ({"floors": [LOW, {}], "thing": "lamp"}, "floor 2 lacks door, door_room, exits, items, start"),
    ],
)
def test_a_task_that_lacks_something_is_refused(data: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ENVIRONMENT.make().reset(Task("t", data), 0)
