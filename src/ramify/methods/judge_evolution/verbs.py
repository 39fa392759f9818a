"""The verbs of ``ramify judge-evolution``. Exit code 1 with ``--strict``: no challenger may take over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.base.ledger import Ledger
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.kit import RunArgument, Verbs, argument, find_run, only_for, option
from ramify.methods.judge_evolution import evolution, ledger, workspace
from ramify.methods.judge_evolution.algorithm import PromotionConfig
from ramify.render.result import Planned, Result, Section
from ramify.render.terminal import progress
from ramify.score.anchor import read_anchor
from ramify.score.judge import Judge, find_judge
from ramify.trace.db import Run
from ramify.trace.node import Finding, Provenance
from ramify.trace.sources import conclude, run_folder

app = Verbs(
    "judge-evolution", help="May I replace my judge, and which scores does that erase? Check, promote, score anew, evolve."
)

AnchorArgument = Annotated[
    Path,
    argument("ANCHOR", help="JSON lines of id, artefact and label; or a run whose attempts are labelled by one of its scorers."),
]
NOBODY = "nobody"
CHALLENGER = option(
    "--judge",
    metavar="JUDGE",
    help="A challenger: any judge by name (judge:MODEL#PROMPT, cmd:check.sh, FILE.py:FUNCTION, ...); several share the level.",
)
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

    return find_judge(spec, kinds={"stored": stored})


@app.verb(settings=PromotionConfig, keeps="anchor")
def check(
    options: PromotionConfig,
    anchor: AnchorArgument,
    judge: Annotated[list[str], CHALLENGER],
    against: Against = None,
    truth: Truth = None,
    repeat: Repeats = 1,
    strict: Strict = False,
) -> ledger.JudgeCheck:
    """What a judge is worth on an anchor: accuracy by class, bias to length, place and maker; with --against: is it better?

    Every judge can be checked, of whatever method: those that are named, and by stored:SCORER those whose scores lie in a run.
    """
    items, spent = read_anchor(anchor, truth), Ledger()
    with ExitStack() as stack:
        folder = run_folder(anchor)
        run = None if folder is None else stack.enter_context(Run.open(folder))
        with progress("check", kept="nothing was written"):  # a server is asked what it takes when its judge is found
            judges = [_find(spec, run) for spec in judge]
            incumbent = None if against is None else _find(against, run)
            found = wait_for(ledger.check(items, judges, incumbent, options, repeats=repeat, ledger=spent))
    why = conclude(anchor, ledger.CHECK, _findings(found))
    return replace(found, strict=strict, caveats=(why,) if why else ())


def _findings(found: ledger.JudgeCheck) -> list[Finding]:
    """What a check found, for the run that is its anchor."""
    made = [
        Finding(
            "judge checked",
            ledger.CHECK,
            f"'{one.judge}' is right on {one.accuracy} items, {one.missing} are missing",
            value=one.accuracy.value,
            unit="share",
            evidence=codec.to_json(one),
        )
        for one in found.challengers
        if one.accuracy
    ]
    if found.promote is not None:
        may, rows = float(found.promote), codec.to_json(found.comparison)
        made.append(Finding("may it take over", ledger.CHECK, found.why, value=may, unit="yes or no", evidence=rows))
    return made


@dataclass(frozen=True)
class Erasure(Result):
    """Scores of a slot that count no longer, or count again."""

    PART = "to"
    slot: str
    judge: str
    dry_run: bool
    erased: int
    restored: int

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        would = "would stop counting" if self.dry_run else "no longer count"
        yield Section.of("", f"{self.erased} scores {would}, {self.restored} count again")


@app.verb(settings=PromotionConfig, keeps="run")
def promote(
    options: PromotionConfig,
    run: RunArgument,
    slot: Slot,
    judge: Annotated[list[str] | None, CHALLENGER] = None,
    anchor: Annotated[
        Path | None, option("--anchor", metavar="ANCHOR", help="JSON lines of id, artefact and label, or a run; see `check`.")
    ] = None,
    against: Against = None,
    truth: Truth = None,
    repeat: Repeats = 1,
    to: Annotated[
        str | None,
        option(
            "--to",
            metavar="HASH",
            help="Without an anchor: the judge whose scores shall count, by its hash (see `show`), or nobody.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        option("--dry-run", help="Say whether, and what would be erased; the judge stays. The look at the anchor is counted."),
    ] = False,
    strict: Strict = False,
) -> ledger.Promotion | Erasure:
    """Replace the judge of a slot of a run where the anchor says that another is better.
    Its scores stop counting; none is deleted.

    The incumbent is the judge that took the slot last, or --against.
    A slot without scores and without a judge is free for the first one. --to decides without an anchor, and brings a judge back.
    """
    if to is not None:
        only_for("--to", judge=judge, anchor=anchor, against=against, truth=truth, repeat=repeat > 1, strict=strict)
        only_for("--to", **dict.fromkeys(options.model_fields_set, True))
        return _erase(run, slot, "" if to == NOBODY else to, dry_run)
    if not judge or anchor is None:
        raise UserError("a challenger is named by --judge and put to an --anchor; --to HASH decides without them")
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
        with progress("promote", kept="the judge is as it was"):
            found = wait_for(ledger.promote(opened, slot, challengers, items, incumbent, options, dry_run, repeat, spent))
        return replace(found, strict=strict, caveats=_kin(opened, judge))


def _erase(run: str, slot: str, judge: str, dry_run: bool) -> Erasure:
    """Let only the scores of ``judge`` (the beginning of its hash) count in a slot; of none for ""."""
    with Run.open(find_run(run), write=not dry_run) as opened:
        slots = ledger.board(opened).slots
        if slot not in slots:
            raise UserError(f"{opened.folder} has no score that depends on slot '{slot}' ({nearest(slot, slots)})")
        known = [one for one in slots[slot].judges if judge and one.startswith(judge)]
        if judge and len(known) != 1:
            raise UserError(
                f"slot '{slot}' of {opened.folder} has {len(known)} judges whose hash begins with '{judge}': `show` lists them"
            )
        chosen = known[0] if known else ""
        stake = ledger.at_stake(opened, slot, chosen)
        if not dry_run:
            opened.replace_judge(slot, chosen, {"spec": "", "why": "erased by hand"})
    return Erasure(slot, chosen, dry_run, stake.erased, stake.restored)


def _kin(run: Run, specs: list[str]) -> tuple[str, ...]:
    authors = sorted({one.model for one in run.each(Provenance)})
    return tuple(sentence for spec in specs if (sentence := ledger.judges_itself(spec, authors)))


@dataclass(frozen=True)
class WorkspaceCommits(Result):
    """The workspaces of a search as git commits."""

    KEPT = False
    out: str
    commits: int
    tags: Mapping[str, int]
    """The number of each endpoint's workspace."""

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        named = ", ".join(f"{name} is node-{number:04d}" for name, number in self.tags.items())
        yield Section.of("", f"{self.commits} workspaces in {self.out}: {named}")


