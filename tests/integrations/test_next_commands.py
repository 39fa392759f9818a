"""What ramify prints as the next command runs as it is printed, for every kind of run: typed into a shell word by word, with
fewer continuations, and with a file where one of the reader's is meant."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from chat_server import CODER, call, chat_server, results

import ramify
from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.jobs.summary import summarise
from ramify.render.result import Section
from ramify.rollout.commands import commands
from ramify.trace.db import Run
from ramify.web.pages import report_html

RUN = "runs/two words"
LOG = [
    {"task_id": "t", "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": said}], "reward": reward}
    for said, reward in [("4", 1.0), ("5", 0.0)] * 4
]


def played() -> None:
    words = "rollout --model builtin --env household --count 1 --attempts 4 --temperature 1 --out"
    assert main([*words.split(), RUN]) == 0


def objects() -> None:
    ramify.play(lambda messages: "go hall", "household", attempts=2, out=RUN)


def judged() -> None:
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    assert main(["import", "log.jsonl", "--run", RUN]) == 0


def nobody_judged() -> None:
    Path("log.jsonl").write_text("".join(json.dumps(row | {"reward": None}) + "\n" for row in LOG))
    assert main(["import", "log.jsonl", "--run", RUN]) == 0


def improved() -> None:
    words = "improve --updates 1 --tokens 400 --eval-episodes 4 --tasks-per-update 4 --train-tasks 8 --out"
    assert main([*words.split(), RUN]) == 0


def grown() -> None:
    assert main([*["rollout", "--model", "builtin", "--env", "household", "--count", "1", "--tree", "--out"], RUN]) == 0


def recorded(model: str) -> None:
    Path("coder.py").write_text(CODER)
    subprocess.run(["git", "init", "-q", "repo"], check=True)
    who = ["-c", "user.name=me", "-c", "user.email=me@x"]
    subprocess.run(["git", "-C", "repo", *who, "commit", "-qm", "begin", "--allow-empty"], check=True)
    command = [sys.executable, str(Path("coder.py").resolve()), "Make the file."]
    options = ["-n", "2", "--repo", "repo", "--check", "test -f good", "--concurrency", "1", "--model", model]
    assert main(["record", "--run", RUN, *options, "--", *command]) == 0


def coder() -> Callable[[dict[str, Any]], dict[str, Any]]:
    names = iter(["good", "bad"] * 500)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        seen = len(results(body))
        return (
            {"content": "done"} if seen else {"content": None, "tool_calls": [call("shell", "s", command=f"touch {next(names)}")]}
        )

    return reply


def said(sections: Iterable[Section]) -> str:
    return "\n".join(part for section in sections for part in section.parts if isinstance(part, str))


def printed(folder: str) -> list[str]:
    """Every command in the summary of the run, in its findings, on its page and in the page's data, each once."""
    with Run.open(folder) as run:
        text = "\n".join([said(summarise(run).sections()), *(finding.action for finding in run.findings())])
        html = report_html(run)
    for example in re.findall(r"holding an outcome .*e\.g\. (\{.*?\})", text):
        Path("outcomes.json").write_text(example)
    data = json.loads(re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.S)[0])
    at = [(tree["able"], choice) for tree in data["trees"] for choice in tree["choices"] if choice.get("ids")]
    of_steps = [
        head + choice["ids"][0][:12] + tail
        for able, choice in at[-1:]
        for _, head, tail in able[: None if choice.get("p") else -1]
    ]
    shown = [unescape(re.sub("<.*?>", "", code)) for code in re.findall(r"<code data-copy>(.*?)</code>", html, re.S)]
    return list(dict.fromkeys(re.findall(r"`(ramify [a-z-]+ [^`]+)`", text) + shown + of_steps))


def type_in(command: str) -> None:
    """Run ``command`` as a shell would take it apart, made short; fails where it does."""
    words = shlex.split(command)[1:]
    for word, short in (("--n", "2"), ("FILE", "outcomes.json")):
        if word in words:
            words[words.index(word) + (word == "--n")] = short
    words = [*words[: words.index("--web")], "--html", "page.html"] if "--web" in words else words
    if words[0] == "why":
        words += ["--samples", "8"]
    assert not [word for word in words if re.fullmatch("[A-Z]{3,}", word)], f"{command} holds a word to put something for"
    assert main(words) in (0, 3), command  # 3: the few samples were too few


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def all_run(asked: bool = True) -> list[str]:
    """Type in what is printed, and what is printed then; returns all of it."""
    done: list[str] = []
    for _ in range(2):  # what `why` found prints commands of its own
        for command in [one for one in printed(RUN) if one not in done]:
            type_in(command)
            done.append(command)
    verbs = {shlex.split(command)[1] for command in done}
    assert verbs >= ({"show", "why"} if asked else {"show"}), done
    return done


@pytest.mark.slow
@pytest.mark.parametrize("make", [played, improved, grown])
def test_a_run_that_names_who_plays(make: Callable[[], None]) -> None:
    make()
    assert any(command.startswith("ramify fork ") for command in all_run(make is not grown))


@pytest.mark.slow
def test_a_recorded_command() -> None:
    with chat_server(coder()) as server:
        recorded(server.model)
        assert any(command.startswith("ramify fork ") for command in all_run())


@pytest.mark.parametrize("make", [judged, nobody_judged, objects])
def test_a_run_that_names_nobody_prints_no_fork(make: Callable[[], None]) -> None:
    make()
    commands_of = all_run(make is judged)
    assert not [command for command in commands_of if command.startswith("ramify fork ")]
    with Run.open(RUN) as run:
        assert "tell it who plays, by `--model` and `--env`" in said(summarise(run).sections())


def test_what_a_method_found_in_a_log() -> None:
    judged()
    for words in (["graph-credit", "mark", RUN], ["maze-recovery", "audit", RUN]):
        assert main(words) in (0, 1)
    assert main(["graph-credit", "report", RUN]) == 0
    all_run()


@pytest.mark.slow
def test_who_was_named_is_named_again() -> None:
    """An imported run that was asked about with --model and --env: what `why` prints then names both."""
    judged()
    Path("sums.py").write_text(
        "class Sum:\n    system, max_turns = '', 1\n"
        "    def reset(self, task, seed):\n        from ramify import Observation\n        return Observation('2+2?')\n"
        "    def step(self, action):\n        from ramify import Observation\n"
        "        return Observation('', terminated=True, outcome='4' in action)\n"
        "    def snapshot(self):\n        return ''\n    def restore(self, snapshot):\n        pass\n"
        "    def key(self):\n        return ''\n"
    )
    env = "python:sums.py:Sum"
    with chat_server(lambda body: {"content": "4 or 5"}) as server:
        answer = ramify.why(RUN, samples=20, model=server.model, env=env)
        assert answer.counterfactual
        assert answer.commands.options == f" --model {server.model} --env {env}"
        for command in re.findall(r"`(ramify [a-z-]+ [^`]+)`", said(answer.sections())):
            type_in(command)


def test_an_object_has_no_name_that_a_command_could_give() -> None:
    objects()
    with Run.open(RUN) as run:
        reply = next(node.id for info in run.trees() for node in run.nodes(info.name) if node.role == "assistant")
        assert not commands(run).plays
        assert commands(run).fork("abc") == ""
    with pytest.raises(UserError, match="nothing to continue with"):
        ramify.fork_run(RUN, reply)
