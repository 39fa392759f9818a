"""The verbs of ``ramify verify-or-ship``. SOURCE is a run with scored candidates, or a file of records;
TABLES what ``calibrate`` left."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.kit import Seed, Verbs, argument, only_for, option
from ramify.methods.verify_or_ship import records, report
from ramify.methods.verify_or_ship.algorithm import (
    FIRST,
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ComputableLines,
    ControlConfig,
    Kernel,
    Plan,
    PlanRates,
    PlanSizes,
    Policy,
    Tables,
    TakenAction,
    Tracker,
    bounded,
    computable_lines,
    planned,
)
from ramify.methods.verify_or_ship.calibration import (
    CalibrateConfig,
    CandidateAttempt,
    CriticPair,
    CriticShares,
    Doubt,
    Independence,
    doubts,
    folds,
    independence,
    prr,
    same_text,
    summary,
)
from ramify.methods.verify_or_ship.calibration import calibrate as fit
from ramify.methods.verify_or_ship.replay import ALWAYS, AWARE, PolicyGain, PolicyWorth, Regime, beliefs, regime, regimes
from ramify.methods.verify_or_ship.replay import replay as follow
from ramify.render.numbers import interval, p_value, percent, percent_interval
from ramify.render.result import Result, Section, Verbatim, table
from ramify.render.terminal import progress
from ramify.score.judge import find_judge
from ramify.stats.intervals import Interval
from ramify.trace.db import Run
from ramify.trace.lines import first_record
from ramify.trace.node import Annotation, Finding
from ramify.trace.sources import conclude, opened, run_folder

LEVEL = 0.05
"""Critics are dependent at this corrected p."""
SHOWN = 40
"""Rows of candidates and attempts in a table."""
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


def _named_judges(named: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in named:
        name, equals, spec = one.partition("=")
        if not name or not equals:
            raise UserError(f"--judge takes NAME=JUDGE, such as tests=cmd:./public.sh, not '{one}'")
        if name in found or name == records.VERIFIER:
            raise UserError(
                f"--judge '{name}' is there twice" if name in found else f"'{name}' is the verifier's name: choose another"
            )
        found[name] = spec
    return found


def _ask(source: Path, named: Sequence[str], verify: str | None) -> None:
    """Have judges judge what they have not yet; what they say stays in the run."""
    critics, folder = _named_judges(named), run_folder(source)
    if folder is None:
        raise UserError(f"{source} is not a run to keep judgements in: `ramify import {source} --run DIR` makes one")
    kept = "what was judged is kept: the same command continues"
    with progress("calibrate", kept=kept) as bar, Run.open(folder, write=True) as run:
        # a server is asked what it takes when its judge is found
        judges = {name: find_judge(spec, what="critic") for name, spec in critics.items()}
        judges |= {} if verify is None else {records.VERIFIER: find_judge(verify, what="verifier")}
        records.ask(run, judges, bar.at, lambda total: bar.begin(total, unit="candidates"))


@app.verb(settings=CalibrateConfig, keeps="source")
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
) -> CriticTables:
    """Count what critics say of right and wrong candidates and what rewrites do; test whether the critics are independent."""
    if judge or verify is not None:
        _ask(source, judge or [], verify)
    found = records.read_source(source, verifier)
    tables = fit(found, options)
    test = independence(found, tables, seed)
    warned = doubts(tables, found)
    dependent = tuple(pair for pair in test.pairs if pair.p_corrected <= LEVEL)
    if out is not None:
        write_whole(out, json.dumps(tables.to_json(), indent=1) + "\n")
    findings = [records.tables_finding(tables, {"independence": codec.to_json(test)}, str(source))]
    findings += [Finding(one.kind, records.CALIBRATED, one.says, action="see docs/methods/verify-or-ship.md") for one in warned]
    findings += [_dependent(pair) for pair in dependent]
    lost = conclude(source, records.CALIBRATED, findings)
    return CriticTables(
        instances=tables.instances,
        candidates=sum(len(one.candidates) for one in found),
        prior=tables.prior,
        gate=tables.gate or None,
        critics=tuple(summary(tables)),
        kernel=tables.kernel,
        kernel_rejected=tables.kernel_rejected,
        independence=test,
        dependent=dependent,
        doubts=tuple(warned),
        out=None if out is None else str(out),
        tables=tables,
        caveats=(*filter(None, [lost]), *(one.says for one in warned)),
    )


@dataclass(frozen=True)
class CriticTables(Result):
    """What critics say of right and wrong candidates, what rewrites do, which critics are ``dependent``, and the tables of it."""

    instances: int
    candidates: int
    prior: float
    gate: str | None
    critics: tuple[CriticShares, ...]
    kernel: Kernel
    kernel_rejected: Kernel | None
    independence: Independence
    dependent: tuple[CriticPair, ...]
    doubts: tuple[Doubt, ...]
    """The caveats with their kind, and the critic that they are of."""
    out: str | None
    tables: Tables

    def sections(self) -> Iterable[Section]:
        """A row for each critic, rewrites, and the test of independence."""
        head = ("candidates", "critic", "passes right", "passes wrong", "gap", "right", "wrong")
        rows = [
            (
                one.history,
                one.critic,
                _passed(one.pass_right, one.interval_right, one.levels_right),
                _passed(one.pass_wrong, one.interval_wrong, one.levels_wrong),
                one.gap,
                one.n_right,
                one.n_wrong,
            )
            for one in self.critics
        ]
        counted = f"{self.instances} instances, {self.candidates} candidates"
        lines = [f"{percent(self.prior)} of first candidates are right ({counted})", *self._rewrites()]
        test = self.independence
        if test.p is not None:
            lines.append(
                f"critics independent given the truth: G2 {test.g2:.1f}, {test.df} degrees of freedom, p {p_value(test.p)} by "
                f"permutation ({p_value(test.p_g2)} asymptotic; {test.few_expected} cells below 5)"
            )
        lines += [_dependent(pair).why for pair in self.dependent]
        yield Section.of("", table(head, rows), "\n".join(lines))

    def _rewrites(self) -> Iterable[str]:
        for what, kernel in (("a rewrite", self.kernel), (f"a rewrite of what '{self.gate}' failed", self.kernel_rejected)):
            if kernel is None:
                continue
            line = f"{what} that changes the text repairs {percent(kernel.fix)} and breaks {percent(kernel.broken)}"
            if kernel.same_right or kernel.same_wrong:
                same = f"{percent(kernel.same_wrong)} of wrong and {percent(kernel.same_right)} of right ones"
                line += f"; the same text comes back from {same}"
            yield line


def _passed(share: float | None, ends: Interval | None, levels: tuple[float, ...] | None) -> str:
    return " ".join(f"{one:.2f}" for one in levels or ()) if share is None else f"{percent(share)} {percent_interval(ends)}"


def _dependent(pair: CriticPair) -> Finding:
    why = (
        f"'{pair.critics[0]}' and '{pair.critics[1]}' agree on {'right' if pair.right else 'wrong'} candidates more than chance: "
        f"Cramer's V {pair.v:.2f}, corrected p {p_value(pair.p_corrected)}"
    )
    return Finding(
        "dependent critics",
        records.CALIBRATED,
        why,
        action="leave one of them out with --critics, or make one judge of both",
        value=pair.v,
        unit="V",
        evidence=codec.to_json(pair),
    )


def _bounded(tables: Tables, options: ControlConfig, most: float | None) -> ControlConfig:
    if most is None:
        return options
    if options.stop != "ship":
        raise UserError("--max-false-accept bounds what is shipped unverified, so it needs --stop ship")
    return bounded(tables, options, most)


@dataclass(frozen=True)
class OptimalPolicy(Result):
    """The policy that plans, what it is worth beside fixed rules, and the beliefs at which it changes its mind."""

    value: float
    loss: float | None
    best_fixed: str
    gain_over_best_fixed: float
    gain_over_always: float
    values: Mapping[str, float]
    rates: PlanRates
    lines: ComputableLines
    intervals: tuple[report.PolicyInterval, ...]
    policy: tuple[report.PolicyStep, ...]
    sizes: PlanSizes
    config: ControlConfig = field(metadata={"json": False}, repr=False)

    def sections(self) -> Iterable[Section]:
        """What to do from the prior on, the belief intervals, what needs no planning, and the gain."""
        rows = [(r.candidate, r.history, f"{r.low:.3f} to {r.high:.3f}", report.action_text(r.action)) for r in self.intervals]
        worth = (
            f"expected {self.value:.2f} a task: {self.gain_over_always:+.2f} over always verifying, "
            f"{self.gain_over_best_fixed:+.2f} over {self.best_fixed}, the best fixed rule"
        )
        if self.loss is not None:
            wrong = f"{percent(self.rates.false_accept, 2)} of deliveries wrong (loss {self.loss:g})"
            worth += f"\n{percent(self.rates.delivered)} of tasks are delivered, {wrong}"
        yield Section.of(
            "",
            Verbatim(report.policy_text(self.policy)),
            table(("candidate", "history", "belief", "do"), rows, "before any critic was asked"),
            "\n".join(report.lines_text(self.lines, self.config)),
            worth,
        )


@app.verb(settings=ControlConfig, keeps="tables")
def plan(options: ControlConfig, tables: TablesArgument, max_false_accept: FalseAccept = None) -> OptimalPolicy:
    """The optimal policy: what to do with a candidate from the prior on, as belief intervals,
    and the lines that need no planning."""
    known = records.read_tables(tables)
    _known_costs(options, known)
    chosen = _bounded(known, options, max_false_accept)
    made = Plan(known, chosen, functionals=True)
    if chosen.planner == "greedy":
        raise UserError("the greedy planner has no plan to show; `replay` compares it")
    (row,) = regimes(known, chosen, [chosen.c_ver])
    return OptimalPolicy(
        value=made.value,
        loss=chosen.loss if chosen.stop == "ship" else None,
        best_fixed=row.best_fixed,
        gain_over_best_fixed=row.loss_of_best_fixed,
        gain_over_always=made.value - row.values[ALWAYS],
        values=row.values,
        rates=made.rates(),
        lines=computable_lines(known, chosen),
        intervals=tuple(report.intervals(made)),
        policy=tuple(report.walk(made)),
        sizes=made.sizes(),
        config=chosen,
    )


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


@dataclass(frozen=True)
class RealisedRegime(Regime):
    """What policies really got on records at one price, each with tables of other instances."""

    gain_over_best_fixed: PolicyGain
    gain_over_always: PolicyGain


@dataclass(frozen=True)
class RegimeMap(Result):
    """Which policy to use at which price, by the tables (``rows``) and on records (``realised``)."""

    rows: tuple[Regime, ...]
    realised: tuple[RealisedRegime, ...]
    out: str | None

    def sections(self) -> Iterable[Section]:
        """A row for each price and prior, and what each policy is worth."""
        head = ("c_ver", "prior", "use", "best fixed rule", "it loses")
        rows = [(r.c_ver, r.prior, r.regime, r.best_fixed, r.loss_of_best_fixed) for r in self.rows]
        gained = ("planning gains", "95 % interval", "over always verify", "95 % interval of it")
        more = [
            (r.c_ver, r.regime, r.best_fixed, *_gain(r.gain_over_best_fixed), *_gain(r.gain_over_always)) for r in self.realised
        ]
        drawn = self.realised or (self.rows if len({r.prior for r in self.rows}) == 1 else ())
        yield Section.of(
            "",
            table(head, rows, "by the tables"),
            table(("c_ver", "use", "best fixed rule", *gained), more, "on the records, tables from other instances"),
            report.price_curves(drawn) if len(drawn) > 1 else None,
        )


@app.verb("regimes", settings=ControlConfig, keeps="source")
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
) -> RegimeMap:
    """Which fixed rule is good enough at which price of the verifier, and where planning pays."""
    prices = _prices(sweep)
    if out is not None and out.suffix not in (".csv", ".svg"):
        raise UserError(f"--out {out}: a map is written as .csv or .svg")
    try:
        shares = [float(one) for one in priors.split(",") if one.strip()]
    except ValueError:
        raise UserError(f"--priors: '{priors}' is not a list of shares") from None
    if any(not 0 < one < 1 for one in shares):
        raise UserError(f"--priors: shares lie between 0 and 1, and '{priors}' holds another")
    realised: list[RealisedRegime] = []
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
    return RegimeMap(tuple(rows), tuple(realised), None if out is None else str(out))


def realised_regimes(
    found: Sequence[CandidateAttempt], options: ControlConfig, prices: Sequence[float], seed: int = 0
) -> list[RealisedRegime]:
    """For every price what the policies really got on the records, each with tables of other instances."""
    rows = []
    for price in prices:
        one = follow(found, options.model_copy(update={"c_ver": price}), seed=seed)
        values = {name: float(got.mean()) for name, got in one.utilities.items()}
        name, _ = regime(values)
        gain = one.gain(AWARE, one.best_fixed, seed)
        always = one.gain(AWARE, ALWAYS, seed)
        rows.append(RealisedRegime(price, 0.0, name, one.best_fixed, gain.value, values, gain, always))
    return rows


def _csv(rows: Sequence[Regime], realised: Sequence[Regime]) -> str:
    held = io.StringIO()
    names = list(dict.fromkeys(name for row in (*rows, *realised) for name in row.values))
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(["of", "c_ver", "prior", "regime", "best_fixed", "loss_of_best_fixed", *names])
    for kind, some in (("tables", rows), ("records", realised)):
        for row in some:
            prior = row.prior if kind == "tables" else ""
            worth = (row.values.get(name, "") for name in names)
            writer.writerow([kind, row.c_ver, prior, row.regime, row.best_fixed, row.loss_of_best_fixed, *worth])
    return held.getvalue()


def _picture(rows: Sequence[Regime], realised: Sequence[Regime], shares: Sequence[float]) -> str:
    return (report.map_svg(rows) if len(shares) > 1 else report.price_svg(realised or rows)) + "\n"


def _gain(gain: PolicyGain) -> tuple[float, str]:
    return gain.value, interval(gain.interval)


@dataclass(frozen=True)
class ReplayReport(Result):
    """What every policy would have got on stored attempts, and whether planning ``stands_out`` or even ``pays``."""

    attempts: int
    instances: int
    left_out: int
    best_fixed: str
    policies: tuple[PolicyWorth, ...]
    verdict: str
    stands_out: bool
    pays: bool

    def sections(self) -> Iterable[Section]:
        """A row for each policy, and the verdict."""
        gains = ("over always verify", "95 % interval", "over best fixed", "95 % interval of it")
        rows = [
            (
                r.policy,
                r.utility,
                r.planned,
                *_gain(r.gain_over_always),
                *_gain(r.gain_over_best_fixed),
                percent(r.delivered_right),
                r.verified,
            )
            for r in self.policies
        ]
        left = f"; {self.left_out} attempts are shorter than the horizon or lack a score of the verifier" if self.left_out else ""
        yield Section.of(
            "",
            table(("policy", "utility", "planned", *gains, "delivered", "verified"), rows),
            f"{self.verdict}\n{self.attempts} attempts at {self.instances} instances{left}",
        )


@app.verb(settings=ControlConfig, keeps="source")
def replay(
    options: ControlConfig,
    source: Source,
    tables: TablesOption = None,
    verifier: Verifier = records.VERIFIER,
    max_false_accept: FalseAccept = None,
    shadow: Annotated[
        bool, option("--shadow", help="Attempt by attempt: what the controller would have decided and saved; the run keeps it.")
    ] = False,
    seed: Seed = 0,
) -> ReplayReport | ShadowReport:
    """What every policy would have got on stored attempts: the planners, every fixed rule, and stopping at once;
    with --shadow, what the controller alone would have done in each."""
    if shadow:
        only_for("--shadow", max_false_accept=max_false_accept)
        return _shadow(options, source, tables, verifier, seed)
    found = records.read_source(source, verifier)
    known = None if tables is None else records.read_tables(tables)
    of = known or fit(found)
    _known_costs(options, of)
    chosen = _bounded(of, options, max_false_accept)
    played = follow(found, chosen, known, seed=seed)
    rows = played.table(seed)
    mine = next(row for row in rows if row.policy == played.bayes)
    gain = mine.gain_over_best_fixed
    finding = report.gain_finding(mine, played.bayes, played.best_fixed, chosen, len(played.instances))
    lost = conclude(source, report.REPLAYED, [] if finding is None else [finding])
    ends = "-" if gain.interval is None else "[{:+.2f}, {:+.2f}]".format(*gain.interval)
    none = f"no gain stands out: {played.bayes} - {played.best_fixed} is {gain.value:+.2f} {ends}"
    return ReplayReport(
        attempts=len(played.instances),
        instances=len(set(played.instances)),
        left_out=played.left_out,
        best_fixed=played.best_fixed,
        policies=tuple(rows),
        verdict=none if finding is None else finding.why,
        stands_out=finding is not None,
        pays=finding is not None and gain.value > 0,
        caveats=(lost,) if lost else (),
    )


@dataclass(frozen=True)
class Beliefs(Result):
    """How likely each candidate is right, and how well beliefs and critics order those whose truth is known (``prr``)."""

    candidates: tuple[report.CandidateBelief, ...]
    prr: Mapping[str, float | None]
    out: str | None

    def sections(self) -> Iterable[Section]:
        """A row for each candidate, and the order."""
        rows = [
            (one.instance, one.place + 1, one.belief, report.action_text(one.action), one.right)
            for one in self.candidates[:SHOWN]
        ]
        more = len(self.candidates) - SHOWN
        yield Section.of(
            "",
            table(("instance", "candidate", "belief", "next", "right"), rows),
            f"... and {more} more" if more > 0 else "",
            table(("confidence", "PRR up to 50 %"), self.prr.items()),
        )


@app.verb(settings=ControlConfig, keeps="source")
def score(
    options: ControlConfig,
    source: Source,
    tables: TablesOption = None,
    verifier: Verifier = records.VERIFIER,
    out: Annotated[Path | None, option("--out", metavar="FILE.md", help="Also write a comment for a pull request.")] = None,
    seed: Seed = 0,
) -> Beliefs:
    """How likely each candidate is right, by all that its critics said; kept in the run as scores of `verify-or-ship`."""
    if tables is None:
        found = records.read_source(source, verifier)
        parts = [(fit(others), held) for others, held in folds(found, 5, seed)]
    else:
        parts = [(records.read_tables(tables), _with_or_without(source, verifier))]
    _known_costs(options, parts[0][0])
    rows: list[report.CandidateBelief] = []
    for known, held in parts:
        decide = planned(known, options)
        for one, index, state in beliefs(held, known):
            candidate = one.candidates[index]
            belief, step = state.belief, min(index, options.horizon - 1)
            state = replace(state, step=step, history=state.history if step else FIRST)
            checks = {name: value for name, value in candidate.checks.items() if name in known.names}
            right = candidate.right
            rows.append(report.CandidateBelief(one.instance, index, candidate.node, belief, checks, decide(state), right))
    folder = run_folder(source)
    if folder is not None:
        with Run.open(folder, write=True) as run, run.transaction():
            records.keep_beliefs(run, ((row.node, row.belief) for row in rows), parts[0][0])
    if out is not None:
        write_whole(out, report.comment(rows, options))
    return Beliefs(tuple(rows), _ranking(rows, parts[0][0]), None if out is None else str(out))


def _with_or_without(source: Path, verifier: str) -> list[CandidateAttempt]:
    """The candidates, also where nobody verified any."""
    with opened(source) as run:
        if verifier in {scorer for scorer, _, _ in run.scorers()}:
            return records.candidates(run, verifier)
        return records.unverified(run)


def _ranking(rows: Sequence[report.CandidateBelief], tables: Tables) -> dict[str, float | None]:
    """PRR of the belief, of each critic and of the share of critics passed, where the truth is known."""
    known = [row for row in rows if row.right is not None]
    right = [bool(row.right) for row in known]
    if len(set(right)) < 2:
        return {}
    found = {"belief": prr([row.belief for row in known], right)}
    checks = [
        {name: float(value) for name, value in row.checks.items() if value is not None and name in tables.names} for row in known
    ]
    found["share of critics passed"] = prr([sum(one.values()) / max(len(one), 1) for one in checks], right)
    return found | {name: prr([one.get(name, 0.5) for one in checks], right) for name in tables.names}


class Followed(NamedTuple):
    """One attempt under the controller as far as its record reaches, beside what was recorded."""

    instance: str
    actions: tuple[str, ...]
    cost: float
    recorded_cost: float
    end: str
    recorded_right: bool | None


@dataclass(frozen=True)
class ShadowReport(Result):
    """What the controller would have decided in recorded attempts, paid and delivered (``replay --shadow``)."""

    PART = "shadow"
    n: int
    saved: float
    cost: float
    recorded_cost: float
    delivered_right: int
    ended_right: int
    past_the_record: int
    says: str
    attempts: tuple[Followed, ...]

    def sections(self) -> Iterable[Section]:
        """A row for each attempt, and what it comes to."""
        head = ("instance", "would have done", "cost", "as recorded", "end")
        rows = [(r.instance, " > ".join(r.actions), r.cost, r.recorded_cost, r.end) for r in self.attempts[:SHOWN]]
        more = len(self.attempts) - SHOWN
        yield Section.of("", table(head, rows), f"... and {more} more" if more > 0 else "", self.says)


def _shadow(options: ControlConfig, source: Path, tables: Path | None, verifier: str, seed: int) -> ShadowReport:
    """Follow the controller through the recorded attempts, and keep its decisions in the run."""
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
    evidence = codec.to_json(saved)
    evidence = {name: value for name, value in evidence.items() if name not in ("attempts", "caveats")}
    finding = Finding(
        "shadow",
        report.SHADOW,
        saved.says,
        value=saved.saved,
        unit="utility",
        action="`replay` compares it with fixed rules",
        evidence=evidence,
        identity=options.to_json(),
    )
    lost = conclude(source, report.SHADOW, [finding], marks)
    return replace(saved, caveats=(lost,)) if lost else saved


def _followed(one: CandidateAttempt, tables: Tables, config: ControlConfig, decide: Policy) -> tuple[Followed, list[Annotation]]:
    """One attempt under the controller as far as its record reaches, and the decisions as annotations of its nodes."""
    tracker, at, cost, end = Tracker(tables, config.planner == "greedy"), 0, 0.0, ""
    actions: list[str] = []
    decisions: dict[str, list[TakenAction]] = {}
    while not end:
        candidate = one.candidates[at]
        action = decide(tracker.state)
        actions.append(action)
        decisions.setdefault(candidate.node, []).append(TakenAction(action, tracker.state.belief))
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
    row = Followed(one.instance, tuple(actions), cost, paid, end, one.candidates[-1].right)
    marks = [Annotation(node, 0, "decisions", report.SHADOW, codec.to_json(values)) for node, values in decisions.items() if node]
    return row, marks


def _saved(rows: Sequence[Followed]) -> ShadowReport:
    cost, paid = sum(row.cost for row in rows) / len(rows), sum(row.recorded_cost for row in rows) / len(rows)
    right = sum(row.end in ("delivered", "shipped right") for row in rows)
    solved, past = sum(bool(row.recorded_right) for row in rows), sum(row.end == "past the record" for row in rows)
    says = (
        f"it would have paid {cost:.1f} an attempt where {paid:.1f} was paid, and delivered {right} right candidates of "
        f"{len(rows)} attempts; {solved} attempts ended with a right one"
    )
    says += f"; in {past} it would have gone on past the record" if past else ""
    return ShadowReport(len(rows), paid - cost, cost, paid, right, solved, past, says, tuple(rows))
