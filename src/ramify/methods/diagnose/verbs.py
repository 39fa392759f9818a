"""The verbs of ``ramify diagnose``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.files import read_regular, write_whole
from ramify.kit import DryRun, Form, Json, Verbs, argument, option
from ramify.methods.diagnose import record
from ramify.methods.diagnose.algorithm import AGENTS, METRICS, InjectionGate, LocalizeConfig, threshold
from ramify.methods.diagnose.case import FIELDS, CaseFile, load_case, read_case
from ramify.methods.diagnose.code import unread
from ramify.methods.diagnose.injection import inject as injected
from ramify.methods.diagnose.localizer import Localizer, evaluate
from ramify.methods.diagnose.masking import mask as masked
from ramify.methods.diagnose.phases import CLASSES
from ramify.methods.diagnose.phases import cost as cost_of
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.tools import SCHEMAS, RepoTools
from ramify.render.terminal import emit, progress, say, table
from ramify.trace.lines import read_lines
from ramify.trace.node import Finding
from ramify.trace.sources import conclude, opened, run_folder
from ramify.trace.view import views

app = Verbs("diagnose", help="Find where a bug is and why, and tell a repair agent only what helps it.")
Repo = Annotated[str, option("--repo", metavar="DIR", help="Folder of the repository, or DIR@COMMIT of a git repository.")]
Issue = Annotated[str, option("--issue", metavar="FILE", help="Text of the issue; - reads standard input.")]
CaseArgument = Annotated[Path, argument("CASE", help="A case file (JSON), or a run that `ramify diagnose run` made.")]


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    return read_regular(Path(name), "the issue").decode("utf-8", "replace")


@app.verb(settings=LocalizeConfig)
def run(
    options: LocalizeConfig,
    issue: Issue,
    repo: Repo = ".",
    model: Annotated[
        str | None, option("--model", help="chat:MODEL@URL, hf:FOLDER, ...; without one a rule policy looks, which is no model.")
    ] = None,
    out: Annotated[
        Path, option("--out", metavar="RUN", help="Run to make or to continue; an issue that is there is not looked for again.")
    ] = Path("runs/diagnose"),
    case: Annotated[
        Path | None,
        option("--case", "-o", metavar="FILE", help="Also write the case file: JSON, or Markdown where the name ends in .md."),
    ] = None,
    issue_id: Annotated[str, option("--id", help="Name of the issue; default: the name of its file.")] = "",
    samples: Annotated[
        int, option("--samples", min=1, max=9, help="Independent localizations; from 2 on they bear on the confidence.")
    ] = 1,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Look for the place of a bug: locations, each with root cause, solution idea,
    dependencies and tests. Nothing is run or changed."""
    text = _text(issue)
    if not text.strip():
        raise UserError(f"the issue {issue} is empty: say in a sentence what goes wrong")
    snapshot = Snapshot.open(repo)
    if suffixes := unread(snapshot.paths):
        say(f'imports of {", ".join(suffixes)} files are not read: pip install "ramify[diagnose]"')
    name = issue_id or ("issue" if issue == "-" else Path(issue).stem)
    if dry_run:
        estimate = {
            "files": len(snapshot.paths),
            "skipped": len(snapshot.skipped),
            "model_calls": 0 if model is None else samples * (options.turns + 1) + (samples > 1),
        }
        emit(
            {"config": options.model_dump(), "cost_estimate": estimate},
            as_json,
            table(["cost estimate", "at most"], list(estimate.items())),
        )
        return
    found = None
    if model is not None:
        from ramify.engine.named import find_model

        found = find_model(model)
    agent, template = found or (None, None)
    localizer = Localizer(agent, template, options, samples)
    settings = options.model_dump(mode="json") | {"model": model or "", "samples": samples}
    with record.begin(out, settings) as stored:
        key = localizer.key(snapshot, text)
        made = record.known(stored, key)
        if made is None:
            with progress(
                "diagnose", samples * (options.turns + 1), "turns", as_json, kept="nothing of this issue is kept yet"
            ) as bar:
                made, history = localizer.traced(snapshot, text, name, bar.at)
            if made.meta.get("failed"):
                raise InfrastructureError("provider", str(made.meta["failed"]))
            record.keep(stored, key, made, history, settings)
    if case is not None:
        write_whole(
            case, made.to_markdown() if case.suffix == ".md" else json.dumps(made.to_json(), indent=2, ensure_ascii=False) + "\n"
        )
    if snapshot.skipped:
        path, why = next(iter(snapshot.skipped.items()))
        say(f"{len(snapshot.skipped)} files were skipped, such as {path}: {why}")
    emit(made.to_json() | {"run": str(out)}, as_json, f"{made.to_markdown()}\nkept in {out}: `ramify show {out}`")


