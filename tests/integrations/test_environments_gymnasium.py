"""Real Gymnasium environments: actions read from replies, snapshots of three kinds, forks, another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.env.protocol import Task, Volatile
from ramify.jobs.play import fork_run, play
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env

pytestmark = pytest.mark.slow
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: THE gymnasium DOOR IS NOT TESTED")
LAKE = "gymnasium:FrozenLake-v1?is_slippery=false&actions=left,down,right,up&render_mode=ansi"
ROUTE = ["down", "down", "right", "right", "down", "right"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def start(spec: str, **data: Any) -> Any:
    env = find_environment(spec).make()
    env.first = env.reset(Task("t", {"seed": 1, **data}), 0)
    return env


@pytest.mark.parametrize(
    "spec",
    [
        LAKE,
        "gymnasium:FrozenLake-v1",
        "gymnasium:CartPole-v1",
        "gymnasium:Blackjack-v1",
        "gymnasium:MountainCarContinuous-v0",
        "gymnasium:own_gym:Lights-v0",
        "gymnasium:own_gym:Stateful-v0",
        "gymnasium:own_gym:Locked-v0",
    ],
)
def test_real_environments_conform(spec: str) -> None:
    assert check_env(find_environment(spec)) == []


def test_the_lake_is_crossed_and_forks_at_every_step_continue_right(tmp_path: Path) -> None:
    model = ScriptedModel(ROUTE, tokens=False)
    (walked,) = play(model, LAKE, [Task("lake", {"seed": 1})], out=tmp_path / "run")
    assert (walked.outcome, walked.reward, walked.truncated, len(walked.turns)) == (True, 1.0, False, 6)
    assert walked.turns[0].answer.text == "(Down)\nSFFF\n[F]HFH\nFFFH\nHFFG\n4"
    assert all(turn.answer.snapshot is None for turn in walked.turns), "a copied environment is never stored"
    for turn in walked.turns:
        done = fork_run(tmp_path / "run", turn.node.id, n=2, model=model)
        assert (done.arm.successes, done.arm.scored) == (2, 2)
    wrong = fork_run(tmp_path / "run", walked.turns[3].node.id, n=2, model=model, edit={"replace": "left"})
    assert [a.failure for a in wrong.arm.attempts] == [None, None]
    assert wrong.arm.successes == 0


def test_forks_at_the_places_of_a_slippery_lake_find_the_same_future(tmp_path: Path) -> None:
    spec = "gymnasium:FrozenLake-v1"
    model = ScriptedModel(["2", "1"] * 50, tokens=False)
    (walked,) = play(model, spec, [Task("lake", {"seed": 7})], out=tmp_path / "run")
    answers = [turn.answer.text for turn in walked.turns]
    for at, turn in enumerate(walked.turns):
        done = fork_run(tmp_path / "run", turn.node.id, n=1, model=model)  # its own process memory: replayed
        (again,) = done.arm.attempts
        assert again.failure is None
        assert [t.answer.text for t in again.turns] == answers[at:], "chance is part of the state"
        assert again.replayed == at


def test_snapshots_in_memory_give_what_replay_gives() -> None:
    env = start("gymnasium:own_gym:Lights-v0")
    kept = env.snapshot()
    assert isinstance(kept, Volatile)
    first = [env.step(name).text for name in ("hall", "attic")]
    env.restore(kept)
    assert [env.step(name).text for name in ("hall", "attic")] == first
    assert start("gymnasium:own_gym:Locked-v0").snapshot() is None


def test_a_state_of_its_own_is_durable_and_holds_the_time_limit() -> None:
    env = start("gymnasium:own_gym:Stateful-v0")
    env.step("cellar")
    kept = env.snapshot()
    assert kept["steps"] == 1
    seen_here = [env.step("nothing") for _ in range(4)]
    assert [seen.truncated for seen in seen_here] == [False, False, False, True]
    other = start("gymnasium:own_gym:Stateful-v0")
    other.restore(kept)
    assert [other.step("nothing") for _ in range(4)] == seen_here
    assert other.key() == env.key()


def test_replies_are_read_as_actions() -> None:
    env = start(LAKE)
    for reply, moved in (
        ("down", True),
        ("1", True),
        ("I go DOWN", True),
        ("up, no: right", True),
        ("", False),
        ("jump", False),
        ("downwards", False),
        ("7", False),
        ("-1", False),
        ("1.5", False),
    ):
        env.reset(Task("t", {"seed": 1}), 0)
        seen = env.step(reply)
        assert seen.valid is moved, reply
        assert ("Reply with one action: 0 (left)" in seen.text) is not moved
    assert start("gymnasium:own_gym:Lights-v0").step("HALL!").valid is False
    car = start("gymnasium:MountainCarContinuous-v0")
    assert car.step("[0.5]").valid is True
    for reply in ("0.5", "[9]", "[NaN]", "nonsense", "[" * 5000, "[0.1, 0.2]", '{"a": 1}'):
        assert car.step(reply).valid is False, reply[:20]


def test_outcome_comes_from_the_environment_or_its_threshold() -> None:
    lights = start("gymnasium:own_gym:Lights-v0")
    ends = [lights.step(name) for name in lights.first.text.removeprefix("dark: ").split(", ")]
    assert [(seen.terminated, seen.outcome) for seen in ends] == [(False, None), (True, True)]
    pole = start("gymnasium:CartPole-v1?success=3")
    fell = pole.step("0")
    while not fell.terminated:
        fell = pole.step("0")
    assert fell.outcome is True
    fallen = start("gymnasium:CartPole-v1")
    fell = fallen.step("0")
    while not fell.terminated:
        fell = fallen.step("0")
    assert (fell.reward, fell.outcome) == (1.0, False), "a pole that fell has not succeeded"


@pytest.mark.parametrize(
    ("spec", "error", "sentence"),
    [
        ("gymnasium", UserError, "needs an environment"),
        ("gymnasium:CartPole-v9", UserError, "no environment gymnasium:CartPole-v9"),
        ("gymnasium:CartPole-v1?foo=1", UserError, "unexpected keyword argument 'foo'"),
        ("gymnasium:no_such_module:X-v0", UserError, "cannot be imported"),
        ("gymnasium:CartPole-v1?max_turns=0", UserError, "whole number from 1"),
        ("gymnasium:CartPole-v1?success=much", UserError, "success must be a number"),
        ("gymnasium:own_gym:Wide-v0", NeedsError, "actions of the kind Dict"),
    ],
)
def test_what_cannot_be_made_is_refused(spec: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        find_environment(spec)


def test_a_bad_seed_is_refused_and_task_sets_are_stable() -> None:
    with pytest.raises(UserError, match="whole number from 0"):
        start(LAKE, seed=-3)
    code = (
        "from ramify.jobs.components import find_environment; print(find_environment('gymnasium:CartPole-v1').task_set('train', "
        "20, 3).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, locale in (("0", "C"), ("77", "tr_TR.UTF-8"))
    }
    assert hashes == {find_environment("gymnasium:CartPole-v1").task_set("train", 20, 3).hash + "\n"}
