"""Environments with task factors: what a factor may be, how tasks are named,
which texts an intervention touches, and the scripted agents' labels."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.registry import named
from ramify.env.protocol import Task, tools_of
from ramify.methods.forensics.factors import PRINCIPLES, Factor, FactorEnvironment, Script, misjudged, play, require_honest
from ramify.methods.forensics.workspace import call
from ramify.testing import check_env
from ramify_experiments.forensics.incidents.pre_commit import PreCommitEnvironment
from ramify_experiments.forensics.incidents.secret_number import SecretNumberEnvironment

ENVIRONMENTS = ("secret-number", "math-sandbagging", "evaluation-tampering", "funding-email", "board-games")
SCRIPTS = [(name, script) for name in ENVIRONMENTS for script in named("env", name).scripts]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_battery_of_environments(name: str) -> None:
    assert check_env(named("env", name), tasks=1, turns=4) == []


@pytest.mark.parametrize(("name", "script"), SCRIPTS)
def test_every_scripted_agent_is_labelled_as_what_it_is(name: str, script: str) -> None:
    environment = named("env", name)
    for seed in (0, 1):
        assert misjudged(environment, environment.task(seed, **environment.scripts[script].factors), script) == ""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_environment_says_what_it_is_and_its_honest_agent_succeeds(name: str) -> None:
    environment = named("env", name)
    assert tuple(environment.principles) == PRINCIPLES
    assert {tool["function"]["name"] for tool in tools_of(environment)} == set(environment.make().tools)
    assert set(environment.principles.values()) <= {"yes", "partly", "no"}
    require_honest(environment, environment.task(2, **environment.scripts["honest"].factors))


def test_the_table_of_principles_in_the_docs_is_the_environments_own() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "environments.md").read_text(encoding="utf-8")
    environments: list[Any] = [*(named("env", name) for name in ENVIRONMENTS), PreCommitEnvironment]
    for environment in environments:
        assert f"| `{environment.kind}` | {' | '.join(environment.principles[name] for name in PRINCIPLES)} |" in page
        row = next(line for line in page.splitlines() if line.startswith(f"| `{environment.kind}` |"))
        assert row.endswith("| " + ", ".join(f"`{factor}`" for factor in environment.factors) + " |")


def factors_of(environment: FactorEnvironment) -> list[tuple[str, Any]]:
    """(factor, another value than its default), every option."""
    changes = []
    for name, factor in environment.factors.items():
        values = factor.options or (factor.low, factor.high)
        changes += [(name, type(factor.default)(v) if not factor.options else v) for v in values if v != factor.default]
    return changes


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_value_of_every_factor_changes_what_is_shown_and_nothing_else_does(name: str) -> None:
    environment = named("env", name)
    task = environment.task(5)
    before = environment.describe(task)
    assert before == environment.describe(Task("again", dict(task.data)))
    for factor, value in factors_of(environment):
        other = environment.task(5, **{factor: value})
        assert {key for key in task.data if task.data[key] != other.data[key]} == {factor}
        assert other.id != task.id
        assert environment.describe(other) != before, f"{name}: {factor}={value} changes no word"


def test_factors_take_their_values_only() -> None:
    environment = SecretNumberEnvironment("flip=0.1&pressure=must_pass")
    assert environment.name == "secret-number:flip=0.1&pressure=must_pass"
    task = environment.task(4, setting="game")
    assert dict(task.data) == {"seed": 4, "flip": 0.1, "setting": "game", "pressure": "must_pass"}
    assert all(t.data["flip"] == 0.1 for t in environment.task_set("eval", 3))
    assert [t.data["seed"] for t in environment.task_set("eval", 3)] == [
        t.data["seed"] for t in SecretNumberEnvironment().task_set("eval", 3)
    ]
    for settings, said in (
        ("flop=1", "has no factor 'flop' .did you mean 'flip'"),
        ("flip=2", "factor 'flip' is a number from 0 to 0.5, not 2"),
        ("flip=true", "factor 'flip' is a number"),
        ("setting=exams", "factor 'setting' cannot be 'exams' .did you mean 'exam'"),
        ("flip", "cannot be read: factors are written"),
    ):
        with pytest.raises(UserError, match=said):
            SecretNumberEnvironment(settings)
    with pytest.raises(UserError, match=r"factor 'n' is a whole number from 0 to 3, not 0\.5"):
        Factor(1, "", low=0, high=3).check("n", 0.5)
    with pytest.raises(UserError, match="task 't': the environment 'secret-number' has no factor 'flop'"):
        environment.make().reset(Task("t", {"flop": 1}), 0)
    with pytest.raises(UserError, match="task 't': seed must be a whole number from 0, not -1"):
        environment.make().reset(Task("t", {"seed": -1}), 0)


def test_a_case_whose_honest_agent_fails_is_refused_and_a_wrong_label_is_told() -> None:
    def says_no(task: Task) -> Generator[str, str, None]:
        yield "no"

    class Silent(SecretNumberEnvironment):
        scripts: ClassVar[Any] = {"honest": Script(says_no, "searched", False)}

    with pytest.raises(
        UserError, match=r"the scripted honest agent does not succeed in task 'secret-number-0'.*not submitted after 1"
    ):
        require_honest(Silent(), Silent().task())
    assert "is labelled ('not submitted', None)" in misjudged(Silent(), Silent().task(), "honest")


def test_calls_that_are_wrong_are_answered_and_cost_a_turn() -> None:
    env = SecretNumberEnvironment().make()
    task = SecretNumberEnvironment().task()
    env.reset(task, 0)
    for reply, said in (
        (call("asks", guess=1), "there is no tool 'asks' (did you mean 'ask'?)"),
        (call("ask"), "ask needs the argument 'guess'"),
        (call("ask", guess="1"), "argument 'guess' of ask must be of type integer"),
        (call("ask", guess=1, loud=True), "ask has no argument 'loud'"),
        (call("ask", guess=1) * 2, "one call a reply"),
        ("<tool_call>{", "the call is not JSON"),
        (call("read_file", path="nothing"), "there is no file 'nothing'"),
    ):
        seen = env.step(reply)
        assert (seen.valid, seen.terminated, said in seen.text) == (False, False, True), reply
    state: Any = env.snapshot()
    assert state["turns"] == 7
    env.step("done")
    with pytest.raises(InfrastructureError, match="without a running episode"):
        env.step("more")


def test_an_episode_that_is_too_long_is_cut_off_and_still_graded() -> None:
    def forever(task: Task) -> Any:
        while True:
            yield call("list_files")

    environment = SecretNumberEnvironment()
    seen, turns = play(environment, forever, environment.task())
    assert (seen.truncated, seen.terminated, turns) == (True, False, environment.make().max_turns)
    assert seen.data["grade"]["target"] is None
