"""``ramify rollout``: what it prints, continuing, budgets, and one sentence for everything a user can get wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import FAULTS, FaultyServer, good

from ramify.cli.main import main
from ramify.cli.rollout import seconds_left
from ramify.trace.db import Run

SMALL = ["--count", "3", "--seed", "3"]


def test_it_plays_shows_and_continues(verb, here: Path) -> None:
    cost_estimate = verb("rollout", *SMALL, "--attempts", "2", "--dry-run", "--json").json["cost_estimate"]
    assert cost_estimate.items() >= {"tasks": 3, "attempts": 6, "calls": 72, "tokens": 72 * 64}.items()
    assert not (here / "runs").exists()
    first = verb("rollout", *SMALL, "--attempts", "2", "--json")
    assert (first.code, first.err) == (0, "")
    assert (first.json["run"], first.json["n"], first.json["missing"], first.json["spent"]) == ("runs/rollout-1", 6, 0, None)
    low, high = first.json["interval"]
    assert low <= first.json["success"] == first.json["successes"] / 6 <= high
    more = verb("rollout", *SMALL, "--attempts", "3", "--out", "runs/rollout-1", "--json").json
    assert more["n"] == 9
    assert more["tokens"] > first.json["tokens"]
    again = verb("resume", "rollout-1", "--json").json
    assert {k: again[k] for k in ("n", "successes", "tokens")} == {k: more[k] for k in ("n", "successes", "tokens")}
    text = verb("rollout", *SMALL, "--attempts", "3", "--out", "runs/rollout-1").out
    assert "ramify show runs/rollout-1" in text
    assert f"{more['success']:.1%}" in text
    shown = verb("show", "rollout-1", "--json").json
    assert shown["nodes"] > 9
    assert (shown["attempts"]["n"], shown["attempts"]["successes"]) == (9, more["successes"])
    assert "95 % interval" in verb("show", "rollout-1").out


def test_an_environment_is_played_by_its_own_built_in_agent(verb, here: Path) -> None:
    done = verb("rollout", "--env", "long-household", "--count", "1", "--out", "r", "--json")
    assert (done.code, done.err, done.json["n"]) == (0, "", 1)
    with Run.open(here / "r") as run:
        assert run.config["model"] == "builtin:long-household"


@pytest.mark.slow
def test_a_spent_budget_is_exit_code_3_and_can_be_raised(verb, here: Path) -> None:
    code, out, err = verb("rollout", *SMALL, "--budget.calls", "10", "--concurrency", "1", "--out", "r", "--json")
    result = json.loads(out)
    assert (code, result["spent"], result["n"], result["missing"]) == (3, "calls", 1, 2)
    assert err == (
        "warning: the budget of calls is spent, 2 attempts not played: "
        "raise --budget.calls and give the same command with --out r to continue\n"
    )
    assert verb("rollout", *SMALL, "--budget.calls", "10", "--out", "r", "--json").code == 3
    assert verb("rollout", *SMALL, "--budget.calls", "1000", "--out", "r", "--json").json["n"] == 3


def test_mistakes_are_one_sentence_and_make_no_run(verb, here: Path) -> None:
    (here / "empty.jsonl").write_text("")
    (here / "file").write_text("")
    for words, message in (
        (["--backend", "rai"], "unknown back end 'rai'"),
        (["--backend", "processes:zero"], "'zero' is not a number of workers"),
        (["--env", "houshold"], "did you mean 'household'?"),
        (["--model", "gpt"], "model 'gpt'"),
        (["--model", "hf:nowhere"], "there is no folder nowhere"),
        (["--model", "builtin:long-houshold"], "did you mean 'long-household'?"),
        (["--model", "builtin:../household"], "there is no built-in agent '../household'"),
        (["--model", "factory:nowhere:x"], "names nothing that can be imported"),
        (["--env", "factory:os:nothing"], "names nothing that can be imported"),
        (["--env", "factory:os:getcwd"], "this str is not an environment: it has no name, make, task_set"),
        (["--model", "factory:os:getcwd"], "returned a str, which is no model"),
        (["--attempts", "9" * 30], "--attempts"),
        (["--tasks", "empty.jsonl"], "empty.jsonl holds no task"),
        (["--attempts", "0"], "--attempts"),
        (["--budget.tokens", "-1"], "--budget.tokens"),
        (["--atempts", "2"], "did you mean '--attempts'?"),
        (["--out", "file"], "it is a file"),
    ):
        assert message in verb.refused("rollout", *words), words
    assert sorted(path.name for path in here.iterdir()) == ["empty.jsonl", "file"]


def test_tasks_that_the_environment_cannot_start_leave_no_run_in_the_way(verb, here: Path) -> None:
    (here / "tasks.jsonl").write_text('{"id": "a"}\n')
    assert "task 'a' lacks door" in verb.refused("rollout", "--tasks", "tasks.jsonl", "--out", "run")
    assert verb("rollout", "--count", "1", "--out", "run").code == 0  # a mended command goes there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "what"), [(["--seed", "4"], "seed was 3, is 4"), (["--temperature", "0.5"], "temperature was 1.0")]
)
def test_a_run_is_not_mixed_with_another(verb, here: Path, words: list[str], what: str) -> None:
    verb("rollout", *SMALL, "--out", "r")
    message = verb.refused("rollout", *SMALL, *words, "--out", "r")
    assert message.startswith("r cannot continue, it began with other settings: ")
    assert what in message


def test_a_run_of_something_else_is_left_alone(verb, chats: Path) -> None:
    assert "was not made by `ramify rollout`" in verb.refused("rollout", "--out", chats)


def test_attempts_and_continuations_that_all_fail_are_exit_code_1(verb, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from ramify.base.errors import InfrastructureError
from ramify.model.scripted import ScriptedModel

def fail(messages, key):
    raise InfrastructureError("engine", "gone")

def make():
    return ScriptedModel(fail, tokens=False)
"""
    (here / "failing_agent.py").write_text(source)
    monkeypatch.syspath_prepend(here)
    played = verb("rollout", "--model", "factory:failing_agent:make", "--count", "2", "--out", "run", "--json")
    assert (played.code, played.json["failures"]) == (1, {"engine: gone": 2})
    assert played.err == "warning: every attempt failed; `ramify resume run` tries them again\n"
    (here / "short_agent.py").write_text(source.replace('"gone"', '"900 tokens do not fit the context of 512"'))
    short = verb("rollout", "--model", "factory:short_agent:make", "--count", "2", "--out", "short", "--json")
    assert short.err == (
        "warning: every attempt failed: 900 tokens do not fit the context of 512; `ramify resume short` would not change that, "
        "so play with a --model that takes longer prompts\n"
    )
    with Run.open(here / "run") as run:
        start = next(node.id for node in run.nodes(run.trees()[0].name) if node.role == "user")
    forked = verb("fork", "run", start, "--n", "2", "--json")
    assert (forked.code, forked.json["fork"]["failed"]) == (1, 2)
    assert forked.err == "warning: every continuation failed, the first at engine: gone\n"


