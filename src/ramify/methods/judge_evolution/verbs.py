"""The verbs of ``ramify judge-evolution``. Exit code 1 with ``--strict``: no challenger may take over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import EXIT_FAILED, UserError
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.kit import DryRun, Json, RunArgument, Verbs, argument, find_run, option
from ramify.methods.judge_evolution import ledger
from ramify.methods.judge_evolution.algorithm import PromotionConfig
from ramify.render.terminal import emit, progress, say, table
from ramify.score.anchor import read_anchor
from ramify.score.judge import Judge, find_judge
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.trace.sources import conclude, run_folder

app = Verbs(
    "judge-evolution", help="May I replace my judge, and which scores does that erase? Check, promote, score anew, evolve."
)

AnchorArgument = Annotated[
    Path,
    argument("ANCHOR", help="JSON lines of id, artefact and label; or a run whose attempts are labelled by one of its scorers."),
]
AnchorOption = Annotated[
    Path, option("--anchor", metavar="ANCHOR", help="JSON lines of id, artefact and label, or a run; see `check`.")
]
Challengers = Annotated[
    list[str],
    option(
        "--judge",
        metavar="JUDGE",
        help="A challenger: any judge by name (judge:MODEL#PROMPT, cmd:check.sh, FILE.py:FUNCTION, ...); several share the "
        "level.",
    ),
]
Against = Annotated[str | None, option("--against", metavar="JUDGE", help="The incumbent, by name.")]
Truth = Annotated[
    str | None,
    option("--truth", metavar="SCORER", help="Of a run as anchor: whose scores are the labels; default: who decides there."),
]
Repeats = Annotated[int, option("--repeat", min=1, help="Ask so many times; the majority counts. For a judge that samples.")]
Slot = Annotated[str, argument("SLOT", help="Name under which judges follow each other; of stored scores the judge's name.")]
Strict = Annotated[bool, option("--strict", help="Exit code 1 where no challenger may take over.")]


def _find(spec: str, run: Run | None = None) -> Judge:
    """A judge by name; with a run ``stored:SCORER`` is what that scorer said of its attempts."""

    def stored(scorer: str) -> Judge:
        if run is None:
            raise UserError(f"stored:{scorer} names scores of a run, and the anchor is a file")
        return ledger.Stored(run, scorer)

    return find_judge(spec, question=ledger.QUESTION, kinds={"stored": stored})


@app.verb(settings=PromotionConfig)
def check(
    options: PromotionConfig,
    anchor: AnchorArgument,
    judge: Challengers,
    against: Against = None,
    truth: Truth = None,
    repeat: Repeats = 1,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """What a judge is worth on an anchor: accuracy by class, bias to length, place and maker; with --against: is it better?

    Every judge can be checked, of whatever method: those that are named, and by stored:SCORER those whose scores lie in a run.
    """
    items, spent = read_anchor(anchor, truth), Ledger()
    with ExitStack() as stack:
        folder = run_folder(anchor)
        run = None if folder is None else stack.enter_context(Run.open(folder))
        judges = [_find(spec, run) for spec in judge]
        incumbent = None if against is None else _find(against, run)
        with progress("check", as_json=as_json, kept="nothing was written"):
            found = wait_for(ledger.check(items, judges, incumbent, options, repeats=repeat, ledger=spent)).to_json()
    found["spent"] = spent.to_json()["spent"]
    if why := conclude(anchor, ledger.CHECK, _findings(found)):
        say(f"warning: {why}")
    emit(found, as_json, _text(found))
    if strict and not found.get("promote"):
        raise SystemExit(EXIT_FAILED)


def _findings(found: dict[str, Any]) -> list[Finding]:
    """What a check found, for the run that is its anchor."""
    made = []
    for one in found["challengers"]:
        if one["accuracy"]:
            why = (
                f"'{one['judge']}' is right on {one['accuracy']['k']} of {one['accuracy']['n']} items, {one['missing']} are "
                "missing"
            )
            made.append(Finding("judge checked", ledger.CHECK, why, value=one["accuracy"]["value"], unit="share", evidence=one))
    if "why" in found:
        made.append(
            Finding(
                "may it take over",
                ledger.CHECK,
                found["why"],
                value=float(found["promote"]),
                unit="yes or no",
                evidence=found["comparison"],
            )
        )
    return made


@app.verb(settings=PromotionConfig)
def promote(
    options: PromotionConfig,
    run: RunArgument,
    slot: Slot,
    judge: Challengers,
    anchor: AnchorOption,
    against: Against = None,
    truth: Truth = None,
    repeat: Repeats = 1,
    dry_run: Annotated[
        bool,
        option("--dry-run", help="Say whether, and what would be erased; the judge stays. The look at the anchor is counted."),
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Replace the judge of a slot of a run where the anchor says that another is better.
    Its scores stop counting; none is deleted.

    The incumbent is the judge that took the slot last, or --against.
    A slot without scores and without a judge is free for the first one.
    """
    items, spent = read_anchor(anchor, truth), Ledger()
    with Run.open(find_run(run), write=True) as opened:
        spec = against or ledger.incumbent_spec(opened, slot)
        scored = any(slot in judges for _, judges, *_ in opened.tallies())
        if not spec and (scored or slot in opened.incumbents()):
            raise UserError(
                f"slot '{slot}' of {opened.folder} has a judge: name it with --against, it is what challengers are compared with"
            )
        incumbent = _find(spec, opened) if spec else None
        challengers = {one: _find(one, opened) for one in judge}
        holder = opened.incumbents().get(slot, "" if incumbent is None else incumbent.identity)
        if all(one.identity == holder for one in challengers.values()):
            raise UserError(f"'{judge[0]}' is the judge of slot '{slot}' already: nothing has changed in it")
        with progress("promote", as_json=as_json, kept="the judge is as it was"):
            found = wait_for(ledger.promote(opened, slot, challengers, items, incumbent, options, dry_run, repeat, spent))
        warned = _kin(opened, judge)
    found["spent"], found["warnings"] = spent.to_json()["spent"], warned
    for one in warned:
        say(f"warning: {one}")
    emit(found, as_json, _text(found))
    if strict and not found["promote"]:
        raise SystemExit(EXIT_FAILED)


