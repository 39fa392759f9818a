"""Agents of which it is known whether an edit makes them better, given to ``ramify fix``: doors whose rules say nothing that
counts, but for one, and a command that works on a file in a git repository."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ramify
from ramify import Observation
from ramify.integrations.harnesses.commands import CommandSettings
from ramify.integrations.harnesses.worktrees import base_commit
from ramify.jobs.recording import Recording, settings_of
from ramify.trace.db import Run
from ramify_experiments.cases import KnownCase, Repetition

ME = "python:ramify_experiments.fix.nulls"
HELPS = "Go left at every door."
RULES = "Be brief.\nBe kind."
REWORDED = {
    "wording": {"rule": {"replace": ["Be kind.", "Please be kind."]}},
    "space": {"rule": {"replace": ["Be brief.\n", "Be brief.\n\n"]}},
    "order": {"rule": {"replace": [RULES, "Be kind.\nBe brief."]}},
}
"""Edits that change nothing: another wording of a rule, space, the order of two rules that have nothing to do with each other."""
LIKELY: dict[str, float] = {}
"""Chance of going left of the repetition that is running, by task; "" is that of any other task."""


class Doors:
    """Three doors, of which the second decides."""

    max_turns, system = 10, RULES

    def __init__(self) -> None:
        self.said: list[str] = []
        self.task = ""

    def reset(self, task: Any, seed: int) -> Observation:
        """Before the first door."""
        self.said, self.task = [], str(task.id)
        return Observation(f"the hall {task.id}")

    def step(self, action: str) -> Observation:
        """Through a door."""
        self.said.append(action)
        done, won = len(self.said) == 3, self.said[1:2] == ["left"]
        return Observation(f"door {len(self.said)}", float(done and won), done, outcome=won if done else None)

    def snapshot(self) -> Any:
        """Where it is."""
        return [self.task, list(self.said)]

    def restore(self, snapshot: Any) -> None:
        """Back there."""
        self.task, self.said = snapshot[0], list(snapshot[1])

    def key(self) -> str | None:
        """None."""
        return None


def walker(messages: list[dict[str, Any]], key: int) -> str:
    """Goes left with the chance of its task, and nearly always where a rule says so."""
    task = next(message["content"] for message in messages if message["role"] == "user").rpartition(" ")[2]
    helped = any(HELPS in message["content"] for message in messages if message["role"] == "system")
    likely = LIKELY.get(task, LIKELY.get("", 0.5))
    return "left" if random.Random(key).random() < (max(likely, 0.95) if helped else likely) else "right"


def _accepted(rep: Repetition, edits: Mapping[str, Any], likely: Sequence[float]) -> str | None:
    """The edit that the verb accepts: five tasks with these chances, screened at the second door of an attempt that failed."""
    LIKELY.clear()
    LIKELY.update({f"t{i}": chance for i, chance in enumerate(likely)})
    folder = rep.folder / "run"
    ramify.play(walker, Doors, [{"id": f"t{i}"} for i in range(len(likely))], attempts=4, out=folder, seed=rep.seed)
    with Run.open(folder) as run:
        lost = min(run.attempts("t0"), key=lambda record: bool(record.outcome))
        node = [node.id for node, _ in run.tree("t0").path(lost.leaf).segments if node.role == "assistant"][1]
    tried: list[str] = []
    for name, edit in edits.items():
        (rep.folder / name).write_text(json.dumps(edit))
        tried += ["--try", str(rep.folder / name)]
    result = rep.verb("fix", str(folder), node, *tried, "--model", f"{ME}:walker", "--env", f"{ME}:Doors")
    accepted = [each for each in result["confirmed"] if each["accepted"]]
    return max(accepted, key=lambda each: each["difference"])["name"] if accepted else None


def reworded(rep: Repetition) -> bool:
    """Whether an edit that changes nothing is accepted, of an agent that goes left every second time."""
    return _accepted(rep, REWORDED, [0.5] * 5) is not None


def uneven(rep: Repetition) -> bool:
    """The same of tasks that are hard and easy."""
    return _accepted(rep, REWORDED, [0.5, 0.1, 0.9, 0.3, 0.7]) is not None


def helps(rep: Repetition) -> bool:
    """Whether the edit that helps is accepted, among two that change nothing."""
    edits = {"helps": {"rule": {"add": HELPS}}, **{name: REWORDED[name] for name in ("wording", "space")}}
    return _accepted(rep, edits, [0.5] * 5) == "helps"


# -- a command that works on files

COMMAND = """
import json, os, socket
said = [{"role": "user", "content": "Do what AGENTS.md says:\\n" + open("AGENTS.md").read()}]
body = json.dumps({"model": "m", "messages": said})
host, _, path = os.environ["OPENAI_BASE_URL"].partition("://")[2].partition("/")
name, port = host.split(":")
head = f"POST /{path}/chat/completions HTTP/1.0\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
with socket.create_connection((name, int(port))) as server:
    server.sendall((head + body).encode())
    answer = server.makefile().read().partition("\\n\\n")[2]
