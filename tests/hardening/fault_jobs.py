"""Small jobs that write, one for each way ramify writes, with what must hold after a fault at any of their calls.

A job acts in an empty or prepared folder. After a fault its ``check`` says whether the folder holds the old state or the new one;
after that ``act`` again, on a disk that works, must end as an undisturbed one does (``digest``).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import RamifyError, UserError
from ramify.cli.main import main
from ramify.env.worlds.household import HouseholdWorld
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.fork import fork
from ramify.rollout.run import Agent, Episodes
from ramify.trace.db import Run
from ramify.trace.jsonl import _encode, _records
from ramify.trace.node import Mark, Producer, Stream, Verdict, make_node

ROUNDS = 3
CHATS = [{"messages": [{"role": "user", "content": f"{i}+2?"}, {"role": "assistant", "content": "x" * 9000}]} for i in range(4)]


def sound(folder: Path) -> None:
    """SQLite finds nothing wrong with the file, and ramify opens it."""
    with Run.open(folder) as run:
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
        assert all(run.get_blob(name) is not None for name in run.blobs.names())


def content(folder: Path, without: tuple[str, ...] = ()) -> list[Any]:
    """Every record of a run; ``without``: kinds of journal entries that hold clocks."""
    with Run.open(folder) as run:
        lines = [json.loads(_encode(record)) for record in _records(run)]
    return [line for line in lines if line["kind"] != "run" and line.get("entry") not in without]


class Job:
    """A name, and what to do in a folder."""

    name = ""

    def prepare(self, folder: Path) -> None:
        """What is there before."""

    def act(self, folder: Path) -> int:
        """Do the work; returns the exit code and says one sentence where it fails."""
        raise NotImplementedError

    def check(self, folder: Path, promised: list[str]) -> None:
        """Raises AssertionError unless the folder is in the old state or the new one, and holds what was promised."""

    def digest(self, folder: Path) -> Any:
        """What must be equal after an undisturbed and a resumed job."""


class Store(Job):
    """A run made and written through the store: trees, nodes, streams, marks, verdicts, blobs, the journal, one commit a round."""

    name = "store"

    def act(self, folder: Path) -> int:
        try:
            try:
                run = Run.open(folder / "run", write=True)
            except UserError:
                run = Run.create(folder / "run", {"seed": 1})
            with run:
                for number in range(ROUNDS):
                    self._round(run, number)
        except RamifyError as error:
            return complain(error)
        return 0

    def _round(self, run: Run, number: int) -> None:
        known = {entry.key: entry.payload for entry in run.journal("round")}
        if str(number) not in known:
            blob = run.put_blob(b"%d" % number * 20_000)
            with run.transaction():
                tree = f"t{number}"
                run.add_tree(tree, {"id": number})
                producer = Producer("m", "w", {}, number)
                root = make_node(tree, None, 0, "root", "", tokens=[])
                node = make_node(
                    tree, root.id, 0, "assistant", "x" * 9000, tokens=np.arange(500), producer=producer.hash, index=0,
                    snapshot=f"blob:{blob}",
                )  # fmt: skip
                run.add(producer, root, node, Stream(node.id, "credit", "m", np.zeros(500)), Mark(node.id, 3, "n", "m", 1))
                run.add(Verdict(node.id, "env", 1.0, judges={"env": "e"}))
                run.log("round", str(number), {"blob": blob})
            promise(str(number))

    def check(self, folder: Path, promised: list[str]) -> None:
        if not promised and not whole_run(folder / "run"):
            return
        sound(folder / "run")
        with Run.open(folder / "run") as run:
            done = {entry.key: entry.payload["blob"] for entry in run.journal("round")}
            assert set(promised) <= set(done), (promised, done)
            assert (len(run), len(run.streams()), len(run.marks()), len(run.verdicts())) == (2 * len(done), *[len(done)] * 3)
            assert all(len(run.get_blob(blob)) == 20_000 for blob in done.values())

    def digest(self, folder: Path) -> Any:
        return content(folder / "run")


class Import(Job):
    """``ramify import`` of chats."""

    name = "import"

    def prepare(self, folder: Path) -> None:
        (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))

    def act(self, folder: Path) -> int:
        if (folder / "run").exists():
            return 0
        return main(["import", str(folder / "chats.jsonl"), "--run", str(folder / "run")])

    def check(self, folder: Path, promised: list[str]) -> None:
        if (folder / "run").exists():
            sound(folder / "run")
            with Run.open(folder / "run") as run:
                assert len(run) == 3 * len(CHATS)

    def digest(self, folder: Path) -> Any:
        return content(folder / "run")


class Export(Job):
    """``ramify export`` over an older file."""

    def __init__(self, suffix: str, *words: str) -> None:
        self.name, self.words = f"export {suffix}", words
        self.out = f"out.{suffix}"
        self.new: bytes | None = None

    def prepare(self, folder: Path) -> None:
        Import().prepare(folder)
        assert Import().act(folder) == 0
        (folder / self.out).write_text("old")

    def act(self, folder: Path) -> int:
        return main(["export", str(folder / "run"), str(folder / self.out), *self.words])

    def check(self, folder: Path, promised: list[str]) -> None:
        data = (folder / self.out).read_bytes()
        assert data in (b"old", self.new), data[-80:]
        sound(folder / "run")

    def digest(self, folder: Path) -> Any:
        data = (folder / self.out).read_bytes()
        self.new = self.new or data  # of the first, undisturbed export
        return data


class Checkpoint(Job):
    """Saving a checkpoint over an older one of the same shape."""

    name = "checkpoint"

    def __init__(self) -> None:
        import torch

        from ramify.engine.checkpoints import load_model, model_folder

        self.start = model_folder("builtin")
        self.model, _ = load_model(self.start)
        self.old = {name: value.clone() for name, value in self.model.module.state_dict().items()}
        self.new = {name: value + 1 for name, value in self.old.items()}
        self.torch = torch

    def _save(self, weights: dict[str, Any], folder: Path) -> None:
        from ramify.engine.checkpoints import save_model

        self.model.module.load_state_dict(weights)
        save_model(self.model, self.start, folder / "agent")

    def prepare(self, folder: Path) -> None:
        self._save(self.old, folder)

    def act(self, folder: Path) -> int:
        try:
            self._save(self.new, folder)
        except RamifyError as error:
            return complain(error)
        return 0

    def _which(self, folder: Path) -> str:
        from ramify.engine.checkpoints import load_model

        weights = load_model(folder / "agent")[0].module.state_dict()
        for name, known in (("old", self.old), ("new", self.new)):
            if all(self.torch.equal(weights[key], value) for key, value in known.items()):
                return name
        raise AssertionError("a mix of two checkpoints")

    def check(self, folder: Path, promised: list[str]) -> None:
        self._which(folder)

    def digest(self, folder: Path) -> Any:
        return self._which(folder)


class Improve(Job):
    """``ramify improve``, as small as it can be, and ``ramify resume``: with the report it writes at the end."""

    name = "improve"
    SETTINGS = ("--updates", "1", "--tokens", "300", "--eval-episodes", "4", "--tasks-per-update", "4", "--train-tasks", "8")
    CLOCKS = ("stretch", "environment")

    def act(self, folder: Path) -> int:
        code = 2
        if whole_run(folder / "run"):
            code = main(["resume", str(folder / "run"), "--json"])
        else:
            code = main(["improve", *self.SETTINGS, "--out", str(folder / "run"), "--json"])
        return code

    def check(self, folder: Path, promised: list[str]) -> None:
        if whole_run(folder / "run"):
            sound(folder / "run")
        report = folder / "run" / "report.html"
        assert not report.exists() or report.read_text().rstrip().endswith("</html>")

    def digest(self, folder: Path) -> Any:
        assert (folder / "run" / "report.html").exists()
        # in another order where a stretch was cut off: what is compared is every record, and the agent's files
        return sorted(json.dumps(_timeless(line), sort_keys=True) for line in content(folder / "run", self.CLOCKS)), [
            (file.name, file.read_bytes())
            for file in sorted((folder / "run" / "agent").iterdir())
            if not file.name.startswith(".")
        ]


class Rollout(Job):
    """Attempts of a scripted agent in a world, stored as they end; going on plays what is missing."""

    name = "rollout"

    def act(self, folder: Path) -> int:
        try:
            try:
                run = Run.open(folder / "run", write=True)
            except UserError:
                run = Run.create(folder / "run", {"seed": 3})
            with run:
                model = ScriptedModel(wander)
                template = TagTemplate(model.tokenizer)
                sampling = Sampling(max_tokens=20, stop_tokens=template.stop_tokens)
                episodes = Episodes(Agent(model, template, sampling), HouseholdWorld(), run, seed=3)
                for task in TASKS:
                    for index in range(3):
                        done = asyncio.run(episodes.attempt(task.id, task, index))
                        run.log("attempt", f"{task.id}/{index}", done.leaf)
                        run.commit()
                        promise(done.leaf)
                self.then(episodes)
        except RamifyError as error:
            return complain(error)
        return 0

    def then(self, episodes: Episodes) -> None:
        """What a job that builds on this one does next."""

    def check(self, folder: Path, promised: list[str]) -> None:
        if not promised and not whole_run(folder / "run"):
            return
        sound(folder / "run")
        with Run.open(folder / "run") as run:
            assert set(promised) <= set(run.columns(["id"])["id"].tolist())
            for entry in run.journal("attempt"):
                assert run.verdicts(node=entry.payload)
                assert len(run.path(entry.payload)) > 1

    def digest(self, folder: Path) -> Any:
        with Run.open(folder / "run") as run:
            return [run.tree(tree.name).hash for tree in run.trees()], [entry.payload for entry in run.journal("attempt")]


class Fork(Rollout):
    """A fork at the first observation of each task, both arms played out."""

    name = "fork"

    def then(self, episodes: Episodes) -> None:
        done = {entry.key for entry in episodes.run.journal("fork")}
        for task in TASKS:
            if task.id in done:
                continue
            tree = episodes.load(task.id)
            node = next(n for n in tree.nodes.values() if n.role == "assistant")
            made = asyncio.run(fork(episodes, task.id, task, node.id, 0, 2, {"replace": "wait"}, "resample"))
            episodes.run.log("fork", task.id, [attempt.leaf for attempt in made.arm.attempts])
            episodes.run.commit()


def _timeless(line: Any) -> Any:
    """A journal line without its clocks."""
    if isinstance(line, dict):
        return {key: _timeless(value) for key, value in line.items() if key not in ("seconds", "run")}
    return [_timeless(item) for item in line] if isinstance(line, list) else line


def whole_run(folder: Path) -> bool:
    """Whether there is a run; anything else there must not pretend to be one."""
    try:
        Run.open(folder).close()
    except UserError:
        return False
    return True


def complain(error: RamifyError) -> int:
    """The sentence of an error, as the command line says it."""
    sys.stderr.write(f"ramify: {error}\n")
    return error.exit_code


TASKS = list(HouseholdWorld().panel("train", 2, 3))


def wander(messages: Any, key: int) -> str:
    """The scripted agent: walks through one of the exits it is told of."""
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else "wait"


_promises = -1


def promise_on(handle: int) -> None:
    """Where promises go: a pipe, outside the folder whose disk fails."""
    global _promises
    _promises = handle


def promise(text: str) -> None:
    """Say that something is committed."""
    if _promises >= 0:
        os.write(_promises, f"{text}\n".encode())
