"""The verbs of ``ramify verify-or-ship``. SOURCE is a run with scored candidates, or a file of records;
TABLES what ``calibrate`` left."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.kit import Json, Seed, Verbs, argument, option
from ramify.methods.verify_or_ship import records, report
from ramify.methods.verify_or_ship.algorithm import (
    FIRST,
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ControlConfig,
    Plan,
    Tables,
    Tracker,
    bounded,
    computable_lines,
    planned,
)
from ramify.methods.verify_or_ship.calibration import (
    CalibrateConfig,
    CandidateAttempt,
    doubts,
    folds,
    independence,
    prr,
    same_text,
    summary,
)
from ramify.methods.verify_or_ship.calibration import calibrate as fit
from ramify.methods.verify_or_ship.replay import AWARE, Replay, beliefs, regime, regimes
from ramify.methods.verify_or_ship.replay import replay as follow
from ramify.render.terminal import emit, progress, say, table
from ramify.score.judge import Judge, find_judge
from ramify.trace.db import Run
from ramify.trace.lines import first_record
from ramify.trace.node import Annotation, Finding
from ramify.trace.sources import conclude, opened, run_folder

app = Verbs("verify-or-ship", help="Should my coding agent rewrite, check again, pay for the full test run, ship, or stop?")
Source = Annotated[Path, argument(metavar="SOURCE", help="A run with scored candidates, or a file of records (JSON lines).")]
TablesArgument = Annotated[
    Path, argument(metavar="TABLES", help="Tables that `calibrate` wrote, or the run in which it left them.")
]
TablesOption = Annotated[
    Path | None,
    option("--tables", help="Tables of other instances; without, each fifth of the instances is played with tables of the rest."),
]
Verifier = Annotated[str, option("--verifier", metavar="SCORER", help="The scorer of the run whose word is the truth.")]
FalseAccept = Annotated[
    float | None,
    option(
        "--max-false-accept",
        min=0,
        max=1,
        help="Raise --loss until at most this share of deliveries is predicted to be wrong (with --stop ship).",
    ),
]


def _judges(named: Sequence[str], verify: str | None) -> dict[str, Judge]:
    found: dict[str, Judge] = {}
    for one in named:
        name, equals, spec = one.partition("=")
        if not name or not equals:
            raise UserError(f"--judge takes NAME=JUDGE, such as tests=cmd:./public.sh, not '{one}'")
        if name in found or name == records.VERIFIER:
            raise UserError(
                f"--judge '{name}' is there twice" if name in found else f"'{name}' is the verifier's name: choose another"
            )
        found[name] = find_judge(spec, what="critic")
    if verify is not None:
        found[records.VERIFIER] = find_judge(verify, what="verifier")
    return found


def _ask(source: Path, judges: dict[str, Judge], as_json: bool) -> None:
    """Have the judges judge what they have not yet; what they say stays in the run."""
    folder = run_folder(source)
    if folder is None:
        raise UserError(f"{source} is no run to keep judgements in: `ramify import {source} --run DIR` makes one")
    kept = "what was judged is kept: the same command continues"
    with progress("calibrate", as_json=as_json, kept=kept) as bar, Run.open(folder, write=True) as run:
        records.ask(run, judges, bar.at, lambda total: bar.begin(total, unit="candidates"))


@app.verb(settings=CalibrateConfig)
def calibrate(
    options: CalibrateConfig,
    source: Source,
    judge: Annotated[
        list[str] | None,
        option(
            "--judge", metavar="NAME=JUDGE", help="A critic to ask about candidates that it has not judged (may be repeated)."
        ),
    ] = None,
    verify: Annotated[
        str | None,
        option("--verify", metavar="JUDGE", help="The verifier to ask likewise: cmd:./full_tests.sh runs in the sandbox."),
    ] = None,
    verifier: Verifier = records.VERIFIER,
    out: Annotated[Path | None, option("--out", help="Also write the tables as JSON.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Count what critics say of right and wrong candidates and what rewrites do; test whether the critics are independent."""
    judges = _judges(judge or [], verify)
    if judges:
        _ask(source, judges, as_json)
    found = records.read_source(source, verifier)
    tables = fit(found, options)
    test = independence(found, tables, seed)
    warned = doubts(tables, found)
    dependent = [pair for pair in test["pairs"] if pair["p_corrected"] <= 0.05]
    result: dict[str, Any] = {
        "instances": tables.instances,
        "candidates": sum(len(one.candidates) for one in found),
        "prior": tables.prior,
        "gate": tables.gate or None,
        "critics": summary(tables),
        "kernel": tables.kernel.to_json(),
        "kernel_rejected": None if tables.kernel_rejected is None else tables.kernel_rejected.to_json(),
        "independence": test,
        "dependent": dependent,
        "doubts": [{"kind": kind, "critic": name or None, "says": says} for kind, name, says in warned],
    }
    if out is not None:
        write_whole(out, json.dumps(tables.to_json(), indent=1) + "\n")
    findings = [records.tables_finding(tables, {"independence": test}, str(source))]
    findings += [Finding(kind, records.CALIBRATED, says, action="see docs/methods/verify-or-ship.md") for kind, _, says in warned]
    findings += [_dependent(pair) for pair in dependent]
    if why := conclude(source, records.CALIBRATED, findings):
        say(f"warning: {why}")
    emit(result | {"out": None if out is None else str(out), "tables": tables.to_json()}, as_json, _calibrated(result, tables))
    for _, _, says in warned:
        say(f"warning: {says}")