open("answer.txt", "w").write(json.loads(answer)["choices"][0]["message"]["content"])
"""
"""Asks once what AGENTS.md says, and writes the answer down; without a client of HTTP, which takes long to load."""
AGENTS = "# Rules\n\nWrite the product of 3 and 4.\n"
FILES = {
    "helps": f"{AGENTS}Multiply, do not add.\n",
    "wording": "# Rules\n\nPlease write the product of 3 and 4.\n",
    "space": "# Rules\n\n\nWrite the product of 3 and 4.\n",
}


def writer(messages: list[dict[str, Any]], key: int) -> str:
    """Right every second time, and nearly always where the file says to multiply."""
    told = re.search(r"Multiply, do not add", messages[-1]["content"]) is not None
    return "12" if random.Random(key).random() < (0.95 if told else 0.5) else "7"


def _accepted_file(rep: Repetition, names: Sequence[str], attempts: int) -> str | None:
    repo, run = rep.folder / "repo", rep.folder / "run"
    repo.mkdir()
    (repo / "AGENTS.md").write_text(AGENTS)
    (rep.folder / "command.py").write_text(COMMAND)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    command = (sys.executable, "-S", str(rep.folder / "command.py"))
    settings = CommandSettings(command, str(repo), base_commit(repo, "HEAD"), "grep -qx 12 answer.txt")
    env = f"command:{settings.to_text()}"
    Recording(settings_of(model=f"{ME}:writer", env=env, attempts=2, seed=rep.seed)).collect(run)
    tried: list[str] = []
    for name in names:
        Path(rep.folder, name).write_text(FILES[name])
        tried += ["--try", str(rep.folder / name)]
    result = rep.verb("fix", str(run), "--file", str(repo / "AGENTS.md"), *tried, "--attempts", str(attempts))
    accepted = [each for each in result["confirmed"] if each["accepted"]]
    return max(accepted, key=lambda each: each["difference"])["name"] if accepted else None


def file_reworded(rep: Repetition) -> bool:
    """Whether a text of a file that changes nothing is accepted."""
    return _accepted_file(rep, ("wording", "space"), 8) is not None


def file_helps(rep: Repetition) -> bool:
    """Whether the text that helps is accepted, beside one that changes nothing."""
    return _accepted_file(rep, ("helps", "wording"), 32) == "helps"


CASES = (
    KnownCase(
        "edits that change nothing",
        "nothing",
        "An agent wins every second time, whatever its rules say; another wording, space and another order are tried, and one "
        "that is accepted is a false finding.",
        reworded,
        0.05,
        full=200,
        quick=4,
    ),
    KnownCase(
        "edits that change nothing, at uneven tasks",
        "nothing",
        "The same of tasks that are won from 10 to 90 % of the time.",
        uneven,
        0.05,
        full=100,
        quick=2,
    ),
    KnownCase(
        "texts of a file that change nothing",
        "nothing",
        "A command in a git repository is right every second time, whatever AGENTS.md says; another wording and space are tried "
        "in 8 whole attempts each, and one that is accepted is a false finding.",
        file_reworded,
        0.05,
        full=100,
        quick=1,
    ),
    KnownCase(
        "a rule that helps",
        "planted",
        "A rule raises success from 50 to 95 %; it must be accepted, and not one of the two beside it that change nothing.",
        helps,
        0.8,
        full=40,
        quick=2,
    ),
    KnownCase(
        "a line of a file that helps",
        "planted",
        "A line of AGENTS.md raises success from 50 to 95 %; its text must be accepted, and not the reworded one.",
        file_helps,
        0.8,
        full=12,
        quick=1,
    ),
)
