"""The verbs of ``ramify earned-code-memory``. Exit code 1: a replay of the log does not give the same store."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import EXIT_FAILED, UserError
from ramify.base.files import read_regular
from ramify.base.waiting import wait_for
from ramify.kit import DryRun, Form, Json, Verbs, argument, option
from ramify.methods.earned_code_memory import report as reports
from ramify.methods.earned_code_memory.algorithm import MemoryConfig
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.store import ToolEntry, file_of
from ramify.render.terminal import emit, progress, say, table

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


def _print(found: dict[str, Any], as_json: bool, head: str = "") -> None:
    emit(found, as_json, (f"{head}\n\n" if head else "") + table(["", ""], reports.rows_of(found)))


@app.verb(settings=MemoryConfig)
def new(
    settings: MemoryConfig,
    file: File,
    apis: Annotated[
        Path | None,
        option(metavar="FILE", help="JSON list of the base APIs, as tools in OpenAI's form; read_only where they only read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a memory, or change the settings of one."""
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    offered = None if apis is None else _json(apis)
    with Memory(file_of(file), **given) as memory:
        if offered is not None:
            memory.offer(offered)
        _print({"file": str(memory.store.path), "apis": len(memory.state.apis), **memory.config.model_dump()}, as_json)


def _json(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(read_regular(path, "the APIs"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read the APIs {path}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{path} holds no JSON list of tools")
    return found


@app.verb()
def learn(
    file: File,
    source: Annotated[Path, argument("SOURCE", help="Folder of a run, or a log of any format that `ramify import` reads.")],
    form: Form = None,
    as_json: Json = False,
) -> None:
    """Record the attempts of a run or log, and keep in the run which procedures recur."""
    from ramify.methods.earned_code_memory.runs import learn as learned

    with _open(file) as memory:
        found = learned(memory, source, form)
    if found["warning"]:
        say(f"warning: {found['warning']}")
    rows = [
        [" > ".join(one["calls"]), one["structures"], one["attempts"], one["succeeded"], one["ended"]]
        for one in found["recurring"]
    ]
    text = table(["recurring procedure", "structures", "attempts", "succeeded", "ended"], rows) if rows else "no procedure recurs"
    emit(
        found,
        as_json,
        f"{found['recorded']} recorded, {found['known']} known already\n\n{text}\n\nnext: ramify earned-code-memory reflect "
        f"{file}",
    )


@app.verb()
def recall(
    file: File, query: Annotated[str, argument("REQUEST", help="What the agent is asked.")], as_json: Json = False
) -> None:
    """What an agent would be given for a request; nothing is logged."""
    from ramify.methods.earned_code_memory.memory import render

    with _open(file) as memory:
        found = wait_for(memory.near(query))
        texts, tools, least, most = found.texts, found.tools, found.least, memory.config.inject
        near = [
            {"id": e.id, "kind": e.kind, "title": e.title, "share": held, "given": held >= least and i < most}
            for i, (e, held) in enumerate(texts)
        ]
        near += [
            {"id": t.name, "kind": "tool", "title": t.doc.partition("\n")[0], "share": held, "given": held >= least}
            for t, held in tools
        ]
        text = render([e for i, (e, held) in enumerate(texts) if held >= least and i < most])
    if found.failed:
        say(f"warning: near by words, since the embedding endpoint failed: {found.failed}")
    rows = [[one["id"], one["kind"], one["share"], "yes" if one["given"] else "no", one["title"]] for one in near]
    emit(
        {"near": near, "text": text},
        as_json,
        table(["id", "kind", "share of words, or cosine", "given", "title"], rows) + (f"\n\n{text}" if text else ""),
    )


@app.verb()
def reflect(
    file: File,
    model: Asked = "",
    tokens: Annotated[int | None, option(metavar="N", min=1, help="Stop after the task that reaches this many tokens.")] = None,
    as_json: Json = False,
) -> None:
    """Make text of what was recorded: with a model, or without one by rules that know the order of calls alone."""
    from ramify.methods.earned_code_memory import rules

    role = _role(model) if model else rules.reflect
    with _open(file) as memory:
        waiting = sum(bool(task.recorded) and not task.reflected for task in memory.state.tasks.values())
        with progress("reflect", waiting, "tasks", as_json, kept="each task is done once: the same command continues") as bar:
            found = wait_for(memory.reflect(role, tokens, bar.at))
    _print(found, as_json)


@app.verb()
def codify(
    file: File,
    model: Asked = "",
    k: Annotated[int | None, option(min=1, help="Another gate than the memory's own.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have tools written for the plans past the gate, and test them in the sandbox; --dry-run lists the plans."""
    with _open(file) as memory:
        plans = [
            {"id": plan.id, "title": plan.title, "evidence": len(memory.state.evidence(plan.id))}
            for plan in memory.past_the_gate(k)
        ]
        if dry_run:
            text = (
                table(["plan past the gate", "title", "evidence"], [list(plan.values()) for plan in plans])
                if plans
                else "no plan is past the gate"
            )
            emit({"plans": plans}, as_json, text)
            return
        if not model:
            raise UserError("a tool is written by a model: name one with --model, or list the plans with --dry-run")
        with progress(
            "codify", len(plans), "plans", as_json, kept="each attempt is made once: the same command continues"
        ) as bar:
            found = wait_for(memory.codify(_role(model), k=k, at=bar.at))
    _print(found, as_json)


@app.verb("ls")
def ls_(
    file: File,
    status: Annotated[str, option(help="Only entries and tools of this status: active, review, candidate, superseded, ...")] = "",
    as_json: Json = False,
) -> None:
    """Entries and tools."""
    with _open(file) as memory:
        state = memory.state
        found = [
            {
                "id": e.id,
                "kind": e.kind,
                "status": e.status,
                "evidence": len(state.evidence(e.id)) if e.kind == "plan" else 0,
                "title": e.title,
                "flag": e.flag,
            }
            for e in state.entries.values()
        ]
        found += [
            {
                "id": t.name,
                "kind": "tool",
                "status": t.status,
                "evidence": t.calls,
                "title": t.doc.partition("\n")[0],
                "flag": t.why,
            }
            for t in state.tools.values()
        ]
    found = [one for one in found if status in ("", one["status"])]
    columns = ["id", "kind", "status", "evidence or calls", "title", "waits because"]
    emit({"entries": found}, as_json, table(columns, [list(one.values()) for one in found]) if found else "nothing")


@app.verb()
def show(file: File, id: Id, as_json: Json = False) -> None:
    """An entry or a tool whole, with its source."""
    with _open(file) as memory:
        one = reports.find(memory.state, id)
    found = {name: getattr(one, name) for name in type(one).__slots__}
    emit(found, as_json, "\n".join(f"{name}: {value}" for name, value in found.items() if value not in ("", (), {})))


@app.verb("why")
def why_(file: File, id: Id, as_json: Json = False) -> None:
    """Why an entry or tool is there: the requests that it was made from, what it replaced,
    what it rests on, how its checks went."""
    with _open(file) as memory:
        found = reports.why(memory.state, id)
    _print(found, as_json)


@app.verb()
def add(
    file: File,
    kind: Annotated[str, argument("KIND", help="plan, fact or pitfall.")],
    title: Annotated[str, argument("TITLE", help="What it is about.")],
    body: Annotated[str, argument("BODY", help="The text; of a plan the calls stand in backquotes, in order.")],
    scope: Annotated[str, option(help="Where it holds: applications, APIs, versions.")] = "",
    supersedes: Annotated[list[str] | None, option(metavar="ID", help="The id of the entry that it replaces.")] = None,
    as_json: Json = False,
) -> None:
    """Add an entry of your own."""
    with _open(file) as memory:
        name = memory.add(kind, title, body, scope, supersedes or ())
        against = [one for one in memory.contradicted(kind, f"{title}. {body}") if one != name]
    if against:
        say(f"warning: it contradicts {', '.join(against)}, which stays as well: --supersedes {against[0]} would replace it")
    emit({"id": name, "contradicts": against}, as_json, name)


@app.verb()
def review(
    file: File,
    id: Id,
    approve: Annotated[bool, option("--approve", help="Let it in.")] = False,
    reject: Annotated[bool, option("--reject", help="Keep it out.")] = False,
    as_json: Json = False,
) -> None:
    """Decide about an entry or tool that waits."""
    if approve == reject:
        raise UserError("say --approve or --reject")
    with _open(file) as memory:
        one = reports.find(memory.state, id)
        name: str = one.name if isinstance(one, ToolEntry) else one.id
        memory.review(name, approve)
        status = reports.find(memory.state, name).status
    emit({"id": name, "status": status}, as_json, f"{name}: {status}")


@app.verb()
def demote(file: File, id: Id, as_json: Json = False) -> None:
    """Take a tool, and what uses it, out of use; its plan stays."""
    with _open(file) as memory:
        memory.demote(id)
        out = [tool.name for tool in memory.state.tools.values() if tool.status == "demoted"]
    emit({"demoted": out}, as_json, f"demoted: {', '.join(out)}")


@app.verb()
def outcome(
    file: File,
    task: Annotated[str, argument("TASK", help="Id of a task, as a reply's memory.task says.")],
    success: Annotated[bool, option("--success", help="It succeeded.")] = False,
    failure: Annotated[bool, option("--failure", help="It failed.")] = False,
    as_json: Json = False,
) -> None:
    """Say afterwards how a task ended."""
    if success == failure:
        raise UserError("say --success or --failure")
    with _open(file) as memory:
        memory.outcome(task, success)
    emit({"task": task, "outcome": success}, as_json, f"{task}: {'success' if success else 'failure'}")


@app.verb("report")
def report_(file: File, as_json: Json = False) -> None:
    """What the memory cost and earned, its break-even, each entry's and tool's own, and tools that were never used."""
    with _open(file) as memory:
        found = reports.report(memory.state)
    shown = {
        name: found[name]
        for name in ("tasks", "tokens", "per task", "per solved task", "break_even", "never_used", "waiting", "dropped")
    }
    names = ("id", "kind", "status", "given", "evidence", "succeeded", "ended", "tokens", "saving", "break_even", "title")
    of_tools = ("name", "status", "calls", "failures", "raised", "tokens", "saving", "break_even")
    text = table(["", ""], reports.rows_of(shown))
    if found["entries"]:
        text += "\n\n" + table(list(names), [[one[name] for name in names] for one in found["entries"]])
    if found["tools"]:
        text += "\n\n" + table(list(of_tools), [[one[name] for name in of_tools] for one in found["tools"]])
    emit(found, as_json, text)


@app.verb("break-even")
def break_even_(
    construction: Annotated[float, option(help="Tokens that building the memory, or a tool, cost.", min=0)],
    saving: Annotated[float, option(help="Tokens that it saves a task, or a use.")],
    as_json: Json = False,
) -> None:
    """After how many tasks a memory is paid back."""
    found = reports.pays(construction, saving)
    after = found["after"]
    emit(found, as_json, "never: nothing is saved" if after == "never" else f"after {after:.1f} tasks")


@app.verb()
def diff(
    file: File,
    since: Annotated[int, option(help="Event to compare with, see `replay`.", min=0)] = 0,
    until: Annotated[int | None, option(help="Event up to which; default: now.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """What came and what changed its status between two events of the log."""
    with _open(file) as memory:
        after = memory.state if until is None else memory.store.at(until)
        rows = reports.difference(memory.store.at(since), after)
    text = table(["id", "kind", "was", "is", "title"], [list(one.values()) for one in rows]) if rows else "nothing changed"
    emit({"since": since, "until": after.seq, "changed": rows}, as_json, text)


@app.verb()
def replay(file: File, as_json: Json = False) -> None:
    """Make the store anew from its log and compare; exit code 1 where they differ or a rule is broken."""
    with _open(file) as memory:
        found = reports.replay(memory.store)
    good = found["equal"] and not found["faults"]
    emit(
        found,
        as_json,
        f"{found['events']} events: " + ("the same store" if good else "; ".join(found["faults"]) or "ANOTHER STORE"),
    )
    if not good:
        raise SystemExit(EXIT_FAILED)


@app.verb()
def export(
    file: File, out: Annotated[Path, option("--out", metavar="DIR", help="Folder to write to.")], as_json: Json = False
) -> None:
    """Write the active tools as Python files with their tests and JSON schemas, and the text as Markdown."""
    with _open(file) as memory:
        names = reports.export(memory.state, out)
    emit({"folder": str(out), "files": names}, as_json, "\n".join(str(out / name) for name in names))


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
