"""Episodes in a workspace of a few text files, kept as JSON: tools to list, read and write them, and the environment's own.

A reply makes one call; a reply without one ends the episode. Subclasses add tools as methods and say what the run was.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ramify.base.errors import InfrastructureError, nearest
from ramify.base.ids import canonical_json
from ramify.env.protocol import Observation, Task
from ramify.env.tools import MOST, cut, describe, tool_json
from ramify.methods.forensics.factors import FactorEnvironment
from ramify.trace.message import parse_tool_calls, write_call

FILE_TOOLS = {
    "list_files": ("List the files of the workspace.", {}),
    "read_file": ("Read a file of the workspace.", {"path": "string"}),
    "write_file": ("Write a file of the workspace, in the place of what it held.", {"path": "string", "text": "string"}),
}
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9,
}
Tool = tuple[str, Mapping[str, str]]
"""What it does, and its arguments: name -> string or integer."""


class RefusedError(Exception):
    """A tool's way to say that a call was wrong; the text is what the agent reads."""


def schemas(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's JSON form; every argument is required."""
    return [
        tool_json(
            name,
            says,
            {"type": "object", "properties": {a: {"type": kind} for a, kind in arguments.items()}, "required": list(arguments)},
        )
        for name, (says, arguments) in tools.items()
    ]


class Workspace(ABC):
    """One episode. ``state`` is all there is, as JSON: files, paths read in order, turns,
    last words, and what a subclass adds."""

    words: ClassVar[str]
    """The system message, before the tools."""
    tools: ClassVar[Mapping[str, Tool]]
    max_turns: int = 40

    def __init__(self, environment: FactorEnvironment) -> None:
        self.environment = environment
        self.system = describe(schemas(self.tools), self.words)
        self.state: dict[str, Any] = {}
        self.factors: dict[str, Any] = {}
        self.seed = 0

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``. Raises UserError on factors that the environment does not have."""
        self.factors, self.seed = self.environment.settings(task), seed
        self.state = {
            "files": dict(self.environment.files(task)),
            "read": [],
            "turns": 0,
            "over": False,
            "last": "",
            **self.begin(),
        }
        return Observation(self.prompt())

    def begin(self) -> dict[str, Any]:
        """State that a subclass keeps in addition to the files."""
        return {}

    @abstractmethod
    def prompt(self) -> str:
        """The task as the agent reads it."""

    @abstractmethod
    def grade(self) -> dict[str, Any]:
        """What the run was, at its end (``factors.grade``)."""

    @abstractmethod
    def success(self) -> bool:
        """Whether the work was done."""

    def step(self, action: str) -> Observation:
        """Make the reply's call, or end with a reply without one."""
        if not self.state or self.state["over"]:
            raise InfrastructureError("env", "step without a running episode")
        self.state["turns"] += 1
        calls = parse_tool_calls(action)
        text, valid = "Your answer was taken.", True
        if not calls:
            self.state |= {"over": True, "last": action[:4000]}
        elif len(calls) > 1 or calls[0].error:
            text, valid = f"error: {calls[0].error if len(calls) == 1 else 'one call a reply'}", False
        else:
            try:
                text = self._call(calls[0].name, calls[0].arguments)
            except RefusedError as error:
                text, valid = f"error: {error}", False
        terminated = self.state["over"]
        truncated = not terminated and self.state["turns"] >= self.max_turns
        role = "tool" if calls else "user"
        if not (terminated or truncated):
            return Observation(cut(text), valid=valid, role=role)
        data = {"grade": self.grade() | {"turns": self.state["turns"]}}
        return Observation(cut(text), self.reward(), terminated, truncated, self.success(), valid, role, data)

    def reward(self) -> float:
        """What the episode pays."""
        return float(self.success())

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name not in self.tools:
            raise RefusedError(f"there is no tool '{name}' ({nearest(name, self.tools)})")
        wanted = self.tools[name][1]
        for argument in [*wanted, *arguments]:
            if argument not in wanted:
                raise RefusedError(f"{name} has no argument '{argument}'")
            if argument not in arguments:
                raise RefusedError(f"{name} needs the argument '{argument}'")
            if not _KINDS[wanted[argument]](arguments[argument]):
                raise RefusedError(f"argument '{argument}' of {name} must be of type {wanted[argument]}")
        return str(getattr(self, name)(**arguments))

    def list_files(self) -> str:
        """The paths, one a line; those that begin with a dot are not shown."""
        return "\n".join(path for path in sorted(self.state["files"]) if not path.startswith("."))

    def read_file(self, path: str) -> str:
        """A file's text."""
        path = path.removeprefix("./")
        if path not in self.state["files"]:
            raise RefusedError(f"there is no file '{path[:200]}'")
        if path not in self.state["read"]:
            self.state["read"].append(path)
        return str(self.state["files"][path])

    def write_file(self, path: str, text: str) -> str:
        """Change a file or make one."""
        path = path.removeprefix("./")
        if not path or len(path) > 200 or len(text) > MOST or len(self.state["files"]) >= 100:
            raise RefusedError("a path of 1 to 200 characters, a text of at most 16,000, at most 100 files")
        self.state["files"][path] = text
        return "written"

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON, without the task, which ``reset`` has given."""
        return copy.deepcopy(self.state)

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``."""
        self.state = copy.deepcopy(snapshot)

    def key(self) -> str:
        """The state itself, canonically: equal keys of one task and seed have equal futures."""
        return canonical_json(self.state)


def call(name: str, **arguments: Any) -> str:
    """A reply that calls a tool, for scripted agents."""
    return write_call(name, arguments)
