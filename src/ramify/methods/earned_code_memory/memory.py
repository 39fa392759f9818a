"""The memory: serve a task, record it, reflect, write tools past the gate (arXiv 2606.24151, sections 3.3 to 3.5).

``memory.select`` before a task and ``memory.record`` after it are all that an agent needs;
``reflect`` and ``codify`` run when there is time.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base import codec
from ramify.base.config import check as check_config
from ramify.base.errors import InfrastructureError, UserError, nearest
from ramify.base.ids import json_hash, stable_hash
from ramify.methods.earned_code_memory import algorithm, roles
from ramify.methods.earned_code_memory import trajectory as traj
from ramify.methods.earned_code_memory.algorithm import MemoryConfig
from ramify.methods.earned_code_memory.results import CodifiedPlans, Reflected
from ramify.methods.earned_code_memory.retrieval import Index
from ramify.methods.earned_code_memory.roles import Role, RoleReply
from ramify.methods.earned_code_memory.store import MemoryEntry, MemoryState, MemoryStore, MemoryTask, ToolEntry, clean, entry_id
from ramify.methods.earned_code_memory.tools import admit, is_atomic, read_candidate
from ramify.methods.earned_code_memory.trajectory import KeptMessage
from ramify.sandbox import Sandbox

if TYPE_CHECKING:
    from ramify.methods.earned_code_memory.embedding import Embedder

Reviewer = Callable[[MemoryEntry | ToolEntry], bool | None]
"""Says of an entry that waits, or of a tool, whether it may be used; None leaves it to a person."""
HEAD = "Notes from earlier tasks. They are advice: check them against what you observe."
MERGE, SAME = (0.75, 0.5), 0.95
"""Words shared by titles and by bodies from which a candidate replaces an entry; by both, from which it says nothing new."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What a task is given. ``text`` goes into the context, ``tools`` (JSON schemas in OpenAI's form) may be called."""

    task: str
    query: str
    text: str = ""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    ids: tuple[str, ...] = ()
    """Entries and tools that were chosen."""
    spent: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Tokens of the manager."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A candidate that says what the entry of this id says."""

    id: str


@dataclass(frozen=True, slots=True)
class Near:
    """What is near a request: texts and tools, each with a share of words, or a cosine,
    and how much of it is enough without a manager."""

    texts: list[tuple[MemoryEntry, float]]
    tools: list[tuple[ToolEntry, float]]
    least: float
    tokens: int = 0
    """Of the embedding endpoint, as it counted them."""
    failed: str = ""
    """Why its vectors could not be had; empty where they were, or none were wanted."""


class Embedded:
    """The vectors of what is active now, as one endpoint makes them; those that it made are kept in the memory's file."""

    def __init__(self, address: str, embedder: Embedder) -> None:
        from ramify.methods.earned_code_memory.embedding import VectorIndex

        self.address, self._embedder = address, embedder
        self._texts, self._tools = VectorIndex(), VectorIndex()
        self._known: dict[str, str] = {}
        """Name -> the text that its vector is of."""
        self._lock = threading.Lock()
        """Threads of a server add and search."""

    async def find(
        self, memory: Memory, query: str
    ) -> tuple[list[tuple[MemoryEntry, float]], list[tuple[ToolEntry, float]], int]:
        """Texts and tools near ``query`` by falling cosine, and the tokens that it took. Raises ProviderError."""
        state, config = memory.state, memory.config
        entries = {} if config.mode == "code-only" else {e.id: e.text for e in state.entries.values() if e.status == "active"}
        tools = (
            {} if config.mode == "text-only" else {t.name: tool_words(t) for t in state.tools.values() if t.status == "active"}
        )
        wanted = {name: text for name, text in (entries | tools).items() if self._known.get(name) != text}
        stored = memory.store.vectors(self.address, [*wanted.values(), query])
        missing = list(dict.fromkeys(text for text in (*wanted.values(), query) if text not in stored))
        made, tokens = await self._embedder.vectors(missing) if missing else (np.zeros((0, 0), np.float32), 0)
        fresh = dict(zip(missing, (row.tobytes() for row in made), strict=True))
        memory.store.keep_vectors(self.address, {text: vector for text, vector in fresh.items() if text != query})
        every = {text: np.frombuffer(vector, np.float32) for text, vector in (stored | fresh).items()}
        with self._lock:
            for index, own in ((self._texts, entries), (self._tools, tools)):
                if names := [name for name in own if name in wanted]:
                    index.add(names, np.stack([every[own[name]] for name in names]))
            self._known.update(wanted)
            near = self._texts.nearest(every[query], algorithm.TOP_TEXT, lambda name: name in entries)
            may = self._tools.nearest(
                every[query], algorithm.TOP_TOOL, lambda name: name in tools and memory.may(state.tools[name], query)
            )
        return [(state.entries[name], share) for name, share in near], [(state.tools[name], share) for name, share in may], tokens


