"""The verbs as a person types them: record, prepare, train, eval, roll out, audit; mistakes are one sentence and exit code 2."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from terminals import Screen, Terminal

from ramify.methods.world_model import Prediction, Situation
from ramify.methods.world_model.environment import simulated
from ramify.methods.world_model.evaluation import compared
from ramify.methods.world_model.trajectories import EnvTrajectory, EnvTurn, read_trajectories
from ramify.testing import check_env
from ramify.trace.db import Run
from tests.command import Verb
from tests.methods.world_model.worlds import notes

SMALL = ("--steps", 12, "--rows", 4, "--width", 32, "--layers", 1, "--vocab", 300, "--max-tokens", 24)


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    return Verb(capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded household, a held-out one, and a world trained on the first."""
    from ramify.cli.main import main

    folder = tmp_path_factory.mktemp("world")
    run = ("world-model", "record", "--env", "household", "--turns", "4")
    assert main([*run, "--episodes", "10", "--out", str(folder / "rec"), "--json"]) == 0
    assert main([*run, "--episodes", "4", "--split", "eval", "--out", str(folder / "held"), "--json"]) == 0
    assert main(["world-model", "train", str(folder / "rec"), "--out", str(folder / "w"), *map(str, SMALL), "--json"]) == 0
    return folder


def test_recording_is_a_run_like_any_other(made: Path) -> None:
    found = read_trajectories(made / "rec")
    assert len(found) == 10
    assert all(1 <= len(one.turns) <= 4 and one.opening.startswith("Goal:") and "exits" in one.data for one in found)
    assert {turn.action.split()[0] for one in found for turn in one.turns} <= {"go", "take", "open", "wait"}


def test_prepare_keeps_classes_in_the_run_and_writes_rows(made: Path, verb: Verb, tmp_path: Path) -> None:
    done = verb("world-model", "prepare", made / "held", "--out", tmp_path / "rows.jsonl", "--json")
    record = done.json
    assert (
        record["turns"]
        == sum(one["turns"] for one in record["classes"])
        == sum(len(t.turns) for t in read_trajectories(made / "held"))
    )
    with Run.open(made / "held") as run:
        notes = run.annotations(maker="world-model prepare")
        assert len(notes) == record["turns"]
        assert {"class", "kept", "overlap", "novelty"} == set(notes[0].value)
        assert run.findings(maker="world-model prepare")[0].name == "informative turns"
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    said = [message for row in rows for message in row["messages"] if message["role"] == "assistant"]
    assert sum(message["train"] for message in said) == record["kept"]
    assert not any("train" in message for row in rows for message in row["messages"] if message["role"] != "assistant")


def test_prepare_writes_a_row_for_each_turn_that_is_trained_on(verb: Verb, tmp_path: Path) -> None:
    """For trainers that train on whole completions only, as TRL's: a masked turn is context of later ones, and no row."""
    said = [("user", "A room."), ("assistant", "look"), ("user", "a lamp and a door")]
    said += [message for i in range(60) for message in (("assistant", f"echo k{i}"), ("user", f"echo k{i}"))]
    record = {"messages": [{"role": role, "content": text} for role, text in said]}
    (tmp_path / "log.jsonl").write_text(json.dumps(record) + "\n")
    words = ("prepare", tmp_path / "log.jsonl", "--out", tmp_path / "rows.jsonl", "--rows")
    found = verb("world-model", *words, "turns", "--json").json
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert 1 <= len(rows) == found["kept"] < 20 < found["turns"] == 61
    for row in rows:
        assert len(row["completion"]) == 1
        whole = [(message["role"], message["content"]) for message in row["prompt"] + row["completion"]]
        assert whole[0] == ("system", "A room.")
        roles = {"user": "assistant", "assistant": "user"}  # the model is now the environment
        assert whole[1:] == [(roles[role], text) for role, text in said[1 : len(whole)]]
    assert rows[0]["completion"][0]["content"] == "a lamp and a door"
    assert "--rows is chats or turns, not 'turn'" in verb.refused("world-model", *words, "turn")