def _kin(run: Run, specs: list[str]) -> list[str]:
    from ramify.trace.node import Provenance

    authors = sorted({one.model for one in run.each(Provenance)})
    return [sentence for spec in specs if (sentence := ledger.judges_itself(spec, authors))]


@app.verb()
def show(run: RunArgument, as_json: Json = False) -> None:
    """The slots of a run: who judges, how many scores count and how many do not,
    how often an anchor was looked at; of a search its endpoint."""
    with Run.open(find_run(run)) as opened:
        found = ledger.board(opened)
        ends = [one for one in opened.findings() if one.maker.startswith("judge-evolution")]
        found["findings"] = [{"name": one.name, "why": one.why, "node": one.node} for one in ends]
    rows = [
        [
            slot,
            judge[:12],
            "incumbent" if judge == row.get("incumbent") else "" if "incumbent" not in row else "replaced",
            own["scores"],
            own["missing"],
            own["mean"],
            ", ".join(own["scorers"]),
        ]
        for slot, row in found["slots"].items()
        for judge, own in row["judges"].items()
    ]
    text = table(["slot", "judge", "", "scores", "missing", "mean", "scorer"], rows) if rows else "no score depends on a judge"
    sums = [
        f"{slot}: {row['counting']} scores count, {row['erased']} do not, epoch {row['epoch']}"
        for slot, row in found["slots"].items()
    ]
    text += "\n\n" + "\n".join(
        [*sums, f"{found['independent']} scores depend on no judge", f"{len(found['looks'])} looks at anchors"]
    )
    text += "".join(f"\n{one['name']}: {one['why']}" for one in found["findings"])
    emit(found, as_json, text)


