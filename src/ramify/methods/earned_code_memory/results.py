"""What the verbs of a memory find: records with the text and tables that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ramify.base.errors import EXIT_DONE, EXIT_FAILED
from ramify.base.words import plural
from ramify.methods.earned_code_memory.algorithm import MemoryConfig
from ramify.methods.earned_code_memory.store import MemoryEntry, ToolEntry
from ramify.render.numbers import number
from ramify.render.result import Cell, Part, Result, Section, Verbatim, table

After = float | Literal["never"] | None
"""Tasks, or uses, after which something is paid back: never where nothing is saved, None where nothing is known."""


def _values(record: Any, *names: str) -> list[tuple[str, Cell]]:
    """Fields of a record that are not empty, lists joined."""
    chosen = names or [one.name for one in fields(record) if one.name != "caveats"]
    shown = {name: getattr(record, name) for name in chosen}
    return [(name.replace("_", " "), _cell(value)) for name, value in shown.items() if value not in ("", (), {})]


def _cell(value: Any) -> Cell:
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    return value  # type: ignore[no-any-return]


def _rows(records: Sequence[Any], *names: str) -> Part:
    """A table of these fields of records of one kind."""
    rows = [[_cell(getattr(one, name)) for name in names] for one in records]
    return table([name.replace("_", " ") for name in names], rows)


# -- making one, and filling it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemorySettings(Result):
    """A memory, the base APIs that it knows, and its settings."""

    KEPT = False
    file: str
    apis: int
    settings: MemoryConfig

    def sections(self) -> Iterable[Section]:
        """All of it."""
        rows: dict[str, Cell] = {"file": self.file, "apis": self.apis}
        yield Section.of("", table(("setting", "value"), {**rows, **self.settings.model_dump()}.items()))


@dataclass(frozen=True)
class RecurringProcedure:
    """Calls that attempts at structurally different tasks go through."""

    calls: tuple[str, ...]
    attempts: int
    structures: int
    queries: tuple[str, ...]
    """At most ten of the requests."""
    succeeded: int
    ended: int
    """Attempts whose end is known."""
    node: str
    """The end of one."""

    @property
    def chain(self) -> str:
        """The calls in one line."""
        return " > ".join(self.calls)


@dataclass(frozen=True)
class LearnedRun(Result):
    """Attempts of a run or log that a memory recorded, and the procedures that recur among them: at ``k`` structures."""

    recorded: int
    known: int
    recurring: tuple[RecurringProcedure, ...]
    k: int
    file: str

    def sections(self) -> Iterable[Section]:
        """Counts, procedures, and what comes next."""
        rows = [(one.chain, one.structures, one.attempts, one.succeeded, one.ended) for one in self.recurring]
        yield Section.of(
            "",
            f"{self.recorded} recorded, {self.known} known already",
            table(("recurring procedure", "structures", "attempts", "succeeded", "ended"), rows),
            "" if rows else "no procedure recurs",
            f"next: `ramify earned-code-memory learn {self.file} --write text`",
        )


@dataclass(frozen=True)
class Reflected(Result):
    """What reflections made: tasks, entries, how many of these wait for a person, what was dropped by reason, tokens."""

    KEPT = False
    tasks: int = 0
    entries: int = 0
    waiting: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0

    def plus(self, other: Reflected) -> Reflected:
        """Both together."""
        why = {name: self.dropped.get(name, 0) + other.dropped.get(name, 0) for name in {**self.dropped, **other.dropped}}
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("tasks", "entries", "waiting", "tokens")}
        return Reflected(dropped=why, **sums)

    def sections(self) -> Iterable[Section]:
        """The counts."""
        yield Section.of("", table(("reflected", ""), _values(self)))


@dataclass(frozen=True)
class CodifiedPlans(Result):
    """What became of plans past the gate: tools that are active, tools that wait, and plans given up with why."""

    KEPT = False
    plans: int = 0
    active: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    gave_up: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0

    def plus(self, other: CodifiedPlans) -> CodifiedPlans:
        """Both together."""
        return CodifiedPlans(
            self.plans + other.plans,
            self.active + other.active,
            self.waiting + other.waiting,
            {**self.gave_up, **other.gave_up},
            self.tokens + other.tokens,
        )

    def sections(self) -> Iterable[Section]:
        """The counts and names."""
        yield Section.of("", table(("codified", ""), _values(self)))


@dataclass(frozen=True)
class GatedPlan:
    """A plan past the gate, and how many requests speak for it."""

    id: str
    title: str
    evidence: int


@dataclass(frozen=True)
class PlansPastTheGate(Result):
    """Plans for which a tool would be written."""

    KEPT = False
    plans: tuple[GatedPlan, ...]

    def sections(self) -> Iterable[Section]:
        """The plans."""
        rows = [(one.id, one.title, one.evidence) for one in self.plans]
        none = "" if rows else "no plan is past the gate"
        yield Section.of("", table(("plan past the gate", "title", "evidence"), rows), none)


# -- looking into it -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NearEntry:
    """An entry or tool near a request: its share of the words, or the cosine, and whether it would be given."""

    id: str
    kind: str
    title: str
    share: float
    given: bool


@dataclass(frozen=True)
class NearRequest(Result):
    """What an agent would be given for a request: ``text``, and what it is chosen from."""

    near: tuple[NearEntry, ...]
    text: str

    def sections(self) -> Iterable[Section]:
        """What is near, and the text."""
        rows = [(one.id, one.kind, one.share, one.given, one.title) for one in self.near]
        shown = Verbatim(self.text) if self.text else None
        none = "" if rows else "nothing is near"
        yield Section.of("", table(("id", "kind", "share of words, or cosine", "given", "title"), rows), none, shown)


@dataclass(frozen=True)
class ListedEntry:
    """A row of the list: ``evidence`` is that of a plan, the calls of a tool; ``flag`` why it waits."""

    id: str
    kind: str
    status: str
    evidence: int
    title: str
    flag: str


@dataclass(frozen=True)
class ListedMemory(Result):
    """Entries and tools of a memory."""

    entries: tuple[ListedEntry, ...]

    def sections(self) -> Iterable[Section]:
        """The list."""
        rows = [(one.id, one.kind, one.status, one.evidence, one.title, one.flag) for one in self.entries]
        head = ("id", "kind", "status", "evidence or calls", "title", "waits because")
        yield Section.of("", table(head, rows), "" if rows else "nothing")


@dataclass(frozen=True)
class ChainLink:
    """An entry of the chain that a plan stands in, newest first."""

    id: str
    status: str
    title: str


@dataclass(frozen=True)
class WholeEntry(Result):
    """One entry, or one tool, whole, and why it is there: its use, the requests that it was made from, what it replaced, what it
    rests on, how its checks went."""

    entry: MemoryEntry | None
    tool: ToolEntry | None
    use: MemoryEntryUse | MemoryToolUse
    evidence_queries: tuple[str, ...]
    structures: tuple[str, ...]
    needed: float | Literal["never"]
    """Structures that the gate wants."""
    chain: tuple[ChainLink, ...]
    tools: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """Its fields and the code of a tool, its use, then its reasons."""
        rows = [row for row in _values(self.entry or self.tool) if self.entry or row[0] not in ("source", "tests")]
        yield Section.of("", table(("field", "value"), rows))
        if self.tool is not None:
            yield Section.of("source", Verbatim(self.tool.source, "python"))
            yield Section.of("tests", Verbatim(self.tool.tests, "python") if self.tool.tests else None)
        yield Section.of(
            "",
            table(("use", ""), _values(self.use)),
            table(("why it is there", ""), _values(self, "evidence_queries", "structures", "needed", "tools")),
            _rows(self.chain, "id", "status", "title") if len(self.chain) > 1 else None,
        )


# -- what it cost and earned ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repaid:
    """When ``construction`` tokens are paid back at ``saving`` tokens a task, or a use."""

    construction: float
    saving: float | None
    after: After


@dataclass(frozen=True)
class MemoryEntryUse:
    """What an entry was used for, what it cost and saved."""

    id: str
    kind: str
    title: str
    status: str
    flag: str
    given: int
    selected: int
    followed: int
    evidence: int
    succeeded: int
    ended: int
    tokens: int
    saving: float | None
    break_even: After


@dataclass(frozen=True)
class MemoryToolUse:
    """Calls of a tool, how they went, what it cost and saved."""

    name: str
    plan: str
    status: str
    why: str
    calls: int
    failures: int
    raised: int
    tokens: int
    saving: float | None
    break_even: After
    env_version: str


@dataclass(frozen=True)
class MemoryTasks:
    """How many tasks there were; the last two count recorded ones with tokens."""

    served_or_recorded: int
    given_something: int
    given_nothing: int


@dataclass(frozen=True)
class MemoryTokens:
    """Tokens: ``by`` who spent them and class; ``serving`` and ``construction`` together are the ``total``."""

    by: Mapping[str, Mapping[str, int]]
    serving: int
    construction: int
    total: int


@dataclass(frozen=True)
class TokensEach:
    """Mean tokens of tasks that were given something, and of those that were not; what that saves."""

    given_something: float | None
    given_nothing: float | None
    saving: float | None = None


@dataclass(frozen=True)
class MemoryReport(Result):
    """What a memory cost and earned, and each of its entries and tools."""

    tasks: MemoryTasks
    tokens: MemoryTokens
    per_task: TokensEach
    per_solved_task: TokensEach
    break_even: Repaid
    entries: tuple[MemoryEntryUse, ...]
    tools: tuple[MemoryToolUse, ...]
    never_used: tuple[str, ...]
    waiting: tuple[str, ...]
    dropped: Mapping[str, int]

    def sections(self) -> Iterable[Section]:
        """The whole, then the entries and tools."""
        spent = {who: sum(classes.values()) for who, classes in self.tokens.by.items()}
        after, each, solved = self.break_even.after, self.per_task, self.per_solved_task
        sums = {"serving": self.tokens.serving, "construction": self.tokens.construction, "total": self.tokens.total}
        yield Section.of(
            "",
            table(
                ("tasks", "served or recorded", "given something", "given nothing", "saving"),
                [
                    ("number", self.tasks.served_or_recorded, self.tasks.given_something, self.tasks.given_nothing, None),
                    ("tokens each", None, each.given_something, each.given_nothing, each.saving),
                    (
                        "tokens per solved one",
                        None,
                        solved.given_something,
                        solved.given_nothing,
                        None,
                    ),
                ],
            ),
            table(("tokens", "sum"), {**spent, **sums}.items()),
            f"paid back after: {number(after) if isinstance(after, float) else after or 'not known'}",
            table(("", "which"), _values(self, "never_used", "waiting", "dropped")),
        )
        names = ("id", "kind", "status", "given", "evidence", "succeeded", "ended", "tokens", "saving", "break_even", "title")
        yield Section.of("Entries", _rows(self.entries, *names))
        of_tools = ("name", "status", "calls", "failures", "raised", "tokens", "saving", "break_even")
        yield Section.of("Tools", _rows(self.tools, *of_tools))


# -- changing it ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddedEntry(Result):
    """An entry that was added, and the active ones that it contradicts."""

    id: str
    contradicts: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """Its id."""
        yield Section.of("", self.id)


@dataclass(frozen=True)
class ReviewedEntry(Result):
    """What was decided about, and what it is now."""

    id: str
    status: str

    def sections(self) -> Iterable[Section]:
        """One line."""
        yield Section.of("", f"{self.id}: {self.status}")


@dataclass(frozen=True)
class DemotedTools(Result):
    """Every tool that is out of use now."""

    demoted: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """Their names."""
        yield Section.of("", f"demoted: {', '.join(self.demoted)}")


@dataclass(frozen=True)
class TaskEnd(Result):
    """How a task ended."""

    task: str
    outcome: bool

    def sections(self) -> Iterable[Section]:
        """One line."""
        yield Section.of("", f"{self.task}: {'success' if self.outcome else 'failure'}")


@dataclass(frozen=True)
class ChangedEntry:
    """An entry or tool whose status changed: ``was`` is None where it was not there."""

    id: str
    kind: str
    was: str | None
    now: str
    title: str


@dataclass(frozen=True)
class MemoryDifference(Result):
    """What came and what changed its status between two events."""

    since: int
    until: int
    changed: tuple[ChangedEntry, ...]

    def sections(self) -> Iterable[Section]:
        """The changes."""
        none = "" if self.changed else "nothing changed"
        yield Section.of("", _rows(self.changed, "id", "kind", "was", "now", "title"), none)


@dataclass(frozen=True)
class ReplayedMemory(Result):
    """Whether the log makes the same store, and the rules that it breaks."""

    events: int
    equal: bool
    faults: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 where it is another store, or a rule is broken."""
        return EXIT_DONE if self.equal and not self.faults else EXIT_FAILED

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        bad = "; ".join(self.faults) or "ANOTHER STORE"
        yield Section.of("", f"{plural(self.events, 'event')}: {bad if self.exit_code else 'the same store'}")