def test_a_simulated_environment_is_played_twice_alike_and_audited(made: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "world.toml").write_text(
        f'model = "retrieval:{made / "rec"}"\ntasks = "{made / "w" / "tasks.jsonl"}"\nmax_turns = 4\n'
    )
    where = f"simulated:{tmp_path / 'world.toml'}"
    assert (
        check_env(simulated(str(tmp_path / "world.toml")), lambda task, snapshot: ["go hall", "take lamp"], tasks=2, turns=3)
        == []
    )
    for name in ("one", "two"):
        assert verb("rollout", "--env", where, "--count", 3, "--out", tmp_path / name, "--max-reply", 8, "--json").code == 0
    texts = []
    for name in ("one", "two"):
        with Run.open(tmp_path / name) as run:
            texts.append(sorted(node.text for tree in run.trees() for node in run.nodes(tree.name)))
    assert texts[0] == texts[1]
    found = verb("world-model", "audit", tmp_path / "one", "--env", "household", "--json").json
    assert (found["replay"]["attempts"], found["replay"]["unstable"]) == (3, 0)
    assert found["noted"]["answered_by"] == {"model": found["replay"]["turns"]}
    assert found["replay"]["different_turns"] > 0, "the nearest recorded answer is seldom the right one"
    with Run.open(tmp_path / "one") as run:
        assert {one.name for one in run.findings(maker="world-model audit")} <= {
            "drift",
            "invented fields",
            "success that is not real",
        }
    assert verb("world-model", "audit", tmp_path / "one", "--real", tmp_path / "two", "--json").json["loophole"] is False


def test_a_trained_world_plays(made: Path, verb: Verb, tmp_path: Path) -> None:
    """What so small a model writes may end an attempt; then it is an infrastructure failure, and no failure of the agent."""
    out = tmp_path / "sim"
    done = verb("rollout", "--env", f"simulated:{made / 'w'}", "--count", 2, "--out", out, "--max-reply", 8, "--json")
    assert done.code in (0, 1)
    assert done.json["n"] + done.json["failed"] == 2
    assert all("no observation after" in why for why in done.json["failures"])