def _dependent(pair: Mapping[str, Any]) -> Finding:
    of = "right" if pair["right"] else "wrong"
    why = (
        f"'{pair['critics'][0]}' and '{pair['critics'][1]}' agree on {of} candidates more than chance: Cramer's V "
        f"{pair['v']:.2f}, corrected p {pair['p_corrected']:.2g}"
    )
    return Finding(
        "dependent critics",
        records.CALIBRATED,
        why,
        action="leave one of them out with --critics, or make one judge of both",
        value=pair["v"],
        unit="V",
        evidence=dict(pair),
    )


def _calibrated(result: Mapping[str, Any], tables: Tables) -> str:
    def share(row: Mapping[str, Any], side: str) -> str:
        if f"pass_{side}" not in row:
            return " ".join(f"{one:.2f}" for one in row[f"levels_{side}"])
        return "{:.3f} [{:.3f}, {:.3f}]".format(row[f"pass_{side}"], *row[f"interval_{side}"])

    rows = [
        [r["history"], r["critic"], share(r, "right"), share(r, "wrong"), r["gap"], r["n_right"], r["n_wrong"]]
        for r in result["critics"]
    ]
    text = table(["candidates", "critic", "passes right", "passes wrong", "gap", "right", "wrong"], rows)
    text += (
        f"\n\n{result['prior']:.1%} of first candidates are right ({tables.instances} instances, {result['candidates']} "
        "candidates)"
    )
    kernels = [
        ("a rewrite", tables.kernel),
        *([(f"a rewrite of what '{tables.gate}' failed", tables.kernel_rejected)] if tables.kernel_rejected else []),
    ]
    for what, kernel in kernels:
        text += f"\n{what} that changes the text repairs {kernel.fix:.1%} and breaks {kernel.broken:.1%}"
        if kernel.same_right or kernel.same_wrong:
            text += f"; the same text comes back from {kernel.same_wrong:.1%} of wrong and {kernel.same_right:.1%} of right ones"
    test = result["independence"]
    if test["p"] is not None:
        text += (
            f"\ncritics independent given the truth: G2 {test['g2']:.1f}, {test['df']} degrees of freedom, p {test['p']:.3f} by "
            f"permutation ({test['p_g2']:.3f} asymptotic; {test['few_expected']} cells below 5)"
        )
    text += "".join(f"\n{_dependent(pair).why}" for pair in result["dependent"])
    return text


def _bounded(tables: Tables, options: ControlConfig, most: float | None) -> ControlConfig:
    if most is None:
        return options
    if options.stop != "ship":
        raise UserError("--max-false-accept bounds what is shipped unverified, so it needs --stop ship")
    return bounded(tables, options, most)