def tool_words(tool: ToolEntry) -> str:
    """What of a tool is searched: its name, its text, and the structures of the requests that it was made of."""
    return " ".join((tool.name.replace("_", " "), tool.doc, *(algorithm.structure(query) for query in tool.queries[:20])))


class Memory:
    """A memory in a file. ``settings`` are those of :class:`MemoryConfig`; those that the file has already stay unless given.

    ``reviewer`` decides what else would wait for a person. Raises UserError on a file that is not a memory,
    or a setting that is none.
    """

    def __init__(self, path: Path | str, *, create: bool = True, reviewer: Reviewer | None = None, **settings: Any) -> None:
        checked = check_config(MemoryConfig, settings, "the settings of a memory")
        if checked.embed:
            from ramify.methods.earned_code_memory.embedding import address_of

            address_of(checked.embed)
        self.store, self.reviewer = MemoryStore(path, create), reviewer
        self._entries, self._tools = Index(), Index()
        self._near: Embedded | None = None
        given = {name: value for name, value in checked.model_dump().items() if name in settings}
        now = self.store.state.config.model_dump()
        if self.store.state.seq == 0 or any(now[name] != value for name, value in given.items()):
            with self.store.writing() as write:
                write("settings", {"config": given})

    def close(self) -> None:
        """Close the file."""
        self.store.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> MemoryState:
        """What is known now, what other processes added among it."""
        with self.store.lock:
            state = self.store.refresh()
            while state.touched:
                name = state.touched.pop()
                if name in state.entries:
                    entry = state.entries[name]
                    self._entries.add(name, entry.text) if entry.status == "active" else self._entries.drop(name)
                elif name in state.tools:
                    tool = state.tools[name]
                    self._tools.add(name, tool_words(tool)) if tool.status == "active" else self._tools.drop(name)
        return state

    @property
    def config(self) -> MemoryConfig:
        """Its settings."""
        return self.store.state.config

    # -- what the environment offers

    def offer(self, apis: Iterable[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]) -> None:
        """Say which base APIs there are: tools in OpenAI's JSON form, or name -> {description, parameters, read_only}.

        A tool that calls one that is gone is demoted, and what uses it. Raises UserError on what is neither.
        """
        found = dict(apis) if isinstance(apis, Mapping) else dict(_api(one) for one in apis)
        found = {
            str(name): {k: v for k, v in one.items() if k in ("description", "parameters", "read_only")}
            for name, one in found.items()
        }
        if json_hash(found) == json_hash(self.store.refresh().apis):
            return
        with self.store.writing() as write:
            write("apis", {"apis": found})
            state = self.store.state
            for tool in [one for one in state.tools.values() if one.status == "active"]:
                gone = [name for name in tool.deps if name not in found and name not in state.tools]
                if gone and state.tools[tool.name].status == "active":
                    write("tool_status", {"name": tool.name, "status": "demoted", "why": f"the API {gone[0]} is gone"})

    # -- serving (section 3.3)

    def candidates(self, query: str) -> tuple[list[tuple[MemoryEntry, float]], list[tuple[ToolEntry, float]]]:
        """Texts and tools near a request, each with the share of its words that they hold; in mode safe past the guard."""
        state, config = self.state, self.config
        core = " ".join(sorted(algorithm.content_words(query)))
        texts = [] if config.mode == "code-only" else self._entries.nearest(query, algorithm.TOP_TEXT, core=core)
        tools = (
            []
            if config.mode == "text-only"
            else self._tools.nearest(query, algorithm.TOP_TOOL, lambda name: self.may(state.tools[name], query), core)
        )
        return [(state.entries[name], held) for name, _, held in texts], [(state.tools[name], held) for name, _, held in tools]

    async def near(self, query: str) -> Near:
        """:meth:`candidates`, or where the setting ``embed`` names an endpoint, what is near by its vectors.

        An endpoint that fails stops no task: what is near by words is found then, and ``failed`` says why.
        """
        if not self.config.embed:
            return Near(*self.candidates(query), self.config.least)
        from ramify.methods.earned_code_memory.embedding import Embedder

        if self._near is None or self._near.address != self.config.embed:
            self._near = Embedded(self.config.embed, Embedder(self.config.embed))
        try:
            texts, tools, tokens = await self._near.find(self, clean(query))
        except InfrastructureError as error:
            return Near(*self.candidates(query), self.config.least, failed=str(error))
        return Near(texts, tools, self.config.embed_least, tokens)

    def may(self, tool: ToolEntry, query: str) -> bool:
        """Whether a tool may be offered for ``query``: in mode safe only where it holds the words that the tool's requests
        share."""
        return not self.config.safe or algorithm.guarded(tool.shared, query)

    async def select(self, query: str, manager: Role | None = None, task: str = "") -> Injection:
        """What to give an agent for ``query``: near entries, of which ``manager`` chooses; without one, the nearest few.

        An empty memory gives an empty injection and asks nobody.
        Raises UserError on an empty request, and what the manager raises.
        """
        query = _query(query)
        task = task or stable_hash("task", query, self.store.refresh().seq)[:16]
        state = self.state
        if "active" not in {*(e.status for e in state.entries.values()), *(t.status for t in state.tools.values())}:
            return Injection(task, query)
        found = await self.near(query)
        texts, tools = found.texts, found.tools
        if not texts and not tools and not found.tokens:
            return Injection(task, query)
        reply, dropped = RoleReply(""), ["no vectors: the endpoint failed"] if found.failed else []
        if manager is None:
            least = found.least
            chosen = {entry.id for entry, held in texts[: self.config.inject] if held >= least} | {
                t.name for t, held in tools if held >= least
            }
        else:
            shown = [{"id": e.id, "kind": e.kind, "title": e.title, "scope": e.scope} for e, _ in texts]
            shown += [{"id": t.name, "kind": "tool", "title": t.doc[:200], "scope": ""} for t, _ in tools]
            reply = await roles.ask(manager, roles.manager_prompt(query, shown))
            chosen, unread = _chosen(reply.text)
            dropped += unread
        entries = sorted((e for e, _ in texts if e.id in chosen), key=lambda e: (algorithm.KINDS.index(e.kind), e.created))
        return self._inject(task, query, entries, [t for t, _ in tools if t.name in chosen], reply, dropped, found.tokens)

    def _inject(
        self,
        task: str,
        query: str,
        entries: Sequence[MemoryEntry],
        tools: Sequence[ToolEntry],
        reply: RoleReply,
        dropped: Sequence[str],
        embedded: int = 0,
    ) -> Injection:
        state = self.store.state
        plans = {head for tool in tools for head in state.heads(tool.plan) if head in state.entries}
        ids = tuple(dict.fromkeys([*(e.id for e in entries), *(t.name for t in tools)]))
        if ids or reply.spent or dropped or embedded:
            spent = _spent("manager", reply) | ({"embedding": {"input": embedded}} if embedded else {})
            with self.store.writing() as write:
                write("select", {"task": task, "query": query, "ids": ids, "spent": spent, "dropped": dropped})
        shown = [entry for entry in entries if entry.id not in plans]  # whose tool is offered
        return Injection(
            task, clean(query), render(shown), tuple(map(schema, sorted(tools, key=lambda t: t.created))), ids, reply.spent
        )

    def record(
        self,
        query: str,
        trajectory: Sequence[Any],
        outcome: bool | None = None,
        injection: Injection | None = None,
        task: str = "",
        spent: Mapping[str, int] | None = None,
        called: Sequence[str] = (),
        source: str = "",
    ) -> str:
        """Keep what an agent did; returns the task's id. ``trajectory``: messages in OpenAI's form.
        ``spent``: the executor's tokens by class. ``source``: where the trajectory is from, as ``RUN:NODE``.

        Nothing is concluded here, which is :meth:`reflect`'s business. Of ``injection`` it is noted which plans were followed:
        their calls were made in their order, or their tool (``called``, or among the calls) was.
        Raises UserError on messages that are none.
        """
        query, kept = _query(query), traj.stored(traj.messages_in(trajectory))
        state = self.store.refresh()
        task = task or (injection.task if injection is not None else stable_hash("task", query, state.seq)[:16])
        made = [*traj.calls_in(kept), *called]
        known = state.tasks.get(task)
        selected = injection.ids if injection is not None else () if known is None else known.selected
        plans = [state.entries[name] for name in selected if name in state.entries and state.entries[name].kind == "plan"]
        went = [p.id for p in plans if algorithm.followed(p.steps, made) or any(t.name in made for t in state.tools_of(p.id))]
        body = {
            "task": task,
            "query": query,
            "messages": codec.to_json(kept),
            "outcome": outcome,
            "followed": went,
            "called": [c for c in made if c in state.tools],
            **({"source": source} if source else {}),
        }
        with self.store.writing() as write:
            write("record", body | {"spent": {"executor": {k: int(v) for k, v in (spent or {}).items()}}})
        return task

    def outcome(self, task: str, success: bool) -> None:
        """Say afterwards how a task ended. Raises UserError where there is none of that id."""
        with self.store.writing() as write:
            if task not in self.store.state.tasks:
                raise UserError(f"{self.store.path} has no task '{task}' ({nearest(task, self.store.state.tasks)})")
            write("outcome", {"task": task, "outcome": bool(success)})

    def called(self, name: str, ok: bool, raised: bool = False, task: str = "", saved: float | None = None) -> None:
        """Log a call of a tool; in mode safe one that fails too often is demoted, and what uses it."""
        with self.store.writing() as write:
            write("called", {"name": name, "ok": ok, "raised": raised, "task": task, "saved": saved})
            tool, config = self.store.state.tools[name], self.config
            if not config.safe or tool.status != "active":
                return
            if algorithm.failing(tool.failures, tool.calls, algorithm.FAILING):
                why = f"{tool.failures} of {tool.calls} calls failed, which shows more than {algorithm.FAILING:.0%}"
            elif tool.streak >= algorithm.STREAK:
                why = f"the last {tool.streak} calls failed"
            else:
                return
            write("tool_status", {"name": name, "status": "demoted", "why": why})

    # -- text (section 3.4)

    def add(self, kind: str, title: str, body: str, scope: str = "", supersedes: Sequence[str] = (), by: str = "a person") -> str:
        """Add an entry of your own; returns its id. Raises UserError where it holds a secret, is too long or is none."""
        if kind not in algorithm.KINDS:
            raise UserError(f"an entry is a plan, a fact or a pitfall, not '{kind}' ({nearest(kind, algorithm.KINDS)})")
        if (why := _unfit(title, body, algorithm.LONGEST)) is not None:
            raise UserError(f"the entry '{title[:40]}' is not kept: {why}")
        with self.store.writing() as write:
            heads = self._heads(supersedes, kind)
            name = entry_id(kind, title, body, heads)
            if name not in self.store.state.entries:
                steps = self._steps(body) if kind == "plan" else ()
                entry = MemoryEntry(name, kind, title, body, scope, steps, source=by, supersedes=heads)
                write("add", {"entry": codec.to_json(entry)})
        return name

    def _heads(self, names: Sequence[str], kind: str) -> tuple[str, ...]:
        """What an entry replaces: the newest of each chain. Raises UserError on an id that is none of that kind."""
        state = self.store.state
        for name in names:
            if name not in state.entries or not _alike(state.entries[name].kind, kind):
                raise UserError(f"{self.store.path} has no {kind} '{name}' ({nearest(name, state.entries)})")
        return tuple(dict.fromkeys(head for name in names for head in state.heads(name)))

    def _steps(self, text: str) -> tuple[str, ...]:
        """The calls that a plan names in backquotes or with brackets:
        all of them where no API was offered, else the known ones."""
        found = [a or b for a, b in re.findall(r"`([A-Za-z_][\w.]*)[^`]*`|\b([A-Za-z_]\w*(?:\.\w+)*)\(", text)]
        known = self.store.state.apis
        return tuple(name for name in found if not known or name in known or name in self.store.state.tools)

    async def reflect(
        self,
        reflector: Role,
        budget_tokens: int | None = None,
        at: Callable[[int], None] = lambda done: None,
        together: int = 1,
    ) -> Reflected:
        """Ask ``reflector`` of every recorded task that was not reflected on; each is done once, whoever asks. Returns counts.

        ``together`` tasks are asked of at once: none of them is shown what the others write. ``budget_tokens`` ends it after the
        tasks that reach it. What cannot be read, is not screened, holds a secret, is too
        long or quotes nothing is dropped and counted; what rests on text from outside waits for a person. Raises what the
        reflector raises.
        """
        made = Reflected()
        waiting = [task.id for task in self.state.tasks.values() if task.recorded and not task.reflected]
        if self.config.reflect == "new" and (
            old := [name for name in waiting if self._nothing_new(self.store.state.tasks[name])]
        ):
            with self.store.writing() as write:
                write("reflect", {"tasks": old, "entries": []})
            waiting = [name for name in waiting if name not in old]
        for start in range(0, len(waiting), together):
            if budget_tokens is not None and made.tokens >= budget_tokens:
                break
            names = waiting[start : start + together]
            tasks = [self.store.state.tasks[name] for name in names]
            logs = [self.store.messages(task.recorded) for task in tasks]
            asked = (self._written(task, kept, reflector) for task, kept in zip(tasks, logs, strict=True))
            for name, kept, written in zip(names, logs, await asyncio.gather(*asked), strict=True):
                made = made.plus(self._reflected(name, kept, *written))
            at(start + len(names))
        return made

    def _nothing_new(self, task: MemoryTask) -> bool:
        """Whether it succeeded by a plan that it was given."""
        return task.outcome is True and bool(set(task.selected) & set(task.followed))

    def _reflected(
        self, name: str, kept: Sequence[KeptMessage], found: Sequence[Any], spent: Mapping[str, int], unread: Sequence[str]
    ) -> Reflected:
        dropped = [*unread]
        with self.store.writing() as write:
            task, entries = self.store.state.tasks[name], list[MemoryEntry]()
            if task.reflected:  # another process was faster
                write("spent", {"spent": {"reflection": spent}})
                return Reflected()
            uses = self._went_by(task, kept)
            for one in found:
                made = self._screened(one, task, kept)
                if isinstance(made, str):
                    dropped.append(made)
                elif isinstance(made, _Known):
                    uses.append([made.id, task.query])
                elif made.id not in self.store.state.entries and made.id not in [entry.id for entry in entries]:
                    entries.append(made)
            body = {"tasks": [name], "entries": codec.to_json(entries), "uses": uses, "dropped": dropped}
            write("reflect", body | {"spent": {"reflection": spent}})
        waiting = sum(entry.status == "review" for entry in entries)
        return Reflected(1, len(entries), waiting, dict(Counter(dropped)), sum(spent.values()))

    async def _written(
        self, task: MemoryTask, kept: Sequence[KeptMessage], reflector: Role
    ) -> tuple[list[Any], dict[str, int], list[str]]:
        """Candidates as the reflector wrote them, what they cost, and what could not be read."""
        near = self._entries.nearest(f"{task.query} {' '.join(traj.calls_in(kept))}", 8)
        similar = [
            {"id": e.id, "kind": e.kind, "title": e.title, "body": e.body}
            for e in (self.store.state.entries[name] for name, _, _ in near)
        ]
        spent: dict[str, int] = {}
        expanded: dict[str, str] = {}
        for last in (False, True):
            prompt = roles.reflector_prompt(
                task.query, task.outcome, traj.compact(kept), expanded, similar, sorted(self.store.state.apis)
            )
            reply = await roles.ask(reflector, prompt)
            for key, count in reply.spent.items():
                spent[key] = spent.get(key, 0) + count
            try:
                parsed = roles.read_json(reply.text)
            except ValueError:
                return [], spent, ["unreadable"]
            if last or not isinstance(parsed, Mapping) or not isinstance(parsed.get("expand"), list):
                break
            expanded = traj.in_full(kept, parsed["expand"])
        found = parsed.get("candidates") if isinstance(parsed, Mapping) else parsed
        return (found[:20], spent, []) if isinstance(found, list) else ([], spent, ["unreadable"])

    def _went_by(self, task: MemoryTask, kept: Sequence[KeptMessage]) -> list[list[str]]:
        """Plans that a task which was given nothing went by all the same: evidence in logs of agents without a memory."""
        if task.selected:
            return []
        calls, near = traj.calls_in(kept), self._entries.nearest(task.query, algorithm.TOP_TEXT)
        plans = (self.store.state.entries[name] for name, _, _ in near)
        return [
            [p.id, task.query] for p in plans if p.kind == "plan" and p.status == "active" and algorithm.followed(p.steps, calls)
        ]

    def _screened(self, one: Any, task: MemoryTask, kept: Sequence[KeptMessage]) -> MemoryEntry | _Known | str:
        """A candidate as an entry, the one that it says again, or why it is dropped."""
        if not isinstance(one, Mapping) or not all(
            isinstance(one.get(k), str) and one[k].strip() for k in ("kind", "title", "body")
        ):
            return "unreadable"
        kind, title, body, quote = (str(one.get(key) or "").strip() for key in ("kind", "title", "body", "quote"))
        if kind not in algorithm.KINDS:
            return "unreadable"
        if not all(one.get(key) is True for key in ("general", "new", "explained", "scoped")):
            return "screened"
        scope = str(one.get("scope") or "")[:400]
        if (why := _unfit(title, f"{body}\n{scope}\n{quote}", algorithm.LONGEST)) is not None:
            return why
        source = traj.found_in(quote, kept)
        if source is None:
            return "no quote"
        came, text = traj.outside(kept), f"{title} {body} {scope}"
        vouched = f"{algorithm.structure(task.query)} {_catalogue(self.store.state.apis)} {' '.join(traj.calls_in(kept))}"
        if kind == "plan" and traj.literals(text, f"{came}\n{task.query}", vouched):
            return "a value of the task"
        taken = traj.taken_from(text, came)
        flag = (
            f"it quotes what a tool returned (step {source[0]})"
            if source[1] == "tool"
            else f"it repeats text from outside: '{taken}'"
            if taken
            else ""
        )
        return self._merged(kind, title, body, scope, flag, quote, f"{task.id}:{source[0]} {source[1]}", one.get("supersedes"))

    def _merged(
        self, kind: str, title: str, body: str, scope: str, flag: str, quote: str, source: str, supersedes: Any
    ) -> MemoryEntry | _Known:
        entries = self.state.entries
        named = [
            n for n in (supersedes if isinstance(supersedes, list) else []) if n in entries and _alike(entries[n].kind, kind)
        ]
        near = [entries[name] for name, _, _ in self._entries.nearest(f"{title} {body}", 8)]
        alike = [(algorithm.similar(title, e.title), algorithm.similar(body, e.body), e.id) for e in near if e.kind == kind]
        same = [(min(titles, bodies), name) for titles, bodies, name in alike if min(titles, bodies) >= SAME]
        if same:
            return _Known(max(same)[1])
        heads = self._heads(
            [*named, *(name for titles, bodies, name in alike if titles >= MERGE[0] and bodies >= MERGE[1])], kind
        )
        against = self.contradicted(kind, f"{title}. {body}", heads)
        if against:
            flag = "; ".join(part for part in (flag, f"it contradicts {', '.join(against)}") if part)
            heads = (*heads, *against)
        steps = self._steps(body) if kind == "plan" else ()
        name, task = entry_id(kind, title, body, heads), source.partition(":")[0]
        status = "review" if flag else "active"
        entry = MemoryEntry(name, kind, title, body, scope, steps, (task,), quote, source, flag, heads, status)
        if flag and self.reviewer is not None and (accepted := self.reviewer(entry)) is not None:
            return replace(entry, status="active" if accepted else "rejected")
        return entry

    def contradicted(self, kind: str, text: str, known: Sequence[str] = ()) -> list[str]:
        """Active facts and pitfalls near ``text`` that cannot be right where it is,
        those in ``known`` left out; of a plan none."""
        if kind == "plan":
            return []
        entries = self.state.entries
        near = [entries[name] for name, _, _ in self._entries.nearest(text, 8)]
        return [
            e.id for e in near if e.kind != "plan" and e.id not in known and algorithm.contradicts(text, f"{e.title}. {e.body}")
        ]

    def review(self, name: str, approve: bool, by: str = "a person") -> None:
        """Let an entry or tool that waits in, or not. Raises UserError where there is none of that name, or it does not wait."""
        with self.store.writing() as write:
            state = self.store.state
            waits = [e.id for e in state.entries.values() if e.status == "review"] + [
                t.name for t in state.tools.values() if t.status == "candidate"
            ]
            if name not in waits:
                known = name in state.entries or name in state.tools
                raise UserError(
                    f"'{name}' {'does not wait for review' if known else 'is not an entry and no tool'} ({nearest(name, waits)})"
                )
            body: dict[str, Any] = {"id": name, "approve": approve, "by": by}
            if name in state.entries:
                body["supersedes"] = list(
                    dict.fromkeys(head for old in state.entries[name].supersedes for head in state.heads(old, name))
                )
            write("review", body)

    # -- code (section 3.5)

    def past_the_gate(self, k: float | None = None) -> list[MemoryEntry]:
        """Active plans with enough evidence and no tool, for which no attempt was made with that evidence."""
        state, gate = self.state, self.config.gate if k is None else k
        found = []
        for plan in state.entries.values():
            if plan.kind == "plan" and plan.status == "active":
                evidence = state.evidence(plan.id)
                tools = [
                    t
                    for t in state.tools_of(plan.id)
                    if t.status == "active" or (t.status == "candidate" and t.env_version == self.config.env_version)
                ]
                if len(evidence) >= gate and not tools and not _tried(state, self._key(plan.id, evidence)):
                    found.append(plan)
        return found

    def _key(self, plan: str, evidence: Iterable[str]) -> str:
        return algorithm.attempt_key(plan, [*evidence, f"environment {self.config.env_version}"])

    async def codify(
        self, codifier: Role, sandbox: Sandbox | None = None, k: int | None = None, at: Callable[[int], None] = lambda done: None
    ) -> CodifiedPlans:
        """Have tools written for the plans past the gate: once for each version of a plan and its evidence,
        whoever asks. Returns counts.

        The codifier is shown the plan, the requests, the APIs and the tools, and no trajectory. What it writes is let in by
        :func:`ramify.methods.earned_code_memory.tools.admit`.
        Raises what the codifier raises, NeedsError where there is no sandbox.
        """
        made = CodifiedPlans()
        for done, plan in enumerate(self.past_the_gate(k), 1):
            with self.store.writing() as write:
                key = self._key(plan.id, self.store.state.evidence(plan.id))
                if _tried(self.store.state, key):
                    continue
                write("attempt", {"key": key, "plan": plan.id, "status": f"running {os.getpid()}"})
            made = made.plus(await self._codify(plan, key, codifier, sandbox))
            at(done)
        return made

    async def _codify(self, plan: MemoryEntry, key: str, codifier: Role, sandbox: Sandbox | None) -> CodifiedPlans:
        state, config = self.store.state, self.config
        queries, spent = sorted(state.requests(plan.id)), dict[str, int]()
        given = {"id": plan.id, "title": plan.title, "body": plan.body, "scope": plan.scope}
        errors, made = list[str](), list[ToolEntry]()
        for _ in range(algorithm.REPAIRS + 1):
            shown = [
                {"name": t.name, "parameters": dict(t.parameters), "doc": t.doc}
                for t in state.tools.values()
                if t.status == "active"
            ]
            prompt = roles.codifier_prompt(given, queries[:40], state.apis, shown, config.safe, errors)
            reply = await roles.ask(codifier, prompt)
            for name, count in reply.spent.items():
                spent[name] = spent.get(name, 0) + count
            made, errors = await self._admitted(reply.text, plan, queries, sandbox)
            if not errors:
                break
        total, names = sum(spent.values()), dict[str, list[str]](active=[], candidate=[])
        with self.store.writing() as write:
            if errors or self.store.state.entries[plan.id].status != "active":
                why = "; ".join(errors[:4])[:600] if errors else "the plan was superseded meanwhile"
                write("attempt", {"key": key, "plan": plan.id, "status": f"gave up: {why}", "spent": {"codification": spent}})
                return CodifiedPlans(plans=1, gave_up={plan.id: why}, tokens=total)
            for tool in made:
                status, why = self._let_in(tool)
                write("tool", {"tool": codec.to_json(replace(tool, status=status, why=why, tokens=total // len(made)))})
                names[status].append(tool.name)
            done = f"made {', '.join(t.name for t in made)}"
            write("attempt", {"key": key, "plan": plan.id, "status": done, "spent": {"codification": spent}})
        return CodifiedPlans(1, tuple(names["active"]), tuple(names["candidate"]), {}, total)

    async def _admitted(
        self, text: str, plan: MemoryEntry, queries: Sequence[str], sandbox: Sandbox | None
    ) -> tuple[list[ToolEntry], list[str]]:
        try:
            parsed = roles.read_json(text)
        except ValueError as error:
            return [], [str(error)]
        listed = parsed.get("tools") if isinstance(parsed, Mapping) else parsed
        if not isinstance(listed, list) or not listed:
            return [], ['the reply holds no "tools"']
        made, errors, state = list[ToolEntry](), list[str](), self.store.state
        for one in listed[:5]:
            tool = read_candidate(one)
            if isinstance(tool, str):
                errors.append(tool)
                continue
            tool = replace(tool, plan=plan.id, doc=_doc(tool), queries=tuple(queries), env_version=self.config.env_version)
            ahead = MemoryState(
                config=state.config,
                apis=state.apis,
                entries=state.entries,
                tools={**state.tools, **{t.name: replace(t, status="active") for t in made}},
            )
            faults, calls = await admit(tool, ahead, sandbox, self.config.safe)
            errors += [f"{tool.name[:64]}: {fault}" for fault in faults]
            shared = tuple(sorted(algorithm.guard(queries)))
            made.append(replace(tool, deps=tuple(calls), shared=shared, atomic=is_atomic(calls, ahead)))
        return made, errors

    def _let_in(self, tool: ToolEntry) -> tuple[str, str]:
        accepted = self.reviewer(tool) if self.reviewer is not None else None
        if accepted is None:
            accepted = {"auto": True, "never": False}.get(self.config.review)
        if accepted is None:
            return "candidate", "waits for review"
        return ("active", "") if accepted else ("candidate", "the review let it not in")

    def erase(self, name: str) -> list[str]:
        """Take an entry or tool, and all that was made of it, out of the memory and its log: of a plan its tools, of a tool those
        that use it, of an entry those that replaced it and so hold what it said. Returns their ids, its own first.
        Raises UserError where there is none."""
        state = self.store.refresh()
        known = [*state.entries, *state.tools]
        ids = [part for part in known if part == name] or [part for part in state.entries if name and part.startswith(name)]
        if len(ids) != 1:
            what = "is the beginning of several ids" if ids else "is not an entry and no tool"
            raise UserError(f"'{name}' {what} ({nearest(name, known)})")
        for part in ids:  # grows
            heirs = [entry.id for entry in state.entries.values() if part in entry.supersedes]
            heirs += [tool.name for tool in state.tools.values() if tool.plan == part or part in tool.deps]
            ids += [other for other in heirs if other not in ids]
        self.store.erase(ids)
        return ids

    def demote(self, name: str, why: str = "a person said so") -> None:
        """Take a tool, and what uses it, out of use. Raises UserError where there is none of that name."""
        with self.store.writing() as write:
            if name not in self.store.state.tools:
                raise UserError(f"{self.store.path} has no tool '{name}' ({nearest(name, self.store.state.tools)})")
            write("tool_status", {"name": name, "status": "demoted", "why": why})


def render(entries: Sequence[MemoryEntry]) -> str:
    """Entries as an agent is shown them, under three headings; "" of none."""
    parts = []
    for kind, head in (("plan", "Plans"), ("fact", "Facts"), ("pitfall", "Pitfalls")):
        found = [f"- {entry.title}: {entry.body}" for entry in entries if entry.kind == kind]
        parts += [f"## {head}", *found] if found else []
    return "\n".join([HEAD, *parts]) if parts else ""


def schema(tool: ToolEntry) -> dict[str, Any]:
    """A tool in OpenAI's JSON form."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.doc, "parameters": dict(tool.parameters)}}


def _alike(kind: str, other: str) -> bool:
    """Whether an entry of one kind may replace one of another:
    facts and pitfalls may say the same of the environment, plans say what to do."""
    return (kind == "plan") == (other == "plan")


def _query(query: str) -> str:
    if not isinstance(query, str) or not query.strip():
        raise UserError("a task needs a request, and the one given is empty")
    return traj.cut(query.strip(), 4000)


def _api(one: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = one.get("function", one) if isinstance(one, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError('an API is a JSON object with a name: {"name", "description", "parameters"}, or a tool in OpenAI\'s form')
    return function["name"], function


def _catalogue(apis: Mapping[str, Mapping[str, Any]]) -> str:
    return " ".join(
        f"{name} {one.get('description', '')} {' '.join(dict(one.get('parameters', {})).get('properties', {}))}"
        for name, one in apis.items()
    )


def _unfit(title: str, body: str, most: int) -> str | None:
    if len(title) + len(body) > most:
        return "too long"
    return "a secret" if clean([title, body]) != [title, body] else None


def _chosen(text: str) -> tuple[set[str], list[str]]:
    try:
        parsed = roles.read_json(text)
    except ValueError:
        return set(), ["unreadable"]
    listed = parsed.get("ids") if isinstance(parsed, Mapping) else parsed
    return (set(map(str, listed)), []) if isinstance(listed, list) else (set(), ["unreadable"])


def _spent(who: str, reply: RoleReply) -> dict[str, dict[str, int]]:
    return {who: reply.spent} if reply.spent else {}


def _doc(tool: ToolEntry) -> str:
    try:
        found = next(n for n in ast.parse(tool.source).body if isinstance(n, ast.FunctionDef) and n.name == tool.name)
        return (ast.get_docstring(found) or "")[:2000]
    except (SyntaxError, ValueError, RecursionError, StopIteration):
        return ""


def _tried(state: MemoryState, key: str) -> bool:
    """Whether an attempt was made, or is under way in a process that lives."""
    status = state.attempts.get(key, "")
    if not status.startswith("running "):
        return bool(status)
    try:
        os.kill(int(status.removeprefix("running ")), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
