"""The verbs of ``ramify earned-code-memory``. Exit code 1: a replay of the log does not give the same store."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import read_regular
from ramify.base.waiting import wait_for
from ramify.kit import DryRun, Form, Verbs, argument, option
from ramify.methods.earned_code_memory import report as reports
from ramify.methods.earned_code_memory.algorithm import MemoryConfig
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.results import (
    AddedEntry,
    CodifiedPlans,
    DemotedTools,
    ExportedMemory,
    GatedPlan,
    LearnedRun,
    ListedEntry,
    ListedMemory,
    MemoryDifference,
    MemoryReport,
    MemorySettings,
    NearEntry,
    NearRequest,
    PlansPastTheGate,
    Reflected,
    Repayment,
    ReplayedMemory,
    ReviewedEntry,
    TaskEnd,
    WholeEntry,
    WhyThere,
)
from ramify.methods.earned_code_memory.store import ToolEntry, file_of
from ramify.render.terminal import progress

AGAIN = "the same command continues"
app = Verbs("earned-code-memory", help="A memory for any agent: text first, tools only for what recurs.")
File = Annotated[str, argument("FILE", help="The memory: one SQLite file.")]
Id = Annotated[str, argument("ID", help="An entry's id, or the beginning of it, or a tool's name.")]
Asked = Annotated[
    str, option("--model", metavar="MODEL", help="chat:MODEL@URL, hf:FOLDER, ...; python:MODULE:FUNCTION for one of your own.")
]


def _open(file: str) -> Memory:
    return Memory(file_of(file), create=False)


def _role(model: str) -> Any:
    from ramify.engine.named import find_model
    from ramify.methods.earned_code_memory.roles import role_of

    return role_of(*find_model(model))


@app.verb(settings=MemoryConfig)
def new(
    settings: MemoryConfig,
    file: File,
    apis: Annotated[
        Path | None,
        option(metavar="FILE", help="JSON list of the base APIs, as tools in OpenAI's form; read_only where they only read."),
    ] = None,
) -> MemorySettings:
    """Make a memory, or change the settings of one."""
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    offered = None if apis is None else _json(apis)
    with Memory(file_of(file), **given) as memory:
        if offered is not None:
            memory.offer(offered)
        return MemorySettings(str(memory.store.path), len(memory.state.apis), memory.config)


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(read_regular(path, "the APIs"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read the APIs {path}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{path} holds no JSON list of tools")
    return found


@app.verb(keeps="source")
def learn(
    file: File,
    source: Annotated[Path, argument("SOURCE", help="Folder of a run, or a log of any format that `ramify import` reads.")],
    form: Form = None,
) -> LearnedRun:
    """Record the attempts of a run or log, and keep in the run which procedures recur."""
    from ramify.methods.earned_code_memory.runs import learn as learned

    with _open(file) as memory:
        return learned(memory, source, form)


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
def reflect(
    file: File,
    model: Asked = "",
    tokens: Annotated[int | None, option(metavar="N", min=1, help="Stop after the task that reaches this many tokens.")] = None,
) -> Reflected:
    """Make text of what was recorded: with a model, or without one by rules that know the order of calls alone."""
    from ramify.methods.earned_code_memory import rules

    role = _role(model) if model else rules.reflect
    with _open(file) as memory:
        waiting = sum(bool(task.recorded) and not task.reflected for task in memory.state.tasks.values())
        with progress("reflect", waiting, "tasks", kept=f"each task is done once: {AGAIN}") as bar:
            return wait_for(memory.reflect(role, tokens, bar.at))


@app.verb()
def codify(
    file: File,
    model: Asked = "",
    k: Annotated[int | None, option(min=1, help="Another gate than the memory's own.")] = None,
    dry_run: DryRun = False,
) -> CodifiedPlans | PlansPastTheGate:
    """Have tools written for the plans past the gate, and test them in the sandbox; --dry-run lists the plans."""
    with _open(file) as memory:
        plans = memory.past_the_gate(k)
        if dry_run:
            return PlansPastTheGate(tuple(GatedPlan(p.id, p.title, len(memory.state.evidence(p.id))) for p in plans))
        if not model:
            raise UserError("a tool is written by a model: name one with --model, or list the plans with --dry-run")
        with progress("codify", len(plans), "plans", kept=f"each attempt is made once: {AGAIN}") as bar:
            return wait_for(memory.codify(_role(model), k=k, at=bar.at))


@app.verb("ls")
def ls_(
    file: File,
    status: Annotated[str, option(help="Only entries and tools of this status: active, review, candidate, superseded, ...")] = "",
) -> ListedMemory:
    """Entries and tools."""
    with _open(file) as memory:
        state = memory.state
    found = [
        ListedEntry(e.id, e.kind, e.status, len(state.evidence(e.id)) if e.kind == "plan" else 0, e.title, e.flag)
        for e in state.entries.values()
    ]
    found += [ListedEntry(t.name, "tool", t.status, t.calls, t.doc.partition("\n")[0], t.why) for t in state.tools.values()]
    return ListedMemory(tuple(one for one in found if status in ("", one.status)))


@app.verb()
def show(file: File, id: Id) -> WholeEntry:
    """An entry or a tool whole, with its source."""
    with _open(file) as memory:
        one = reports.find(memory.state, id)
    return WholeEntry(tool=one) if isinstance(one, ToolEntry) else WholeEntry(entry=one)


@app.verb("why")
def why_(file: File, id: Id) -> WhyThere:
    """Why an entry or tool is there: the requests that it was made from, what it replaced,
    what it rests on, how its checks went."""
    with _open(file) as memory:
        return reports.why(memory.state, id)


@app.verb()
def add(
    file: File,
    kind: Annotated[str, argument("KIND", help="plan, fact or pitfall.")],
    title: Annotated[str, argument("TITLE", help="What it is about.")],
    body: Annotated[str, argument("BODY", help="The text; of a plan the calls stand in backquotes, in order.")],
    scope: Annotated[str, option(help="Where it holds: applications, APIs, versions.")] = "",
    supersedes: Annotated[list[str] | None, option(metavar="ID", help="The id of the entry that it replaces.")] = None,
) -> AddedEntry:
    """Add an entry of your own."""
    with _open(file) as memory:
        name = memory.add(kind, title, body, scope, supersedes or ())
        against = tuple(one for one in memory.contradicted(kind, f"{title}. {body}") if one != name)
    both = f"it contradicts {', '.join(against)}, which stays as well: --supersedes {next(iter(against), '')} would replace it"
    return AddedEntry(name, against, caveats=(both,) if against else ())


@app.verb()
def review(
    file: File,
    id: Id,
    approve: Annotated[bool, option("--approve", help="Let it in.")] = False,
    reject: Annotated[bool, option("--reject", help="Keep it out.")] = False,
) -> ReviewedEntry:
    """Decide about an entry or tool that waits."""
    if approve == reject:
        raise UserError("say --approve or --reject")
    with _open(file) as memory:
        one = reports.find(memory.state, id)
        name: str = one.name if isinstance(one, ToolEntry) else one.id
        memory.review(name, approve)
        return ReviewedEntry(name, reports.find(memory.state, name).status)


@app.verb()
def demote(file: File, id: Id) -> DemotedTools:
    """Take a tool, and what uses it, out of use; its plan stays."""
    with _open(file) as memory:
        memory.demote(id)
        return DemotedTools(tuple(tool.name for tool in memory.state.tools.values() if tool.status == "demoted"))


@app.verb()
def outcome(
    file: File,
    task: Annotated[str, argument("TASK", help="Id of a task, as a reply's memory.task says.")],
    success: Annotated[bool, option("--success", help="It succeeded.")] = False,
    failure: Annotated[bool, option("--failure", help="It failed.")] = False,
) -> TaskEnd:
    """Say afterwards how a task ended."""
    if success == failure:
        raise UserError("say --success or --failure")
    with _open(file) as memory:
        memory.outcome(task, success)
    return TaskEnd(task, success)


@app.verb("report")
def report_(file: File) -> MemoryReport:
    """What the memory cost and earned, its break-even, each entry's and tool's own, and tools that were never used."""
    with _open(file) as memory:
        return reports.report(memory.state)


@app.verb("break-even")
def break_even_(
    construction: Annotated[float, option(help="Tokens that building the memory, or a tool, cost.", min=0)],
    saving: Annotated[float, option(help="Tokens that it saves a task, or a use.")],
) -> Repayment:
    """After how many tasks a memory is paid back."""
    return Repayment(construction, saving, reports.pays(construction, saving).after)


@app.verb()
def diff(
    file: File,
    since: Annotated[int, option(help="Event to compare with, see `replay`.", min=0)] = 0,
    until: Annotated[int | None, option(help="Event up to which; default: now.", min=0)] = None,
) -> MemoryDifference:
    """What came and what changed its status between two events of the log."""
    with _open(file) as memory:
        after = memory.state if until is None else memory.store.at(until)
        return MemoryDifference(since, after.seq, reports.difference(memory.store.at(since), after))


@app.verb()
def replay(file: File) -> ReplayedMemory:
    """Make the store anew from its log and compare; exit code 1 where they differ or a rule is broken."""
    with _open(file) as memory:
        return reports.replay(memory.store)


@app.verb()
def export(file: File, out: Annotated[Path, option("--out", metavar="DIR", help="Folder to write to.")]) -> ExportedMemory:
    """Write the active tools as Python files with their tests and JSON schemas, and the text as Markdown."""
    with _open(file) as memory:
        return ExportedMemory(str(out), tuple(reports.export(memory.state, out)))


@app.verb()
def mcp(
    file: File,
    upstream: Annotated[
        str,
        option(
            metavar="COMMAND",
            help="MCP server whose tools are the base APIs, such as 'python server.py'; the memory's tools call it.",
        ),
    ] = "",
) -> None:
    """Serve the memory over MCP (stdio): recall, record, and, with --upstream, its active tools, run in the sandbox."""
    from ramify.methods.earned_code_memory.mcp_server import serve

    try:
        words = shlex.split(upstream)
    except ValueError as error:
        raise UserError(f"--upstream: {error}") from None
    with _open(file) as memory:
        wait_for(serve(memory, words))
