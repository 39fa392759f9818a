"""The verbs of ``ramify earned-code-memory``. Exit code 1: a replay of the log does not give the same store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from ramify.base.errors import UserError
from ramify.base.files import read_regular
from ramify.base.waiting import wait_for
from ramify.kit import Form, Verbs, argument, only_for, option, words_of
from ramify.methods.earned_code_memory import report as reports
from ramify.methods.earned_code_memory import rules
from ramify.methods.earned_code_memory.algorithm import MemoryConfig
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.results import (
    AddedEntry,
    CodifiedPlans,
    DemotedTools,
    ErasedMemory,
    ExportedMemory,
    ExportedSkills,
    GatedPlan,
    ListedEntry,
    ListedMemory,
    MemoryDifference,
    MemoryReport,
    MemorySettings,
    NearEntry,
    NearRequest,
    PlansPastTheGate,
    Reflected,
    ReplayedMemory,
    ReviewedEntry,
    TaskEnd,
    WholeEntry,
)
from ramify.methods.earned_code_memory.store import MemoryState, ToolEntry, file_of
from ramify.render.result import Result
from ramify.render.terminal import progress
from ramify.trace.sources import run_folder

AGAIN = "the same command continues"
app = Verbs("earned-code-memory", help="A memory for any agent: text first, tools only for what recurs.")
File = Annotated[str, argument("FILE", help="The memory: one SQLite file.")]


def _open(file: str) -> Memory:
    return Memory(file_of(file), create=False)


def _role(model: str, max_reply: int | None) -> Any:
    from ramify.engine.named import find_model
    from ramify.methods.earned_code_memory.roles import MAX_REPLY, role_of

    return role_of(*find_model(model), max_reply or MAX_REPLY)


@app.verb(settings=MemoryConfig, keeps="source")
def learn(
    settings: MemoryConfig,
    file: File,
    source: Annotated[
        Path | None, argument("SOURCE", help="Folder of a run, or a log of any format that `ramify import` reads.")
    ] = None,
    form: Form = None,
    apis: Annotated[
        Path | None,
        option(metavar="FILE", help="JSON list of the base APIs, as tools in OpenAI's form; read_only where they only read."),
    ] = None,
    write: Annotated[Literal["text", "tools"] | None, option(help="What is made of what was recorded.")] = None,
    model: Annotated[
        str | None,
        option(metavar="MODEL", help="Who writes: chat:MODEL@URL, hf:FOLDER, ...; python:MODULE:FUNCTION for one of your own."),
    ] = None,
    tokens: Annotated[
        int | None, option(metavar="N", min=1, help="Of text: stop after the task that reaches this many tokens.")
    ] = None,
    max_reply: Annotated[
        int | None, option(metavar="N", min=1, help="Longest reply of the model, in tokens; default: 4096.")
    ] = None,
    together: Annotated[
        int | None,
        option(metavar="N", min=1, help="Of text: tasks asked of at once, which do not see each other's entries; default: 1."),
    ] = None,
    gate: Annotated[int | None, option(min=1, help="Of tools: another gate than the memory's own, --k.")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Of tools: list the plans past the gate; make nothing.")] = False,
) -> Iterator[Result]:
    """Record the attempts of a run or log, and make text and tools of what is recorded.

    A memory that is not there is made; settings that are given become its own. In the run is kept which procedures recur.

    - --write text: with a model, or without one by rules that know the order of calls alone.
    - --write tools: a model writes tools for the plans past the gate, and they are tested in the sandbox."""
    only_for("learning without SOURCE", **{"from": form if source is None else None})
    taken = {"text": ("model", "tokens", "max_reply", "together"), "tools": ("model", "max_reply", "gate", "dry_run")}.get(
        write or "", ()
    )
    options = {"model": model, "tokens": tokens, "max_reply": max_reply, "together": together, "gate": gate, "dry_run": dry_run}
    called = f"--write {write}" if write else "learning without --write"
    only_for(called, **{name: value for name, value in options.items() if name not in taken})
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    if dry_run:
        only_for("--dry-run", source=source, apis=apis, max_reply=max_reply, **given)
    elif write == "tools" and not model:
        raise UserError("a tool is written by a model: name one with --model, or list the plans with --dry-run")
    if source is not None and run_folder(source) is None and not source.exists():  # a slip makes no memory
        raise UserError(f"there is no run and no log {source}")
    offered = None if apis is None else _json(apis)
    with Memory(file_of(file), create=source is not None or write is None, **given) as memory:
        if offered is not None:
            memory.offer(offered)
        if source is not None:
            from ramify.methods.earned_code_memory.runs import learn as learned

            yield learned(memory, source, form)
        if write == "text":
            if not model:
                only_for("text by rules", max_reply=max_reply, together=together)
            role = _role(model, max_reply) if model else rules.reflect
            yield _reflect(memory, role, tokens, together or 1)
        elif write == "tools":
            yield _gated(memory, gate) if dry_run else _codify(memory, _role(str(model), max_reply), gate)
        elif source is None:
            yield MemorySettings(str(memory.store.path), len(memory.state.apis), memory.config)


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(read_regular(path, "the APIs"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read the APIs {path}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{path} holds no JSON list of tools")
    return found


def _reflect(memory: Memory, role: Any, tokens: int | None, together: int) -> Reflected:
    """Text of every task that waits for it."""
    waiting = sum(bool(task.recorded) and not task.reflected for task in memory.state.tasks.values())
    with progress("reflect", waiting, "tasks", kept=f"each task is done once: {AGAIN}") as bar:
        return wait_for(memory.reflect(role, tokens, bar.at, together))


def _gated(memory: Memory, gate: int | None) -> PlansPastTheGate:
    """Plans for which a tool would be written."""
    plans = memory.past_the_gate(gate)
    return PlansPastTheGate(tuple(GatedPlan(plan.id, plan.title, len(memory.state.evidence(plan.id))) for plan in plans))


def _codify(memory: Memory, role: Any, gate: int | None) -> CodifiedPlans:
    """Tools for the plans past the gate."""
    plans = memory.past_the_gate(gate)
    with progress("codify", len(plans), "plans", kept=f"each attempt is made once: {AGAIN}") as bar:
        return wait_for(memory.codify(role, k=gate, at=bar.at))


@app.verb()
def recall(file: File, query: Annotated[str, argument("REQUEST", help="What the agent is asked.")]) -> NearRequest:
    """What an agent would be given for a request; nothing is logged."""
    from ramify.methods.earned_code_memory.memory import render

    with _open(file) as memory:
        found = wait_for(memory.near(query))
        least, most = found.least, memory.config.inject
    near = [NearEntry(e.id, e.kind, e.title, held, held >= least and i < most) for i, (e, held) in enumerate(found.texts)]
    near += [NearEntry(t.name, "tool", t.doc.partition("\n")[0], held, held >= least) for t, held in found.tools]
    failed = f"near by words, since the embedding endpoint failed: {found.failed}"
    text = render([entry for (entry, _), one in zip(found.texts, near, strict=False) if one.given])
    return NearRequest(tuple(near), text, caveats=(failed,) if found.failed else ())


@app.verb()
def show(
    file: File,
    id: Annotated[
        str | None, argument("ID", help="An entry's id, or the beginning of it, or a tool's name; default: a view.")
    ] = None,
    view: Annotated[
        Literal["entries", "report", "diff", "replay"] | None, option(help="What of the whole memory; default: entries.")
    ] = None,
    status: Annotated[str | None, option(help="Of entries: only this status: active, review, candidate, superseded, ...")] = None,
    since: Annotated[int | None, option(help="Of diff: event to compare with, see replay; default: 0.", min=0)] = None,
    until: Annotated[int | None, option(help="Of diff: event up to which; default: now.", min=0)] = None,
) -> WholeEntry | ListedMemory | MemoryReport | MemoryDifference | ReplayedMemory:
    """What the memory holds: its entries and tools, or of an ID the whole and why it is there.

    Why: the requests that it was made from, what it replaced, what it rests on, how its checks went.

    - --view report: what the memory cost and earned, its break-even, each entry's and tool's own, tools that were never used.
    - --view diff: what came and what changed its status between two events of the log.
    - --view replay: make the store anew from its log and compare; exit code 1 where they differ or a rule is broken."""
    view = view or ("entries" if id is None else None)
    called = f"the view {view}" if id is None else "an ID"
    only_for(called, view=None if id is None else view, status=None if view == "entries" else status)
    if view != "diff":
        only_for(called, since=since, until=until)
    with _open(file) as memory:
        if id is not None:
            return reports.whole(memory.state, id)
        if view == "report":
            return reports.report(memory.state)
        if view == "diff":
            after = memory.state if until is None else memory.store.at(until)
            before = memory.store.at(since or 0)
            return MemoryDifference(since or 0, after.seq, reports.difference(before, after))
        if view == "replay":
            return reports.replay(memory.store)
        return _listed(memory.state, status)


def _listed(state: MemoryState, status: str | None) -> ListedMemory:
    """Entries and tools."""
    found = [
        ListedEntry(e.id, e.kind, e.status, len(state.evidence(e.id)) if e.kind == "plan" else 0, e.title, e.flag)
        for e in state.entries.values()
    ]
    found += [ListedEntry(t.name, "tool", t.status, t.calls, t.doc.partition("\n")[0], t.why) for t in state.tools.values()]
    return ListedMemory(tuple(entry for entry in found if not status or status == entry.status))


DECISIONS = {
    "approve": "ID", "reject": "ID", "demote": "ID", "erase": "ID", "add": "KIND TITLE BODY", "success": "TASK",
    "failure": "TASK",
}  # fmt: skip
"""What follows each."""


@app.verb()
def review(
    file: File,
    decision: Annotated[
        Literal["approve", "reject", "demote", "erase", "add", "success", "failure"], argument("DECISION", help="What you say.")
    ],
    words: Annotated[list[str] | None, argument("WORDS...", help="As DECISION has it.")] = None,
    scope: Annotated[str | None, option(help="Of add: where it holds: applications, APIs, versions.")] = None,
    supersedes: Annotated[list[str] | None, option(metavar="ID", help="Of add: the id of the entry that it replaces.")] = None,
    skills: Annotated[Path | None, option(metavar="DIR", help="Of erase: the folder of skills that were exported.")] = None,
) -> ReviewedEntry | DemotedTools | ErasedMemory | AddedEntry | TaskEnd:
    """Say what a person decides.

    - approve ID, reject ID: let in, or keep out, an entry or tool that waits.
    - demote ID: take a tool, and what uses it, out of use; its plan stays.
    - erase ID: take an entry or tool out of the file for good, with all that was made of it and their skills below --skills; the
      tasks that they came from stay.
    - add KIND TITLE BODY: an entry of your own, a plan, fact or pitfall; of a plan the calls stand in backquotes, in order.
    - success TASK, failure TASK: how a task ended, by its id, as a reply's memory.task says."""
    named = words_of(decision, words, DECISIONS[decision])
    if decision != "add":
        only_for(decision, scope=scope, supersedes=supersedes)
    if decision != "erase":
        only_for(decision, skills=skills)
    with _open(file) as memory:
        if decision == "add":
            kind, title, body = named
            return _add(memory, kind, title, body, scope or "", supersedes or ())
        (name,) = named
        if decision in ("success", "failure"):
            memory.outcome(name, decision == "success")
            return TaskEnd(name, decision == "success")
        if decision == "erase":
            from ramify.methods.earned_code_memory.skills import erase

            return erase(memory, name, skills)
        if decision == "demote":
            memory.demote(name)
            return DemotedTools(tuple(tool.name for tool in memory.state.tools.values() if tool.status == "demoted"))
        waiting = reports.find(memory.state, name)
        known = waiting.name if isinstance(waiting, ToolEntry) else waiting.id
        memory.review(known, decision == "approve")
        return ReviewedEntry(known, reports.find(memory.state, known).status)


