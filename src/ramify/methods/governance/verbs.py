"""The verbs of ``ramify governance``. Exit code 1: a control is not clean,
or a pinned episode broke its rule; nothing is shown then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import EXIT_FAILED, UserError
from ramify.base.files import write_whole
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.engine.named import find_model
from ramify.kit import DryRun, ForkEnv, ForkModel, Form, Json, Trust, Verbs, argument, check_forks, option
from ramify.methods.governance import lost_rules
from ramify.methods.governance.algorithm import mixture
from ramify.methods.governance.record import read_rows
from ramify.methods.governance.run import Bench, BenchConfig, NamedModel, report
from ramify.methods.governance.standing_rules import reader, scenarios
from ramify.render.markdown import markdown
from ramify.render.terminal import emit, progress, say, table
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


def _players(names: list[str] | None) -> list[NamedModel]:
    return [NamedModel(name, *find_model(name)) for name in names or []]


def _kept(out: Path | None) -> str:
    return (
        "nothing is kept: name a run with --out" if out is None else f"the episodes are kept in {out}: the same command continues"
    )


def _bench(config: BenchConfig, agents: list[str] | None, summarizers: list[str] | None, out: Path | None) -> Bench:
    config.check()  # before the capabilities of an agent on an endpoint are probed
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    return Bench(config, _players(agents) or [NamedModel("reader", reader())], _players(summarizers), out)


@app.verb(settings=BenchConfig)
def bench(
    options: BenchConfig,
    out: Rows,
    agent: Agents = None,
    summarizer: Summarizers = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Play the grid: what agents do with a rule, without it, after a compaction, under attack, and with the rule pinned."""
    made = _bench(options, agent, summarizer, out)
    cells = made.cells()
    if dry_run:
        compactions = sum(cell.rounds for cell in cells)
        cost_estimate = {"episodes": len(cells), "agent_calls": len(cells), "compactions": compactions}
        emit(
            {"config": made.config.to_json(), "bill": cost_estimate},
            as_json,
            table(["cost estimate", ""], list(cost_estimate.items())),
        )
        return
    with progress("bench", len(cells), "episodes", as_json, kept=_kept(out)) as bar:
        rows = wait_for(made.run(cells, bar.at))
    _emit_report(report(rows), as_json, None)


@app.verb("report")
def report_(rows: RowsArgument, out: Written = None, as_json: Json = False) -> None:
    """The tables of one or several benchmarks, from their rows."""
    _emit_report(report(row for path in rows for row in read_rows(path)), as_json, out)


@app.verb(settings=BenchConfig)
def attack(
    options: BenchConfig,
    out: Rows,
    budget: Annotated[int, option(help="Most episodes, those of the report included.")] = 400,
    holdout: Annotated[float, option(help="Share of the tasks that is kept for the report.")] = 0.5,
    agent: Agents = None,
    summarizer: Summarizers = None,
    as_json: Json = False,
) -> None:
    """Search for the document that talks your rules out of a summary; select on some tasks, report on the others."""
    from ramify.methods.governance.attack import search

    made = _bench(options, agent, summarizer, out)
    with progress("attack", budget, "episodes", as_json, kept=_kept(out)) as bar:
        found = wait_for(search(made, budget, holdout, bar))
    shares = {"selected on (best of many: biased)": found["selected_on"]} | {
        f"held out: {k}": v for k, v in found["held_out"].items()
    }
    cells = [[name, *_share(share)] for name, share in shares.items()]
    low, high = found["gain"]
    text = table(["violations", "k", "n", "rate", "95 % interval"], cells)
    text += (
        f"\n\nbest: {found['best']}\nbest minus none, held out: [{low:+.3f}, {high:+.3f}]; "
        f"{plural(found['queries'], 'episode')}, all in {out}"
    )
    text += f"\n\n{found['verdict']}"
    emit(found, as_json, text)