@dataclass(frozen=True)
class ErasedMemory(Result):
    """What was erased, all that was made of it, and the skills that were removed."""

    erased: str
    derived: tuple[str, ...]
    """Entries and tools that were made of it."""
    removed: tuple[str, ...]
    """Folders of skills."""

    def sections(self) -> Iterable[Section]:
        """A line each."""
        lines = [f"erased: {', '.join((self.erased, *self.derived))}"]
        yield Section.of("", "\n".join([*lines, *(f"removed: {folder}" for folder in self.removed)]))


@dataclass(frozen=True)
class MadeSkill:
    """A skill that stands in its folder as the memory wrote it."""

    name: str
    id: str
    """The plan or tool that it is of."""
    kind: str
    sha256: str
    """Over the paths and bytes of its files."""
    files: tuple[str, ...]


@dataclass(frozen=True)
class ExportedSkills(Result):
    """Skills that were written."""

    folder: str
    skills: tuple[MadeSkill, ...]

    def sections(self) -> Iterable[Section]:
        """Their folders."""
        none = "" if self.skills else "no plan and no tool has earned a skill"
        yield Section.of("", _rows(self.skills, "name", "kind", "id", "files") if self.skills else "", none)


@dataclass(frozen=True)
class ExportedMemory(Result):
    """Files that were written."""

    folder: str
    files: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """Their paths."""
        yield Section.of("", "\n".join(f"{self.folder}/{name}" for name in self.files))