@app.verb()
def erase(
    run: RunArgument,
    slot: Annotated[str, option("--slot", help="The slot whose scores shall no longer count.")],
    judge: Annotated[
        str,
        option(
            "--to",
            metavar="HASH",
            help="The judge whose scores shall count instead, by its hash (see `show`); default: nobody's.",
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let the scores of a slot count no longer, or only those of one judge, without an anchor.
    Nothing is deleted: --to brings a judge back."""
    with Run.open(find_run(run), write=not dry_run) as opened:
        slots = ledger.board(opened)["slots"]
        if slot not in slots:
            from ramify.base.errors import nearest

            raise UserError(f"{opened.folder} has no score that depends on slot '{slot}' ({nearest(slot, slots)})")
        known = [one for one in slots[slot]["judges"] if judge and one.startswith(judge)]
        if judge and len(known) != 1:
            raise UserError(
                f"slot '{slot}' of {opened.folder} has {len(known)} judges whose hash begins with '{judge}': `show` lists them"
            )
        chosen = known[0] if known else ""
        stake = ledger.at_stake(opened, slot, chosen)
        if not dry_run:
            opened.replace_judge(slot, chosen, {"spec": "", "why": "erased by hand"})
    would = "would stop counting" if dry_run else "no longer count"
    emit(
        {"slot": slot, "judge": chosen, "dry_run": dry_run, **stake},
        as_json,
        f"{stake['erased']} scores {would}, {stake['restored']} count again",
    )


@app.verb()
def rescore(
    run: RunArgument,
    slot: Slot,
    judge: Annotated[
        str | None,
        option("--judge", metavar="JUDGE", help="The slot's judge by name; default: as it was named when it took over."),
    ] = None,
    limit: Annotated[
        int | None, option(min=1, metavar="N", help="Score at most N, and leave the rest for later; default: all.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Score anew what a slot's earlier judges scored; in a slot without scores every attempt of the run. The same command
    continues."""
    spent = Ledger()
    with Run.open(find_run(run), write=not dry_run) as opened:
        spec = judge or ledger.incumbent_spec(opened, slot)
        if not spec:
            raise UserError(f"slot '{slot}' of {opened.folder} has no judge that is known by name: name it with --judge")
        made = _find(spec, opened)
        ledger.known_incumbent(opened, slot, made)
        if dry_run:
            found: dict[str, Any] = {
                "slot": slot,
                "judge": made.name,
                "scores": sum(slot in one.judges for one in opened.scores(counting=False)),
            }
            emit(
                found,
                as_json,
                f"{found['scores']} scores of slot '{slot}' do not count: '{made.name}' would be asked for as many at most",
            )
            return
        if slot not in opened.incumbents():
            opened.replace_judge(slot, made.identity, {"spec": spec, "name": made.name})
        with progress(
            "rescore", 0, "scores", as_json, kept=f"what was scored is kept in {opened.folder}: the same command continues"
        ) as bar:
            found = wait_for(ledger.rescore(opened, slot, made, limit, spent, progress=bar.at))
    found |= {"slot": slot, "judge": made.name, "spent": spent.to_json()["spent"]}
    emit(
        found,
        as_json,
        f"{found['scored']} scored anew by '{made.name}', {found['missing']} missing, {found['kept']} were there, "
        f"{found['left']} left",
    )


@app.verb()
def evolve(
    case: Annotated[Path, argument("CASE", help="Folder with evolve.toml, the workspace, tasks and anchors.")],
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    budget: Annotated[int | None, option(min=1, help="Outcomes to spend; a larger one continues a search that is done.")] = None,
    seed: Annotated[int | None, option(min=0, help="Decides every sample.")] = None,
    allow_unsandboxed: Annotated[
        bool, option("--allow-unsandboxed", help="Run programs with limits only where nothing isolates.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Improve a workspace and the judge in it together: Thompson sampling over an archive,
    judges replaced at checkpoints by the anchor.

    The same command continues an interrupted search. Programs run in the sandbox;
    an anchor's item in a workspace or a prompt ends it.
    """
    from ramify.methods.judge_evolution import evolution

    given = {name: str(value) for name, value in (("budget", budget), ("seed", seed)) if value is not None}
    made = evolution.EvolutionCase(case, given)
    for warning in evolution.warnings(made):
        say(f"warning: {warning}")
    if dry_run:
        cost = evolution.plan(made)
        emit({"config": made.config.to_json(), "plan": cost}, as_json, table(["at most", ""], list(cost.items())))
        return
    with progress(
        "evolve", made.config.budget, "outcomes", as_json, kept=f"every outcome is kept in {out}: the same command continues"
    ) as bar:
        found = evolution.evolve(made, out, bar, allow_unsandboxed)
    rows = [
        [name, one["workspace"], f"{one['successes']} of {one['n']}", one["found by"]]
        for name, one in [("generalist", found["generalist"]), *found["specialists"].items()]
    ]
    text = table(["endpoint", "workspace", "successes that count", "found by"], rows)
    text += (
        f"\n\n{found['outcomes']} outcomes, {found['counting']} count, {found['erased']} erased, {found['missing']} missing; "
        f"{found['workspaces']} workspaces, {found['dropped']} proposals dropped; {found['looks']} looks at anchors"
    )
    text += "".join(
        f"\nafter {one['outcomes']} outcomes '{one['slot']}' became that of workspace {one['workspace']}: {one['why']}"
        for one in found["replaced"]
    )
    emit(found, as_json, text)


@app.verb()
def export(
    run: RunArgument,
    out: Annotated[
        Path, option("--out", metavar="DIR", help="Git repository to make: a commit a workspace, tags for the endpoints.")
    ],
    as_json: Json = False,
) -> None:
    """Write the workspaces of a search as git commits, parents as they were; `main` is the generalist."""
    from ramify.methods.judge_evolution import evolution, workspace

    with Run.open(find_run(run)) as opened:
        nodes, names = evolution.archive_of(opened)
    workspace.write_git(out, nodes, names)
    emit(
        {"out": str(out), "commits": len(nodes), "tags": names},
        as_json,
        f"{len(nodes)} workspaces in {out}: " + ", ".join(f"{name} is node-{number:04d}" for name, number in names.items()),
    )


def _text(found: dict[str, Any]) -> str:
    """Tables of a check, and what it comes to."""
    sides = [*([found["incumbent"]] if found["incumbent"] else []), *found["challengers"]]
    columns = [
        "judge",
        "right",
        "accuracy",
        "95 % interval",
        "says yes to yes",
        "says no to no",
        "missing",
        "longer accepted",
        "p",
        "machine / human",
    ]
    text = table(columns, [_row(one) for one in sides])
    pairs = [
        [
            one["judge"],
            _rate(one["position"]["consistent"]),
            one["position"]["first"],
            one["position"]["second"],
            one["position"]["p"],
        ]
        for one in sides
        if one["position"]
    ]
    text += "\n\n" + table(["judge", "same in both orders", "first twice", "second twice", "p"], pairs) if pairs else ""
    if "comparison" in found:
        rows = [
            [
                one["judge"],
                row["better"],
                row["worse"],
                row["difference"],
                _ends(row["interval"]),
                row["p"],
                row["level"],
                row["belief"],
            ]
            for one, row in zip(found["challengers"], found["comparison"], strict=True)
        ]
        text += "\n\n" + table(
            ["challenger", "alone right", "alone wrong", "difference", "95 % interval", "p", "level", "best belief"], rows
        )
    if "stake" in found:
        verb = "stopped counting" if found["promoted"] else "would stop counting"
        text += (
            f"\n\n{found['stake']['erased']} scores of slot '{found['slot']}' {verb}, {found['stake']['restored']} "
            f"{'count' if found['promoted'] else 'would count'} again; look {found['look']} at this anchor"
        )
    if "why" in found:
        text += (
            f"\n\n{'promoted' if found.get('promoted') else 'may take over' if found['promote'] else 'the incumbent stays'}: "
            f"{found['why']}"
        )
    return text


def _row(one: dict[str, Any]) -> list[Any]:
    accuracy, length, ratio = one["accuracy"], one["length"], one["parity"]
    share: Callable[[Any], Any] = lambda side: None if side is None else side["value"]  # noqa: E731
    return [
        one["judge"],
        f"{accuracy['k']} of {accuracy['n']}" if accuracy else "-",
        share(accuracy),
        _ends(accuracy["interval"] if accuracy else None),
        share(one["sensitivity"]),
        share(one["specificity"]),
        one["missing"],
        None if length is None else length["value"],
        None if length is None else length["p"],
        None if ratio is None else ratio["ratio"],
    ]


def _rate(one: dict[str, Any] | None) -> str:
    return "-" if one is None else f"{one['k']} of {one['n']}"


def _ends(ends: Any) -> str:
    return "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
