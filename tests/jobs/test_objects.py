"""play, fork_run and improve with what a user has in hand: functions, classes, dicts, a model of one's own, an environment."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command import Verb

import ramify
from ramify.base import codec
from ramify.base.errors import NeedsError, UserError
from ramify.base.progress import SILENT
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Observation, Task
from ramify.jobs.improve import ImproveConfig, Job
from ramify.jobs.own import Own
from ramify.trace.db import Run

BUILTIN = Path(ramify.__file__).parent / "assets" / "household"
TASKS = [{"id": f"sum-{i}", "a": i, "b": 2} for i in range(4)]
SMALL = {"updates": 1, "tokens": 60, "eval_episodes": 4, "tasks_per_update": 2, "train_tasks": 4}


class Sum:
    """One episode: add two numbers."""

    system, max_turns = "Add.", 2

    def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.answer = task, ""
        return Observation(f"{task.data['a']} + {task.data['b']}")

    def step(self, action: str) -> Observation:
        self.answer = action
        right = action == str(self.task.data["a"] + self.task.data["b"])
        return Observation("right" if right else "wrong", float(right), terminated=True, outcome=right)

    def snapshot(self) -> Any:
        return self.answer

    def restore(self, snapshot: Any) -> None:
        self.answer = snapshot

    def key(self) -> str:
        return self.answer


def adds(messages: list[dict[str, str]]) -> str:
    assert [message["role"] for message in messages] == ["system", "user"]
    return str(sum(map(int, messages[-1]["content"].split(" + "))))


async def adds_later(messages: list[dict[str, str]], key: int) -> str:
    await asyncio.sleep(0)
    return adds(messages) if key >= 0 else ""


class Adds:
    def __call__(self, messages: list[dict[str, str]]) -> str:
        return adds(messages)


@pytest.mark.parametrize(
    "model", [adds, adds_later, Adds(), lambda messages, key: adds(messages)], ids=["plain", "async", "object", "key"]
)
def test_a_function_plays_an_environment_class_on_dicts(model: Any, tmp_path: Path) -> None:
    attempts = ramify.play(model, Sum, TASKS, attempts=2, out=tmp_path / "run")
    assert [a.outcome for a in attempts] == [True] * 8
    fork = ramify.fork_run(
        tmp_path / "run", attempts[0].turns[0].node.id, n=2, edit={"replace": "9"}, model=model, env=lambda: Sum()
    )
    assert codec.to_json(fork.difference) == {"success": -1.0, "interval": pytest.approx([-1.0, 0.09], abs=0.2)}


def test_a_function_that_fails_is_a_failed_attempt_and_its_siblings_continue(tmp_path: Path) -> None:
    def moody(messages: list[dict[str, str]]) -> Any:
        if messages[-1]["content"].startswith("1"):
            raise KeyError("mood")
        return 7 if messages[-1]["content"].startswith("2") else adds(messages)

    attempts = ramify.play(moody, Sum, TASKS, out=tmp_path / "run")
    assert [a.outcome for a in attempts] == [True, None, None, True]
    assert "KeyError: 'mood'" in str(attempts[1].failure)
    assert "returned a int" in str(attempts[2].failure)


def test_difference_is_there_where_nothing_was_scored(tmp_path: Path) -> None:
    def away(messages: list[dict[str, str]]) -> str:
        raise ConnectionError("no answer")

    step = ramify.play(adds, Sum, TASKS[:1], out=tmp_path / "run")[0].turns[0].node.id
    edit = {"insert": {"role": "user", "text": "Well?"}}
    record = ramify.fork_run(tmp_path / "run", step, n=2, edit=edit, model=away, env=Sum).told.to_json()
    assert (record["fork"]["n"], record["control"]["n"]) == (0, 0)
    assert record["difference"] is None
    assert ramify.fork_run(tmp_path / "run", step, n=2, model=adds, env=Sum).difference is None, "no edit"


def test_a_task_file_and_sampling_by_name(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"id": t.id, **t.data}) + "\n" for t in HouseholdEnvironment().task_set("eval", 1))
    )
    (attempt,) = ramify.play(
        "builtin",
        HouseholdEnvironment,
        str(tmp_path / "tasks.jsonl"),
        sampling={"temperature": 0, "max_tokens": 9},
        out=tmp_path / "run",
    )
    with ramify.Run.open(tmp_path / "run") as run:
        provenance = run.provenance(str(attempt.turns[0].node.provenance))
    assert (provenance.settings["temperature"], provenance.settings["max_tokens"]) == (0, 9)
    assert provenance.settings["stop_tokens"], "what was not said is the model's own"


def with_jinja(folder: Path) -> Path:
    """The built-in agent with a template of its own in place of the tags, as most checkpoints have one."""
    shutil.copytree(BUILTIN, folder)
    record = json.loads((folder / "tokenizer.json").read_text())
    text = json.dumps(record).replace("<|user|>", "<|human|>")
    (folder / "tokenizer.json").write_text(text)
    marks = {"user": "<|human|>", "assistant": "<|assistant|>", "system": "<|system|>", "tool": "<|tool|>"}
    (folder / "chat_template.jinja").write_text(
        "{% set marks = " + json.dumps(marks) + " %}{% for m in messages %}{{ marks[m.role] }}{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return folder


def test_a_loaded_model_brings_its_chat_template(tmp_path: Path) -> None:
    folder, task = with_jinja(tmp_path / "model"), list(HouseholdEnvironment().task_set("eval", 1))
    named = ramify.play(f"hf:{folder}", "household", task, out=tmp_path / "named")
    model = ramify.LocalModel.load(folder)
    assert model.template is not None
    own = ramify.play(model, "household", task, out=tmp_path / "own")
    texts = [[turn.node.text for turn in a.turns] for a in (*named, *own)]
    assert texts[0] == texts[1]
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(NeedsError, match="has no chat template"):
        ramify.play(ramify.LocalModel.load(folder), "household", task, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(NeedsError, match="no tokenizer"):
        ramify.play(ramify.LocalModel(model.module), "household", task, out=tmp_path / "none")


def test_improve_takes_dicts_and_objects_and_leaves_the_model_as_it_was(tmp_path: Path, verb: Verb) -> None:
    model, out = ramify.LocalModel.load(with_jinja(tmp_path / "model")), tmp_path / "run"
    before = model.identity
    tasks = [{"id": task.id, **task.data} for task in HouseholdEnvironment().task_set("train", 8)]
    found = ramify.improve({**SMALL, "tree": {"roots": 2}}, out, model=model, env=HouseholdEnvironment, tasks=tasks)
    assert model.identity == before
    assert found.before.n == 4
    started, improved = (ramify.LocalModel.load(out / name) for name in ("start", "agent"))
    assert started.identity.weights == before.weights
    assert improved.template is not None
    assert ramify.resume(out, env=HouseholdEnvironment()) == found
    assert main(["resume", str(out)]) == 0, "it is done: its result again"
    with closing(sqlite3.connect(out / "run.sqlite")) as db, db:
        db.execute("DELETE FROM journal WHERE kind = 'result'")
    assert "was made with an environment object: continue in Python" in verb.refused("resume", out)
    with ramify.Run.open(out) as run:
        node = next(n for info in run.trees() for n in run.nodes(info.name) if n.role == "assistant")
    assert ramify.fork_run(out, node.id, n=2, env=HouseholdEnvironment).arm.attempts, "the model is found by where it was kept"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model": ["go"]}, r"a model is a name .* not a list; ramify.ScriptedModel"),
        ({"model": ramify.ScriptedModel}, "ScriptedModel is a class: give an object of it"),
        ({"model": lambda: "x"}, r"must be callable as .*\(messages\)"),
        ({"model": adds, "sampling": {"temperature": 0}}, "takes no sampling settings; leave sampling= out"),
        (
            {"model": "builtin", "sampling": {"temprature": 0}},
            "unknown sampling setting 'temprature' .did you mean 'temperature'",
        ),
        ({"model": "builtin", "sampling": {"temperature": "hot"}}, "sampling setting 'temperature': .* not 'hot'"),
        ({"env": Sum()}, "is one episode: give what makes one for each attempt, the class Sum"),
        ({"env": object}, "this object is not an environment: it has no name, make, task_set"),
        ({"env": 3}, "this int is not an environment"),
        ({"env": lambda task: Sum()}, "makes no environment without arguments"),
        ({"env": Sum, "tasks": None}, "'Sum' makes no tasks of its own: give tasks="),
        ({"tasks": [{"id": "a"}, {"name": "b"}]}, "task 2: a task is an object with a text 'id'"),
        ({"tasks": [{"id": "a", "x": object()}]}, "task 1: "),
        ({"tasks": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"tasks": 3}, "tasks are a file, or objects or dicts with an id, not int"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ramify.play(**{"model": adds, "env": Sum, "tasks": TASKS, "out": tmp_path / "run", **words})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"config": {"upates": 1}}, "unknown key 'upates' in the settings .did you mean 'updates'"),
        ({"config": {"tree": {"rots": 1}}}, "unknown key 'tree.rots' in the settings"),
        ({"model": ramify.ScriptedModel(["x"])}, "needs a model with train"),
        ({"tasks": [{"id": "alone"}]}, "tasks holds one task"),
    ],
)
def test_a_mistake_of_improve_is_one_sentence_and_leaves_nothing(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, NeedsError), match=message):
        ramify.improve(**{"config": SMALL, "out": tmp_path / "run", **words})
    assert not (tmp_path / "run").exists()


def test_a_result_in_an_interpreter_is_three_lines(tmp_path: Path) -> None:
    def wordy(messages: list[dict[str, str]]) -> str:
        if messages[-1]["content"].startswith("3"):
            raise ValueError("no " * 100)
        return "word\n" * 100

    long = [{**task, "id": "sum " * 60 + str(task["a"])} for task in TASKS]
    attempts = ramify.play(wordy, Sum, long, out=tmp_path / "run")
    step = attempts[0].turns[0]
    fork = ramify.fork_run(tmp_path / "run", step.node.id, n=2, edit={"replace": "go " * 99}, model=wordy, env=Sum)
    found = ramify.improve(SMALL, tmp_path / "better")
    with ramify.Run.open(tmp_path / "run") as run:
        for result in (*attempts, step, step.node, fork, fork.arm, found, run, run.tree(attempts[0].tree)):
            lines = repr(result).splitlines()
            assert len(lines) <= 3, lines
            assert max(map(len, lines)) <= 100, lines
    assert attempts[3].failure is not None


class Verbose(Sum):
    """Ends with more text than the agent has context for, which nobody samples after."""

    def step(self, action: str) -> Observation:
        self.answer = action
        return Observation("right " * 4000, 1.0, terminated=True, outcome=bool(action))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"sampling": "splitting"}, {"credit": {"name": "implicit-advantage"}}, {"kl": 0.1}])
def test_what_an_attempt_got_back_at_its_end_may_be_longer_than_the_context(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = ramify.improve({**SMALL, **settings}, tmp_path / "run", env=Verbose, tasks=TASKS)
    assert found.updates == 1
    config = ImproveConfig.model_validate({**SMALL, **settings})
    with Job(config, tmp_path, Own(env=Verbose, tasks=TASKS)) as job, Run.create(tmp_path / "trial", {}) as run:
        assert job.trial(run, SILENT)[1].training_rows == SMALL["eval_episodes"], "the dry run's step, too"
