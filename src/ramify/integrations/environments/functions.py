"""Environments made of Python functions: an agent that may call them, and a task to do with them.

``python:MODULE:ATTRIBUTE`` finds an environment object of your own by import path, this kind or any other.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.ids import canonical_json, json_hash
from ramify.base.registry import register
from ramify.base.secrets import redact
from ramify.env.protocol import Env, Environment, Observation, Snapshot, Task, TaskSet, Volatile, read_task_set
from ramify.env.tools import declared_name, effect_of, tool_json
from ramify.integrations.environments.spec import TaskList
from ramify.integrations.environments.tools import Grade, ToolEpisode, ToolReply, as_text, refusal
from ramify.rollout.components import find_environment
from ramify.trace.message import write_call

STATE = "state"
"""A parameter of this name is hidden from the agent: it receives the episode's state."""


@dataclass(frozen=True)
class FunctionTool:
    """One Python function as a tool: its JSON schema, and how its arguments are checked."""

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    """In OpenAI's JSON form."""
    _model: Any
    _parameters: tuple[str, ...]
    _stateful: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> FunctionTool:
        """Read signature and docstring. Raises UserError on a function whose arguments no JSON object can name."""
        import pydantic

        name = declared_name(function) or getattr(function, "__name__", "")
        if not inspect.isroutine(function) or inspect.iscoroutinefunction(function):
            raise UserError(f"a tool is a plain function, not {function!r}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            raise UserError(f"a tool needs a name, which {name!r} is not: write it with def")
        summary, described = _documented(inspect.getdoc(function) or "")
        try:
            signature = inspect.signature(function)
            hints = typing.get_type_hints(function, include_extras=True)
        except (TypeError, ValueError, NameError) as error:
            raise UserError(f"the tool '{name}' has no readable signature: {error}") from None
        fields: dict[str, Any] = {}
        parameters = [p for p in signature.parameters.values() if p.name != STATE]
        for i, parameter in enumerate(parameters):
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UserError(f"the tool '{name}' takes {parameter}; a tool's arguments all have names")
            default = ... if parameter.default is parameter.empty else parameter.default
            field = pydantic.Field(default, alias=parameter.name, description=described.get(parameter.name))
            fields[f"p{i}"] = (hints.get(parameter.name, Any), field)
        try:
            model = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
            schema = _untitled(model.model_json_schema(by_alias=True))
        except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"the tool '{name}' has an argument that JSON cannot write: {why}") from None
        schema.pop("additionalProperties", None)
        names = tuple(parameter.name for parameter in parameters)
        return cls(name, function, tool_json(name, summary, schema), model, names, STATE in signature.parameters)

    def run(self, arguments: Mapping[str, Any], state: Any) -> ToolReply:
        """Check the arguments and call the function. Whatever it raises becomes a result, except InfrastructureError."""
        import pydantic

        try:
            checked = self._model.model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            return refusal(self._sentence(error.errors(include_url=False)[0]))
        given = {name: getattr(checked, f"p{i}") for i, name in enumerate(self._parameters)}
        try:
            return ToolReply(as_text(self.function(**given, **({STATE: state} if self._stateful else {}))))
        except InfrastructureError:
            raise
        except (Exception, SystemExit) as error:  # a tool may raise anything; the agent gets the error
            return ToolReply(str(redact(f"error: {type(error).__name__}: {error}")), failed=True)

    def _sentence(self, error: Mapping[str, Any]) -> str:
        where = ".".join(str(part) for part in error["loc"])
        if error["type"] == "missing":
            return f"{self.name} needs the argument '{where}'"
        if error["type"] == "extra_forbidden":
            return f"{self.name} has no argument '{where}' ({nearest(where, self._parameters)})"
        message = error["msg"][:1].lower() + error["msg"][1:]
        return f"argument '{where}' of {self.name}: {message}, not {as_text(error['input'])[:80]}"


class FunctionEpisode(ToolEpisode):
    """One episode with functions as tools."""

    def __init__(self, environment: FunctionEnvironment) -> None:
        super().__init__(
            self.call, environment.tools, environment.system, environment.max_turns, environment.grade, environment.effects
        )
        self._environment, self._state = environment, None

    def reset(self, task: Task, seed: int) -> Observation:
        """Show ``task``, with a state of its own. Raises UserError where the task has no text."""
        self._state = None if self._environment.state is None else self._environment.state(task)
        return self.begin(task)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run the function of that name."""
        tool = self._environment.functions.get(name)
        if tool is None:
            return refusal(f"there is no tool '{name}' ({nearest(name, self._environment.functions)})")
        return self.guarded(name, arguments, lambda: tool.run(arguments, self._state))

    def judged(self) -> Any:
        """The state object."""
        return self._state

    def snapshot(self) -> Snapshot | None:
        """The state, the box's files with it: as JSON where it is JSON, else a copy in memory,
        or None where it cannot be copied."""
        body: dict[str, Any] = {"state": self._state, "over": self._over}
        body |= {name: held for name, held in (("given", self.gate.given), ("files", self.gate.box.files)) if held}
        try:
            if json.loads(canonical_json(body)) == body:
                return copy.deepcopy(body)
        except (TypeError, ValueError, RecursionError):
            pass
        try:
            return Volatile(copy.deepcopy(body))
        except Exception:  # a third-party object may refuse to be copied in any way it likes
            return None

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``."""
        body = copy.deepcopy(snapshot.state if isinstance(snapshot, Volatile) else snapshot)
        self._state, self._over = body["state"], body["over"]
        self.gate.given, self.gate.box.files = body.get("given", {}), body.get("files", {})

    def key(self) -> str | None:
        """The task and the state, where that is JSON."""
        if self._task is None:
            return None
        try:
            return json_hash(
                [dict(self._task.data), self._state, self._over, *([files] if (files := self.gate.box.files) else [])]
            )
        except (TypeError, ValueError, RecursionError):
            return None