@app.verb(settings=ControlConfig)
def plan(options: ControlConfig, tables: TablesArgument, max_false_accept: FalseAccept = None, as_json: Json = False) -> None:
    """The optimal policy: what to do with a candidate from the prior on, as belief intervals,
    and the lines that need no planning."""
    known = records.read_tables(tables)
    _known_costs(options, known)
    chosen = _bounded(known, options, max_false_accept)
    made = Plan(known, chosen, functionals=True)
    if chosen.planner == "greedy":
        raise UserError("the greedy planner has no plan to show; `replay` compares it")
    (row,) = regimes(known, chosen, [chosen.c_ver])
    rows, lines = report.intervals(made), computable_lines(known, chosen)
    rates = made.rates()
    walked = [{"depth": d, "seen": seen, "belief": b, "action": action} for d, seen, b, action in report.walk(made)]
    result = {
        "value": made.value,
        "loss": chosen.loss if chosen.stop == "ship" else None,
        "best_fixed": row["best_fixed"],
        "gain_over_best_fixed": row["loss_of_best_fixed"],
        "gain_over_always": made.value - row["values"]["always verify"],
        "values": row["values"],
        "rates": rates,
        "lines": lines,
        "intervals": rows,
        "policy": walked,
        "sizes": made.sizes(),
    }
    text = report.policy_text(made)
    shown = [[r["candidate"], r["history"], f"{r['from']:.3f} to {r['to']:.3f}", report.action_text(r["action"])] for r in rows]
    text += "\n\n" + table(["candidate", "history", "belief", "do"], shown, "before any critic was asked")
    text += "\n\n" + "\n".join(report.lines_text(lines, chosen))
    text += (
        f"\n\nexpected {made.value:.2f} a task: {made.value - row['values']['always verify']:+.2f} over always verifying, "
        f"{row['loss_of_best_fixed']:+.2f} over {row['best_fixed']}, the best fixed rule"
    )
    if chosen.stop == "ship":
        text += (
            f"\n{rates['delivered']:.1%} of tasks are delivered, {rates['false_accept']:.2%} of deliveries wrong (loss "
            f"{chosen.loss:g})"
        )
    emit(result, as_json, text)


def _known_costs(options: ControlConfig, tables: Tables) -> None:
    for one in options.costs:
        name = one.rpartition("=")[0]
        if name not in tables.names:
            raise UserError(f"--costs: the tables know no critic '{name}'; they know {', '.join(tables.names)}")


def _prices(text: str) -> list[float]:
    """The prices of ``c_ver=2:120`` (24 of them), ``c_ver=2:120:10`` or ``c_ver=5,15,30``."""
    name, equals, values = text.partition("=")
    if name.replace("-", "_") != "c_ver" or not equals:
        raise UserError(f"--sweep takes c_ver=FROM:TO, c_ver=FROM:TO:HOW-MANY or c_ver=A,B,C, not '{text}'")
    try:
        parts = [float(one) for one in values.replace(",", ":").split(":")]
        if "," not in values and len(parts) in (2, 3):
            count = int(parts[2]) if len(parts) == 3 else 24
            low, high = parts[:2]
            if not 2 <= count <= 400 or high <= low:
                raise ValueError
            parts = [low + (high - low) * i / (count - 1) for i in range(count)]
    except (ValueError, OverflowError):
        raise UserError(f"--sweep: '{values}' is neither FROM:TO nor a list of prices") from None
    if not parts or not all(math.isfinite(one) and one >= 0 for one in parts):
        raise UserError(f"--sweep: prices are finite and 0 or more, and '{values}' holds another")
    return parts


def _is_tables(source: Path) -> bool:
    """Whether a file holds tables and no records."""
    first = None if run_folder(source) is not None else first_record(source)[1]
    return first is not None and bool({"kernel", "prior", "critic_likelihoods"} & first.keys())