def test_an_adapter_is_trained_alone_saved_alone_and_trained_on(made: Path, verb: Verb, tmp_path: Path) -> None:
    few = ("--steps", 2, "--rows", 2, "--max-tokens", 24, "--json")
    found = verb("world-model", "train", made / "rec", "--model", made / "w", "--lora", 2, "--out", tmp_path / "a", *few).json
    files = {path.name for path in (tmp_path / "a" / "model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert "model.safetensors" not in files
    assert 0 < found["trained_weights"] < found["weights"] / 4
    assert found["peak_memory"] > 4 * found["weights"]
    again = verb("world-model", "train", made / "rec", "--model", tmp_path / "a", "--out", tmp_path / "b", *few).json
    assert again["trained_weights"] == found["trained_weights"]  # an adapter goes on as it is
    played = verb("rollout", "--env", f"simulated:{tmp_path / 'b'}", "--count", 1, "--out", tmp_path / "c", "--json")
    assert played.json["n"] + played.json["failed"] == 1
    refused = verb.refused("world-model", "train", made / "rec", "--lora", 2, "--out", tmp_path / "d")
    assert "--lora 2 adapts a model that is there" in refused


@pytest.mark.slow
def test_eval_measures_both_loops_and_the_baselines(made: Path, verb: Verb) -> None:
    done = verb("world-model", "eval", made / "w", "--data", made / "held", "--train", made / "rec", "--json")
    found = done.json
    assert set(found["baselines"]) == {"copy", "majority", "retrieval"}
    assert found["forced"]["turns"] == found["closed"]["turns"] == sum(one["trajectories"] for one in found["drift"]["curve"])
    assert 0 <= found["rubric"]["of_100"] <= 100
    text = verb("world-model", "eval", made / "w", "--data", made / "held", "--mode", "forced", "--judge", "none").out
    assert "baseline copy" in text
    assert "drift" not in text


def test_a_table_of_what_was_recorded_is_exact(made: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "world.toml").write_text(f'model = "table:{made / "rec"}"\n')
    found = json.loads(
        verb("world-model", "eval", tmp_path / "world.toml", "--data", made / "rec", "--json").out.splitlines()[-1]
    )
    assert found["forced"]["exact"]["value"] == found["closed"]["exact"]["value"] == 1.0
    assert not found["drift"]["found"]
    assert found["rubric"]["of_100"] == 100
    assert found["better"], "10 trajectories, all right, against copies that are wrong in each"
    assert found["baselines"]["copy"]["against"]["more_wrong"] == 10
    (tmp_path / "copy.toml").write_text('model = "copy"\n')
    words = ("--data", made / "rec", "--judge", "none", "--mode", "forced")
    text = verb("world-model", "eval", tmp_path / "copy.toml", *words).out
    assert "NOT shown to be better than the baseline copy: fewer wrong turns than copy in 0 trajectories, more in 0 (p 1)" in text
    closed = verb("world-model", "eval", tmp_path / "copy.toml", *words[:4], "--mode", "closed", "--json").json
    assert closed["better"] is None, "baselines are played on true history"


def test_what_did_not_fit_the_context_is_counted() -> None:
    """A model that sees only the last turns answers all the same;
    it is said how often the first ones were left out, and who answered."""

    class Short:
        name = identity = "short"

        async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
            return Prediction("ok", dropped=max(0, len(situation.turns) - 2))

    turns = tuple(EnvTurn("get a" if i == 1 else "wait", "ok") for i in range(6))
    found, _ = compared(notes(predictor=Short()), [], [EnvTrajectory("one", "t", {}, "", "A room.", turns)], ("forced",))
    assert found.forced is not None
    assert found.forced.cut == 3
    assert found.forced.answered_by == {"model": 5, "code": 1}
    assert "forced: answered by model 5, code 1; 3 without the oldest turns" in str(found)


def test_eval_says_that_faults_count_as_wrong(made: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "control.toml").write_text('[[control]]\nkind = "fault"\non = [1]\n')
    (tmp_path / "world.toml").write_text(f'model = "table:{made / "held"}"\ncontrol = "control.toml"\n')
    done = verb(
        "world-model", "eval", tmp_path / "world.toml", "--data", made / "held", "--mode", "forced", "--judge", "none", "--json"
    )
    assert done.json["forced"]["by_turn"]["1"]["value"] == 0
    assert done.json["forced"]["by_turn"]["2"]["value"] == 1
    assert "has controls" in done.json["caveats"][0]


def test_a_training_that_was_stopped_ends_as_one_that_was_not(made: Path, tmp_path: Path) -> None:
    from ramify.methods.world_model import training

    settings = training.WorldTraining(steps=6, rows=3, width=32, layers=1, vocab=290, max_tokens=24)
    whole = training.train_world([made / "rec"], "new", settings, tmp_path / "whole")

    class StoppedError(Exception):
        pass

    class Stops(training.Progress):
        def at(self, done: float, note: str = "", phase: str = "") -> None:
            if done == 4:
                raise StoppedError

    kept, training.EVERY = training.EVERY, 2
    try:
        with pytest.raises(StoppedError):
            training.train_world([made / "rec"], "new", settings, tmp_path / "parts", Stops())
        again = training.train_world([made / "rec"], "new", settings, tmp_path / "parts")
    finally:
        training.EVERY = kept
    assert replace(again, world="", peak_memory=0) == replace(whole, world="", peak_memory=0)
    files = ["model/model.safetensors", "tasks.jsonl", "world.toml"]
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes() for name in files)


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_later_stages_continue_from_the_first(made: Path, verb: Verb, tmp_path: Path, stage: str) -> None:
    words = ("--stage", stage, "--model", made / "w", "--steps", 2, "--rows", 2, "--samples", 2, "--prompts", 3, "--threshold", 1)
    done = verb("world-model", "train", made / "rec", *words, "--max-tokens", 12, "--out", tmp_path / "next", "--json")
    found = done.json
    assert found["stage"] == stage
    assert (tmp_path / "next" / "world.toml").is_file()


@pytest.mark.slow
def test_a_turn_longer_than_the_context_is_passed_over(verb: Verb, tmp_path: Path) -> None:
    def said(action: str) -> str:
        messages = [("user", "A room."), ("assistant", action), ("user", "nothing"), ("assistant", "look"), ("user", "a room")]
        return json.dumps({"messages": [{"role": role, "content": text} for role, text in messages]}) + "\n"

    (tmp_path / "mixed.jsonl").write_text("".join(said(action) for action in ("wait", "sing " * 300, "wait", "sing " * 300)))
    (tmp_path / "long.jsonl").write_text(said("sing " * 300).replace("look", "sing " * 300))
    words = (*SMALL, "--context", 128)
    assert verb("world-model", "train", tmp_path / "mixed.jsonl", "--out", tmp_path / "w", *words, "--json").code == 0
    for stage in ("sft", "rl"):
        more = (
            "--stage",
            stage,
            "--model",
            tmp_path / "w",
            *words,
            "--steps",
            3,
            "--prompts",
            4,
            "--samples",
            2,
            "--threshold",
            1,
        )
        found = verb("world-model", "train", tmp_path / "mixed.jsonl", *more, "--out", tmp_path / stage, "--json").json
        assert found["stage"] == stage
        refused = verb.refused("world-model", "train", tmp_path / "long.jsonl", *more, "--out", tmp_path / f"{stage}-long")
        assert "every recorded turn is longer than the model's context of 128 tokens" in refused


def test_mistakes_are_one_sentence(made: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "bad.toml").write_text('modle = "copy"')
    (tmp_path / "verify.toml").write_text('model = "copy"\nverify = "nowhere.py:check"')
    for words, says in [
        (("eval", tmp_path / "nowhere", "--data", made / "held"), "no simulated environment"),
        (("eval", tmp_path / "empty.toml", "--data", made / "held"), "needs a model"),
        (("eval", tmp_path / "bad.toml", "--data", made / "held"), "did you mean 'model'"),
        (("eval", tmp_path / "verify.toml", "--data", made / "held"), "there is no file"),
        (("eval", made / "w", "--data", made / "held", "--mode", "open"), "--mode is forced, closed"),
        (("eval", made / "w", "--data", made / "held", "--judge", "rulez"), "unknown judge"),
        (("prepare", made / "held", "--mask", "some"), "--mask is info or none"),
        (("serve", "--model", "copy", "--layout", "tag"), "layout is plain or tags, not 'tag' (did you mean 'tags'?)"),
        (("record", "--env", "nowhere", "--out", tmp_path / "x"), "unknown env"),
        (
            ("train", made / "rec", "--out", made / "w", *SMALL[2:], "--steps", 13),
            "cannot continue, it began with other settings",
        ),
        (("audit", "nowhere", "--env", "household"), "no run 'nowhere'"),
        (("serve", "--world", made / "w", "--task", "t0"), "no task 't0'"),
        (("serve",), "needs a model"),
    ]:
        assert says in verb.refused("world-model", *words), words


@pytest.mark.slow
def test_it_is_served_over_mcp_and_played_as_an_mcp_environment(verb: Verb, tmp_path: Path) -> None:
    """A world with a store and a fault, served by one process, played by another through the environment ``mcp``."""
    pytest.importorskip("mcp")
    text = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "price", "description": "What it costs.", "inputSchema": text}]))
    effect = {"tool": "price", "do": "get", "table": "shop", "key": "of"}
    (tmp_path / "state.json").write_text(json.dumps({"shop": {"tea": "3 euro"}, "effects": [effect]}))
    (tmp_path / "control.toml").write_text('[[control]]\nkind = "fault"\non = [2]\ntext = "429"\n')
    (tmp_path / "world.toml").write_text('model = "copy"\ntools = "tools.json"\nstate = "state.json"\ncontrol = "control.toml"\n')
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"id": "t", "prompt": "How much is tea?", "answer": "3 euro", "split": "train"}) + "\n"
    )
    (tmp_path / "player.py").write_text(
        'CALL = \'<tool_call>{"name": "price", "arguments": {"of": "tea"}}</tool_call>\'\n'
        "def play(messages):\n"
        "    n = sum(m['role'] == 'assistant' for m in messages)\n"
        "    return CALL if n < 3 else str(messages[-1]['content'])\n"
    )
    server = f"{sys.executable} -m ramify world-model serve --world {tmp_path / 'world.toml'}"
    done = verb("rollout", "--env", f"mcp:tasks={tmp_path / 'tasks.jsonl'} {server}", "--model", f"{tmp_path / 'player.py'}:play",
                "--count", 1, "--out", tmp_path / "run", "--json")  # fmt: skip
    assert done.json["successes"] == 1
    (one,) = read_trajectories(tmp_path / "run")
    assert [turn.observation for turn in one.turns] == ["3 euro", "429", "3 euro", "Your answer was taken."]


