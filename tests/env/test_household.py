"""The household environment: every house can be won, two mistakes cannot be undone, states repeat, task sets and splits hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.env.builtin.household import (
    Household,
    HouseholdEnvironment,
    demonstrate,
    make_task,
    next_action,
    possible_actions,
    shortest,
)
from ramify.env.protocol import Task, TaskSet
from ramify.testing import check_env

ENVIRONMENT = HouseholdEnvironment()
TASK = Task(
    "small",
    {
        "exits": {"hall": ["attic", "chute"], "attic": ["hall"]},
        "items": {"red-key": "hall", "blue-key": "attic", "lamp": "vault"},
        "start": "hall",
        "door": "red",
        "door_room": "attic",
        "thing": "lamp",
    },
)


def walk(*actions: str) -> tuple[Household, list[str]]:
    env = ENVIRONMENT.make()
    seen = [env.reset(TASK, 0).text]
    seen += [env.step(action).text for action in actions]
    return env, seen


def test_the_whole_way() -> None:
    _, seen = walk("take red-key", "go attic", "open red-door", "go vault", "take lamp")
    assert seen == [
        "Goal: take the lamp behind the red-door. hall. exits attic chute. here red-key.",
        "hall. exits attic chute. hold red-key.",
        "attic. exits hall red-door. here blue-key. hold red-key.",
        "attic. exits hall vault. here blue-key. hold red-key.",
        "vault. exits attic. here lamp. hold red-key.",
        "You have the lamp.",
    ]


def test_a_wrong_key_snaps_for_good() -> None:
    env, seen = walk("go attic", "take blue-key", "open red-door", "go hall", "take red-key", "go attic", "open red-door")
    assert seen[3].startswith("The key snaps.")
    assert seen[-1] == "Nothing happens."
    assert next_action(TASK, env.snapshot()) is None


def test_the_chute_ends_in_the_cellar() -> None:
    env, seen = walk("go chute", "go hall")
    assert seen[1:] == ["cellar. no exits.", "Nothing happens."]
    assert next_action(TASK, env.snapshot()) is None


@pytest.mark.parametrize(
    "action", ["", "go", "go nowhere", "take lamp", "open red-door", "dance", "go hall attic", "\n", "a" * 9999]
)
def test_what_makes_no_sense_does_nothing(action: str) -> None:
    env, seen = walk(action)
    assert seen[-1] == "Nothing happens."
    assert env.snapshot() == walk()[0].snapshot()


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_every_house_can_be_won_and_states_survive_json(seed: int) -> None:
    task = make_task("t", generator(seed))
    pairs = demonstrate(task, 0.0, np.random.default_rng(0), max_turns=99)
    assert pairs[-1][1] == f"take {task.data['thing']}"
    env, other = ENVIRONMENT.make(), ENVIRONMENT.make()
    env.reset(task, 0)
    other.reset(task, 0)
    rng = np.random.default_rng(seed)
    for _ in range(8):
        action = str(rng.choice(possible_actions(task, env.snapshot()) or ["wait"]))
        other.restore(json.loads(json.dumps(env.snapshot())))
        assert (other.key(), other.step(action)) == (env.key(), env.step(action))


def test_the_battery_finds_nothing() -> None:
    assert check_env(ENVIRONMENT) == []


def test_splits_share_no_house_and_do_not_depend_on_the_seed() -> None:
    task_sets = {split: ENVIRONMENT.task_set(split, 40, seed) for seed, split in enumerate(("train", "eval", "tune", "demo"))}
    ids = [{task.id for task in task_set} for task_set in task_sets.values()]
    assert all(not a & b for i, a in enumerate(ids) for b in ids[i + 1 :])
    assert all(shortest(task) <= ENVIRONMENT.max_turns for task_set in task_sets.values() for task in task_set)
    assert (
        ENVIRONMENT.task_set("eval", 40, 1).hash == task_sets["eval"].hash == TaskSet.of(reversed(list(task_sets["eval"]))).hash
    )


def test_bad_task_sets_and_tasks_are_one_sentence() -> None:
    with pytest.raises(UserError, match="unknown split"):
        ENVIRONMENT.task_set("test", 3)
    with pytest.raises(UserError, match="lacks door, door_room"):
        ENVIRONMENT.make().reset(Task("half", {"exits": {}, "items": {}, "start": "hall", "thing": "lamp"}), 0)
    with pytest.raises(UserError, match="occurs twice"):
        TaskSet.of([TASK, TASK])
    with pytest.raises(UserError, match="empty"):
        TaskSet.of([])
