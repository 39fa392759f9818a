"""The protocol of environments an agent acts in, and task sets of tasks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.plugins import called, takes
from ramify.trace.lines import read_lines

CHAT = "chat"
"""In the data of an observation, see :func:`chat_of`."""
LABELS = (
    *("metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "store", "service_tier"),
    *("client_metadata", "context_management", "include"),
)
"""Fields of a request that do not change the reply."""
Snapshot = Any
"""A JSON value, or bytes: durable, stored with the run. Or :class:`Volatile`."""


@dataclass(frozen=True, slots=True)
class Volatile:
    """A snapshot that is neither JSON nor bytes, declared so: kept in memory for a while and never stored.

    After a resume, or once it is dropped, the recorded actions are replayed and checked instead.
    """

    state: Any


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: an id unique in its task set and the data its environment needs (JSON)."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment answers. ``terminated``: the environment ended; ``truncated``:
    a limit did. ``outcome`` is the verifier's boolean."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    outcome: bool | None = None
    """Success or failure once decided, apart from a shaped reward; None while undecided or never decided."""
    valid: bool = True
    """False when the environment refused the action."""
    role: str = "user"
    """Role of the message that shows it to the agent: user or tool."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Small JSON extras kept with the message, e.g. ``tool_results``:
    one {"name", "text", "error"} a tool call, in their order; :data:`CHAT`."""
    failure: str = ""
    """An infrastructure failure that ends the episode here: it is stored with the step, and the attempt has no outcome."""


@runtime_checkable
class Env(Protocol):
    """An environment. One object is one episode; it is made anew (by its factory) for every rollout.

    One that holds something to be given back (a process, a file) also has ``close()``, called once when the episode is over. One
    that wants the whole message has ``reply(message, stop)``, called instead of ``step``. One whose steps act on the world has
    ``branch(own, others)``, called before ``reset`` where a recorded attempt is continued (with the observations of that attempt,
    and of others at the task, whose ``tool_results`` have the ``arguments`` of the calls, too), and ``recall(answer)``, called
    before each step that repeats a recorded one (``reset`` included) with the messages that answered it then. One that stands for
    an agent's requests has ``asked``, their further fields, for histories that do not say them.
    """

    max_turns: int
    """A limit on agent turns after which the rollout truncates."""
    system: str
    """Instructions shown once, as the system message; may be empty."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``. The same (task, seed) gives the same episode for the same actions."""
        ...

    def step(self, action: str) -> Observation:
        """Apply the agent's reply. It may also return something awaitable of the observation, where only ``Episodes`` play it."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The whole state as JSON or bytes; or as :class:`Volatile`; or None where the environment does not report one."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot`` of the task given to ``reset`` before; shares no mutable state with other episodes."""
        ...

    def key(self) -> str | None:
        """A key of the present state, equal for states from which the same future follows; None where the environment does not
        report one."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A family of episodes: makes episodes and task sets.

    It may also have ``tools`` (what the agent can call, in OpenAI's JSON form; see :func:`tools_of`), ``at_once`` (at most this
    many episodes open at a time), ``blocking`` (True: reset and step wait for something outside, so they run in threads) and
    ``max_reply`` (tokens that a reply may have in :func:`ramify.play` by default).
    """

    name: str

    def make(self) -> Env:
        """A fresh episode."""
        ...

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """``n`` generated tasks of a split (train, eval, tune); splits never share a task."""
        ...


@runtime_checkable
class EditsFiles(Protocol):
    """An environment whose attempts begin with files, of which one may say something else. Nothing that exists is changed."""

    def file(self, name: str) -> tuple[str, str]:
        """The path of a file, and its text when attempts begin. Raises UserError where there is none that could be edited."""
        ...

    def edited(self, old: str, given: str, name: str) -> str:
        """The text that ``given``, a text or a unified diff, makes of ``old``. Raises UserError where it does not fit."""
        ...

    def with_file(self, task: Task, path: str, text: str) -> Task:
        """The task, under a name of its own, whose attempts begin with ``text`` in the file at ``path``."""
        ...

    def patch(self, task: Task) -> str:
        """What such a task changes, as a unified diff."""
        ...


