"""Two procedural environments with exact oracles, in words: a key-value tool server and a small shell;
and the pages of invented facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError
from ramify.base.ids import canonical_json
from ramify.base.seeds import generator
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.env.task_sets import generated_task_set

KEYS = tuple(f"k{i}" for i in range(8))
VALUES = tuple(f"v{i}" for i in range(12))
WORDS = ("tea", "salt", "lamp", "stone", "river", "candle", "window", "morning")
"""Contents of files; their lengths differ, so that wc has something to count."""
DIRECTORIES, FILES = ("red", "blue", "green"), ("f0", "f1", "f2", "f3")
NAMES = tuple(f"name{i}" for i in range(50))
KINDS = ("price", "year", "city")
PAGE = 3


class _Worded:
    """What the two share: a JSON state, actions in words, no end but the turn limit."""

    system = ""

    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self._task: Task | None = None
        self._seed = 0
        self.state: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``."""
        self._task, self._seed = task, seed
        self.state = self.begin(task)
        return Observation("ready")

    def begin(self, task: Task) -> dict[str, Any]:
        """The state at the start."""
        raise NotImplementedError

    def does(self, words: list[str]) -> str | None:
        """What the environment answers; None to what is no command."""
        raise NotImplementedError

    def step(self, action: str) -> Observation:
        """One command."""
        if self._task is None:
            raise InfrastructureError("env", "step before reset")
        text = self.does(action.split())
        return Observation("error" if text is None else text, valid=text is not None)

    def snapshot(self) -> dict[str, Any]:
        """The state."""
        import json

        found: dict[str, Any] = json.loads(canonical_json(self.state))
        return found

    def restore(self, snapshot: Any) -> None:
        """Back to ``snapshot``."""
        import json

        self.state = json.loads(canonical_json(snapshot))

    def key(self) -> str:
        """The state."""
        return canonical_json(self.state)


class KvServer(_Worded):
    """set K V, get K, del K, list P (pages of three sorted keys), echo WORD WORD."""

    def begin(self, task: Task) -> dict[str, Any]:
        """The notes at the start."""
        return {"notes": dict(task.data["notes"])}

    def does(self, words: list[str]) -> str | None:
        """See the class."""
        notes = self.state["notes"]
        match words:
            case ["set", key, value]:
                notes[key] = value
                return "ok"
            case ["get", key]:
                return f"{key} {notes.get(key, '404')}"
            case ["del", key]:
                return f"{key} {'404' if notes.pop(key, None) is None else 'ok'}"
            case ["list", page] if page.isdigit() and int(page) >= 1:
                shown = sorted(notes)[(int(page) - 1) * PAGE : int(page) * PAGE]
                return " ".join([*shown, "end" if int(page) * PAGE >= len(notes) else "more"])
            case ["echo", *said] if said:
                return " ".join(said)
        return None


class Shell(_Worded):
    """pwd, cd D, cd .., ls, mkdir D, echo W W > F, cat F, rm F, wc F (characters, the newline too);
    directories are one level deep."""

    def begin(self, task: Task) -> dict[str, Any]:
        """The tree at the start: at "/" and in its directories."""
        return {"at": "/", "tree": {name: dict(files) for name, files in task.data["tree"].items()}}

    def does(self, words: list[str]) -> str | None:
        """See the class."""
        tree, at = self.state["tree"], self.state["at"]
        here = tree[at]
        match words:
            case ["pwd"]:
                return str(at)
            case ["cd", ".."]:
                self.state["at"] = "/"
                return "ok"
            case ["cd", name]:
                if at != "/" or name not in tree or name == "/":
                    return "none"
                self.state["at"] = name
                return "ok"
            case ["ls"]:
                return " ".join([*(sorted(set(tree) - {"/"}) if at == "/" else []), *sorted(here)]) or "empty"
            case ["mkdir", name]:
                if at != "/" or name in tree:
                    return "exists"
                tree[name] = {}
                return "ok"
            case ["echo", *said, ">", name] if said:
                here[name] = " ".join(said)
                return "ok"
            case ["cat", name]:
                return f"{name} {here.get(name, 'none')}"
            case ["rm", name]:
                return f"{name} {'none' if here.pop(name, None) is None else 'ok'}"
            case ["wc", name]:
                return f"{name} {len(here[name]) + 1 if name in here else 'none'}"
        return None


def page(name: str, row: Mapping[str, str]) -> str:
    """The whole page of a name."""
    return " ".join([name, *(f"{kind} {row[kind]}" for kind in KINDS)])


def _some(rng: np.random.Generator, of: tuple[str, ...], n: int) -> list[str]:
    return [str(one) for one in rng.permutation(of)[:n]]


class KvEnvironment:
    """Key-value servers with two to five notes."""

    name = "kv"

    def __init__(self, max_turns: int = 10) -> None:
        self.max_turns = max_turns

    def make(self) -> KvServer:
        """A fresh episode."""
        return KvServer(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` servers."""

        def sample(rng: np.random.Generator) -> dict[str, Any]:
            keys = _some(rng, KEYS, int(rng.integers(2, 6)))
            return {"notes": {key: str(rng.choice(VALUES)) for key in keys}}

        return generated_task_set(self.name, split, n, seed, sample, kind="kv")

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Commands worth trying: reads mostly of what is there, writes, echoes."""
        rng = generator(0, "kv", task.id, canonical_json(snapshot))
        there = sorted(snapshot["notes"])
        known = [str(rng.choice(there if there and rng.random() < 0.8 else KEYS)) for _ in range(4)]
        key, value = (str(rng.choice(one)) for one in (KEYS, VALUES))
        reads = [*(f"get {key}" for key in known), f"del {known[0]}", f"list {1 + int(rng.random() < 0.3)}"]
        return [*reads, f"set {key} {value}", f"set {known[3]} {value}", f"echo {key} {value}"]


class ShellEnvironment:
    """Shells with a few files."""

    name = "shell"

    def __init__(self, max_turns: int = 10) -> None:
        self.max_turns = max_turns

    def make(self) -> Shell:
        """A fresh episode."""
        return Shell(self.max_turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` shells."""

        def sample(rng: np.random.Generator) -> dict[str, Any]:
            tree = {name: self._files(rng) for name in ["/", *_some(rng, DIRECTORIES, int(rng.integers(0, 3)))]}
            return {"tree": tree}

        return generated_task_set(self.name, split, n, seed, sample, kind="shell")

    @staticmethod
    def _files(rng: np.random.Generator) -> dict[str, str]:
        return {name: " ".join(_some(rng, WORDS, int(rng.integers(1, 3)))) for name in _some(rng, FILES, int(rng.integers(0, 3)))}

    def actions(self, task: Task, snapshot: Any) -> list[str]:
        """Commands worth trying in this state."""
        rng = generator(0, "shell", task.id, canonical_json(snapshot))
        here, others = snapshot["tree"][snapshot["at"]], sorted(set(snapshot["tree"]) - {"/"})
        file = str(rng.choice(sorted(here) if here and rng.random() < 0.8 else FILES))
        said = " ".join(_some(rng, WORDS, int(rng.integers(1, 3))))
        move = f"cd {rng.choice(others)}" if snapshot["at"] == "/" and others else "cd .."
        return [
            "pwd",
            "ls",
            move,
            f"mkdir {rng.choice(DIRECTORIES)}",
            f"echo {said} > {file}",
            f"cat {file}",
            f"rm {file}",
            f"wc {file}",
        ]
