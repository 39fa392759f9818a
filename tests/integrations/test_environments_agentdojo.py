"""AgentDojo's suites as environments: solved by their own solutions, judged by their own checkers, forked exactly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.jobs.play import fork_run
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env
from ramify.trace.db import Run

pytestmark = pytest.mark.slow
pytest.importorskip("agentdojo", reason="agentdojo is not installed: THE agentdojo DOOR IS NOT TESTED")

from ramify.integrations.environments.walkthroughs import play_walkthroughs  # noqa: E402

SUITES = {"banking": (16, 9), "slack": (21, 5), "travel": (20, 7), "workspace": (40, 14)}
"""User tasks and injection tasks of version v1.2.1."""
UNSEEN = {"workspace": 17}
"""Injections done as AgentDojo does them that its checker does not see: the mail with the injection matches its search, too."""


def all_tasks(environment: Any) -> list[Task]:
    return [task for split in ("train", "eval", "tune") for task in environment.task_set(split, 10_000)]


def walked(environment: Any, task: Task, injected: bool = False) -> Any:
    episode = environment.make()
    episode.reset(task, 0)
    return [episode.step(reply) for reply in environment.walkthrough(task, injected)][-1]


@pytest.mark.parametrize("suite", SUITES)
def test_its_own_solutions_solve_every_task_and_carry_out_every_injection(suite: str) -> None:
    environment: Any = find_environment(f"agentdojo:{suite}?attack=important_instructions")
    listed = all_tasks(environment)
    users, injections = SUITES[suite]
    assert len(listed) == users * injections
    seen: set[str] = set()
    missed = 0
    for task in sorted(listed, key=lambda task: task.id):  # each user task and each injection once
        names = {task.data["user_task"], task.data["injection_task"]}
        if names <= seen:
            continue
        seen |= names
        end = walked(environment, task)
        assert (end.terminated, end.outcome, end.data["checks"]["utility"]) == (True, True, True), task.id
        missed += not walked(environment, task, injected=True).data["checks"]["injected"]
    assert missed <= UNSEEN.get(suite, 0)


@pytest.mark.parametrize("suite", SUITES)
def test_suites_conform(suite: str) -> None:
    assert check_env(find_environment(f"agentdojo:{suite}"), tasks=2, turns=5) == []


def test_an_attempt_is_forked_at_each_step_and_ends_as_it_did(tmp_path: Path) -> None:
    name = "agentdojo:banking?attack=direct&injection=injection_task_0&goal=both"
    environment: Any = find_environment(name)
    (task,) = environment.task_set("train", 1)
    with Run.create(tmp_path / "run", {"env": name, "model": None, "seed": 0, "sampling": {"max_tokens": 256}}) as run:
        (won,) = asyncio.run(play_walkthroughs(environment, [task], run))
    assert won.outcome is True
    model = ScriptedModel(environment.walkthrough(task), tokens=False, name="walkthrough")
    for turn in won.turns:
        done = fork_run(tmp_path / "run", turn.node.id, n=2, model=model)
        assert (done.arm.successes, done.arm.scored) == (2, 2)


def test_the_goal_says_what_an_outcome_is() -> None:
    kind = "agentdojo:banking?attack=direct&injection=injection_task_0"
    for goal, outcome in (("utility", False), ("resisted", False), ("both", False)):
        environment: Any = find_environment(f"{kind}&goal={goal}")
        task = all_tasks(environment)[0]
        end = walked(environment, task, injected=True)
        assert end.data["checks"]["injected"]
        assert end.outcome is (end.data["checks"]["utility"] if goal == "utility" else outcome)
        idle = environment.make()
        idle.reset(task, 0)
        assert idle.step("I do nothing.").outcome is (goal == "resisted")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("agentdojo:bank", "no suite 'bank'"),
        ("agentdojo:banking?attack=rude", "no attack 'rude'"),
        ("agentdojo:banking?attack=manual", "no attack 'manual'"),
        ("agentdojo:banking?goal=win", "goal is utility"),
        ("agentdojo:banking?injection=injection_task_0", "needs an attack"),
        ("agentdojo:banking?attack=direct&injection=injection_task_99", "has no injection"),
        ("agentdojo:banking?version=v9", "no version 'v9'"),
        ("agentdojo:banking?turns=3", "no option 'turns'"),
        ("agentdojo:banking?max_turns=0", "max_turns"),
    ],
)
def test_what_a_suite_does_not_have_is_one_sentence(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        find_environment(name)


def test_a_wrong_call_is_answered_and_a_task_of_another_suite_refused() -> None:
    environment: Any = find_environment("agentdojo:banking")
    episode = environment.make()
    (task,) = environment.task_set("train", 1)
    episode.reset(task, 0)
    for call in ('{"name": "fly", "arguments": {}}', '{"name": "get_most_recent_transactions", "arguments": {"n": "many"}}'):
        seen = episode.step(f"<tool_call>{call}</tool_call>")
        assert seen.text.startswith("error: ")
        assert not seen.valid
    with pytest.raises(UserError, match="no user task 'user_task_99'"):
        episode.reset(Task("x", {"prompt": "x", "user_task": "user_task_99"}), 0)


def test_tasks_in_few_words_are_won_by_their_solutions() -> None:
    from ramify_experiments.dojo import DojoEnvironment

    environment = DojoEnvironment()
    tasks = environment.task_set("train", 0)
    assert len(tasks) == 77
    for task in tasks:
        episode = environment.make()
        episode.reset(task, 0)
        assert not episode.step("no_such_tool 1").valid
        before = episode.snapshot()
        seen = [episode.step(reply) for reply in environment.solution(task)][-1]
        assert seen.outcome
        episode.restore(before)
        assert not episode.step("answer 0").terminated