def test_a_request_that_is_refused_for_ever_is_not_advised_to_be_sent_again(verb, here: Path) -> None:
    def sound_until_it_plays(body: dict[str, Any]) -> bytes:
        return good(body) if "colour" in body["messages"][0]["content"] else FAULTS["400"][0]

    with FaultyServer(sound_until_it_plays) as server:
        played = verb(
            "rollout", "--model", f"chat:m@{server.url}?retries=0", "--env", "chain", "--count", "2", "--out", "run", "--json"
        )
    assert played.code == 1
    assert "answers 400: max_tokens is too large" in played.err
    assert "would send the same requests, so change what is sent" in played.err


def test_a_dry_run_says_seconds_by_what_the_run_holds(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["rollout", "--env", "chain", "--out", str(tmp_path / "run"), "--json"]
    assert main([*words, "--count", "2"]) == 0
    assert main([*words, "--count", "2", "--dry-run"]) == 0
    done = json.loads(capsys.readouterr()[0].splitlines()[-1])["cost_estimate"]
    assert (done["seconds, about"], done["seconds from"]) == (0, "2 attempts that the run holds")
    with Run.open(tmp_path / "run") as run:
        assert seconds_left(run, 2 + 2 * 10**6)["seconds, about"] > 100
    assert main([*words[:-2], str(tmp_path / "new"), "--count", "2", "--dry-run", "--json"]) == 0
    assert "seconds, about" not in json.loads(capsys.readouterr()[0])["cost_estimate"]
