"""The verbs of ``ramify governance``. Exit code 1: a control is not clean,
or a pinned episode broke its rule; nothing is shown then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.engine.named import find_model
from ramify.kit import ForkEnv, ForkModel, Form, Trust, Verbs, argument, check_forks, only_for, option
from ramify.methods.governance import lost_rules
from ramify.methods.governance.algorithm import RATE, BenchReport, RuleMixture, mixture
from ramify.methods.governance.attack import RuleAttack, search, share_cells
from ramify.methods.governance.obeyed import RuleJudges
from ramify.methods.governance.record import read_rows
from ramify.methods.governance.run import Bench, BenchConfig, NamedModel, report
from ramify.methods.governance.standing_rules import reader, scenarios
from ramify.methods.governance.written_rules import read_rules
from ramify.render.result import Result, Section, table, to_document
from ramify.render.terminal import progress
from ramify.rollout.commands import commands_at
from ramify.stats.intervals import Proportion
from ramify.trace.sources import conclude

app = Verbs(
    "governance",
    help="Measure which rules compaction drops, what agents do then, and keep the rules.",
)
Agents = Annotated[
    list[str] | None,
    option("--agent", help="chat:MODEL@URL, hf:FOLDER, ...; several make a crossing. Without one: a made-up reader."),
]
Summarizers = Annotated[list[str] | None, option("--summarizer", help="As --agent; by default each agent summarises for itself.")]
Rows = Annotated[
    Path, option("--out", metavar="RUN", help="Run to make or to continue; episodes that are there are not played again.")
]
RowsArgument = Annotated[list[Path], argument(metavar="RUN...", help="Runs that `ramify governance bench` made.")]
Written = Annotated[Path | None, option("--out", help="Also write the report, as Markdown.")]
Budget = Annotated[int, option(help="Most episodes, those of the report included.")]


def _players(names: list[str] | None) -> list[NamedModel]:
    return [NamedModel(name, *find_model(name)) for name in names or []]


def _bench(config: BenchConfig, agents: list[str] | None, summarizers: list[str] | None, out: Path) -> Bench:
    config.check()  # before the capabilities of an agent on an endpoint are probed
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    return Bench(config, _players(agents) or [NamedModel("reader", reader())], _players(summarizers), out)


def _bench_plan(config: BenchConfig, out: Path, agent: list[str] | None, summarizer: list[str] | None) -> dict[str, int]:
    cells = _bench(config, agent, summarizer, out).cells()
    return {"episodes": len(cells), "agent_calls": len(cells), "compactions": sum(cell.rounds for cell in cells)}


@app.study(settings=BenchConfig, plan=_bench_plan, unit="episodes")
def bench(options: BenchConfig, out: Rows, bar: Progress, agent: Agents = None, summarizer: Summarizers = None) -> BenchReport:
    """Play the grid: what agents do with a rule, without it, after a compaction, under attack, and with the rule pinned."""
    made = _bench(options, agent, summarizer, out)
    cells = made.cells()
    bar.begin(len(cells))
    return report(wait_for(made.run(cells, bar.at)))


@app.verb("report")
def report_(rows: RowsArgument, out: Written = None) -> BenchReport:
    """The tables of one or several benchmarks, from their rows."""
    found = report(row for path in rows for row in read_rows(path))
    if out is not None:
        write_whole(out, to_document("Rules under compaction", found))
    return found


@app.study(settings=BenchConfig, plan=lambda options, budget: {"episodes": budget}, unit="episodes")
def attack(
    options: BenchConfig,
    out: Rows,
    bar: Progress,
    budget: Budget = 400,
    holdout: Annotated[float, option(help="Share of the tasks that is kept for the report.")] = 0.5,
    agent: Agents = None,
    summarizer: Summarizers = None,
) -> RuleAttack:
    """Search for the document that talks your rules out of a summary; select on some tasks, report on the others."""
    return wait_for(search(_bench(options, agent, summarizer, out), budget, holdout, bar))


@app.verb(keeps="log")
def audit(
    log: Annotated[
        list[Path],
        argument(
            metavar="LOG...",
            help="Sessions of Claude Code or Codex, logged calls or conversations of any known format, folders of these, or the "
            "folder of a run.",
        ),
    ],
    rules: Annotated[
        Path | None,
        option(
            "--rules",
            metavar="FILE",
            help="One rule a line, .toml/.json with text and predicate, or Markdown (CLAUDE.md, AGENTS.md); default: what the "
            "sessions show of CLAUDE.md and AGENTS.md.",
        ),
    ] = None,
    form: Form = None,
    out: Written = None,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where a rule was lost.")] = False,
    judge: Annotated[
        list[str] | None,
        option(
            "--judge",
            metavar="MODEL",
            help="Models that judge what no predicate decides: chat:MODEL@URL; whether a rule is still there in other words, and "
            "whether replies break it.",
        ),
    ] = None,
    judged: Annotated[
        int | None, option("--judged", metavar="N", min=1, help="Replies judged of each rule before and after; default: 20.")
    ] = None,
    fork: Annotated[
        int | None,
        option(
            metavar="N",
            min=1,
            help="Play on N times from before each forbidden call as it was and N times with the rule restored: is it kept then?",
        ),
    ] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    trust: Trust = False,
) -> lost_rules.RuleAudit:
    """Which of your rules did compaction drop in your own logs, when, and what was done against them, before and after?

    With --fork each forbidden call of a run is put to the test; the same command again loads what was played.
    """
    check_forks(fork, model, env, trust)
    if not judge:
        only_for("an audit without --judge", judged=judged)
    judges = RuleJudges.of(judge, judged or 20, find_model) if judge else None
    found = lost_rules.audit(log, None if rules is None else read_rules(rules), form, judges)
    run, known = log[0], found.known
    made = lost_rules.findings(found, commands_at(run))
    why = conclude(run, lost_rules.AUDIT, made)
    if fork is not None:
        from ramify.methods.governance import restored

        with progress("audit", kept="the continuations played so far stay in the run: the same command continues") as bar:
            whole = lambda total: bar.begin(total, unit="continuations")  # noqa: E731
            forks = restored.restored(run, found, known, fork, model, env, trust, whole, bar.at)
        found = replace(found, forks=forks, verdict=f"{found.verdict}; {forks.verdict}")
        why = conclude(run, lost_rules.AUDIT, [*made, *restored.findings(forks)])
    found = replace(found, strict=strict, caveats=(*found.caveats, *([why] if why else [])))
    if out is not None:
        write_whole(out, to_document("Rules in logged conversations", found))
    return found


@dataclass(frozen=True)
class JudgedSurvival(Result):
    """What a jury of models says of what survived compaction, beside the keyword test."""

    episodes: int
    constant: tuple[str, ...]
    """Judges that always say the same."""
    agreement: Mapping[str, Proportion | None]
    """Of each pair of judges, and of the majority and the keyword test."""
    keywords: RuleMixture | None
    majority: RuleMixture | None
    """Violations by whether the rule survived, as the majority has it."""
    votes: Mapping[str, tuple[Any, ...]]
    judges: Mapping[str, str]
    """Judge -> its identity."""
    spent: Mapping[str, Mapping[str, float]]

    def sections(self) -> Iterable[Section]:
        """Agreement, and violations by either measure."""
        measures = {"keywords": self.keywords, "majority": self.majority}
        sides = [
            (name, side, *rate.cells)
            for name, mixed in measures.items()
            if mixed is not None
            for side, rate in (("survived", mixed.survived), ("dropped", mixed.dropped))
        ]
        agreed = [(name, *share_cells(share)) for name, share in self.agreement.items()]
        yield Section.of(
            "",
            table(("agreement of", "k", "n", "share", "95 % interval"), agreed),
            table(("survival by", "rule", *RATE), sides),
        )


@app.verb(keeps="rows")
def judge(
    rows: Annotated[Path, argument(metavar="RUN", help="A run that `ramify governance bench` made.")],
    model: Annotated[
        list[str],
        option("--judge", help="As --agent; three of different families make a jury. Or any other judge by name."),
    ],
) -> JudgedSurvival:
    """Have models judge what survived compaction, in addition to the keyword test:
    majority, agreement, judges that never vary."""
    from ramify.methods.governance.judges import find_survival_jury
    from ramify.score.judge import Item, agreement, judged

    found = [row for row in read_rows(rows) if row.condition == "compaction" and row.request == "trigger" and row.context]
    if not found:
        raise UserError(f"{rows} holds no compacted episode to judge")
    policies = {(s.id, s.language): s.policy for s in scenarios(languages=("en", "zh", "es"))}
    items, spent = [Item(row.context, row.task, policies[row.task, row.language]) for row in found], Ledger()
    with progress("judge", kept="nothing was written"):  # a server is asked what it takes when its judge is found
        jury = find_survival_jury(model, find_model)
        judgements = wait_for(judged(jury, items, spent))
    votes = {name: tuple(one.evidence["votes"][i] for one in judgements) for i, name in enumerate(jury.names)}
    majority = [one.value for one in judgements]
    by_judges = [
        replace(row, survived=bool(kept), survival="judged")
        for row, kept in zip(found, majority, strict=True)
        if kept is not None
    ]
    return JudgedSurvival(
        caveats=tuple(f"'{name}' always says the same: it is left out of the majority" for name in jury.constant),
        episodes=len(found),
        constant=tuple(jury.constant),
        agreement=agreement(votes) | agreement({"majority": majority, "keywords": [row.survived for row in found]}),
        keywords=mixture(found),
        majority=mixture(by_judges),
        votes=votes,
        judges={name: one.identity for name, one in zip(jury.names, jury.judges, strict=True)},
        spent=spent.spent,
    )
