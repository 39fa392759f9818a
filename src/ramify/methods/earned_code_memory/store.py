"""The store: one SQLite file that holds a log of events, and what they come to.
Nothing is edited in place (arXiv 2606.24151, section 3.2).

The log is the truth: the state is what its events make, in their order, so every past state can be made again. Several processes
may write: an event is added in a transaction that has first read what the others added, so it is checked against the state as it
is. What was added is there after a kill.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.files import reason
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.secrets import redact, without_keys
from ramify.methods.earned_code_memory.algorithm import MemoryConfig, structure, wording
from ramify.methods.earned_code_memory.trajectory import KeptMessage

APPLICATION_ID, SCHEMA = 0x4D454D31, 1
_TABLES = "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL)"
_VECTORS = (
    "CREATE TABLE IF NOT EXISTS vectors (model TEXT NOT NULL, digest TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (model, "
    "digest))"
)
WAIT = 30.0
"""Seconds that a writer waits for another."""
LARGEST = 4 << 20
"""Characters of one event; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A text entry. ``status``: active, review (waits for a person), superseded, rejected."""

    id: str
    kind: str
    title: str
    body: str
    scope: str = ""
    steps: tuple[str, ...] = ()
    """Of a plan the calls that it names, in order."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks that it came from."""
    quote: str = ""
    """Word for word from the trajectory: what it rests on."""
    source: str = ""
    """Where the quote stands: ``task:step role``."""
    flag: str = ""
    """Why a person is to look at it; empty where nobody needs to."""
    supersedes: tuple[str, ...] = ()
    status: str = "active"
    created: int = 0
    """Number of the event that made it."""
    tokens: int = 0
    """Its share of the reflection that wrote it."""

    @property
    def text(self) -> str:
        """What is searched."""
        return f"{self.title} {self.scope} {self.body}"


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool. ``status``: candidate (not offered), active, demoted."""

    name: str
    plan: str
    parameters: Mapping[str, Any] = field(hash=False)
    doc: str
    source: str
    tests: str = ""
    deps: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    """The requests that it was made of."""
    shared: tuple[str, ...] = ()
    """Words that all of these hold: the guard."""
    env_version: str = ""
    atomic: bool = False
    """Whether it changes nothing, or an error takes its changes back."""
    status: str = "candidate"
    why: str = ""
    """Why it is not active."""
    tokens: int = 0
    """What it cost to write."""
    calls: int = 0
    failures: int = 0
    raised: int = 0
    streak: int = 0
    """Failures since the last call that held."""
    saved: float = 0.0
    """Tokens that its calls saved, where both prices are known."""
    created: int = 0


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """One task that was served or recorded."""

    id: str
    query: str
    selected: tuple[str, ...] = ()
    followed: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    outcome: bool | None = None
    recorded: int = 0
    """Number of the event that holds its trajectory; 0 without one."""
    reflected: bool = False
    source: str = ""
    """Where its trajectory is from: ``RUN:NODE`` of the run's last node; empty where it came from an agent."""
    tokens: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass
class MemoryState:
    """What the events so far make. Only :meth:`apply` changes it."""

    config: MemoryConfig = field(default_factory=MemoryConfig)
    apis: dict[str, dict[str, Any]] = field(default_factory=dict)
    entries: dict[str, MemoryEntry] = field(default_factory=dict)
    tools: dict[str, ToolEntry] = field(default_factory=dict)
    tasks: dict[str, MemoryTask] = field(default_factory=dict)
    attempts: dict[str, str] = field(default_factory=dict)
    """Attempts to write code, by key: running, or what became of them."""
    uses: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Plan -> selected, followed -> the requests."""
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    """Spent, by who spent it (executor, manager, embedding, reflection, codification) and class (input, cached, output)."""
    dropped: dict[str, int] = field(default_factory=dict)
    """What was not kept, by reason."""
    skills: dict[str, str] = field(default_factory=dict)
    """Hash of each skill's folder as it was written -> the entry or tool that it is of."""
    seq: int = 0
    touched: set[str] = field(default_factory=set, compare=False)
    """Entries and tools that changed since somebody looked; who looks empties it."""

    def apply(self, seq: int, kind: str, body: Mapping[str, Any]) -> None:
        """Take one event in. Raises KeyError, TypeError or ValueError where it is none."""
        getattr(self, f"_{kind}")(seq, body)
        for who, classes in dict(body.get("spent") or {}).items():
            row = self.tokens.setdefault(who, {})
            for name, count in classes.items():
                row[name] = row.get(name, 0) + int(count)
        for why in body.get("dropped") or ():
            self.dropped[why] = self.dropped.get(why, 0) + 1
        self.seq = seq

    def heads(self, name: str, but: str = "") -> list[str]:
        """The newest entries of the chain that ``name`` stands in, ``but`` that one: itself where nothing superseded it."""
        later = [
            entry.id
            for entry in self.entries.values()
            if name in entry.supersedes and entry.status != "rejected" and entry.id != but
        ]
        return [name] if not later else list(dict.fromkeys(head for one in later for head in self.heads(one, but)))

    def chain(self, name: str) -> list[str]:
        """``name`` and all that it superseded, newest first."""
        found, todo = [], [name]
        while todo:
            one = todo.pop(0)
            if one not in found:
                found.append(one)
                todo += self.entries[one].supersedes if one in self.entries else ()
        return found

    def requests(self, plan: str) -> set[str]:
        """The requests that count as evidence of a plan, those of what it superseded among them."""
        which = "followed" if self.config.safe else "selected"
        return {query for one in self.chain(plan) for query in self.uses.get(one, {}).get(which, ())}

    def evidence(self, plan: str) -> set[str]:
        """The different requests among them: structures, or wordings where the settings say so."""
        key = structure if self.config.evidence == "structures" else wording
        return {key(query) for query in self.requests(plan)}

    def tools_of(self, plan: str) -> list[ToolEntry]:
        """Tools made of a plan or of what it superseded."""
        chain = set(self.chain(plan))
        return [tool for tool in self.tools.values() if tool.plan in chain]

    # One function a kind of event

    def _settings(self, seq: int, body: Mapping[str, Any]) -> None:
        self.config = MemoryConfig(**{**self.config.model_dump(), **body["config"]})
        for name, tool in self.tools.items():
            if tool.status == "active" and tool.env_version != self.config.env_version:
                self.touched.add(name)
                self.tools[name] = replace(tool, status="candidate", why=f"made for environment '{tool.env_version}'")

    def _apis(self, seq: int, body: Mapping[str, Any]) -> None:
        self.apis = {str(name): dict(one) for name, one in body["apis"].items()}

    def _select(self, seq: int, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        ids = tuple(dict.fromkeys((*task.selected, *map(str, body["ids"]))))
        self.tasks[task.id] = replace(task, selected=ids)
        self._use("selected", ids, task.query)

    def _record(self, seq: int, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        self.tasks[task.id] = replace(
            task,
            followed=tuple(map(str, body.get("followed", ()))),
            called=tuple(map(str, body.get("called", ()))),
            outcome=body.get("outcome"),
            recorded=seq,
            reflected=False,
            source=str(body.get("source", "")),
            tokens=dict((body.get("spent") or {}).get("executor", {})),
        )
        self._use("followed", body.get("followed", ()), task.query)

    def _outcome(self, seq: int, body: Mapping[str, Any]) -> None:
        self.tasks[body["task"]] = replace(self.tasks[body["task"]], outcome=body["outcome"])

    def _reflect(self, seq: int, body: Mapping[str, Any]) -> None:
        for name in body["tasks"]:
            self.tasks[name] = replace(self.tasks[name], reflected=True)
        cost = sum((body.get("spent") or {}).get("reflection", {}).values())
        for made in body["entries"]:
            self._entry(seq, {**made, "tokens": cost // len(body["entries"])})
        for name, query in body.get("uses", ()):
            self._use("selected", [name], query)
            self._use("followed", [name], query)

    def _add(self, seq: int, body: Mapping[str, Any]) -> None:
        self._entry(seq, body["entry"])

    def _entry(self, seq: int, made: Mapping[str, Any]) -> None:
        lists = {name: tuple(map(str, made.get(name, ()))) for name in ("steps", "evidence", "supersedes")}
        entry = MemoryEntry(**{**made, **lists, "created": seq})
        self.entries[entry.id] = entry
        self.touched.add(entry.id)
        for one in entry.evidence:
            if entry.kind == "plan" and one in self.tasks:
                self._use("selected", [entry.id], self.tasks[one].query)
                self._use("followed", [entry.id], self.tasks[one].query)
        if entry.status == "active":
            self._supersede(entry)

    def _supersede(self, entry: MemoryEntry) -> None:
        for name in entry.supersedes:
            if name in self.entries and self.entries[name].status in ("active", "review"):
                self.entries[name] = replace(self.entries[name], status="superseded")
                self.touched.add(name)

    def _review(self, seq: int, body: Mapping[str, Any]) -> None:
        name, yes = str(body["id"]), bool(body["approve"])
        if name in self.entries:
            entry = self.entries[name]
            heads = tuple(map(str, body.get("supersedes", entry.supersedes)))
            self.entries[name] = replace(entry, status="active" if yes else "rejected", supersedes=heads)
            self.touched.add(name)
            if yes:
                self._supersede(self.entries[name])
        else:
            self._tool_status(seq, {"name": name, "status": "active" if yes else "demoted", "why": "" if yes else "rejected"})

    def _attempt(self, seq: int, body: Mapping[str, Any]) -> None:
        self.attempts[str(body["key"])] = str(body["status"])

    def _tool(self, seq: int, body: Mapping[str, Any]) -> None:
        made = body["tool"]
        lists = {name: tuple(map(str, made.get(name, ()))) for name in ("deps", "queries", "shared")}
        self.touched.add(str(made["name"]))
        self.tools[str(made["name"])] = ToolEntry(**{**made, **lists, "created": seq})

    def _tool_status(self, seq: int, body: Mapping[str, Any]) -> None:
        name = str(body["name"])
        self.touched.add(name)
        self.tools[name] = replace(self.tools[name], status=str(body["status"]), why=str(body.get("why", "")))
        if body["status"] != "active":
            for other in [t.name for t in self.tools.values() if t.status == "active" and name in t.deps]:
                self._tool_status(seq, {"name": other, "status": "demoted", "why": f"it uses {name}"})

    def _called(self, seq: int, body: Mapping[str, Any]) -> None:
        tool = self.tools[str(body["name"])]
        failed, raised = not body["ok"], bool(body.get("raised"))
        self.tools[tool.name] = replace(
            tool,
            calls=tool.calls + 1,
            failures=tool.failures + failed,
            raised=tool.raised + raised,
            streak=tool.streak + 1 if failed else 0,
            saved=tool.saved + float(body.get("saved") or 0.0),
        )

    def _skill(self, seq: int, body: Mapping[str, Any]) -> None:
        self.skills[str(body["sha256"])] = str(body["id"])

    def _erase(self, seq: int, body: Mapping[str, Any]) -> None:
        for name in map(str, body["ids"]):
            self.touched.add(name)
            if name in self.entries:
                entry = replace(self.entries[name], status="erased", title="", body="", scope="", steps=())
                self.entries[name] = replace(entry, quote="", flag="")
            else:
                empty = replace(self.tools[name], status="erased", parameters={}, queries=(), shared=())
                self.tools[name] = replace(empty, doc="", source="", tests="", why="erased")

    def _spent(self, seq: int, body: Mapping[str, Any]) -> None:
        """Tokens only."""

    def _task(self, body: Mapping[str, Any]) -> MemoryTask:
        name = str(body["task"])
        return self.tasks.get(name) or MemoryTask(name, str(body["query"]))

    def _use(self, how: str, ids: Any, query: str) -> None:
        for name in ids:
            if name in self.entries and self.entries[name].kind == "plan":
                self.uses.setdefault(name, {}).setdefault(how, set()).add(query)


_KINDS = "settings apis select record outcome reflect add review attempt tool tool_status called skill erase spent"
KINDS_OF_EVENTS = frozenset(_KINDS.split())


class MemoryStore:
    """The log in a file, and its state. ``with store.writing() as write: write(kind, body)``;
    :meth:`refresh` takes in what others wrote.

    Raises UserError where the file is none of these, is damaged, or cannot be opened.
    """

    def __init__(self, path: Path | str, create: bool = True) -> None:
        self.path, self.state = Path(path), MemoryState()
        self.lock = threading.RLock()
        """Held while the state changes: threads of a server share it."""
        if self.path.is_dir():
            raise UserError(f"{self.path} is a folder; a memory is one file")
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link: name the file itself")
        if not create and not self.path.is_file():
            raise UserError(f"there is no memory {self.path}: `ramify earned-code-memory learn {self.path}` makes one")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error, ValueError) as error:
            raise UserError(f"cannot open the memory {self.path}: {reason(error)}") from None
        try:
            with self._clear_errors():
                self._begin()
            self.refresh()
        except BaseException:
            self._db.close()
            raise

    def _begin(self) -> None:
        self._db.execute("PRAGMA synchronous = NORMAL")
        if not self._tables():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if not self._tables():  # another process may have been faster
                    self._db.execute(_TABLES)
                    self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    self._db.execute(f"PRAGMA user_version = {SCHEMA}")
            finally:
                self._db.execute("COMMIT")
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise UserError(f"{self.path} is a database of something else, not a memory")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA:
            raise UserError(f"{self.path} has schema {version}, and this ramify reads schema {SCHEMA}")
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._db.execute("PRAGMA journal_mode = WAL")

    def _tables(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM):
                raise RamifyError(f"cannot write to the memory {self.path}: {error}") from None
            raise UserError(f"{self.path} is not a memory, or it is damaged: {error}") from None

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._db.close()

    def refresh(self) -> MemoryState:
        """Take in what was added since, by whoever."""
        with self.lock, self._clear_errors():
            for seq, kind, body in self._db.execute(
                "SELECT seq, kind, body FROM events WHERE seq > ? ORDER BY seq", (self.state.seq,)
            ):
                apply(self.state, seq, kind, body, self.path)
        return self.state

    def at(self, seq: int) -> MemoryState:
        """The state as it was after event ``seq``. Raises UserError where there is no such event."""
        if not 0 <= seq <= self.refresh().seq:
            raise UserError(f"{self.path} has events 1 to {self.state.seq}, and no event {seq}")
        state = MemoryState()
        for one in self.events(seq):
            apply(state, *one[:1], *one[2:], self.path)
        return state

    def events(self, until: int | None = None) -> Iterator[tuple[int, float, str, str]]:
        """Number, time, kind and body (JSON) of every event."""
        with self._clear_errors():
            rows = self._db.execute(
                "SELECT seq, at, kind, body FROM events WHERE seq <= ? ORDER BY seq",
                (self.state.seq if until is None else until,),
            )
            yield from rows.fetchall()

    def when(self, seq: int) -> float:
        """When an event was written, in seconds since 1970. Raises UserError where there is none of that number."""
        with self.lock, self._clear_errors():
            row = self._db.execute("SELECT at FROM events WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            raise UserError(f"{self.path} has no event {seq}")
        return float(row[0])

    def erase(self, ids: Sequence[str]) -> None:
        """Take entries and tools out of the log: what earlier events say of them is gone from the file, but for their ids, what
        they cost, and how often they were used. The tasks that they came from stay."""
        texts = []
        for name in ids:
            gone = self.refresh().entries.get(name) or self.state.tools.get(name)
            texts += [gone.text] if isinstance(gone, MemoryEntry) else [gone.doc] if gone is not None else []
        with self.writing() as write:
            for seq, _, kind, body in list(self.events()):
                if kind in ("reflect", "add", "tool"):
                    held = json.loads(body)
                    events = held["entries"] if kind == "reflect" else [held["entry" if kind == "add" else "tool"]]
                    if any(_blank(gone, ids) for gone in events):
                        self._db.execute("UPDATE events SET body = ? WHERE seq = ?", (canonical_json(held), seq))
            self._db.execute(_VECTORS)
            self._db.executemany("DELETE FROM vectors WHERE digest = ?", [(stable_hash(text),) for text in texts])
            write("erase", {"ids": list(ids)})
        with self.lock, self._clear_errors():  # what is deleted stands in free pages until then
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def messages(self, seq: int) -> list[KeptMessage]:
        """What an agent did, of the event that recorded it. Raises UserError where that is none."""
        with self.lock, self._clear_errors():
            row = self._db.execute("SELECT body FROM events WHERE seq = ?", (seq,)).fetchone()
        body = json.loads(row[0]) if row else {}
        return codec.from_json(list[KeptMessage], body.get("messages"), f"{self.path}: event {seq}")

    def vectors(self, model: str, texts: Sequence[str]) -> dict[str, bytes]:
        """Vectors of texts, float32, that ``model`` made earlier; they are kept beside the log and are no part of it."""
        found: dict[str, bytes] = {}
        with self.lock, self._clear_errors():
            self._db.execute(_VECTORS)
            for text in texts:
                key = (model, stable_hash(text))
                if row := self._db.execute("SELECT vector FROM vectors WHERE model = ? AND digest = ?", key).fetchone():
                    found[text] = bytes(row[0])
        return found

    def keep_vectors(self, model: str, vectors: Mapping[str, bytes]) -> None:
        """Keep vectors of texts."""
        rows = [(model, stable_hash(text), vector) for text, vector in vectors.items()]
        with self.lock, self._clear_errors():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A group of events, whole or not at all, on top of what is there now: yields ``write(kind, body) -> number``."""
        with self.lock:
            with self._clear_errors():
                self._db.execute("BEGIN IMMEDIATE")
            try:
                self.refresh()
                yield self._write
                with self._clear_errors():
                    self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                self.state = MemoryState()  # what was taken back is made again from the log
                self.refresh()
                raise

    def _write(self, kind: str, body: Mapping[str, Any]) -> int:
        try:
            text = canonical_json(clean(body))
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"what a {kind} holds is not storable: {error}") from None
        if len(text) > LARGEST:
            raise UserError(f"a {kind} of {len(text):,} characters is longer than the {LARGEST:,} that are kept")
        with self._clear_errors():
            seq = self._db.execute("INSERT INTO events VALUES (NULL,?,?,?)", (time.time(), kind, text)).lastrowid
        assert seq is not None
        apply(self.state, seq, kind, text, self.path)
        return seq


def apply(state: MemoryState, seq: int, kind: str, body: str, path: Path) -> None:
    """Take a stored event in. Raises UserError naming the file and the event where it is none."""
    try:
        if kind not in KINDS_OF_EVENTS:
            raise ValueError(f"unknown kind '{kind[:40]}' ({nearest(kind[:40], KINDS_OF_EVENTS)})")
        state.apply(seq, kind, json.loads(body))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: event {seq} is damaged: {type(error).__name__}: {why}") from None


def _blank(event: dict[str, Any], ids: Sequence[str]) -> bool:
    """Whether an entry or tool, as an event holds it, is one of these; then what it says is taken out."""
    if event.get("id", event.get("name")) not in ids:
        return False
    for name in event.keys() & {"title", "body", "scope", "quote", "flag", "doc", "source", "tests", "why"}:
        event[name] = ""
    for name in event.keys() & {"steps", "queries", "shared"}:
        event[name] = []
    event |= {"parameters": {}} if "parameters" in event else {}
    return True


def clean(value: Any) -> Any:
    """``value`` without keys of known shapes, secrets of this process's environment and lone surrogates."""
    return _text(redact(value))


def _text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(_text(str(key))): _text(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text(one) for one in value]
    return without_keys(value).encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def entry_id(kind: str, title: str, body: str, supersedes: tuple[str, ...]) -> str:
    """The id of an entry: of its content and what it replaces."""
    return stable_hash("entry", kind, title, body, *supersedes)[:12]


def file_of(name: str) -> Path:
    """The path that an argument names. Raises UserError on none."""
    if not name.strip():
        raise UserError("a memory is named by its file, and the name given is empty")
    return Path(os.path.expanduser(name))