def _cases(path: Path) -> list[CaseFile]:
    """Case files of a JSON file, of JSON lines, or of a run."""
    if (folder := run_folder(path)) is not None:
        from ramify.trace.db import Run

        with Run.open(folder) as stored:
            found = record.cases(stored)
        if not found:
            raise UserError(f"{path} holds no case file: it was not made by `ramify diagnose run`")
        return found
    if path.suffix == ".jsonl":
        return [read_case(line, f"{path}:{number}") for number, line in read_lines(path)]
    return [load_case(path)]


@app.verb("inject")
def inject_(
    case: CaseArgument,
    agent: Annotated[
        str, option("--agent", help="weak, strong, or the solve rates told nothing, a right and a wrong finding: 0.6,0.8,0.3.")
    ] = "strong",
    every: Annotated[bool, option("--all", help="Tell every finding, however likely it is to be wrong.")] = False,
    fields: Annotated[str, option("--fields", help="Fields to tell, with commas.")] = ",".join(FIELDS),
    price: Annotated[float, option("--price", min=0, help="Solved issues that a saved token is worth.")] = 0.0,
    saved: Annotated[float, option("--saved", min=0, help="Tokens that a told finding saves.")] = 0.0,
    as_json: Json = False,
) -> None:
    """The prompt for a repair agent: the issue, and the findings that are likely enough to help an agent of this strength."""
    gate = replace(_gate(agent), price=price, saved=saved)
    found = _cases(case)
    made = [injected(one, None if every else gate, [name.strip() for name in fields.split(",") if name.strip()]) for one in found]
    prompts = [
        {"issue_id": one.issue_id, "prompt": text, "told": sum(every or gate.injects(f.confidence or 0.0) for f in one.findings)}
        for one, text in zip(found, made, strict=True)
    ]
    emit({"threshold": gate.threshold, "prompts": prompts}, as_json, "\n".join(made))


def _gate(agent: str) -> InjectionGate:
    if "," not in agent:
        return InjectionGate.default(agent)
    from ramify.methods.diagnose.algorithm import SolveRates

    try:
        nothing, right, wrong = (float(one) for one in agent.split(","))
    except ValueError:
        raise UserError(f"--agent: three rates with commas are needed, such as 0.6,0.8,0.3, not '{agent}'") from None
    return replace(InjectionGate.default(), agent=SolveRates(nothing, right, wrong))


@app.verb("eval")
def eval_(
    predicted: Annotated[Path, argument("PREDICTED", help="Case files, one a line, or a run that `ramify diagnose run` made.")],
    gold: Annotated[
        Path,
        argument(
            "GOLD", help="One issue a line: `issue_id` or `instance_id`, and `patch` (a diff) or `spans` ([file, first, last])."
        ),
    ],
    as_json: Json = False,
) -> None:
    """How right case files are: files as sets, spans by containment, engagement, and a table by repository."""
    found = evaluate(_cases(predicted), dict(_gold(gold)))
    rows = [
        [name, one["value"], "-" if one["interval"] is None else "[{:.3f}, {:.3f}]".format(*one["interval"]), one["n"]]
        for name, one in found["metrics"].items()
    ]
    head = f"{found['n']} issues" + (f", {found['missing']} of them without a case file" if found["missing"] else "")
    more = [f"{name.replace('_', '-')} {found[name]:.3g}" for name in ("turns", "zero_tool", "tokens") if name in found]
    text = f"{head}\n\n" + table(["metric", "mean", "95 % interval", "n"], rows) + (f"\n\nmean {', '.join(more)}" if more else "")
    if "by_repository" in found:
        by = [
            [repo, own["n"], *(own[name] for name in METRICS[:3]), own["coverage recall"]]
            for repo, own in found["by_repository"].items()
        ]
        text += "\n\n" + table(["repository", "n", *METRICS[:3], "coverage recall"], by)
    emit(found, as_json, text)