def _add(memory: Memory, kind: str, title: str, body: str, scope: str, supersedes: Sequence[str]) -> AddedEntry:
    """An entry of a person's own."""
    name = memory.add(kind, title, body, scope, supersedes)
    against = tuple(other for other in memory.contradicted(kind, f"{title}. {body}") if other != name)
    both = f"it contradicts {', '.join(against)}, which stays as well: --supersedes {next(iter(against), '')} would replace it"
    return AddedEntry(name, against, caveats=(both,) if against else ())


@app.verb()
def export(
    file: File,
    form: Annotated[Literal["files", "skills", "mcp"], argument("FORM", help="How.")],
    out: Annotated[Path | None, option("--out", metavar="DIR", help="Of files and skills: folder to write to.")] = None,
    upstream: Annotated[
        str | None,
        option(
            metavar="COMMAND",
            help="Of mcp: MCP server whose tools are the base APIs, such as 'python server.py'; the memory's tools call it.",
        ),
    ] = None,
    license: Annotated[str | None, option(metavar="NAME", help="Of skills: the licence that each names.")] = None,
) -> ExportedMemory | ExportedSkills | None:
    """Give the memory to agents elsewhere.

    - files: the active tools as Python files with their tests and JSON schemas, and the text as Markdown.
    - skills: a folder with SKILL.md (Agent Skills) for each active tool and each plan past the gate, with where it came from; one
      that somebody changed is kept.
    - mcp: serve it over MCP (stdio): recall, record, and, with --upstream, its active tools, run in the sandbox."""
    if form != "skills":
        only_for(form, license=license)
    if form != "mcp":
        only_for(form, upstream=upstream)
        if out is None:
            raise UserError(f"{form} need a folder to be written to: name it with --out")
        with _open(file) as memory:
            if form == "skills":
                from ramify.methods.earned_code_memory import skills

                return skills.export(memory, out, skills.check_license(license))
            return ExportedMemory(str(out), tuple(reports.export(memory.state, out)))
    from ramify.methods.earned_code_memory.mcp_server import serve

    only_for(form, out=out)
    try:
        words = shlex.split(upstream or "")
    except ValueError as error:
        raise UserError(f"--upstream: {error}") from None
    with _open(file) as memory:
        wait_for(serve(memory, words))
    return None