def chat_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an observation stands for in a chat, by the data of its message: ``messages`` (OpenAI's form), or ``shown``, all
    messages from the beginning, where what the agent is shown does not continue what it was shown before; and ``asked``, the
    further fields of its requests from there on (None leaves out what would be sent). A model that takes messages is sent these
    as they are. Empty where it stands for itself.

    It is stored as JSON text, since the order of fields is part of what a model is shown.
    """
    text = data.get(CHAT)
    try:
        record = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else {}


def conversation_of(data: Mapping[str, Any]) -> int:
    """The number of the agent's conversation in which an observation with these data was made: 0 is the one it began with, others
    are those of subagents."""
    number = chat_of(data).get("conversation", 0)
    return number if isinstance(number, int) else 0


def tools_of(environment: Environment) -> list[dict[str, Any]]:
    """The tools ``environment`` offers: ``{"type": "function", "function": {"name", "description", "parameters"}}`` each; none by
    default."""
    return list(getattr(environment, "tools", ()))


def close(env: Env) -> None:
    """Give back what ``env`` holds, where it holds anything."""
    give_back = getattr(env, "close", None)
    if give_back is not None:
        give_back()


@dataclass(frozen=True)
class TaskSet:
    """Tasks sorted by id with a content hash that no directory order, locale or worker count can change."""

    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> TaskSet:
        """Sort and check. Raises UserError on no task or on an id that occurs twice."""
        ordered = tuple(sorted(tasks, key=lambda t: t.id))
        if not ordered:
            raise UserError("the task set is empty")
        for left, right in itertools.pairwise(ordered):
            if left.id == right.id:
                raise UserError(f"task id '{left.id}' occurs twice in the task set")
        return cls(ordered)

    @property
    def hash(self) -> str:
        """Content hash of the task set."""
        return stable_hash("panel", *(canonical_json({"id": t.id, "data": dict(t.data)}) for t in self.tasks))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


def read_task_set(path: Path) -> TaskSet:
    """Read tasks from JSON lines: one object a line, ``id`` (text) and anything else as the task's data.

    Raises UserError naming file and line.
    """
    tasks = [as_task(record, f"{path}:{number}") for number, record in read_lines(path)]
    if not tasks:
        raise UserError(f"{path} holds no task")
    return TaskSet.of(tasks)


AnyTasks: TypeAlias = Iterable[Task | Mapping[str, Any]] | Path | str
"""Tasks, dicts as in the lines of a task file (``id``, and the data), or such a file."""


def task_set_of(tasks: AnyTasks) -> TaskSet:
    """The task set that objects, dicts or a file stand for. Raises UserError naming the task, or file and line."""
    if isinstance(tasks, str | Path):
        return read_task_set(Path(tasks))
    if not isinstance(tasks, Iterable):
        raise UserError(f"tasks are a file, or objects or dicts with an id, not {type(tasks).__name__}")
    return TaskSet.of(as_task(task, f"task {number}") for number, task in enumerate(tasks, 1))


def as_task(given: Task | Mapping[str, Any], where: str) -> Task:
    """A task, or one made of a record with an ``id``. Raises UserError naming ``where`` it stands."""
    if isinstance(given, Task):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
        raise UserError(f"{where}: a task is an object with a text 'id'")
    try:
        canonical_json(dict(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: {error}") from error
    return Task(given["id"], {name: value for name, value in given.items() if name != "id"})


AnyEnvironment: TypeAlias = Environment | str | Callable[[], Environment | Env]
"""An environment object, a name, or what makes one without arguments:
a class or function that returns an environment, or one episode (an Env)."""


class EpisodeEnvironment:
    """The environment of a class or function that makes one episode; it has no tasks of its own."""

    def __init__(self, make: Callable[[], Env], name: str) -> None:
        self.make, self.name = make, name

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """Raises UserError: the tasks are to be given."""
        raise UserError(f"the environment '{self.name}' makes no tasks of its own: give tasks= (--tasks FILE)")


_ENVIRONMENT, _ENV = ("name", "make", "task_set"), ("max_turns", "system", "reset", "step", "snapshot", "restore", "key")


def environment_of(given: Environment | Callable[[], Environment | Env], spec: str = "") -> Environment:
    """The environment that an object is, or that a class or function makes; ``spec`` is what it was named by, if by a name.
    Raises UserError on anything else, saying what is missing."""
    candidate: Any = given
    here = f"{spec}: this" if spec else "this"
    name = getattr(given, "__qualname__", type(given).__qualname__)
    if isinstance(given, type) or (callable(given) and not hasattr(given, "step") and not hasattr(given, "make")):
        if not takes(given, 0):
            raise UserError(f"{spec or name} makes no environment without arguments: it cannot be called without any")
        candidate = called(spec or name, given)
        if hasattr(candidate, "step") and not all(hasattr(candidate, name) for name in _ENVIRONMENT):
            _check(candidate, _ENV, here)
            close(candidate)
            make: Any = given
            return EpisodeEnvironment(make, name)
    elif hasattr(given, "step") and not hasattr(given, "make"):
        this = spec or f"this {name}"
        raise UserError(f"{this} is one episode: give what makes one for each attempt, the class {name} or a function")
    _check(candidate, _ENVIRONMENT, here)
    environment: Environment = candidate
    return environment


def _check(candidate: object, wanted: Iterable[str], before: str) -> None:
    lacks = [name for name in wanted if not hasattr(candidate, name)]
    if lacks:
        raise UserError(f"{before} {type(candidate).__name__} is not an environment: it has no {', '.join(lacks)}")
