"""Going back without stored snapshots: copies in memory, replay with a check of every answer, resume in a new process."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify.env.protocol import Observation, Task, TaskSet, Volatile
from ramify.jobs.play import fork_run
from ramify.methods.tree_rollouts.algorithm import TreeConfig
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify.model.scripted import ScriptedModel
from ramify.rollout import stage
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.fork import fork
from ramify.rollout.potential import Fixed, potential
from ramify.rollout.run import Episodes
from ramify.rollout.steps import StepForks, step_trace
from ramify.trace.db import Run

TASK = Task("climb", {"goal": 4})
COUNTING = threading.Lock()


class Climb:
    """Reach the goal by ``up``; ``down`` goes down. How it tells its state, and whether it always tells the same, differs."""

    system = ""
    max_turns = 8
    steps = closed = opened = open_now = most_open = 0
    state: str = "none"
    luck = 0.0
    lie = ""

    def __init__(self) -> None:
        self.count, self.goal = 0, 0
        with COUNTING:
            Climb.opened += 1
            Climb.open_now += 1
            Climb.most_open = max(Climb.most_open, Climb.open_now)

    def reset(self, task: Task, seed: int) -> Observation:
        self.count, self.goal = 0, task.data["goal"]
        return self.look()

    def look(self, reward: float = 0.0) -> Observation:
        won = self.count >= self.goal
        return Observation(f"at {self.count}", reward, terminated=won, outcome=True if won else None)

    def step(self, action: str) -> Observation:
        Climb.steps += 1
        self.count += {"up": 1, "down": -1}.get(action, 0)
        if Climb.luck and random.random() < Climb.luck:
            self.count += 1
        seen = self.look(0.25)
        if Climb.lie == "reward":
            return Observation(seen.text, 0.5, seen.terminated, outcome=seen.outcome)
        if Climb.lie == "end":
            return Observation(seen.text, seen.reward, True)
        return Observation(seen.text + " !", seen.reward) if Climb.lie == "text" else seen

    def snapshot(self) -> Any:
        body = {"count": self.count, "goal": self.goal}
        return {"none": None, "volatile": Volatile(body), "stored": body, "undeclared": {1, 2}}[Climb.state]

    def restore(self, snapshot: Any) -> None:
        body = snapshot.state if isinstance(snapshot, Volatile) else snapshot
        self.count, self.goal = body["count"], body["goal"]

    def key(self) -> None:
        return None

    def close(self) -> None:
        with COUNTING:
            Climb.closed += 1
            Climb.open_now -= 1


class ClimbEnvironment:
    name = "climb"

    def make(self) -> Any:
        return Climb()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([TASK])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"state": "none", "luck": 0.0, "lie": "", **dict.fromkeys(("steps", "closed", "opened"), 0)}.items():
        monkeypatch.setattr(Climb, name, value)
    monkeypatch.setattr(Climb, "open_now", 0)
    monkeypatch.setattr(Climb, "most_open", 0)


def episodes(run: Run, environment: Any = None, replies: Any = ("up",) * 8) -> Episodes:
    return Episodes(Agent(ScriptedModel(replies, tokens=False)), environment or ClimbEnvironment(), run, seed=5)


def play(made: Episodes, index: int = 0) -> Attempt:
    return asyncio.run(made.attempt("t", TASK, index))


def branch(made: Episodes, turn: int, first: Attempt, index: int = 7) -> Attempt:
    return asyncio.run(made.branch("t", TASK, first.turns[turn].answer.id, index))


@pytest.mark.parametrize(("state", "replayed"), [("none", 3), ("volatile", 0), ("stored", 0)])
def test_a_branch_continues_from_the_same_state_whatever_the_environment_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, replayed: int
) -> None:
    monkeypatch.setattr(Climb, "state", state)
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        first = play(made)
        assert [turn.forkable for turn in first.turns] == [True, True, True, False]
        again = branch(made, 2, first)
        assert (again.failure, again.outcome, len(again.turns), again.replayed) == (None, True, 1, replayed)
        assert again.reward == first.reward == 1.0
        stored = [turn.answer.snapshot is not None for turn in first.turns]
        assert stored == [state == "stored"] * 4
        assert Climb.closed == Climb.opened == 2


def test_only_the_newest_volatile_snapshots_are_kept_and_the_rest_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Climb, "state", "volatile")
    monkeypatch.setattr(stage, "VOLATILE", 2)
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        first = play(made)
        assert len(made.stage.volatile) == 2
        assert branch(made, 2, first, 1).replayed == 0
        assert branch(made, 0, first, 2).replayed == 1  # everything of the first turns is gone


def test_what_lies_behind_the_nearest_snapshot_alone_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        monkeypatch.setattr(Climb, "snapshot", lambda self: {"count": 1, "goal": 4} if self.count == 1 else None)
        first = play(made)
        before = Climb.steps
        again = branch(made, 2, first)
        assert (again.replayed, again.outcome) == (2, True)
        assert Climb.steps - before == 3


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("text", "recorded 'at 1', now 'at 1 !'"),
        ("reward", "the recorded reward is 0.25, now 0.5"),
        ("end", "the recorded episode is not over, now over"),
    ],
)
def test_a_environment_that_answers_otherwise_is_a_failure_on_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, said: str
) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        first = play(made)
        monkeypatch.setattr(Climb, "lie", lie)
        failed = branch(made, 2, first)
        assert failed.failure == f"env: replay of task 'climb' differs at step 1: {failed.failure.partition('1: ')[2]}"
        assert said in failed.failure
        assert (failed.outcome, failed.turns, failed.leaf) == (None, (), first.turns[2].answer.id)
        run.commit()
        (record,) = run.attempts(leaf=failed.leaf)
        assert (record.outcome, record.reward, record.failure) == (None, None, failed.failure)
        assert run.scores(node=failed.leaf) == []


def test_a_start_that_varies_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        play(made)
        monkeypatch.setattr(Climb, "reset", lambda self, task, seed: Observation("somewhere else"))
        failed = play(made, 1)
        assert "differs at step 0" in str(failed.failure)


def test_a_random_environment_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Climb, "luck", 0.5)
    random.seed(0)
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, replies=("down",) * 8)
        first = play(made)
        branches = [branch(made, 4, first, index) for index in range(1, 30)]
        caught = [b for b in branches if b.failure]
        assert len(caught) > 15  # 1 in 32 of the replays agrees by chance
        assert all("differs at step" in str(b.failure) for b in caught)
        assert all(b.outcome is None for b in caught)


def test_fork_potential_and_tree_rollouts_work_without_snapshots(tmp_path: Path) -> None:
    environment = ClimbEnvironment()
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, replies=lambda messages, key: ("up", "down")[key % 4 == 0])
        first = play(made)
        done = asyncio.run(fork(made, "t", TASK, first.turns[2].node.id, n=6, edit={"replace": "down"}))
        assert done.arm.scored == 6
        assert done.control is not None
        assert done.control.scored == 6
        after = made.trees["t"].path(done.arm.attempts[0].leaf).messages()
        assert (after[5].role, after[5].text) == ("assistant", "down")
        assert after[6].text != after[4].text
        replayed = asyncio.run(fork(made, "t", TASK, first.turns[1].node.id, edit={"replace": "down"}, after="replay"))
        assert replayed.arm.attempts[0].failure is None
        trace = step_trace(made, first)
        counts, _ = asyncio.run(potential(StepForks(made, "graded"), trace, range(trace.length + 1), Fixed(4)))
        assert all(found.n == 4 for found in counts.values())
        told = asyncio.run(fork(made, "t", TASK, first.turns[1].answer.id, n=3, edit={"replace": "at the top"}))
        below = told.arm.attempts[0].turns[0].answer.id
        assert asyncio.run(made.branch("t", TASK, below, 9)).failure is None, "replay through an edited observation"
    with Run.create(tmp_path / "trees", {}) as run:
        made = Episodes(
            Agent(ScriptedModel(lambda messages, key: ("up", "down")[key % 3 == 0], tokens=False)), environment, run, seed=1
        )
        sampler = TreeSampler(made, TreeConfig(unit="turns"), seed=1)
        tree = asyncio.run(sampler.run(TASK, 60))
        assert any(entry["node"] != "root" for entry in tree.log), "it forked"
        assert all(leaf.failure is None for leaf in tree.leaves)


def test_a_failing_replay_leaves_the_siblings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        first = play(made)
        monkeypatch.setattr(Climb, "luck", 0.3)
        random.seed(1)
        done = asyncio.run(fork(made, "t", TASK, first.turns[2].node.id, n=20))
        failed = sum(a.failure is not None for a in done.arm.attempts)
        assert 0 < failed < 20
        assert done.arm.scored == 20 - failed


def test_a_resumed_run_checks_what_it_steps_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        play(episodes(run))
        run.commit()
    with Run.open(tmp_path / "run", write=True) as run:
        again = play(episodes(run))
        assert (again.failure, again.outcome, len(again.turns)) == (None, True, 4)
        monkeypatch.setattr(Climb, "lie", "text")
        assert "differs at step 1" in str(play(episodes(run)).failure)


def test_an_undeclared_snapshot_is_a_failure_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Climb, "state", "undeclared")
    with Run.create(tmp_path / "run", {}) as run:
        attempt = play(episodes(run))
        assert "neither JSON, bytes nor Volatile" in str(attempt.failure)


def test_a_environment_that_does_not_start_is_a_failed_attempt_and_may_start_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Climb, task: Task, seed: int) -> Observation:
        raise OSError("no power")

    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        with monkeypatch.context() as patch:
            patch.setattr(Climb, "reset", broken)
            failed = play(made)
        assert failed.failure == "env: reset of task 'climb' failed: OSError: no power"
        assert failed.turns == ()
        assert Climb.closed == Climb.opened
        assert play(made).outcome is True


def test_a_environment_may_limit_how_many_are_open_and_block(tmp_path: Path) -> None:
    class Narrow(ClimbEnvironment):
        at_once = 2
        blocking = True

    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, Narrow())

        async def work() -> list[Attempt]:
            return await asyncio.gather(*(made.attempt("t", TASK, i) for i in range(9)))

        attempts = asyncio.run(work())
        assert all(a.outcome for a in attempts)
        assert (Climb.most_open, Climb.closed) == (2, 9)
        whole = made.trees["t"].hash
    with Run.create(tmp_path / "other", {}) as run:
        wide = episodes(run)
        for i in range(9):
            play(wide, i)
        assert wide.trees["t"].hash == whole, "the tree does not depend on threads"


CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
import test_replay_check as cases
from ramify.jobs.play import fork_run
from ramify.model.scripted import ScriptedModel
cases.Climb.state = "volatile"
fork = fork_run(sys.argv[1], sys.argv[3], n=3, model=ScriptedModel(("up",) * 8, tokens=False), env=cases.ClimbEnvironment())
print(fork.arm.successes, fork.arm.scored, {a.replayed for a in fork.arm.attempts})
"""


@pytest.mark.slow
def test_a_fork_in_a_new_process_replays_what_was_only_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Climb, "state", "volatile")
    model = ScriptedModel(("up",) * 8, tokens=False)
    (first,) = ramify.play(model, ClimbEnvironment(), [TASK], out=tmp_path / "run")
    node = first.turns[3].node.id
    here = fork_run(tmp_path / "run", node, n=2, model=model, env=ClimbEnvironment())
    assert here.arm.successes == 2
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run"), str(Path(__file__).parent), node]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout.split(maxsplit=2) == ["3", "3", "{3}\n"], done.stderr