@pytest.mark.slow
def test_an_mcp_server_is_recorded_by_random_calls(verb: Verb, tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    server = tmp_path / "server.py"
    server.write_text(
        "from mcp.server import MCPServer\napp = MCPServer('notes')\nnotes = {}\n"
        "@app.tool()\ndef put(key: str, value: int) -> str:\n    notes[key] = value\n    return 'ok'\n"
        "@app.tool()\ndef get(key: str) -> str:\n    return str(notes.get(key, '404'))\n"
        "app.run()\n"
    )
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"id": f"t{i}", "prompt": "alpha beta", "split": "train"}) + "\n" for i in range(2))
    )
    where = f"mcp:tasks={tmp_path / 'tasks.jsonl'} {sys.executable} {server}"
    done = verb("world-model", "record", "--env", where, "--episodes", 2, "--turns", 4, "--out", tmp_path / "rec", "--json")
    found: dict[str, Any] = done.json
    assert (found["failed"], found["tasks"]) == (0, 2)
    turns = [turn for one in read_trajectories(tmp_path / "rec") for turn in one.turns]
    assert {turn.observation for turn in turns} & {"ok", "404"}
    assert all("<tool_call>" in turn.action or turn.action == "done" for turn in turns)


@pytest.mark.slow
def test_a_textworld_game_is_recorded_by_its_listed_commands(verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes sense is listed after every observation, so an explorer without a model plays it; a table of it is exact."""
    pytest.importorskip("textworld")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = "textworld:make?rooms=2&objects=2&length=2&admissible=true"
    found = verb("world-model", "record", "--env", where, "--episodes", 2, "--turns", 4, "--out", tmp_path / "rec", "--json").json
    assert (found["failed"], found["tasks"]) == (0, 2)
    turns = [
        (before, turn)
        for one in read_trajectories(tmp_path / "rec")
        for before, turn in zip([one.opening, *(t.observation for t in one.turns)], one.turns, strict=False)
    ]
    assert all(turn.action in before.rpartition("Commands: ")[2].split("; ") for before, turn in turns)
    (tmp_path / "world.toml").write_text('model = "table:rec"\n')
    evaluated = verb("world-model", "eval", tmp_path / "world.toml", "--data", tmp_path / "rec", "--judge", "none", "--json").json
    assert evaluated["forced"]["exact"]["value"] == evaluated["closed"]["exact"]["value"] == 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_agent_is_improved_in_a_simulated_environment(verb: Verb, tmp_path: Path) -> None:
    """The main job takes it as any environment: branching rollouts, credit, an update,
    success before and after; nothing fails."""
    (tmp_path / "say.py").write_text(
        'def say(situation):\n    return f"you said {situation.action}"\n'
        "def brief(task, answer, state):\n    return True if len(answer) % 2 else None\n"
    )
    (tmp_path / "world.toml").write_text(
        'model = "predict:say.py:say"\ntasks = "tasks.jsonl"\nverify = "say.py:brief"\nmax_turns = 3\ncache = "answers"\n'
    )
    tasks = [
        {"id": f"t{i}", "opening": f"You are in the hall. Exits: room-{i}.", "split": "train" if i < 10 else "eval"}
        for i in range(16)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    words = ("--updates", 1, "--tokens", 300, "--eval-episodes", 4, "--tasks-per-update", 2, "--train-tasks", 6)
    where = f"simulated:{tmp_path / 'world.toml'}"
    found = verb("improve", "--env", where, *words, "--out", tmp_path / "run", "--json").json
    assert (found["updates"], found["before"]["n"], found["after"]["n"]) == (1, 4, 4)
    assert found["before"]["failed"] == found["after"]["failed"] == 0
    assert found["attempts"] > 8, "more than those of before and after"
    turns = [turn for one in read_trajectories(tmp_path / "run") for turn in one.turns]
    assert turns
    assert all(turn.observation == f"you said {turn.action}" for turn in turns)


@pytest.mark.slow
def test_it_records_in_a_terminal(tmp_path: Path) -> None:
    words = ["world-model", "record", "--env", "household", "--episodes", "3", "--turns", "2", "--out", "rec"]
    with Terminal(columns=72) as terminal:
        terminal.execute([sys.executable, "-m", "ramify", *words], tmp_path, os.environ | {"TERM": "xterm", "COLUMNS": ""})
        assert terminal.wait() == 0
        screen = Screen(terminal.text, terminal.columns)
    assert any("3 episodes of 3 tasks" in line for line in screen.lines)
    assert screen.wrapped == [], screen.lines
