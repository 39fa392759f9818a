"""Small jobs that write, one for each way ramify writes, with what must hold after a fault at any of their calls.

A job acts in an empty or prepared folder. After a fault its ``check`` says whether the folder holds the old state or the new one;
after that ``act`` again, on a disk that works, must end as an undisturbed one does (``digest``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import RamifyError, UserError
from ramify.trace.db import Run
from ramify.trace.jsonl import _encode, _records
from ramify.trace.node import Annotation, AttemptRecord, Provenance, Score, TokenValues, make_node

ROUNDS = 3


def sound(folder: Path) -> None:
    """SQLite finds nothing wrong with the file, and ramify opens it."""
    with Run.open(folder) as run:
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
        assert all(run.get_blob(name) is not None for name in run.blobs.names())


def content(folder: Path) -> list[Any]:
    """Every record of a run."""
    with Run.open(folder) as run:
        lines = [json.loads(_encode(record)) for record in _records(run)]
    return [line for line in lines if line["kind"] != "run"]


class Job:
    """A name, and what to do in a folder."""

    name = ""
    warm = True
    """Whether it may be done in the process that forks the others."""

    repeats = False
    """Whether doing it once more, when it has ended, adds to what it ended as."""

    def start(self) -> None:
        """A fresh copy of what was prepared is there."""

    def prepare(self, folder: Path) -> None:
        """What is there before."""

    def act(self, folder: Path) -> int:
        """Do the work; returns the exit code and says one sentence where it fails."""
        raise NotImplementedError

    def check(self, folder: Path, promised: list[str]) -> None:
        """Raises AssertionError unless the folder is in the old state or the new one, and holds what was promised."""

    def finished(self) -> bool:
        """Whether all was there at the last check, though it may have been killed before it said so."""
        return False

    def digest(self, folder: Path) -> Any:
        """What must be equal after an undisturbed and a resumed job."""


class Store(Job):
    """A run made and written through the store: trees, nodes, token values, annotations, scores, blobs,
    the journal, one commit a round."""

    name = "store"

    def act(self, folder: Path) -> int:
        try:
            there = (folder / "run" / "run.sqlite").exists()
            with Run.open(folder / "run", write=True) if there else Run.create(folder / "run", {"seed": 1}) as run:
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
                provenance = Provenance("m", "w", {}, number)
                root = make_node(tree, None, 0, "root", "", tokens=[])
                node = make_node(
                    tree, root.id, 0, "assistant", "x" * 9000, tokens=np.arange(500), provenance=provenance.hash, index=0,
                    snapshot=f"blob:{blob}",
                )  # fmt: skip
                run.add(
                    provenance,
                    root,
                    node,
                    TokenValues(node.id, "credit", "m", np.zeros(500)),
                    Annotation(node.id, 3, "n", "m", 1),
                )
                run.add(Score(node.id, "env", 1.0, judges={"env": "e"}), AttemptRecord(node.id, tree, outcome=True, reward=1.0))
                run.log("round", str(number), {"blob": blob})
            promise(str(number))

    def check(self, folder: Path, promised: list[str]) -> None:
        if not promised and not whole_run(folder / "run"):
            return
        sound(folder / "run")
        with Run.open(folder / "run") as run:
            done = {entry.key: entry.payload["blob"] for entry in run.journal("round")}
            assert set(promised) <= set(done), (promised, done)
            assert (len(run), len(run.token_values()), len(run.annotations()), len(run.scores())) == (
                2 * len(done),
                *[len(done)] * 3,
            )
            assert len(run.attempts()) == len(done)
            assert all(len(run.get_blob(blob)) == 20_000 for blob in done.values())

    def digest(self, folder: Path) -> Any:
        return content(folder / "run")


class Checkpoint(Job):
    """Saving a checkpoint over an older one of the same shape."""

    name = "checkpoint"

    def __init__(self) -> None:
        import torch

        from ramify.engine.checkpoints import load_model, model_folder

        self.begun_from = model_folder("builtin")
        self.model, _ = load_model(self.begun_from)
        self.old = {name: value.clone() for name, value in self.model.module.state_dict().items()}
        self.new = {name: value + 1 for name, value in self.old.items()}
        self.torch = torch

    def _save(self, weights: dict[str, Any], folder: Path) -> None:
        from ramify.engine.checkpoints import save_model

        self.model.module.load_state_dict(weights)
        save_model(self.model, self.begun_from, folder / "agent")

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


_promises = -1


def promise_on(handle: int) -> None:
    """Where promises go: a pipe, outside the folder whose disk fails."""
    global _promises
    _promises = handle


def promise(text: str) -> None:
    """Say that something is committed."""
    if _promises >= 0:
        os.write(_promises, f"{text}\n".encode())
