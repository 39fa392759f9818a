from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import registry
from ramify.base.errors import InfrastructureError, UserError
from ramify.env.builtin.chain import ChainEnvironment, check, prompt, solve, true_answer
from ramify.env.protocol import Task
from ramify.env.task_sets import SPLITS

TASK = Task("t", {"start": 7, "steps": [["+", 5], ["*", 3], ["-", 4]], "mod": 100})


def test_a_task_worked_by_hand() -> None:
    assert prompt(TASK) == "start 7 ; + 5 ; * 3 ; - 4 ; mod 100"
    assert solve(TASK) == "7 + 5 = 12 ; 12 * 3 = 36 ; 36 - 4 = 32 ; answer 32"
    assert true_answer(TASK) == 32
    assert check(TASK, solve(TASK)).right


def test_values_stay_below_the_modulus() -> None:
    task = Task("t", {"start": 1, "steps": [["-", 3], ["*", 5]], "mod": 7})
    assert solve(task) == "1 - 3 = 5 ; 5 * 5 = 4 ; answer 4"


@pytest.mark.parametrize(
    ("reply", "answer", "right", "steps", "first_error"),
    [
        ("", None, False, (), None),
        ("answer 32", 32, True, (), None),
        ("answer 3200", 3200, False, (), None),
        ("answer 9999999999", None, False, (), None),
        ("answer 5 no answer 32", 32, True, (), None),
        ("7 + 5 = 13 ; 13 * 3 = 39 ; 39 - 4 = 35 ; answer 35", 35, False, (False, True, True), 0),
        ("so 7+5=12\nthen 12*3=35\n35-4=31\nanswer 31", 31, False, (True, False, True), 1),
        ("7 + 5 = 12 ; 12 + 3 = 15 ; answer 32", 32, True, (True, False), 1),
        ("7 + 5 = 12 ; 11 * 3 = 33", None, False, (True, False), 1),
        ("7+5=12;12*3=36;36-4=32;32+1=33;answer 33", 33, False, (True, True, True, False), 3),
    ],
)
def test_checker(reply: str, answer: int | None, right: bool, steps: tuple[bool, ...], first_error: int | None) -> None:
    found = check(TASK, reply)
    assert (found.answer, found.right, found.steps, found.first_error) == (answer, right, steps, first_error)


@given(st.text(max_size=60) | st.text("0123456789+-*= ;answr", max_size=60))
@settings(max_examples=60)
def test_any_reply_is_checked(reply: str) -> None:
    env = ChainEnvironment().make()
    env.reset(TASK, 0)
    seen = env.step(reply)
    assert seen.terminated
    assert not seen.truncated
    assert seen.outcome is (seen.reward == 1.0)


def test_noisy_demonstrations_slip_at_the_asked_rate_and_repeat() -> None:
    tasks = ChainEnvironment(steps=(4, 4)).task_set("demo", 200).tasks
    wrong = [step for task in tasks for step in check(task, solve(task, mistakes=0.2)).steps]
    # 800 steps: three standard deviations around 0.2 are 0.042
    assert abs(wrong.count(False) / len(wrong) - 0.2) < 0.045
    assert all(check(task, solve(task)).right for task in tasks)
    assert solve(tasks[0], 0.5, seed=3) == solve(tasks[0], 0.5, seed=3)
    assert len({solve(tasks[0], 0.9, seed=i) for i in range(20)}) > 10


def test_splits_are_disjoint_whatever_the_seed() -> None:
    environment = ChainEnvironment(steps=(2, 2), mod=5)
    seen = [{task.id for seed in (0, 1) for task in environment.task_set(split, 40, seed)} for split in SPLITS]
    assert sum(map(len, seen)) == len(set().union(*seen))
    assert environment.task_set("train", 40, 0).hash == environment.task_set("train", 40, 0).hash
    assert environment.task_set("train", 40, 0).hash != environment.task_set("train", 40, 1).hash


def test_the_closing_observation_names_the_first_error_when_asked() -> None:
    for name_error, text in ((False, "wrong"), (True, "wrong ; step 2 is wrong")):
        env = ChainEnvironment(name_error=name_error).make()
        env.reset(TASK, 0)
        assert env.step("7 + 5 = 12 ; 12 * 3 = 37 ; answer 1").text == text


def test_registered() -> None:
    assert registry.get("env", "chain") is ChainEnvironment


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "mod, start, steps"),
        ({"start": -1, "steps": [["+", 1]], "mod": 5}, "start"),
        ({"start": 1, "steps": [["+", 1]], "mod": 1}, "mod"),
        ({"start": 1, "steps": [], "mod": 5}, "steps"),
        ({"start": 1, "steps": [["/", 1]], "mod": 5}, "steps"),
        ({"start": 1, "steps": ["ab"], "mod": 5}, "steps"),
        ({"start": 1, "steps": 3, "mod": 5}, "steps"),
    ],
)
def test_bad_tasks_are_refused_by_name(data: dict, named: str) -> None:
    with pytest.raises(UserError, match=f"task 'bad'.*{named}"):
        ChainEnvironment().make().reset(Task("bad", data), 0)


def test_operands_reach_the_largest_one_below_mod() -> None:
    def operands(environment: ChainEnvironment) -> set[int]:
        return {operand for task in environment.task_set("train", 60) for _, operand in task.data["steps"]}

    assert operands(ChainEnvironment(mod=7, operand=22)) == set(range(1, 7))
    assert max(operands(ChainEnvironment(mod=23))) == 9
    assert max(operands(ChainEnvironment(mod=23, operand=22))) > 9


@pytest.mark.slow
def test_bad_settings_are_refused() -> None:
    with pytest.raises(UserError, match="fewest"):
        ChainEnvironment(steps=(3, 2))
    with pytest.raises(UserError, match="at least 2"):
        ChainEnvironment(mod=1)
    with pytest.raises(UserError, match="largest operand must be at least 1"):
        ChainEnvironment(operand=0)
    with pytest.raises(UserError, match="unknown split"):
        ChainEnvironment().task_set("test", 3)
    with pytest.raises(UserError, match=r"give only \d+ train tasks, not 500"):
        ChainEnvironment(steps=(1, 1), mod=2).task_set("train", 500)


def test_step_outside_an_episode() -> None:
    env = ChainEnvironment().make()
    with pytest.raises(InfrastructureError):
        env.step("answer 1")
    env.reset(TASK, 0)
    env.step("answer 1")
    with pytest.raises(InfrastructureError):
        env.step("answer 1")