def _gold(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in read_lines(path):
        name = line.get("issue_id") or line.get("instance_id")
        if not isinstance(name, str):
            raise UserError(f"{path}:{number}: 'issue_id' must be text, and it is missing")
        if isinstance(line.get("patch"), str):
            yield name, line["patch"]
        elif isinstance(line.get("spans"), list) and all(_is_span(one) for one in line["spans"]) and line["spans"]:
            yield name, [tuple(one) for one in line["spans"]]
        else:
            raise UserError(f"{path}:{number}: a 'patch' (text) or 'spans' ([[file, first, last], ...]) is needed")


def _is_span(one: Any) -> bool:
    return isinstance(one, list) and [type(v) for v in one] == [str, int, int] and 1 <= one[1] <= one[2]


@app.verb()
def tools(
    repo: Repo = ".",
    schemas: Annotated[
        bool, option("--schemas", help="Print the tools as OpenAI's function schemas, and serve nothing.")
    ] = False,
    call: Annotated[
        str | None, option("--call", metavar="JSON", help='Make one call, such as {"name": "repo_tree", "arguments": {}}.')
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the four tools over MCP (standard input and output), print their schemas, or make one call.
    They read; nothing is run or written."""
    if schemas:
        emit({"tools": list(SCHEMAS)}, as_json, json.dumps(list(SCHEMAS), indent=2))
        return
    held = RepoTools(Snapshot.open(repo))
    if call is None:
        from ramify.methods.diagnose.serve import serve

        serve(held)
        return
    try:
        request = json.loads(call)
        name, arguments = request["name"], request.get("arguments") or {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError('--call: an object {"name": ..., "arguments": {...}} is needed') from None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise UserError("--call: 'name' must be text and 'arguments' an object")
    result = held.call(name, arguments)
    if not result.ok:
        raise UserError(result.text.removeprefix("error: "))
    emit({"text": result.text, "digest": result.digest}, as_json, result.text)


@app.verb()
def cost(
    log: Annotated[Path, argument("LOG", help="Traces of an agent in any known format, or the folder of a run.")],
    form: Form = None,
    as_json: Json = False,
) -> None:
    """What an agent spends on finding the place: its actions by class,
    and the share of replies and tokens before its first edit."""
    with opened(log, form) as stored:
        rows = cost_of(list(views(stored, unjudged=True)))
    rows = [row for row in rows if row["replies"]]
    if not rows:
        raise UserError(f"{log} holds no reply of an agent")
    total, before = sum(row["tokens"] for row in rows), sum(row["tokens_before_edit"] for row in rows)
    replies, first = sum(row["replies"] for row in rows), sum(row["before_edit"] for row in rows)
    counts = {name: sum(row["classes"].get(name, 0) for row in rows) for name in CLASSES}
    found = {
        "attempts": len(rows),
        "edited": sum(row["edited"] for row in rows),
        "replies": replies,
        "share_of_replies": first / replies,
        "share_of_tokens": before / total if total else None,
        "tokens": total,
        "tokens_before_edit": before,
        "estimated": any(row["estimated"] for row in rows),
        "classes": counts,
        "rows": rows,
    }
    why = (
        f"{first / replies:.0%} of {replies} replies and {before / total:.0%} of {total} "
        f"tokens{' (estimated)' if found['estimated'] else ''} come before the first edit"
    )
    never = len(rows) - found["edited"]
    finding = Finding(
        "cost of localization",
        "diagnose cost",
        why,
        value=first / replies,
        unit="share",
        evidence={k: v for k, v in found.items() if k != "rows"},
    )
    if warning := conclude(log, "diagnose cost", [finding]):
        say(f"warning: {warning}")
    text = (
        table(["action", "replies"], list(counts.items()))
        + f"\n\n{len(rows)} attempts: {why}"
        + (f"; {never} never edited anything" if never else "")
    )
    emit(found, as_json, text)


@app.verb()
def mask(
    issue: Annotated[str, argument("ISSUE", help="Text of the issue; - reads standard input.")],
    repo: Annotated[
        str | None, option("--repo", metavar="DIR", help="Also mask the repository's name and those of its packages.")
    ] = None,
    name: Annotated[list[str] | None, option("--name", help="A further name to mask; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """The issue without paths and names that give the place away: does your localizer look, or remember?"""
    names = list(name or [])
    if repo is not None:
        snapshot = Snapshot.open(repo)
        names += [
            snapshot.name,
            *sorted({path.split("/")[0] for path in snapshot.paths if "/" in path} - {"src", "lib", "tests", "test"}),
        ]
    text, found = masked(_text(issue), names)
    emit({"text": text, "masked": found}, as_json, text.rstrip("\n"))


@app.verb()
def gate(
    agent: Annotated[
        str, option("--agent", help="weak, strong, or the solve rates told nothing, a right and a wrong finding: 0.6,0.8,0.3.")
    ] = "strong",
    price: Annotated[float, option("--price", min=0, help="Solved issues that a saved token is worth.")] = 0.0,
    saved: Annotated[float, option("--saved", min=0, help="Tokens that a told finding saves.")] = 0.0,
    as_json: Json = False,
) -> None:
    """How likely a finding must be right before telling it helps an agent of this strength."""
    own = _gate(agent).agent
    q = threshold(own, price, saved)
    rows = [
        [name, one.nothing, one.right, one.wrong, threshold(one, price, saved)] for name, one in {**AGENTS, "yours": own}.items()
    ]
    emit(
        {"agent": [own.nothing, own.right, own.wrong], "threshold": q},
        as_json,
        table(["agent", "told nothing", "right", "wrong", "tell from q"], rows),
    )
