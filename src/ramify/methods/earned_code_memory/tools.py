"""Tools: how one is let in (arXiv 2606.24151, section 3.5), and how one runs.
The code of a tool runs in a sandbox, nowhere else."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ramify.base.errors import UserError, nearest
from ramify.base.secrets import redact, without_keys
from ramify.methods.earned_code_memory.algorithm import closure, outline, signature_faults
from ramify.methods.earned_code_memory.store import MemoryState, ToolEntry
from ramify.sandbox import Limits, Sandbox, Session, find_sandbox

Api = Callable[[str, Mapping[str, Any]], Any | Awaitable[Any]]
"""(name, arguments) -> JSON: a call of a base API. A UserError that it raises is returned to the tool."""

LIMITS = Limits(seconds=20.0)
MOST_SOURCE = 20_000
_INSIDE = """
import ramify_host as _host

class _Api:
    def __init__(self, path=""):
        self._path = path
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Api(self._path + "." + name if self._path else name)
    def __call__(self, **given):
        if self._path in _tools:
            return _tools[self._path](_Api(), **given)
        return _host.call("api", {"name": self._path, "arguments": given})

_tools = {}

def _run(name, given):
    return _tools[name](_Api(), **given)

def _check(name, result, given):
    return bool(globals()["check_" + name](_Api(), result, **given))