@app.verb(keeps="run")
def show(
    run: RunArgument,
    git: Annotated[
        Path | None,
        option(
            "--git",
            metavar="DIR",
            help="Of a search: the git repository to make of its workspaces, a commit each, parents as they were, tags for the "
            "endpoints; `main` is the generalist.",
        ),
    ] = None,
) -> ledger.JudgeBoard | WorkspaceCommits:
    """The slots of a run: who judges, how many scores count and how many do not,
    how often an anchor was looked at; of a search its endpoint, and with --git its workspaces."""
    with Run.open(find_run(run)) as opened:
        if git is None:
            return ledger.board(opened)
        nodes, names = evolution.archive_of(opened)
    workspace.write_git(git, nodes, names)
    return WorkspaceCommits(str(git), len(nodes), names)


def _slot_judge(run: Run, slot: str, judge: str | None) -> tuple[str, Judge]:
    """The judge of a slot as it is named, and itself."""
    spec = judge or ledger.incumbent_spec(run, slot)
    if not spec:
        raise UserError(f"slot '{slot}' of {run.folder} has no judge that is known by name: name it with --judge")
    made = _find(spec, run)
    ledger.known_incumbent(run, slot, made)
    return spec, made


def _rescore_plan(run: str, slot: str, judge: str | None) -> Planned:
    with Run.open(find_run(run)) as opened:
        made = _slot_judge(opened, slot, judge)[1]
        scores = sum(slot in one.judges for one in opened.scores(counting=False))
    return Planned({"slot": slot, "judge": made.name}, {"scores": scores})


@app.study(plan=_rescore_plan, unit="scores", run="run")
def rescore(
    run: RunArgument,
    slot: Slot,
    bar: Progress,
    judge: Annotated[
        str | None,
        option("--judge", metavar="JUDGE", help="The slot's judge by name; default: as it was named when it took over."),
    ] = None,
    limit: Annotated[
        int | None, option(min=1, metavar="N", help="Score at most N, and leave the rest for later; default: all.")
    ] = None,
) -> ledger.Rescored:
    """Score anew what a slot's earlier judges scored; in a slot without scores every attempt of the run."""
    with Run.open(find_run(run), write=True) as opened:
        spec, made = _slot_judge(opened, slot, judge)
        if slot not in opened.incumbents():
            opened.replace_judge(slot, made.identity, {"spec": spec, "name": made.name})
        return wait_for(ledger.rescore(opened, slot, made, limit, Ledger(), progress=bar))


def _case(case: Path, budget: int | None, seed: int | None) -> evolution.EvolutionCase:
    given = (("budget", budget), ("seed", seed))
    return evolution.EvolutionCase(case, {name: str(value) for name, value in given if value is not None})


def _evolve_plan(case: Path, budget: int | None, seed: int | None) -> Planned:
    made = _case(case, budget, seed)
    return Planned(made.config.to_json(), evolution.plan(made), caveats=evolution.warnings(made))


@app.study(plan=_evolve_plan, unit="outcomes")
def evolve(
    case: Annotated[Path, argument("CASE", help="Folder with evolve.toml, the workspace, tasks and anchors.")],
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    bar: Progress,
    budget: Annotated[int | None, option(min=1, help="Outcomes to spend; a larger one continues a search that is done.")] = None,
    seed: Annotated[int | None, option(min=0, help="Decides every sample.")] = None,
    allow_unsandboxed: Annotated[
        bool, option("--allow-unsandboxed", help="Run programs with limits only where nothing isolates.")
    ] = False,
) -> evolution.EvolvedWorkspaces:
    """Improve a workspace and the judge in it together: Thompson sampling over an archive,
    judges replaced at checkpoints by the anchor.

    Programs run in the sandbox; an anchor's item in a workspace or a prompt ends it.
    """
    return evolution.evolve(_case(case, budget, seed), out, bar, allow_unsandboxed)