@app.verb()
def audit(
    log: Annotated[
        Path, argument(metavar="LOG", help="Logged calls or conversations of any known format, or the folder of a run.")
    ],
    rules: Annotated[Path, option("--rules", help="One rule a line, or .toml/.json with text and predicate.")],
    form: Form = None,
    out: Written = None,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where a rule was lost.")] = False,
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
    as_json: Json = False,
) -> None:
    """Which of your rules did compaction drop in your own logs, when, and what was called afterwards?

    With --fork each forbidden call of a run is put to the test; the same command again loads what was played.
    """
    check_forks(fork, model, env, trust)
    known = lost_rules.read_rules(rules)
    found = lost_rules.audit(log, known, form)
    made = lost_rules.findings(found, log)
    why = conclude(log, lost_rules.AUDIT, made)
    lines = lost_rules.lines(found)
    if fork is not None:
        from ramify.methods.governance import restored

        kept = "the continuations played so far stay in the run: the same command continues"
        with progress("audit", as_json=as_json, kept=kept) as bar:
            whole = lambda total: bar.begin(total, unit="continuations")  # noqa: E731
            forks = restored.restored(log, found, known, fork, model, env, trust, whole, bar.at)
        found = found | {"forks": forks, "verdict": f"{found['verdict']}; {forks['verdict']}"}
        lines += restored.lines(forks)
        why = conclude(log, lost_rules.AUDIT, [*made, *restored.findings(forks)])
    if why:
        say(f"warning: {why}")
    columns = ["rule", "sessions", "times lost", "replies without it", "calls then", "of them forbidden"]
    head, rows = lost_rules.head(found), lost_rules.as_text(found)
    emit(found, as_json, "\n\n".join([head, table(columns, rows), *(["\n".join(lines)] if lines else []), found["verdict"]]))
    if out is not None:
        body = ["# Rules in logged conversations", f"{head}.", f"**{found['verdict']}**", "\n".join(markdown(columns, rows))]
        write_whole(out, "\n\n".join([*body, "\n".join(f"- {line.strip()}" for line in lines)]).rstrip("\n") + "\n")
    if strict and any(r["lost"] for r in found["rules"]):
        raise SystemExit(EXIT_FAILED)


@app.verb()
def judge(
    rows: Annotated[Path, argument(metavar="RUN", help="A run that `ramify governance bench` made.")],
    model: Annotated[
        list[str],
        option("--judge", help="As --agent; three of different families make a jury. Or any other judge by name."),
    ],
    as_json: Json = False,
) -> None:
    """Have models judge what survived compaction, in addition to the keyword test:
    majority, agreement, judges that never vary."""
    from ramify.methods.governance.judges import find_survival_jury
    from ramify.score.judge import Item, agreement, judged

    found = [
        row for row in read_rows(rows) if row["condition"] == "compaction" and row["request"] == "trigger" and row.get("context")
    ]
    if not found:
        raise UserError(f"{rows} holds no compacted episode to judge")
    policies = {(s.id, s.language): s.policy for s in scenarios(languages=("en", "zh", "es"))}
    jury, spent = find_survival_jury(model, find_model), Ledger()
    items = [Item(r["context"], r["task"], policies[r["task"], r["language"]]) for r in found]
    with progress("judge", as_json=as_json, kept="nothing was written"):
        judgements = wait_for(judged(jury, items, spent))
    votes = {name: [one.evidence["votes"][i] for one in judgements] for i, name in enumerate(jury.names)}
    majority = [one.value for one in judgements]
    by_judges = [
        {**row, "survived": kept, "survival": "judged"} for row, kept in zip(found, majority, strict=True) if kept is not None
    ]
    agreed = agreement(votes) | agreement({"majority": majority, "keywords": [row["survived"] for row in found]})
    result: dict[str, Any] = {
        "episodes": len(found),
        "constant": list(jury.constant),
        "agreement": agreed,
        "keywords": mixture(found),
        "majority": mixture(by_judges),
        "votes": votes,
        "judges": {name: one.identity for name, one in zip(jury.names, jury.judges, strict=True)},
        "spent": spent.to_json()["spent"],
    }
    cells = [[name, *_share(share)] for name, share in agreed.items()]
    sides = [
        [name, side, *_share(m[side])]
        for name in ("keywords", "majority")
        if (m := result[name])
        for side in ("survived", "dropped")
    ]
    text = table(["agreement of", "k", "n", "share", "95 % interval"], cells)
    text += "\n\n" + table(["survival by", "rule", "k", "n", "violation", "95 % interval"], sides)
    text += "".join(f"\n'{name}' always says the same: it is left out of the majority" for name in jury.constant)
    emit(result, as_json, text)