class FunctionEnvironment:
    """An environment whose tools are Python functions.

    ``tools``: functions with type hints; name, docstring and hints become the schema, arguments are checked against it, and what
    a function raises is returned to the agent. ``tasks``: tasks with a field ``prompt`` (text), a file of them (JSON lines), or a
    function (split, n, seed) -> tasks. ``grade(task, answer, state)`` scores the agent's final answer, 1 is success; without one
    the answer must equal the task's ``answer``, where it has any. ``state(task)`` makes what the functions share in one episode:
    a function with a parameter ``state`` is handed it. State outside it (globals, files) is not rewound by a fork. What a
    function does is declared with :func:`ramify.tool`: on a branch one that declares nothing is not run, and one that acts on
    ``state`` alone is "sandboxed". Raises UserError.
    """

    def __init__(
        self,
        tools: Iterable[Callable[..., Any]],
        tasks: Iterable[Task] | Path | str | Callable[[str, int, int], Iterable[Task]],
        grade: Grade | None = None,
        state: Callable[[Task], Any] | None = None,
        system: str = "",
        max_turns: int = 16,
        name: str = "functions",
    ) -> None:
        self.functions: dict[str, FunctionTool] = {}
        for tool in map(FunctionTool.of, tools):
            if tool.name in self.functions:
                raise UserError(f"two tools are called '{tool.name}'")
            self.functions[tool.name] = tool
        self.effects = {name: found for name, tool in self.functions.items() if (found := effect_of(tool.function))}
        if max_turns < 1:
            raise UserError(f"max_turns must be at least 1, not {max_turns}")
        self.grade, self.state, self.system, self.max_turns, self.name = grade, state, system, max_turns, name
        if isinstance(tasks, str | Path):
            tasks = read_task_set(Path(tasks))
        self._tasks = tasks if callable(tasks) else TaskList(tasks, f"the environment '{name}'")

    def declare(self, effects: Mapping[str, str]) -> None:
        """What functions do to the world, by name."""
        self.effects |= effects

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's JSON form."""
        return [tool.schema for tool in self.functions.values()]

    def make(self) -> Env:
        """A fresh episode."""
        return FunctionEpisode(self)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """Tasks of a split: ``n`` where they are made, at most ``n`` where they are listed.
        Raises UserError where there are none."""
        return (
            self._tasks.task_set(split, n, seed) if isinstance(self._tasks, TaskList) else TaskSet.of(self._tasks(split, n, seed))
        )

    def actions(self, task: Task, snapshot: Snapshot) -> Sequence[str]:
        """Replies worth trying, for the conformance battery: each tool with made-up arguments, and an answer."""
        calls = [_call(tool["function"]) for tool in self.tools]
        return [*calls, str(task.data.get("answer", "done"))]


@register("env", "python")
def python_environment(argument: str = "") -> Environment:
    """The environment object at ``MODULE:ATTRIBUTE``, or what it returns when it is a class or function. Raises UserError."""
    if not argument:
        raise UserError("the environment 'python' needs a path: python:MODULE:ATTRIBUTE")
    return find_environment(f"python:{argument}")


_MADE_UP = {"integer": 1, "number": 0.5, "string": "a", "boolean": True, "array": [], "object": {}, "null": None}


def _call(function: Mapping[str, Any]) -> str:
    """A call of a tool with an argument of the right type in each place it needs one."""
    properties = function["parameters"].get("properties", {})
    arguments = {}
    for name in function["parameters"].get("required", ()):
        kind = properties.get(name, {})
        arguments[name] = kind["enum"][0] if kind.get("enum") else _MADE_UP.get(str(kind.get("type")))
    return write_call(function["name"], arguments)


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's words before its ``Args:``, and what is said there of each argument (Google style)."""
    summary, _, rest = re.sub(r"(?m)^(Returns|Raises|Yields):[\s\S]*", "", text).partition("\nArgs:\n")
    found = re.findall(r"^[ \t]+(\w+)(?: ?\([^)]*\))?:[ \t]*(.+(?:\n[ \t]{8,}.+)*)", rest, re.MULTILINE)
    return summary.strip(), {name: " ".join(lines.split()) for name, lines in found}


def _untitled(schema: Any) -> Any:
    """A JSON schema without the titles pydantic makes up."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "enum", "const", "examples") else _untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
