from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, UserError
from ramify.env.builtin.maze import MazeEnvironment, route
from ramify.env.protocol import Task
from ramify.testing import conformance

TASK = Task("t", {"exits": {"a": {"1": "b"}, "b": {"1": "a", "2": "c"}, "c": {}}, "start": "a", "exit": "c"})


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["grid", "grid-3", "star", "star-2-1-1"])
def test_conforms(shape: str) -> None:
    assert conformance.check("env", MazeEnvironment(shape)) == []


def test_an_episode_by_hand() -> None:
    env = MazeEnvironment().make()
    assert env.reset(TASK, 0).text == "Goal: find the exit. a. ways 1."
    assert not env.step("go 2").valid
    assert env.step("go 1").text == "b. ways 1 2."
    assert env.key() == "b"
    end = env.step(" go 2 ")
    assert (end.text, end.reward, end.terminated, end.outcome) == ("You are out.", 1.0, True, True)
    with pytest.raises(InfrastructureError):
        env.step("go 1")


@given(st.integers(2, 7), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_grids_are_connected_and_symmetric(side: int, seed: int) -> None:
    for task in (
        MazeEnvironment(f"grid-{side}").task_set("train", 2, seed)
        if side > 2
        else MazeEnvironment("grid-2").task_set("train", 1, seed)
    ):
        exits = task.data["exits"]
        assert len(exits) == side * side
        assert all(here in exits[there].values() for here, ways in exits.items() for there in ways.values())
        assert sum(map(len, exits.values())) >= 2 * (side * side - 1)
        env = MazeEnvironment(f"grid-{side}").make()
        env.reset(task, 0)
        *on, last = [env.step(f"go {way}") for way in route(task.data)]
        assert last.outcome
        assert not any(seen.terminated for seen in on)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_stars_have_the_edges_of_the_theory(W: int, K: int, L: int, seed: int) -> None:
    (task,) = MazeEnvironment(f"star-{W}-{K}-{L}").task_set("train", 1, seed)
    degrees = sorted(len(ways) for ways in task.data["exits"].values())
    assert degrees == sorted([1, W] + [L + 1] * (2 * W * K) + [1] * W)
    assert len(route(task.data)) == 2 * K + 2
    assert len(task.data["exits"][task.data["exit"]]) == 1


@pytest.mark.parametrize(
    ("shape", "says"),
    [("ring", "unknown maze 'ring'"), ("grid-1", "SIDE from 2"), ("star-3-3", "W, K and L"), ("star-3-0-2", "from 1"),
     ("grid-x", "unknown maze"), ("grid-27", "26 columns"), ("", "unknown maze ''")],
)  # fmt: skip
def test_unknown_shapes_are_refused(shape: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        MazeEnvironment(shape)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"exit": "z"}, "exit 'z' has no entry"), ({"exit": "a"}, "starts at its exit"), ({"exits": []}, "must map each place"),
     ({"exits": {"a": {"1": "z"}}}, "way '1' of a leads to z"), ({"start": None}, "start None")],
)  # fmt: skip
def test_a_task_that_is_no_maze_is_refused(change: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        MazeEnvironment().make().reset(Task("t", {**TASK.data, **change}), 0)
    with pytest.raises(UserError, match="lacks exit"):
        MazeEnvironment().make().reset(Task("t", {"exits": {}, "start": ""}), 0)


@pytest.mark.slow
def test_task_sets() -> None:
    with pytest.raises(UserError, match="unknown split"):
        MazeEnvironment().task_set("test", 1)
    with pytest.raises(UserError, match="give only"):
        MazeEnvironment("grid-2").task_set("train", 40)
    with pytest.raises(UserError, match="no way leads"):
        route({"exits": {"a": {}, "b": {}}, "start": "a", "exit": "b"})