def _share(share: Any) -> list[Any]:
    if share is None or share["n"] == 0:
        return [0, 0, None, "-"]
    rate = share["value"] if "value" in share else share["rate"]
    return [share["k"], share["n"], rate, "[{:.3f}, {:.3f}]".format(*share["interval"])]


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else "[{:+.3f}, {:+.3f}]".format(*ends)


def _tables(found: dict[str, Any]) -> list[tuple[list[str], list[list[Any]]]]:
    """Titles and rows of every table of a report."""
    made = [
        (
            ["condition", "k", "n", "violation", "95 % interval", "left out"],
            [[r["condition"], *_share(r), _left_out(r["left_out"])] for r in found["rates"]],
        )
    ]
    for name, rates in found["sweeps"].items():
        made.append(
            (["condition", name, "k", "n", "violation", "95 % interval"], [[r["condition"], r[name], *_share(r)] for r in rates])
        )
    if found["differences"]:
        rows = [[d["condition"], d["against"], d["difference"], d["p"], d["corrected"]] for d in found["differences"]]
        made.append((["violation under", "against", "difference", "p", "corrected"], rows))
    rows = [
        [
            next(str(v) for k, v in r.items() if k in ("group", "kind", "task")),
            r["decay"],
            *(_interval(r[n]) for n in ("interval", "by_task")),
        ]
        for r in found["decay"]
    ]
    if rows:
        made.append((["compaction - control", "decay", "95 % interval", "over tasks"], rows))
    if found["mixture"]:
        m = found["mixture"]
        made.append(
            (
                ["rule after compaction", "k", "n", "violation", "95 % interval"],
                [[side, *_share(m[side])] for side in ("survived", "dropped")],
            )
        )
    if found["restored"]:
        made.append(
            (
                ["same summary, rule removed - restored", "difference", "95 % interval"],
                [["all", r["decay"], _interval(r["interval"])] for r in found["restored"]],
            )
        )
    if found["crossing"]:
        c = found["crossing"]
        made.append(
            (
                ["summariser \\ agent", *c["agents"]],
                [[name, *rates] for name, rates in zip(c["summarizers"], c["rates"], strict=True)],
            )
        )
    if found["utility"]:
        made.append(
            (
                ["allowed act under", "n", "completed", "refused"],
                [[r["condition"], r["n"], r["completed"], r["refused"]] for r in found["utility"]],
            )
        )
    return made


def _left_out(left: dict[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in left.items()) or "-"


def _emit_report(found: dict[str, Any], as_json: bool, out: Path | None) -> None:
    """Print a report, write it to a file if requested; exit code 1 where it shows nothing or a pin did not hold."""
    tables = _tables(found)
    if out is not None:
        body = "\n\n".join("\n".join(markdown(*one)) for one in tables)
        failed = "".join(f"\n\n**{why}**" for why in found["failed"])
        write_whole(
            out, f"# Rules under compaction\n\n{plural(found['episodes'], 'episode')}. **{found['verdict']}**\n\n{body}{failed}\n"
        )
    emit(found, as_json, "\n\n".join([*(table(*one) for one in tables), found["verdict"]]))
    for why in found["failed"]:
        say(f"warning: {why}")
    if found["failed"]:
        raise SystemExit(EXIT_FAILED)
