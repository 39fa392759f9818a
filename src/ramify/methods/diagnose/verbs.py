"""The verbs of ``ramify diagnose``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import read_record, read_regular, write_whole
from ramify.base.progress import Progress
from ramify.kit import Form, Verbs, argument, only_for, option
from ramify.methods.diagnose import record
from ramify.methods.diagnose.algorithm import InjectionGate, LocalizeConfig, SolveRates, Span, threshold
from ramify.methods.diagnose.case import FIELDS, CaseFile
from ramify.methods.diagnose.code import unread
from ramify.methods.diagnose.injection import inject as injected
from ramify.methods.diagnose.localizer import Localizer, evaluate
from ramify.methods.diagnose.masking import mask as masked
from ramify.methods.diagnose.phases import cost as cost_of
from ramify.methods.diagnose.results import (
    CalledTool,
    LocationScores,
    LookingCost,
    MaskedIssue,
    RepairPrompt,
    RepairPrompts,
    TellingThreshold,
    ToolSchemas,
)
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.tools import SCHEMAS, RepoTools
from ramify.render.result import to_markdown
from ramify.render.terminal import say
from ramify.trace.lines import read_rows
from ramify.trace.node import Finding
from ramify.trace.sources import conclude, opened, run_folder
from ramify.trace.view import views

COST = "diagnose eval cost"
app = Verbs("diagnose", help="Find where a bug is and why, and tell a repair agent only what helps it.")
Repo = Annotated[str, option("--repo", metavar="DIR", help="Folder of the repository, or DIR@COMMIT of a git repository.")]
Issue = Annotated[str, option("--issue", metavar="FILE", help="Text of the issue; - reads standard input.")]


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    return read_regular(Path(name), "the issue").decode("utf-8", "replace")


def _opened(repo: str) -> tuple[Snapshot, list[str]]:
    """The repository, and what of it is not read."""
    snapshot, caveats = Snapshot.open(repo), []
    if suffixes := unread(snapshot.paths):
        caveats.append(f'imports of {", ".join(suffixes)} files are not read: pip install "ramify[diagnose]"')
    if snapshot.skipped:
        path, why = next(iter(snapshot.skipped.items()))
        caveats.append(f"{len(snapshot.skipped)} files were skipped, such as {path}: {why}")
    return snapshot, caveats


def _asked(issue: str) -> str:
    text = _text(issue)
    if not text.strip():
        raise UserError(f"the issue {issue} is empty: say in a sentence what goes wrong")
    return text


def _plan(options: LocalizeConfig, issue: str, repo: str, model: str | None, samples: int) -> dict[str, int]:
    _asked(issue)
    snapshot, caveats = _opened(repo)
    for caveat in caveats:
        say(f"warning: {caveat}")
    turns = samples * (options.turns + 1)
    calls = 0 if model is None else turns + (samples > 1)
    return {"files": len(snapshot.paths), "skipped": len(snapshot.skipped), "turns": turns, "model_calls": calls}


@app.study(settings=LocalizeConfig, plan=_plan, unit="turns")
def run(
    options: LocalizeConfig,
    issue: Issue,
    bar: Progress,
    repo: Repo = ".",
    model: Annotated[
        str | None,
        option("--model", help="chat:MODEL@URL, hf:FOLDER, ...; without one a rule policy looks, which is not a model."),
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
        int,
        option(
            "--samples",
            min=1,
            max=9,
            help="Independent localizations; from 2 on they bear on the confidence, which the rules have from then on.",
        ),
    ] = 1,
) -> CaseFile:
    """Look for the place of a bug: locations, each with root cause, solution idea,
    dependencies and tests. Nothing is run or changed."""
    text = _asked(issue)
    snapshot, caveats = _opened(repo)
    found = None
    if model is not None:
        from ramify.engine.named import find_model

        found = find_model(model)
    agent, template = found or (None, None)
    localizer = Localizer(agent, template, options, samples)
    name = issue_id or ("issue" if issue == "-" else Path(issue).stem)
    settings = options.model_dump(mode="json") | {"model": model or "", "samples": samples}
    bar.begin(samples * (options.turns + 1))
    with record.begin(out, settings) as stored:
        made = record.looked(stored, localizer, snapshot, text, name, settings, bar.at)
    if case is not None:
        whole = json.dumps(made.to_json(), indent=2, ensure_ascii=False) + "\n"
        write_whole(case, to_markdown(made.sections()) if case.suffix == ".md" else whole)
    return replace(made, run=str(out), caveats=(*made.caveats, *caveats))


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
        return list(read_rows(path, CaseFile))
    return [codec.from_json(CaseFile, read_record(path, "the case file"), str(path))]


@app.verb("inject")
def inject_(
    case: Annotated[
        Path | None,
        argument(
            "CASE",
            help="A case file (JSON), or a run that `ramify diagnose run` made; without one it is printed how likely a finding "
            "must be right before telling it helps.",
        ),
    ] = None,
    agent: Annotated[
        str, option("--agent", help="weak, strong, or the solve rates told nothing, a right and a wrong finding: 0.6,0.8,0.3.")
    ] = "strong",
    every: Annotated[bool, option("--all", help="Tell every finding, however likely it is to be wrong.")] = False,
    fields: Annotated[str | None, option("--fields", help=f"Fields to tell, with commas; default: {','.join(FIELDS)}.")] = None,
    price: Annotated[float, option("--price", min=0, help="Solved issues that a saved token is worth.")] = 0.0,
    saved: Annotated[float, option("--saved", min=0, help="Tokens that a told finding saves.")] = 0.0,
) -> RepairPrompts | TellingThreshold:
    """The prompt for a repair agent: the issue, and the findings that are likely enough to help an agent of this strength."""
    gate = replace(_gate(agent), price=price, saved=saved)
    if case is None:
        only_for("inject without a case", all=every, fields=fields)
        return TellingThreshold(gate.agent, threshold(gate.agent, price, saved), price, saved)
    names = list(FIELDS) if fields is None else [name.strip() for name in fields.split(",") if name.strip()]
    prompts = [
        RepairPrompt(
            one.issue_id,
            injected(one, None if every else gate, names),
            sum(every or gate.injects(f.confidence or 0.0) for f in one.findings),
        )
        for one in _cases(case)
    ]
    return RepairPrompts(gate.threshold, tuple(prompts))


def _gate(agent: str) -> InjectionGate:
    if "," not in agent:
        return InjectionGate.default(agent)
    try:
        nothing, right, wrong = (float(one) for one in agent.split(","))
    except ValueError:
        raise UserError(f"--agent: three rates with commas are needed, such as 0.6,0.8,0.3, not '{agent}'") from None
    return replace(InjectionGate.default(), agent=SolveRates(nothing, right, wrong))


@dataclass(frozen=True)
class GoldIssue:
    """A row of a file of gold patches."""

    issue_id: str | None = None
    instance_id: str | None = None
    patch: str | None = None
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("'issue_id' must be text, and it is missing")
        if self.patch is None and not self.spans:
            raise ValueError("a 'patch' (text) or 'spans' ([[file, first, last], ...]) is needed")
        if any(not 1 <= first <= last for _, first, last in self.spans):
            raise ValueError("'spans' are [file, first, last] with 1 <= first <= last")

    @property
    def name(self) -> str:
        """Its id."""
        return self.issue_id or self.instance_id or ""

    @property
    def where(self) -> str | tuple[Span, ...]:
        """The patch, or without one the spans."""
        return self.spans if self.patch is None else self.patch


@app.verb("eval", keeps="log")
def eval_(
    log: Annotated[
        Path,
        argument(
            "LOG",
            help="With GOLD: case files, one a line, or a run that `ramify diagnose run` made. Alone: traces of an agent in any "
            "known format, or the folder of a run.",
        ),
    ],
    gold: Annotated[
        Path | None,
        argument(
            "GOLD", help="One issue a line: `issue_id` or `instance_id`, and `patch` (a diff) or `spans` ([file, first, last])."
        ),
    ] = None,
    form: Form = None,
) -> LocationScores | LookingCost:
    """How right case files are: files as sets, spans by containment, engagement, and a table by repository. Without GOLD, what an
    agent spends on finding the place: its actions by class, and the share of replies and tokens before its first edit."""
    if gold is None:
        return _cost(log, form)
    if form is not None:
        raise UserError("eval with GOLD takes no --from: it reads case files")
    return evaluate(_cases(log), {one.name: one.where for one in read_rows(gold, GoldIssue)})


def _cost(log: Path, form: str | None) -> LookingCost:
    with opened(log, form) as stored:
        rows = [row for view in views(stored, unjudged=True) if (row := cost_of(view)).replies]
    if not rows:
        raise UserError(f"{log} holds no reply of an agent")
    cost = LookingCost.of(rows)
    evidence = {name: value for name, value in cost.to_json().items() if name not in ("rows", "caveats")}
    share = cost.share_of_replies
    conclude(log, COST, [Finding("cost of localization", COST, cost.why, value=share, unit="share", evidence=evidence)])
    return cost


@app.verb()
def tools(
    repo: Repo = ".",
    schemas: Annotated[
        bool, option("--schemas", help="Print the tools as OpenAI's function schemas, and serve nothing.")
    ] = False,
    call: Annotated[
        str | None, option("--call", metavar="JSON", help='Make one call, such as {"name": "repo_tree", "arguments": {}}.')
    ] = None,
) -> ToolSchemas | CalledTool | None:
    """Serve the four tools over MCP (standard input and output), print their schemas, or make one call.
    They read; nothing is run or written."""
    if schemas:
        return ToolSchemas(SCHEMAS)
    held = RepoTools(Snapshot.open(repo))
    if call is None:
        from ramify.methods.diagnose.serve import serve

        serve(held)
        return None
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
    return CalledTool(result.text, result.digest)


@app.verb()
def mask(
    issue: Annotated[str, argument("ISSUE", help="Text of the issue; - reads standard input.")],
    repo: Annotated[
        str | None, option("--repo", metavar="DIR", help="Also mask the repository's name and those of its packages.")
    ] = None,
    name: Annotated[list[str] | None, option("--name", help="A further name to mask; may be repeated.")] = None,
) -> MaskedIssue:
    """The issue without paths and names that give the place away: does your localizer look, or remember?"""
    names = list(name or [])
    if repo is not None:
        snapshot = Snapshot.open(repo)
        names += [
            snapshot.name,
            *sorted({path.split("/")[0] for path in snapshot.paths if "/" in path} - {"src", "lib", "tests", "test"}),
        ]
    text, found = masked(_text(issue), names)
    return MaskedIssue(text, tuple(found))
