"""Python functions as tools: schema, checked arguments, state that forks rewind, and environments by import path."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import ramify
from ramify.base.errors import InfrastructureError, UserError
from ramify.env.protocol import Task, TaskSet, Volatile, tools_of
from ramify.integrations.environments.functions import FunctionEnvironment, FunctionTool
from ramify.integrations.environments.spec import TaskList, generated, options, seeded
from ramify.jobs.play import fork_run, play
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env
from ramify.trace.message import parse_tool_calls


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@ramify.tool("sandboxed")
def put(item: str, count: int = 1, *, state: dict) -> str:
    """Put things into the basket.

    Args:
        item: what to put in
        count: how many of them,
            at least one
    """
    if count < 1:
        raise ValueError("nothing to put")
    state["basket"][item] = state["basket"].get(item, 0) + count
    return f"{state['basket'][item]} {item}"


def look(state: dict) -> dict:
    """What is in the basket."""
    return state["basket"]


def pure(number: Annotated[int, Field(ge=0, description="a natural number")], how: Literal["twice", "half"] = "twice") -> float:
    """Work out."""
    return number * 2 if how == "twice" else number / 2


TASKS = [Task(f"buy-{n}", {"prompt": f"put {n} apples into the basket", "want": n}) for n in range(1, 13)]


def environment(**changes: Any) -> FunctionEnvironment:
    settings: dict[str, Any] = {
        "tools": [put, look, pure],
        "tasks": TASKS,
        "grade": lambda task, answer, state: state["basket"].get("apple", 0) == task.data["want"],
        "state": lambda task: {"basket": {}},
    }
    return FunctionEnvironment(**settings | changes)


def test_the_schema_comes_from_signature_and_docstring() -> None:
    puts, _, works = (tool["function"] for tool in tools_of(environment()))
    assert (puts["name"], puts["description"]) == ("put", "Put things into the basket.")
    assert puts["parameters"] == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "what to put in"},
            "count": {"type": "integer", "default": 1, "description": "how many of them, at least one"},
        },
        "required": ["item"],
    }
    assert works["parameters"]["properties"]["number"]["minimum"] == 0
    assert works["parameters"]["properties"]["how"] == {"type": "string", "enum": ["twice", "half"], "default": "twice"}


def test_an_episode_runs_calls_and_grades_the_answer() -> None:
    env = environment().make()
    assert env.reset(TASKS[1], 0).text == "put 2 apples into the basket"
    assert '"name": "put"' in env.system
    seen = env.step("I put one in. " + call("put", item="apple"))
    assert (seen.text, seen.role, seen.valid, seen.terminated) == ("1 apple", "tool", True, False)
    both = env.step(call("put", item="apple") + call("look"))
    assert both.text == '1. put: 2 apple\n2. look: {"apple": 2}'
    assert [one["text"] for one in both.data["tool_results"]] == ["2 apple", '{"apple": 2}']
    end = env.step("done")
    assert (end.reward, end.terminated, end.outcome) == (1.0, True, True)
    with pytest.raises(InfrastructureError):
        env.step("more")


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (call("put"), "error: put needs the argument 'item'"),
        (call("put", item="apple", cuont=2), "error: put has no argument 'cuont' (did you mean 'count'?)"),
        (call("put", item="apple", count="many"), "error: argument 'count' of put: input should be a valid integer"),
        (call("putt", item="apple"), "error: there is no tool 'putt' (did you mean 'put'?)"),
        (call("pure", number=-1), "error: argument 'number' of pure: input should be greater than or equal to 0, not -1"),
        ("<tool_call>{broken</tool_call>", "error: the call is not JSON"),
        ("<tool_call>[1]</tool_call>", "error: the call has no name"),
    ],
)
def test_a_wrong_call_is_answered_in_one_sentence(reply: str, sentence: str) -> None:
    env = environment().make()
    env.reset(TASKS[0], 0)
    seen = env.step(reply)
    assert seen.text.startswith(sentence)
    assert "\n" not in seen.text
    assert (seen.valid, seen.terminated, seen.data["tool_results"][0]["error"]) == (False, False, True)


def test_what_a_tool_raises_is_told_and_the_episode_continues() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def flood() -> str:
        return "x" * 100_000

    def odd() -> object:
        return {1, 2}

    def outside() -> None:
        raise InfrastructureError("tool", "the service is down")

    env = environment(tools=[put, leave, flood, odd, outside]).make()
    env.reset(TASKS[0], 0)
    seen = env.step(call("put", item="apple", count=0))
    assert (seen.text, seen.valid) == ("error: ValueError: nothing to put", True)
    assert env.step(call("leave")).text == "error: SystemExit: 3"
    assert env.step(call("flood")).text.endswith("... (84,000 characters more)")
    assert env.step(call("odd")).text == "{1, 2}"
    assert "more than 32 calls" in env.step(call("put", item="pear") * 40).text
    with pytest.raises(InfrastructureError, match="the service is down"):
        env.step(call("outside"))


def test_bad_tools_and_tasks_are_refused_in_one_sentence() -> None:
    async def later() -> None: ...
    def many(*items: str) -> None: ...
    def foreign(thing: Path.__class__.__mro__[0] | asyncio.Queue) -> None: ...  # type: ignore[name-defined]

    for tools, sentence in (
        ([lambda x: x], "a tool needs a name"),
        ([later], "a tool is a plain function"),
        ([Path], "a tool is a plain function"),
        ([many], "takes \\*items"),
        ([put, put], "two tools are called 'put'"),
    ):
        with pytest.raises(UserError, match=sentence):
            environment(tools=tools)
    with pytest.raises(UserError):
        FunctionTool.of(foreign)
    with pytest.raises(UserError, match="give it a field 'prompt'"):
        environment().make().reset(Task("bare"), 0)
    with pytest.raises(UserError, match="empty"):
        environment(tasks=[])


def test_snapshots_are_stored_where_json_copied_in_memory_where_not_and_none_where_neither() -> None:
    class Basket(dict):
        pass

    class Stuck:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("not today")

    kinds = []
    for state in ({"basket": {}}, {"basket": {1: 2}}, {"basket": {"apple": {1}}}, {"basket": {}, "stuck": Stuck()}):
        env = environment(state=lambda task, state=state: state).make()
        env.reset(TASKS[0], 0)
        kinds.append(type(env.snapshot()))
    assert kinds == [dict, Volatile, Volatile, type(None)]


def test_function_environments_conform() -> None:
    assert check_env(environment()) == []
    assert check_env(environment(state=lambda task: {"basket": {}, "seen": {1, 2}})) == []
    assert check_env(environment(tools=[pure], state=None, grade=None)) == []


def test_tools_with_state_of_their_own_are_found_out() -> None:
    basket: list[str] = []

    def keep(item: str) -> str:
        basket.append(item)
        return f"{len(basket)} things"

    found = {problem.check for problem in check_env(environment(tools=[keep], state=None, grade=None))}
    assert {"reset", "sharing"} <= found


def test_grading() -> None:
    task = Task("a", {"prompt": "6 times 7?", "answer": "42"})

    def outcome(answer: str, **changes: Any) -> Any:
        env = environment(tasks=[task], tools=[pure], state=None, **{"grade": None} | changes).make()
        env.reset(task, 0)
        seen = env.step(answer)
        return seen.reward, seen.outcome

    assert outcome(" 42 ") == (1.0, True)
    assert outcome("41") == (0.0, False)
    assert outcome("", grade=lambda t, a, s: 0.5) == (0.5, False)
    for grade in (lambda t, a, s: 1 / 0, lambda t, a, s: "good", lambda t, a, s: float("nan"), lambda t, a, s: None):
        with pytest.raises(InfrastructureError, match="scorer: the grader failed"):
            outcome("", grade=grade)


def script(messages: Any, key: int) -> str:
    turns = sum(m.role == "assistant" for m in messages)
    want = int(messages[1].text.split()[1])
    return call("put", item="apple", count=1 + (key % 5 == 0)) if turns < want else "done"


@pytest.mark.parametrize("state", [lambda task: {"basket": {}}, lambda task: {"basket": {}, "seen": {1}}])
@pytest.mark.parametrize("tokens", [False, True])
def test_rollout_and_fork(tmp_path: Path, state: Any, tokens: bool) -> None:
    made, model = environment(state=state), ScriptedModel(script, tokens=tokens)
    attempts = play(model, made, TASKS[1:4], attempts=4, out=tmp_path / "run", sampling=Sampling(max_tokens=200))
    assert all(a.failure is None for a in attempts)
    assert {a.outcome for a in attempts} == {True, False}
    longest = max(attempts, key=lambda a: len(a.turns))
    calls = parse_tool_calls(longest.turns[1].node.text)
    assert calls[0].name == "put"
    for turn in longest.turns:
        done = fork_run(tmp_path / "run", turn.node.id, n=4, model=model, env=made)
        assert done.arm.scored == 4


@pytest.mark.slow
def test_a_environment_by_import_path_plays_and_forks_in_new_processes(tmp_path: Path) -> None:
    (tmp_path / "own_environments.py").write_text(
        "from ramify.integrations.environments.functions import FunctionEnvironment\n"
        "from ramify.env.protocol import Task\n"
        "from ramify import tool\n"
        "@tool('sandboxed')\n"
        "def add(a: int, b: int, state: set) -> int:\n    'Add.'\n    state.add(a)\n    return a + b\n"
        "TASKS = [Task(f't{i}', {'prompt': f'{i} plus 1?', 'answer': str(i + 1)}) for i in range(8)]\n"
        "make = lambda: FunctionEnvironment([add], TASKS, state=lambda task: set())\n"
        "environment = make()\n"
    )
    run = (
        "from ramify.jobs.play import play, fork_run\n"
        "from ramify.model.scripted import ScriptedModel\n"
        "import json, sys\n"
        "call = '<tool_call>' + json.dumps({'name': 'add', 'arguments': {'a': 2, 'b': 1}}) + '</tool_call>'\n"
        "model = ScriptedModel([call, call, '3'], tokens=False)\n"
        "from ramify.jobs.components import find_environment\n"
        "environment = find_environment('python:own_environments:WHICH')\n"
    )
    first = (
        "from ramify.model.protocol import Sampling\n"
        "tasks = [t for t in environment._tasks if t.id == 't2']\n"
        "print(play(model, environment, tasks, out='run', sampling=Sampling(max_tokens=200))[0].turns[1].node.id)"
    )
    for which in ("environment", "make"):
        shell = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False, "timeout": 110}
        code = run.replace("WHICH", which) + first.replace("'run'", f"'{which}'")
        begun = subprocess.run([sys.executable, "-P", "-c", code], **shell)
        assert begun.returncode == 0, begun.stderr
        go = f"done = fork_run('{which}', '{begun.stdout.strip()}', n=2, model=model, env=environment)\n"
        go += "print(done.arm.successes, [a.replayed for a in done.arm.attempts])"
        forked = subprocess.run([sys.executable, "-P", "-c", run.replace("WHICH", which) + go], **shell)
        assert forked.stdout == "2 [1, 1]\n", forked.stderr


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("python", "needs a path: python:MODULE:ATTRIBUTE"),
        ("python:json", "is not MODULE:ATTRIBUTE"),
        ("python:no_such_module:x", "No module named 'no_such_module'"),
        ("python:json:load_s", "did you mean 'loads'"),
        ("python:json:__name__", "this str is not an environment"),
        ("python:json:loads", "makes no environment without arguments"),
        ("python:collections:Counter", "this Counter is not an environment: it has no name, make, task_set"),
        ("chain:5", "takes no argument"),
        ("household:x", "takes no argument"),
    ],
)
def test_specs_that_name_no_environment(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_environment(spec)


def test_options() -> None:
    assert options("a.b-v1?x=1&y=left&z=false&w=[1,2]") == ("a.b-v1", {"x": 1, "y": "left", "z": False, "w": [1, 2]})
    assert options("plain") == ("plain", {})
    with pytest.raises(UserError, match="NAME\\?key=value"):
        options("a?novalue")


def test_task_sets_do_not_depend_on_order_and_splits_are_apart() -> None:
    shuffled = [TASKS[i] for i in (5, 3, 11, 0, 7, 1, 9, 2, 8, 4, 10, 6)]
    for split in ("train", "eval"):
        assert environment().task_set(split, 3, 1).hash == environment(tasks=shuffled).task_set(split, 3, 1).hash
    more = TaskList([*TASKS, Task("another", {"prompt": "?"})], "x")
    few = {t.id for t in TaskList(TASKS, "x").task_set("train", 99)}
    assert few <= {t.id for t in more.task_set("train", 99)}, "a task stays on its side"
    assert [t.id for t in TaskList([Task("a", {"split": "tune"})], "x").task_set("tune", 5)] == ["a"]
    with pytest.raises(UserError, match="no task of the split 'tune'"):
        TaskList([Task("a", {"split": "eval"})], "x").task_set("tune", 5)
    with pytest.raises(UserError, match="unknown split"):
        seeded("x", "test", 1, 0)
    seeds = [
        task.data["seed"] for split in ("train", "eval", "tune", "demo") for s in (0, 1) for task in seeded("x", split, 50, s)
    ]
    assert len(set(seeds)) == 400
    small = generated("x", lambda number: {"seed": number, "coin": number % 40}, "train", 5, 3)
    assert len({task.data["coin"] for task in small}) == 5
    with pytest.raises(UserError, match="gives only"):
        generated("x", lambda number: {"seed": number, "coin": number % 2}, "train", 5, 3)
    assert isinstance(TaskSet.of(TASKS), TaskSet)