"""


def loading(tool: ToolEntry) -> str:
    """What makes a tool known inside the sandbox."""
    return f"{tool.source}\n_tools[{tool.name!r}] = {tool.name}\n"


def with_deps(tool: ToolEntry, tools: Mapping[str, ToolEntry]) -> list[ToolEntry]:
    """The tools that ``tool`` reaches, itself last."""
    found: dict[str, ToolEntry] = {}

    def visit(one: ToolEntry, depth: int) -> None:
        for name in one.deps:
            if name in tools and name not in found and depth < 50:
                visit(tools[name], depth + 1)
        found[one.name] = one

    visit(tool, 0)
    return list(found.values())


# -- letting one in --------------------------------------------------------------------------------------------------------------


def read_candidate(made: Any) -> ToolEntry | str:
    """The tool that a codifier wrote, or why it is none."""
    if not isinstance(made, Mapping):
        return "a tool is a JSON object with name, parameters, source and tests"
    texts = {name: made.get(name, "") for name in ("name", "source", "tests")}
    if not all(isinstance(text, str) for text in texts.values()):
        return "name, source and tests are texts"
    if sum(map(len, texts.values())) > MOST_SOURCE:
        return f"it is longer than {MOST_SOURCE:,} characters"
    parameters = made.get("parameters") or {"type": "object", "properties": {}}
    return ToolEntry(texts["name"], "", parameters, "", texts["source"], texts["tests"])


async def admit(tool: ToolEntry, state: MemoryState, sandbox: Sandbox | None, checked: bool) -> tuple[list[str], list[str]]:
    """What keeps ``tool`` out, and what it calls: names, schema, dependency closure,
    then compilation and its own tests in the sandbox.

    ``checked``: a check of what it promises, and tests, are demanded. The faults quote its own code alone.
    """
    calls, faults, parameters = outline(tool.source, tool.name)
    faults = signature_faults(tool.name, tool.parameters, parameters) + faults
    active = {name: one for name, one in state.tools.items() if one.status == "active"}
    faults += closure(tool.name, calls, state.apis, {name: one.deps for name, one in active.items()})
    faults += _taken(tool, state)
    text = tool.source + tool.tests + json.dumps(dict(tool.parameters), default=str)
    if without_keys(text) != text or redact(text) != text:
        faults.append("it holds a secret")
    if checked and f"def check_{tool.name}(" not in tool.source:
        faults.append(f"it has no check_{tool.name}(api, result, *, ...)")
    if checked and not tool.tests.strip():
        faults.append("it has no tests")
    if faults:
        return faults, calls
    box = sandbox or find_sandbox()
    refuse: Callable[..., Any] = lambda name, arguments: _refused()  # noqa: E731
    async with box.session(limits=LIMITS, tools={"api": refuse}) as session:
        outcome = await session.execute(_INSIDE + "".join(loading(one) for one in with_deps(tool, active)))
        if outcome.ok and tool.tests.strip():
            outcome = await session.execute(tool.tests)
            faults += [] if outcome.ok else [f"its tests fail: {last_line(outcome.error)}"]
        elif not outcome.ok:
            faults.append(f"it does not load: {last_line(outcome.error)}")
    return faults, calls


def _refused() -> Any:
    raise UserError("tests run on a fake API of their own: NAME(fake, ...)")


def _taken(tool: ToolEntry, state: MemoryState) -> list[str]:
    if tool.name in state.apis:
        return [f"'{tool.name}' is the name of an API"]
    known = state.tools.get(tool.name)
    if known is not None and (known.status == "active" or known.plan not in state.chain(tool.plan)):
        return [f"'{tool.name}' is the name of another tool"]
    return []


def last_line(error: str) -> str:
    """What a traceback ends in, with the line of the code where that stands in it."""
    lines = [line for line in error.strip().splitlines() if line.strip()]
    where = next((line.strip() for line in reversed(lines) if line.strip().startswith('File "<call')), "")
    location = where.partition(", ")[2].partition(",")[0]
    return f"{lines[-1][:300] if lines else 'no reason'}{f' ({location})' if location else ''}"


def is_atomic(calls: Sequence[str], state: MemoryState) -> bool:
    """Whether all that a tool calls only reads."""
    return all(state.apis.get(name, {}).get("read_only") or (name in state.tools and state.tools[name].atomic) for name in calls)


# -- running one -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Called:
    """What a call of a tool gave."""

    name: str
    ok: bool
    """It returned, and its check, where it has one, holds."""
    value: Any = None
    error: str = ""
    raised: bool = False
    checked: bool = False
    """Whether a check was made."""
    undone: bool = False
    """Whether an error's changes were taken back."""
    fallback: str = ""
    """The plan to go by where it failed, in mode safe."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), hash=False)
    """The API calls that it made."""

    @property
    def shown(self) -> str:
        """What the agent is shown."""
        if self.ok:
            return json.dumps({"result": self.value}, ensure_ascii=False)
        state = "nothing was changed" if self.undone else "the environment may have been changed"
        return json.dumps(
            {"error": self.error, "state": state, "atomic": self.undone}
            | ({"do instead": self.fallback} if self.fallback else {})
        )


class ToolBox:
    """Runs a memory's tools for one task at a time: ``async with ToolBox(memory, api) as box: await box.call(name, arguments)``.

    ``api`` answers the calls of the tools. ``snapshot`` and ``restore`` take the environment back where a tool raises; without
    them a tool that changes something says that it may have. After a failed check a tool is hidden until :meth:`begin`.
    """

    def __init__(
        self,
        memory: Any,
        api: Api,
        sandbox: Sandbox | None = None,
        snapshot: Callable[[], Any] | None = None,
        restore: Callable[[Any], None] | None = None,
    ) -> None:
        self.memory, self.api, self.snapshot, self.restore = memory, api, snapshot, restore
        self.hidden: set[str] = set()
        self._sandbox = sandbox
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._loaded: dict[str, str] = {}
        self._made: list[tuple[str, Mapping[str, Any]]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    def begin(self) -> None:
        """A new task: what was hidden may be offered again."""
        self.hidden.clear()

    async def call(self, name: str, arguments: Mapping[str, Any], task: str = "", saved: float | None = None) -> Called:
        """Call a tool, check what it promised, and log it. Raises UserError on a tool that is not active, or hidden."""
        state: MemoryState = self.memory.state
        tool = state.tools.get(name)
        if tool is None or tool.status != "active" or name in self.hidden:
            why = "is hidden until the next task: its check failed" if name in self.hidden else "is not an active tool"
            raise UserError(f"'{name}' {why} ({nearest(name, [t.name for t in state.tools.values() if t.status == 'active'])})")
        before = None if self.snapshot is None else self.snapshot()
        self._made = []
        found = await self._called(tool, arguments, state)
        if found.raised and self.restore is not None:
            self.restore(before)
        undone = found.raised and (self.restore is not None or tool.atomic)
        fallback = ""
        if not found.ok and state.config.safe:
            self.hidden.add(name)
            plan = next((state.entries[head] for head in state.heads(tool.plan) if head in state.entries), None)
            fallback = "" if plan is None else f"{plan.title}: {plan.body}"
        done = Called(name, found.ok, found.value, found.error, found.raised, found.checked, undone, fallback, tuple(self._made))
        self.memory.called(name, done.ok, done.raised, task, saved)
        return done

    async def _called(self, tool: ToolEntry, arguments: Mapping[str, Any], state: MemoryState) -> Called:
        session = await self._ready(tool, state)
        outcome = await session.call("_run", tool.name, dict(arguments))
        if not outcome.ok:
            self._forget(outcome.reason)
            return Called(tool.name, False, error=last_line(outcome.error), raised=True)
        if not state.config.safe or f"def check_{tool.name}(" not in tool.source:
            return Called(tool.name, True, outcome.value)
        check = await session.call("_check", tool.name, outcome.value, dict(arguments))
        self._forget(check.reason)
        if check.ok and check.value is True:
            return Called(tool.name, True, outcome.value, checked=True)
        why = (
            "its check says that what it promised did not come about"
            if check.ok
            else f"its check fails: {last_line(check.error)}"
        )
        return Called(tool.name, False, outcome.value, why, checked=True)

    def _forget(self, reason: str) -> None:
        if reason not in ("done", "error"):  # the worker is gone, and with it what it had loaded
            self._loaded.clear()

    async def _ready(self, tool: ToolEntry, state: MemoryState) -> Session:
        if self._session is None:
            box = self._sandbox or find_sandbox()
            self._session = await self._stack.enter_async_context(box.session(limits=LIMITS, tools={"api": self._api}))
        active = {name: one for name, one in state.tools.items() if one.status == "active"}
        wanted = [one for one in with_deps(tool, active) if self._loaded.get(one.name) != one.source]
        code = ("" if self._loaded else _INSIDE) + "".join(map(loading, wanted))
        if code:
            outcome = await self._session.execute(code)
            if not outcome.ok:
                raise UserError(f"the tool '{tool.name}' does not load: {last_line(outcome.error)}")
            self._loaded |= {one.name: one.source for one in wanted}
        return self._session

    async def _api(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name not in self.memory.state.apis:
            raise UserError(f"there is no API '{name}'")
        self._made.append((name, dict(arguments)))
        found = self.api(name, arguments)
        return await found if inspect.isawaitable(found) else found
