"""Acts are command lines of checked values: whatever a form or an agent gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from queue_runs import halls_run, steps_of_a

from ramify.base.errors import UserError
from ramify.integrations.harnesses.commands import CommandSettings
from ramify.jobs.acts import act_of
from ramify.jobs.collect import RolloutConfig
from ramify.jobs.recording import settings_of
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, make_node


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halls_run(tmp_path_factory.mktemp("acts") / "halls")


HOSTILE = ("--write=x", "$(touch x)", "a\nb; rm -rf /", "'\"`", "-n 5", "\u202e", "<script>")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_in_a_file_and_not_in_the_command(run: Path, tmp_path: Path, text: str) -> None:
    act = act_of("edit", run, {"node": steps_of_a(run, False)[1], "text": text, "n": "3"})
    act.write(tmp_path)
    words = act.command(tmp_path)
    assert words[:3] == ["fork", f"--edit={tmp_path / 'edit-1.json'}", "--n=3"]
    assert not any(text in word for word in words)
    assert json.loads((tmp_path / "edit-1.json").read_text("utf-8")) == {"rule": {"add": text}}
    assert act.attempts == 6


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("nothing", {}, "there is no act 'nothing'"),
        ("fork", {}, "it is needed"),
        ("fork", {"node": "zz", "n": "3"}, "has no node"),
        ("fork", {"node": "STEP", "n": "0"}, "whole number from 1 to 500"),
        ("fork", {"node": "STEP", "n": "1e3"}, "whole number"),
        ("fork", {"node": "STEP", "n": True}, "whole number"),
        ("fork", {"node": "STEP", "n": 2.5}, "whole number"),
        ("fork", {"node": "STEP", "model": "chat:x@http://evil"}, "takes no 'model'"),
        ("fork", {"node": ["STEP"]}, "a text"),
        ("edit", {"node": "STEP", "text": "x" * 20_001}, "at most 20000 characters"),
        ("edit", {"node": "STEP", "text": "a\0b"}, "a text"),
        ("edit", {"node": "STEP", "text": "\ud800"}, "surrogate"),
        ("edit", {"node": "STEP", "text": "x", "how": "state"}, "must be one of"),
        ("token", {"node": "STEP", "text": "x"}, "it is needed"),
        ("fix", {"node": "STEP", "rules": "\n".join(map(str, range(9)))}, "1 to 8 rules"),
        ("fix", {"node": "STEP", "rules": " \n"}, "1 to 8 rules"),
        ("why", {"where": "--all"}, "has no node"),
        ("record", {"n": 2}, "was not made by `ramify record`"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run: Path, name: str, given: dict[str, Any], says: str) -> None:
    step = steps_of_a(run, False)[1]
    given = {key: step if value == "STEP" else value for key, value in given.items()}
    with pytest.raises(UserError, match=says) as told:
        act_of(name, run, given)
    assert "\n" not in str(told.value)


def one_reply(run: Run) -> str:
    """A failed attempt of one reply, whose id this is."""
    run.add_tree("t", {"id": "t"})
    node = make_node("t", None, 0, "user", "do it")
    reply = make_node("t", node.id, 1, "assistant", "no")
    run.add(node, reply, AttemptRecord(reply.id, "t", outcome=False))
    return reply.id


def test_a_run_that_was_made_elsewhere_starts_nothing(tmp_path: Path) -> None:
    config = {**RolloutConfig(model="python:evil:agent", env="household").to_json(), "sampling": {}}
    with Run.create(tmp_path / "run", config, trusted=False) as run:
        reply = one_reply(run)
    with pytest.raises(UserError, match="made elsewhere"):
        act_of("fork", tmp_path / "run", {"node": reply})


def test_a_run_that_names_no_agent_is_not_played(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        reply = one_reply(run)
    with pytest.raises(UserError, match="nothing to continue with"):
        act_of("fork", tmp_path / "run", {"node": reply})
    assert act_of("why", tmp_path / "run", {}).words[0] == "why"  # it compares what is there


def test_more_attempts_of_a_recorded_command_are_its_own_command_line(tmp_path: Path) -> None:
    words, check = ("my-agent", "--write", "a b; c"), "test -f 'x y'"
    command = CommandSettings(words, str(tmp_path), "0" * 40, check, effects={"mail": "replay"})
    settings = settings_of(model="builtin", env=f"command:{command.to_text()}", attempts=2, seed=7).to_json()
    with Run.begin(tmp_path / "run", "record", settings, {}, {}) as run:
        one_reply(run)
    act = act_of("record", tmp_path / "run", {"n": "3"})
    at = act.words.index("--")
    assert act.words[at + 1 :] == command.command
    assert act.attempts == 3
    options = {"--n=4", f"--repo={tmp_path}", f"--check={check}", "--effect=mail=replay", "--model=builtin", "--seed=7"}
    assert options <= set(act.words[:at])
