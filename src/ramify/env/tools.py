"""Tools of an agent: how they are shown (their JSON form, the words that explain them, how long a result may be), and what
running one does to the world.

A tool's **effect** says what a branch may do with it (:data:`EFFECTS`). The first time an agent does its task its tools simply
run, and what they gave is recorded. On a branch of what is recorded the gate decides: the recorded steps are taken again with the
recorded results, and after them a tool is run, given its recorded result, asked about or refused, by its effect. One that
declares none is refused. So it is for every tool of a third party:
of a person's own agent, of functions and of MCP servers as environments.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import json
import shlex
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.ids import canonical_json
from ramify.base.waiting import wait_for

if TYPE_CHECKING:
    from ramify.sandbox.protocol import Outcome, Sandbox
    from ramify.trace.message import Message

MOST = 16_000
"""Characters of one tool result that are shown to the agent."""
Tools = list[dict[str, Any]]


def describe(tools: Tools, words: str = "") -> str:
    """The system message: ``words``, the tools, and how to call them."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    how = (
        "You can call tools. To call one, write\n"
        '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>\n'
        "and you will be shown its result. A reply without a call is your final answer.\n"
        f"Tools:\n{listed}"
    )
    return f"{words}\n\n{how}" if words else how


def described(text: str) -> Tools:
    """The tools that :func:`describe` wrote into a system message; none where it wrote none."""
    _, _, listed = text.rpartition("\nTools:\n")
    tools = []
    for line in listed.splitlines():
        try:
            tool = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            break
        tools.append({"type": "function", "function": tool})
    return tools


def cut(text: str, most: int = MOST) -> str:
    """``text``, or its first ``most`` characters and how many more there were."""
    return text if len(text) <= most else f"{text[:most]}\n... ({len(text) - most:,} characters more)"


