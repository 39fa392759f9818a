"""The verbs on a model that somebody else's server serves: which work, what they send, and how much of it the server had cached.

    python benchmarks/served.py URL MODEL [--tokenizer FOLDER]

``FOLDER`` holds the model's tokenizer.json; without it only chats are tried. Prints the rows of the table in
docs/howto/endpoints.md. It plays a task of two steps that a model of 100 M weights sometimes solves; some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.model.endpoint import HttpModel
from ramify.model.protocol import Prefix, Sampling
from ramify.trace.message import Message

COUNTED = re.compile(r"(?:127\.0\.0\.1|localhost)\S*: (\d+) repl\w+, ([\d,]+) tokens of prompts, (.*), ([\d,]+) sampled")
PROBLEMS = [
    {"id": "twelve", "prompt": "Compute 7 + 5. Answer with the number only.", "answer": "12"},
    {"id": "seven", "prompt": "Compute 3 + 4. Answer with the number only.", "answer": "7"},
]


class NamedDigit:
    """Name a digit, then add a number to it."""

    max_turns, system = 2, "You are a careful assistant. Reply with one number and nothing else."

    def __init__(self) -> None:
        self.digit: int | None = None
        self.more = 0

    def reset(self, task: Task, seed: int) -> Observation:
        """The first question."""
        self.digit, self.more = None, task.data["more"]
        return Observation("Name a digit from 1 to 9. Reply with the digit only.")

    def step(self, action: str) -> Observation:
        """The last number of the reply is the answer."""
        numbers = re.findall(r"\d+", action)
        number = int(numbers[-1]) if numbers else 0
        if self.digit is None:
            if not 1 <= number <= 9:
                return Observation("That is not a digit.", terminated=True, outcome=False)
            self.digit = number
            return Observation(f"What is {number} + {self.more}? Reply with the number only.")
        right = number == self.digit + self.more
        return Observation("Done.", float(right), True, outcome=right)

    def snapshot(self) -> Any:
        """The state."""
        return [self.digit, self.more]

    def restore(self, snapshot: Any) -> None:
        """Back to it."""
        self.digit, self.more = snapshot

    def key(self) -> str:
        """The state as a text."""
        return f"{self.digit} + {self.more}"


class NamedDigits:
    """The environment."""

    name = "digits"

    def make(self) -> NamedDigit:
        """One episode."""
        return NamedDigit()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """Numbers to add."""
        return TaskSet.of([Task(f"plus-{more}", {"more": more}) for more in range(1, n + 1)])


digits = NamedDigits()


@dataclass(frozen=True)
class Tried:
    """One verb on one server."""

    verb: str
    code: int
    replies: int = 0
    prompt: int = 0
    cached: str = ""
    sampled: int = 0
    said: str = ""

    @property
    def row(self) -> str:
        """As a row of Markdown."""
        how = "yes" if self.code <= 1 else "no"  # 1 is what a verb says of a poor agent
        works = how if self.code == 0 else f"{how}, exit code {self.code}: {self.said}"
        return f"| {self.verb} | {works} | {self.replies} | {self.prompt:,} | {self.cached} | {self.sampled:,} |"


class Trial:
    """The verbs, in a folder of their own, on one server."""

    def __init__(self, url: str, model: str, tokenizer: str | None, folder: Path) -> None:
        self.url, self.model, self.folder = url, model, folder
        self.chat = f"chat:{model}@{url}"
        self.tokens = None if tokenizer is None else f"completions:{model}@{url}?tokenizer={tokenizer}"

    def run(self, name: str, *words: str) -> Tried:
        """One verb."""
        command = [str(Path(sys.executable).parent / "ramify"), *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
        lines = done.stderr.strip().splitlines()
        counted = [match for line in lines if (match := COUNTED.search(line))]
        said = next((line.removeprefix("ramify: ") for line in reversed(lines) if line.startswith("ramify: ")), "")
        said = said or (done.stdout.strip().splitlines() or [""])[-1]
        if not counted:
            return Tried(name, done.returncode, said=said)
        (match,) = counted
        replies, prompt, sampled = (int(match[i].replace(",", "")) for i in (1, 2, 4))
        cached = re.sub(r" of them cached \((\d+%)\)", r" (\1)", match[3])
        return Tried(name, done.returncode, replies, prompt, cached, sampled, said)

    def all(self) -> Iterator[Tried]:
        """Every verb; those that need token ids where the tokenizer is given."""
        env = ("--env", f"{Path(__file__).resolve()}:digits")
        play = ("--count", "2", "--attempts", "6", "--max-reply", "16", "--temperature", "0.7", *env)
        yield self.run("`rollout`, chat", "rollout", "--model", self.chat, *play, "--out", "chats")
        yield self.run("`why`, chat", "why", "chats", "--n", "8", "--trust")
        yield self.run("`fork NODE`, chat, with an edit and its control", *self._fork("chats", "", "--edit", self._edit()))
        yield self.run("`fork NODE:OFFSET`, chat", *self._fork("chats", ":3"))
        bench = ("--conditions", "control,compaction", "--tasks", "email", "--reps", "2", "--turns", "4", "--max-tokens", "48")
        yield self.run("`governance bench`, chat", "governance", "bench", "--agent", self.chat, *bench, "--out", "bench")
        yield self.one_prompt()
        if self.tokens is None:
            return
        yield self.run("`rollout`, completions", "rollout", "--model", self.tokens, *play, "--out", "tokens")
        yield self.run("`why`, completions", "why", "tokens", "--n", "8", "--trust")
        yield self.run("`fork NODE:OFFSET`, completions", *self._fork("tokens", ":-2"))
        problems = self.folder / "problems.jsonl"
        problems.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS), encoding="utf-8")
        sizes = ("--n", "8", "--first", "4", "--max-tokens", "16")
        scan = ("--model", self.tokens, "--problems", problems.name, "--verifier", "number", "--anyway", "--out", "scan")
        yield self.run("`cliffs scan`, completions", "cliffs", "scan", *scan, *sizes)

    def one_prompt(self, n: int = 16) -> Tried:
        """Replies to one long prompt, all at once: how often the server computes what they share."""
        words = generator(0, self.url, time.time_ns()).choice(["amber", "birch", "copper", "dusk", "ember", "fern"], 250)
        prefix = Prefix(messages=(Message("user", f"{' '.join(words.tolist())} What was this?"),))
        made = wait_for(HttpModel(self.url, self.model).sample(prefix, n, Sampling(max_tokens=4), range(n)))
        usages = [(reply.data or {}).get("usage", {}) for reply in made]
        prompt, cached, sampled = (
            sum(usage.get(name, 0) for usage in usages) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
        )
        return Tried(f"{n} replies to one new prompt", 0, n, prompt, f"{cached:,} ({cached / max(prompt, 1):.0%})", sampled)

    def _edit(self) -> str:
        (self.folder / "edit.json").write_text(json.dumps({"rule": {"add": "Say 3 where a digit is wanted."}}), encoding="utf-8")
        return "edit.json"

    def _fork(self, run: str, offset: str, *more: str) -> tuple[str, ...]:
        """Words of a fork at the longest reply; an ``offset`` below 0 counts from its end."""
        from ramify.trace.db import Run

        with Run.open(self.folder / run) as opened:
            node = max((node for tree in opened.trees() for node in opened.nodes(tree.name) if node.role == "assistant"), key=len)
        if offset.startswith(":-"):
            offset = f":{len(node) + int(offset[1:])}"
        return "fork", run, f"{node.id}{offset}", "--n", "8", "--trust", *more


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("| verb | works | replies | tokens of prompts | cached | sampled |\n|---|---|---|---|---|---|")
        for tried in Trial(given.url, given.model, given.tokenizer, Path(folder)).all():
            print(tried.row, flush=True)


if __name__ == "__main__":
    main()