@app.verb("regimes", settings=ControlConfig)
def regimes_(
    options: ControlConfig,
    source: Annotated[
        Path, argument(metavar="TABLES", help="Tables, or a run or file of records: then what policies really got is shown, too.")
    ],
    sweep: Annotated[str, option("--sweep", metavar="c_ver=FROM:TO", help="Prices of the verifier.")] = "c_ver=2:120",
    priors: Annotated[
        str, option("--priors", metavar="A,B,C", help="Shares of right first candidates to map, beside that of the tables.")
    ] = "",
    verifier: Verifier = records.VERIFIER,
    out: Annotated[Path | None, option("--out", help="Write the map: .csv or .svg.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Which fixed rule is good enough at which price of the verifier, and where planning pays."""
    prices = _prices(sweep)
    if out is not None and out.suffix not in (".csv", ".svg"):
        raise UserError(f"--out {out}: a map is written as .csv or .svg")
    try:
        shares = [float(one) for one in priors.split(",") if one.strip()]
    except ValueError:
        raise UserError(f"--priors: '{priors}' is no list of shares") from None
    if any(not 0 < one < 1 for one in shares):
        raise UserError(f"--priors: shares lie between 0 and 1, and '{priors}' holds another")
    realised: list[dict[str, Any]] = []
    if _is_tables(source):
        tables = records.read_tables(source)
    else:
        found = records.read_source(source, verifier)
        tables = fit(found)
        realised = realised_regimes(found, options, prices, seed)
    _known_costs(options, tables)
    rows = regimes(tables, options, prices, shares)
    if out is not None:
        write_whole(out, _csv(rows, realised) if out.suffix == ".csv" else _picture(rows, realised, shares))
    shown = [[f"{r['c_ver']:g}", f"{r['prior']:.2f}", r["regime"], r["best_fixed"], r["loss_of_best_fixed"]] for r in rows]
    text = table(["c_ver", "prior", "use", "best fixed rule", "it loses"], shown, "by the tables")
    if realised:
        more = [
            [f"{r['c_ver']:g}", r["regime"], r["best_fixed"], *_gain(r["gain_over_best_fixed"]), *_gain(r["gain_over_always"])]
            for r in realised
        ]
        text += "\n\n" + table(
            ["c_ver", "use", "best fixed rule", "planning gains", "95 % interval", "over always verify", "95 % interval"],
            more,
            "on the records, tables from other instances",
        )
    emit({"rows": rows, "realised": realised, "out": None if out is None else str(out)}, as_json, text)


def realised_regimes(
    found: Sequence[CandidateAttempt], options: ControlConfig, prices: Sequence[float], seed: int = 0
) -> list[dict[str, Any]]:
    """For every price what the policies really got on the records, each with tables of other instances."""
    rows = []
    for price in prices:
        one = follow(found, options.model_copy(update={"c_ver": price}), seed=seed)
        values = {name: float(got.mean()) for name, got in one.utilities.items()}
        name, _ = regime(values)
        gain = one.gain(AWARE, one.best_fixed, seed)
        rows.append(
            {
                "c_ver": price,
                "prior": 0.0,
                "regime": name,
                "best_fixed": one.best_fixed,
                "loss_of_best_fixed": gain["value"],
                "gain_over_best_fixed": gain,
                "gain_over_always": one.gain(AWARE, "always verify", seed),
                "values": values,
            }
        )
    return rows


def _csv(rows: Sequence[Mapping[str, Any]], realised: Sequence[Mapping[str, Any]]) -> str:
    held = io.StringIO()
    names = list(dict.fromkeys(name for row in (*rows, *realised) for name in row["values"]))
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(["of", "c_ver", "prior", "regime", "best_fixed", "loss_of_best_fixed", *names])
    for kind, some in (("tables", rows), ("records", realised)):
        for row in some:
            prior = row["prior"] if kind == "tables" else ""
            writer.writerow(
                [
                    kind,
                    row["c_ver"],
                    prior,
                    row["regime"],
                    row["best_fixed"],
                    row["loss_of_best_fixed"],
                    *(row["values"].get(name, "") for name in names),
                ]
            )
    return held.getvalue()


def _picture(rows: Sequence[Mapping[str, Any]], realised: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> str:
    return (report.map_svg(rows) if len(shares) > 1 else report.price_svg(realised or rows)) + "\n"


def _gain(gain: Mapping[str, Any]) -> list[Any]:
    ends = gain["interval"]
    return [f"{gain['value']:+.2f}", "-" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"]


@app.verb(settings=ControlConfig)
def replay(
    options: ControlConfig,
    source: Source,
    tables: TablesOption = None,
    verifier: Verifier = records.VERIFIER,
    max_false_accept: FalseAccept = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What every policy would have got on stored attempts: the planners, every fixed rule, and stopping at once."""
    found = records.read_source(source, verifier)
    known = None if tables is None else records.read_tables(tables)
    of = known or fit(found)
    _known_costs(options, of)
    chosen = _bounded(of, options, max_false_accept)
    played = follow(found, chosen, known, seed=seed)
    rows = played.table(seed)
    mine = next(row for row in rows if row["policy"] == played.bayes)
    finding = report.gain_finding(mine, played.bayes, played.best_fixed, chosen, len(played.instances))
    if why := conclude(source, report.REPLAYED, [] if finding is None else [finding]):
        say(f"warning: {why}")
    verdict = (
        finding.why
        if finding is not None
        else f"no gain stands out: {played.bayes} - {played.best_fixed} is "
        f"{' '.join(map(str, _gain(mine['gain_over_best_fixed'])))}"
    )
    result = {
        "attempts": len(played.instances),
        "instances": len(set(played.instances)),
        "left_out": played.left_out,
        "best_fixed": played.best_fixed,
        "policies": rows,
        "verdict": verdict,
        "stands_out": finding is not None,
        "pays": finding is not None and mine["gain_over_best_fixed"]["value"] > 0,
    }
    emit(result, as_json, _replayed(played, rows, verdict))


def _replayed(played: Replay, rows: Sequence[Mapping[str, Any]], verdict: str) -> str:
    shown = [
        [
            r["policy"],
            r["utility"],
            r["planned"],
            *_gain(r["gain_over_always"]),
            *_gain(r["gain_over_best_fixed"]),
            f"{r['delivered_right']:.1%}",
            f"{r['verified']:.2f}",
        ]
        for r in rows
    ]
    text = table(
        [
            "policy",
            "utility",
            "planned",
            "over always verify",
            "95 % interval",
            "over best fixed",
            "95 % interval",
            "delivered",
            "verified",
        ],
        shown,
    )
    left = f"; {played.left_out} attempts are shorter than the horizon or lack a score of the verifier" if played.left_out else ""
    return f"{text}\n\n{verdict}\n{len(played.instances)} attempts at {len(set(played.instances))} instances{left}"


@app.verb(settings=ControlConfig)
def score(
    options: ControlConfig,
    source: Source,
    tables: TablesOption = None,
    verifier: Verifier = records.VERIFIER,
    out: Annotated[Path | None, option("--out", metavar="FILE.md", help="Also write a comment for a pull request.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How likely each candidate is right, by all that its critics said; kept in the run as scores of `verify-or-ship`."""
    if tables is None:
        found = records.read_source(source, verifier)
        parts = [(fit(others), held) for others, held in folds(found, 5, seed)]
    else:
        parts = [(records.read_tables(tables), _with_or_without(source, verifier))]
    _known_costs(options, parts[0][0])
    rows, kept = list[dict[str, Any]](), []
    truths: list[tuple[float, bool, dict[str, Any]]] = []
    for known, held in parts:
        decide = planned(known, options)
        for one, index, state in beliefs(held, known):
            candidate = one.candidates[index]
            belief, step = state.belief, min(index, options.horizon - 1)
            state = replace(state, step=step, history=state.history if step else FIRST)
            rows.append(
                {
                    "instance": one.instance,
                    "place": index,
                    "node": candidate.node,
                    "belief": belief,
                    "checks": {n: v for n, v in candidate.checks.items() if n in known.names},
                    "action": decide(state),
                    "right": candidate.right,
                }
            )
            kept.append((candidate.node, belief))
            if candidate.right is not None:
                truths.append((belief, candidate.right, dict(candidate.checks)))
    folder = run_folder(source)
    if folder is not None:
        with Run.open(folder, write=True) as run, run.transaction():
            records.keep_beliefs(run, kept, parts[0][0])
    ranking = _ranking(truths, parts[0][0])
    if out is not None:
        write_whole(out, report.comment(rows, options))
    shown = [
        [
            r["instance"],
            r["place"] + 1,
            r["belief"],
            report.action_text(str(r["action"])),
            "-" if r["right"] is None else "yes" if r["right"] else "no",
        ]
        for r in rows[:40]
    ]
    text = table(["instance", "candidate", "belief", "next", "right"], shown)
    text += f"\n... and {len(rows) - 40} more" if len(rows) > 40 else ""
    if ranking:
        text += "\n\n" + table(["confidence", "PRR up to 50 %"], [[name, value] for name, value in ranking.items()])
    emit({"candidates": rows, "prr": ranking, "out": None if out is None else str(out)}, as_json, text)


def _with_or_without(source: Path, verifier: str) -> list[CandidateAttempt]:
    """The candidates, also where nobody verified any."""
    with opened(source) as run:
        if verifier in {scorer for scorer, _, _ in run.scorers()}:
            return records.candidates(run, verifier)
        return records.unverified(run)


def _ranking(truths: Sequence[tuple[float, bool, Mapping[str, Any]]], tables: Tables) -> dict[str, float | None]:
    """PRR of the belief, of each critic and of the share of critics passed, where the truth is known."""
    if not truths or len({right for _, right, _ in truths}) < 2:
        return {}
    right = [one[1] for one in truths]
    found = {"belief": prr([one[0] for one in truths], right)}
    checks = [
        {name: float(value) for name, value in one[2].items() if value is not None and name in tables.names} for one in truths
    ]
    found["share of critics passed"] = prr([sum(one.values()) / max(len(one), 1) for one in checks], right)
    return found | {name: prr([one.get(name, 0.5) for one in checks], right) for name in tables.names}


@app.verb(settings=ControlConfig)
def shadow(
    options: ControlConfig,
    source: Source,
    tables: TablesOption = None,
    verifier: Verifier = records.VERIFIER,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What the controller would have decided in recorded attempts, and saved;
    decisions are kept in the run, nothing is changed."""
    found = records.read_source(source, verifier)
    parts = (
        [(fit(others), held) for others, held in folds(found, 5, seed)]
        if tables is None
        else [(records.read_tables(tables), found)]
    )
    _known_costs(options, parts[0][0])
    marks, rows = [], []
    for known, held in parts:
        decide = planned(known, options)
        for one in held:
            row, own = _followed(one, known, options, decide)
            rows.append(row)
            marks += own
    saved = _saved(rows)
    finding = Finding(
        "shadow",
        report.SHADOW,
        saved["says"],
        value=saved["saved"],
        unit="utility",
        action="`replay` compares it with fixed rules",
        evidence=saved,
        identity=options.to_json(),
    )
    if why := conclude(source, report.SHADOW, [finding], marks):
        say(f"warning: {why}")
    shown = [[r["instance"], " > ".join(map(str, r["actions"])), r["cost"], r["recorded_cost"], r["end"]] for r in rows[:40]]
    text = table(["instance", "would have done", "cost", "as recorded", "end"], shown)
    text += f"\n... and {len(rows) - 40} more" if len(rows) > 40 else ""
    emit(saved | {"attempts": rows}, as_json, f"{text}\n\n{saved['says']}")


def _followed(
    one: CandidateAttempt, tables: Tables, config: ControlConfig, decide: Any
) -> tuple[dict[str, Any], list[Annotation]]:
    """One attempt under the controller as far as its record reaches, and the decisions as annotations of its nodes."""
    tracker, at, cost, end = Tracker(tables, config.planner == "greedy"), 0, 0.0, ""
    actions: list[str] = []
    decisions: dict[str, list[dict[str, Any]]] = {}
    while not end:
        candidate = one.candidates[at]
        action = decide(tracker.state)
        actions.append(action)
        decisions.setdefault(candidate.node, []).append({"action": action, "belief": tracker.state.belief})
        if action == STOP:
            end = "stopped"
        elif action == SHIP:
            end = "shipped, truth unknown" if candidate.right is None else "shipped right" if candidate.right else "shipped wrong"
        elif action == VERIFY:
            cost += config.c_ver
            end = "verified, truth unknown" if candidate.right is None else "delivered" if candidate.right else "refused"
            if end == "refused" and config.after_verify == "continue" and not tracker.state.refused:
                tracker.refused()
                end = ""
        elif action == REWRITE:
            cost += config.c_gen
            at += 1
            if at == len(one.candidates):
                end = "past the record"
            else:
                tracker.rewritten(same_text(candidate, one.candidates[at]))
        else:
            cost += config.cost(action)
            tracker.observe(action, tables.critics[action].level(candidate.checks.get(action)))
    paid = config.c_gen * (len(one.candidates) - 1)
    for candidate in one.candidates:
        paid += config.c_ver * (candidate.right is not None) + sum(
            config.cost(name) for name in candidate.checks if name in tables.names
        )
    solved = one.candidates[-1].right
    row = {
        "instance": one.instance,
        "actions": actions,
        "cost": cost,
        "recorded_cost": paid,
        "end": end,
        "recorded_right": solved,
    }
    marks = [Annotation(node, 0, "decisions", report.SHADOW, values) for node, values in decisions.items() if node]
    return row, marks


def _saved(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cost, paid = (sum(float(row[name]) for row in rows) / len(rows) for name in ("cost", "recorded_cost"))
    right = sum(row["end"] in ("delivered", "shipped right") for row in rows)
    solved, past = sum(bool(row["recorded_right"]) for row in rows), sum(row["end"] == "past the record" for row in rows)
    says = (
        f"it would have paid {cost:.1f} an attempt where {paid:.1f} was paid, and delivered {right} right candidates of "
        f"{len(rows)} attempts; {solved} attempts ended with a right one"
    )
    says += f"; in {past} it would have gone on past the record" if past else ""
    return {
        "n": len(rows),
        "saved": paid - cost,
        "cost": cost,
        "recorded_cost": paid,
        "delivered_right": right,
        "ended_right": solved,
        "past_the_record": past,
        "says": says,
    }