def tool_json(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's JSON form."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


# -- effects

EFFECTS = {
    "pure": "changes nothing, so it is run again",
    "replay": "is given its recorded result for the same call; a call that was not recorded is refused",
    "sandboxed": "acts on what each branch has a copy of (its box, its folder), so it is run again",
    "ask": "is run again after a person said yes; without a terminal it is refused",
}
"""What a branch does with a tool, by the effect it declares."""
EVERY = "*"
"""Among effects by name: the tools that are not named and declare nothing themselves."""
RUNS = "tool_runs"
"""In the data of an observation: one {"name", "arguments", "effect", "how", "result" (JSON text) or "error"} for each tool that
was called before it. ``how`` is run, replayed (given its recorded result), asked (a person said yes, and it was run) or refused;
``asks``: a model was asked while it ran, as a subagent that is a tool does."""
BOX = "box"
"""A parameter of this name of a sandboxed tool is hidden from the agent: it receives the episode's :class:`WorkFolder`."""
F = TypeVar("F", bound=Callable[..., Any])


def tool(effect: str, name: str = "") -> Callable[[F], F]:
    """Declare the effect of a Python function that an agent calls as a tool:
    ``pure``, ``replay``, ``sandboxed`` or ``ask`` (:data:`EFFECTS`).

    The function stays as it is wherever no episode of an agent runs. ``name`` is what the agent calls it, by default the
    function's own name. Where a framework makes a tool of the function,
    put this below the framework's decorator. Raises UserError on another effect.
    """
    check_effect(effect, name or "this tool")

    def declared(function: F) -> F:
        marked: Any = _declared(function, effect, name or function.__name__)
        return marked  # type: ignore[no-any-return]

    return declared


def check_effect(effect: str, name: str) -> None:
    """Raises UserError where there is no such effect."""
    if effect not in EFFECTS:
        raise UserError(f"{name}: an effect is {', '.join(EFFECTS)}, not {effect!r} ({nearest(str(effect), EFFECTS)})")


def read_effects(texts: Iterable[str]) -> dict[str, str]:
    """Effects from ``NAME=EFFECT`` each; the name ``*`` is :data:`EVERY`. Raises UserError."""
    effects = {}
    for text in texts:
        name, equals, effect = text.partition("=")
        if not equals or not name:
            raise UserError(f"what a tool does is said as NAME=EFFECT, as in send_mail=ask, not '{text}'")
        check_effect(effect, f"the tool '{name}'")
        effects[name] = effect
    return effects


def effect_options(effects: Mapping[str, str]) -> str:
    """Effects as :func:`read_effects` reads them, as the end of a command; "" for none."""
    return "".join(f" --effect {shlex.quote(f'{name}={effect}')}" for name, effect in effects.items())


def declare(environment: Any, effects: Mapping[str, str]) -> None:
    """Tell an environment what its tools do. Raises UserError where it has no tools that a gate sees."""
    for name, effect in effects.items():
        check_effect(effect, f"the tool '{name}'")
    told = getattr(environment, "declare", None)
    if effects and told is None:
        raise UserError(f"the environment '{getattr(environment, 'name', '')}' has no tools whose effects could be declared")
    if effects:
        told(effects)  # type: ignore[misc]  # it is not None


def effect_of(function: object) -> str:
    """The effect that a function declares; "" where it declares none."""
    return str(getattr(function, "ramify_effect", ""))


def declared_name(function: object) -> str:
    """What an agent calls a function that declares its effect; "" of one that declares none."""
    return str(getattr(function, "ramify_tool", ""))


def how_to_declare(name: str, otherwise: str = "@ramify.tool(EFFECT) above it") -> str:
    """How a person says what the tool ``name`` does, one clause."""
    return f"declare it with --effect {shlex.quote(f'{name}=EFFECT')}, or {otherwise}; EFFECT is {', '.join(EFFECTS)}"


def _declared(function: Callable[..., Any], effect: str, name: str) -> Callable[..., Any]:
    signature = inspect.signature(function)
    boxed = effect == "sandboxed" and BOX in signature.parameters
    shown = signature.replace(parameters=[each for each in signature.parameters.values() if not (boxed and each.name == BOX)])

    def call(gate: ToolGate | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        bound = shown.bind(*args, **kwargs)
        return dict(bound.arguments), {BOX: WorkFolder() if gate is None else gate.box} if boxed else {}

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            gate = gate_here()
            arguments, more = call(gate, args, kwargs)
            if gate is None or INSIDE.get() == name:
                return await function(*args, **kwargs, **more)
            return await gate.arun(name, effect, arguments, lambda: function(*args, **kwargs, **more))

        wrapped: Any = arun
    else:

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            gate = gate_here()
            arguments, more = call(gate, args, kwargs)
            if gate is None or INSIDE.get() == name:
                return function(*args, **kwargs, **more)
            return gate.run(name, effect, arguments, lambda: function(*args, **kwargs, **more))

        wrapped = run
    wrapped.ramify_effect, wrapped.ramify_tool = effect, name
    wrapped.__signature__ = shown
    if boxed:
        wrapped.__annotations__ = {key: value for key, value in function.__annotations__.items() if key != BOX}
    return wrapped  # type: ignore[no-any-return]


class WorkFolder:
    """A work folder in the sandbox that belongs to one episode.
    A branch gets its own, in which the recorded calls are made again."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """Path -> content. Empty folders and modes do not last from command to command."""

    def run(self, argv: Sequence[str], **command: Any) -> Outcome:
        """Run a command in the folder; arguments as for :class:`ramify.sandbox.protocol.Command`. Raises NeedsError where nothing
        isolates, InfrastructureError where its files are too large to keep."""
        done: Outcome = wait_for(_sandbox().run(argv, files=self.files, returns=["*"], **command))
        if done.refused:
            path, why = next(iter(done.refused.items()))
            raise InfrastructureError("sandbox", f"the file '{path}' of the box cannot be kept: {why}")
        self.files = dict(done.files)
        return done


@functools.cache
def _sandbox() -> Sandbox:
    from ramify.sandbox.find import find_sandbox

    return find_sandbox()


# -- the gate

Ask = Callable[[str, Mapping[str, Any]], bool]
"""(tool, arguments) -> whether it may be run."""
GATE: ContextVar[ToolGate | None] = ContextVar("gate", default=None)
"""The gate of the episode that this thread or task belongs to."""
INSIDE: ContextVar[str] = ContextVar("inside", default="")
"""The tool that is being run here, by its declared name: where a framework's tool is made of a declared function, both are one
call."""
_open: weakref.WeakSet[ToolGate] = weakref.WeakSet()
_asking = threading.Lock()


def gate_here() -> ToolGate | None:
    """The gate that a tool called here has to pass; None outside an episode.
    Raises InfrastructureError where it cannot be told which."""
    current = GATE.get()
    if current is not None or threading.current_thread() is threading.main_thread():  # agents run in threads of their own
        return current
    gates = list(_open)
    if len(gates) > 1:
        why = "a tool was called from a thread that does not know its episode: start it with contextvars.copy_context().run"
        for gate in gates:
            gate.refuse(why)
        raise InfrastructureError("tool", why)
    return gates[0] if gates else None


def ask_person(name: str, arguments: Mapping[str, Any]) -> bool:
    """Ask on the terminal. Raises InfrastructureError where there is none."""
    from ramify.render.terminal import say

    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise InfrastructureError("tool", f"the tool '{name}' asks a person before it runs on a branch, and there is no terminal")
    say(f"\nRun {_call(name, arguments)} on this branch? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    return text if len(text) <= 200 else f"{text[:200]}..."


@dataclass(eq=False)
class ToolGate:
    """What every tool call of one episode passes: it decides by the tool's effect and notes what became of it. Safe for
    threads."""

    ask: Ask = ask_person
    on_refused: Callable[[str], object] = lambda why: None
    """Called with the reason where a call was refused: the episode ends there."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """Effects by name, which count more than what a tool itself declares; :data:`EVERY` counts less."""
    stateful: bool = False
    """Whether what the recorded calls did is a part of the state to go back to:
    past one that declares nothing there is no way back then."""
    declaring: Callable[[str], str] = how_to_declare
    """How a tool of that name is declared, for the sentence that refuses it."""
    box: WorkFolder = field(default_factory=WorkFolder)
    branched: bool = False
    requests: int = 0
    """Requests of the agent to its model so far."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Every call of the episode so far, as in :data:`RUNS`."""
    _new: list[dict[str, Any]] = field(default_factory=list)
    _recorded: list[dict[str, Any]] | None = None
    _own: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _made: Counter[str] = field(default_factory=Counter)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _closed: str = ""

    def __post_init__(self) -> None:
        _open.add(self)

    def close(self, why: str = "its episode is over") -> None:
        """No tool runs from now on."""
        self._closed = self._closed or why

    def begin_anew(self) -> None:
        """A further episode begins, with no call made; whether it is a branch stays."""
        self._closed, self._recorded = "", None
        self.calls.clear()
        self._new.clear()
        self._made.clear()

    def leave(self) -> None:
        """The agent's code has ended, so a call from an unknown thread is not its own any more."""
        _open.discard(self)

    def branch(self, branched: Iterable[Message], others: Iterable[Message]) -> None:
        """What follows the recorded steps is a branch; ``branched`` are the observations of the attempt that is, ``others``
        those of other attempts at the task."""
        self.branched = True
        for messages, by_call in ((branched, self._own), (others, self._others)):
            for message in messages:
                for record in message.data.get(RUNS) or ():
                    if record.get("how") in ("run", "asked"):
                        by_call.setdefault(_key(record["name"], record["arguments"]), []).append(record)

    def recall(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """The next calls, up to :meth:`taken`, were made before: these are their records."""
        self._recorded = [dict(record) for record in runs]

    @property
    def given(self) -> dict[str, int]:
        """How often each call was made that gives recorded results, in their order:
        what a snapshot of the episode has to hold."""
        return {key: n for key, n in self._made.items() if self.effect(json.loads(key)[0]) == "replay"}

    @given.setter
    def given(self, counts: Mapping[str, int]) -> None:
        self._made = Counter(counts)

    def effect(self, name: str, declared: str = "") -> str:
        """What the tool ``name`` does, where it declares ``declared`` itself; "" where nothing says it."""
        return self.effects.get(name) or declared or self.effects.get(EVERY, "")

    def bar(self, name: str, effect: str, arguments: Mapping[str, Any], why: str) -> None:
        """Note a call that was refused before the agent could make it."""
        record = {"name": name, "arguments": dict(arguments), "effect": effect, "how": "refused"}
        self._note({**record, "error": {"type": "InfrastructureError", "text": why}})

    def taken(self) -> list[dict[str, Any]]:
        """The calls since the last time, for the observation that follows them."""
        with self._lock:
            new, self._new, self._recorded = self._new, [], None
            return new

    def refuse(self, why: str) -> None:
        """End the episode here, for ``why``."""
        self.close(why)
        self.on_refused(why)

    def run(self, name: str, effect: str, arguments: Mapping[str, Any], function: Callable[[], Any], declared: str = "") -> Any:
        """What the call of a tool gives: the value of ``function``, or the recorded one. ``declared`` is the name under which the
        function that the tool is made of declares its effect, where that is another.
        Raises what it raised, InfrastructureError where it is refused."""
        record = self.begin(name, effect, arguments)
        if "how" in record:
            return result_of(record)
        with self._inside(record, declared):
            value = function()
        self.ended(record, value)
        return value

    async def arun(
        self, name: str, effect: str, arguments: Mapping[str, Any], function: Callable[[], Any], declared: str = ""
    ) -> Any:
        """As :meth:`run` for a function that returns something awaitable."""
        record = self.begin(name, effect, arguments)
        if "how" in record:
            return result_of(record)
        with self._inside(record, declared):
            value = await function()
        self.ended(record, value)
        return value

    @contextmanager
    def _inside(self, record: dict[str, Any], declared: str) -> Iterator[None]:
        token = INSIDE.set(declared or record["name"])
        try:
            yield
        except Exception as error:
            self.ended(record, error=error)
            raise
        finally:
            INSIDE.reset(token)

    def begin(self, name: str, effect: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a call: with ``how`` where its result is a recorded one,
        else the tool has to be run, then :meth:`ended`."""
        with self._lock:
            if self._closed:
                raise InfrastructureError("tool", f"the tool '{name}' is not run: {self._closed}")
            try:
                given = json.loads(canonical_json(dict(arguments)))
            except (TypeError, ValueError, RecursionError):
                given = {key: repr(value) for key, value in arguments.items()}
            effect = self.effect(name, effect)
            record = {"name": name, "arguments": given, "effect": effect}
            key = _key(name, given)
            nth = self._made[key]
            self._made[key] += 1
            if self._recorded is not None:
                return self._recalled(record, key, nth)
            if not self.branched:
                return record | {"run": "run"}
            if effect == "replay":
                return self._replayed(record, key, nth)
            if effect not in EFFECTS:
                self._refused(
                    record, f"the tool '{name}' declares no effect, so it is not run on a branch: {self.declaring(name)}"
                )
        return record | {"run": self._asked(record) if effect == "ask" else "run", "began": self.requests}

    def _recalled(self, record: dict[str, Any], key: str, nth: int) -> dict[str, Any]:
        assert self._recorded is not None
        at = next(
            (i for i, stored_call in enumerate(self._recorded) if _key(stored_call["name"], stored_call["arguments"]) == key),
            None,
        )
        if at is None and nth < len(known := self._own.get(key, [])):  # of parallel agents another one may come first
            replayed = known[nth]
        elif at is None:
            had = ", ".join(_call(stored_call["name"], stored_call["arguments"]) for stored_call in self._recorded) or "none"
            self._refused(
                record,
                f"replay differs: the agent called {_call(record['name'], record['arguments'])}, the recorded calls that are "
                f"left are: {had}",
            )
        else:
            replayed = self._recorded.pop(at)
        effect, name = record["effect"], record["name"]
        if self.stateful and effect not in EFFECTS:
            if not self.branched:  # the attempt itself, taken up where it was interrupted
                return record | {"run": "run"}
            self._refused(
                record,
                f"the tool '{name}' declares no effect, and a step before the branch called it: going back past it would run it "
                "again, "
                f"or leave out what it did: {self.declaring(name)}",
            )
        if effect == "sandboxed" or (
            effect == "pure" and replayed.get("asks")
        ):  # its box has to become what it was; its agent asks again
            return record | {"run": "run"}
        return self._note({**record, **{k: replayed[k] for k in ("result", "error") if k in replayed}, "how": "replayed"})

    def _replayed(self, record: dict[str, Any], key: str, nth: int) -> dict[str, Any]:
        known = self._own.get(key) or self._others.get(key)
        if not known:
            what = _call(record["name"], record["arguments"])
            self._refused(record, f"the tool '{record['name']}' gives recorded results on a branch, and {what} was not recorded")
        replayed = known[min(nth, len(known) - 1)]
        return self._note({**record, **{k: replayed[k] for k in ("result", "error") if k in replayed}, "how": "replayed"})

    def _asked(self, record: dict[str, Any]) -> str:
        why = f"a person said no to {_call(record['name'], record['arguments'])}"
        try:
            with _asking:  # one question at a time
                yes = self.ask(record["name"], record["arguments"])
        except InfrastructureError as error:
            yes, why = False, error.message
        if not yes:
            with self._lock:
                self._refused(record, why)
        return "asked"

    def _refused(self, record: dict[str, Any], why: str) -> NoReturn:
        self._note({**record, "how": "refused", "error": {"type": "InfrastructureError", "text": why}})
        self.refuse(why)
        raise InfrastructureError("tool", why)

    def ended(self, record: dict[str, Any], value: Any = None, error: Exception | None = None) -> None:
        """Note what a tool that was run gave."""
        noted = {key: item for key, item in record.items() if key not in ("run", "began")} | {"how": record["run"]}
        if self.requests > record.get("began", self.requests):
            noted["asks"] = True
        if error is not None:
            noted["error"] = {"type": type(error).__name__, "text": str(error)}
        else:
            noted |= stored(value)
        with self._lock:
            self._note(noted)

    def _note(self, record: dict[str, Any]) -> dict[str, Any]:
        self._new.append(record)
        self.calls.append(record)
        return record


def _key(name: str, arguments: Any) -> str:
    return canonical_json([name, arguments])


def stored(value: Any) -> dict[str, Any]:
    """``{"result": JSON text}`` where ``value`` is JSON (the order of fields is kept),
    else an error that says it cannot be given again."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if json.loads(text) == value:
            return {"result": text}
    except (TypeError, ValueError, RecursionError):
        pass
    return {
        "error": {"type": "TypeError", "text": f"a {type(value).__name__} was given, which is not JSON and cannot be recorded"}
    }


def result_of(record: Mapping[str, Any]) -> Any:
    """The recorded value of a call. Raises the error it ended with, of the same name and text."""
    if "error" not in record:
        return json.loads(record["result"])
    name, text = record["error"]["type"], record["error"]["text"]
    known = getattr(builtins, name, None)
    kind = known if isinstance(known, type) and issubclass(known, Exception) else type(name, (Exception,), {})
    try:
        error = kind(text)
    except TypeError:  # one that is made of more than a text, as UnicodeDecodeError
        error = type(name, (kind,), {"__init__": lambda self, text: None, "__str__": lambda self: text})(text)
    raise error
