"""The verbs of ``ramify theory-loop``. Exit code 1: ``confirm --strict`` names no winner,
``check`` finds a fault of a theory, or a number of a run that does not come out again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from ramify.base import codec
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError, nearest
from ramify.base.files import reason, write_whole
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.kit import RunArgument, Verbs, argument, find_run, only_for, option
from ramify.methods.theory_loop import confirmation
from ramify.methods.theory_loop import loop as loops
from ramify.methods.theory_loop.algorithm import (
    DESIGNS,
    LN2,
    METRICS,
    LoopConfig,
    MetricEstimate,
    ScoredTheory,
    correlation,
    mse_pb,
    sequence_divergence,
    switch_rate,
)
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.canonical import find_theory
from ramify.methods.theory_loop.confirmation import CONFIRM
from ramify.methods.theory_loop.domain import PROBLEMS, Data, Design, PersonReport, TheoryError, design_file, hilbig
from ramify.methods.theory_loop.loop import pool_of
from ramify.methods.theory_loop.proposer import Experiment, LoopProblem, TheoryPool, Verdict
from ramify.methods.theory_loop.theories import Theory
from ramify.render.numbers import NOTHING, number, p_value, percent
from ramify.render.result import Planned, Result, Section, Verbatim, table
from ramify.render.terminal import progress, say
from ramify.trace.db import Run
from ramify.trace.sources import run_folder

if TYPE_CHECKING:
    from ramify.methods.theory_loop.people import Person

app = Verbs(
    "theory-loop", help="Which short program explains how somebody chooses? Rival theories, experiments between them, revision."
)

SEEDS = ["ttb", "wadd"]
TITLE = "A study of choices"
CHOICES = (".csv", ".jsonl", ".ndjson")
"""What a file of people's choices ends in."""
Theories = Annotated[
    list[str] | None,
    option("--theory", metavar="THEORY", help="The two theories to begin with, by name or file; default: ttb and wadd."),
]
Unsandboxed = Annotated[bool, option("--allow-unsandboxed", help="Run theories with limits only where nothing isolates.")]
DesignOption = Annotated[
    Path | None,
    option(
        "--design",
        metavar="FILE",
        help="An experiment as JSON, a registration, or a file of choices, for the pairs that most people in it saw; default: "
        "the 24 pairs of Hilbig and Moshagen (2014), with --against choices those that most people there saw.",
    ),
]
DrawSeed = Annotated[int | None, option("--seed", help="Decides every sample; default: 0.")]


def plan(options: LoopConfig, theory: list[str] | None) -> Planned:
    """What a loop takes at most."""
    specs = theory or SEEDS
    loops.seeds_of(specs)
    calls = options.rounds * (2 * DESIGNS * (1 + METRICS) + 1 + 2 * options.iterations)
    cost = {
        "rounds": options.rounds,
        "participants": 2 * options.rounds * options.people,
        "experiments": 2 * options.rounds,
        "candidate theories": options.rounds * options.iterations,
        "simulated subjects": options.rounds * options.iterations * options.rounds * 2 * options.runs,
        "replies of a model, without retries": calls if options.proposer != "grammar" else 0,
    }
    return Planned({**options.to_json(), "seeds": specs}, cost)


@app.study(settings=LoopConfig, plan=plan, unit="steps")
def run(
    options: LoopConfig,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    bar: Progress,
    theory: Theories = None,
    allow_unsandboxed: Unsandboxed = False,
) -> loops.TheoryLoopReport:
    """Let two theories compete: experiments that tell them apart, data,
    and the worse one revised against all data, round after round.

    More --rounds continue a loop that is done. With --participants web it stops
    where people's data is to come: `data export` writes the task as a page, `data import` takes what they saved,
    and the same command continues.
    """
    return loops.loop_of(options, theory or SEEDS, out, bar, allow_unsandboxed)


@dataclass(frozen=True)
class RoundVerdict(Verdict):
    """The arbiter's verdict of one round."""

    round: int = 0


@dataclass(frozen=True)
class LoopFinding:
    """A finding of the loop or of a confirmation."""

    name: str
    why: str


@dataclass(frozen=True)
class LoopStatus(Result):
    """How far a loop came."""

    rounds: int
    of: int
    seeds: tuple[str, ...]
    survivors: tuple[str, ...]
    experiments: tuple[loops.ExperimentSummary, ...]
    verdicts: tuple[RoundVerdict, ...]
    problems: tuple[LoopProblem, ...]
    waiting: str | None
    findings: tuple[LoopFinding, ...]

    def sections(self) -> Iterable[Section]:
        """Experiments, verdicts, problems, findings."""
        rows = [
            (one.key, one.proposer, p_value(one.p), one.passed, one.people, None if one.real is None else one.real.value)
            for one in self.experiments
        ]
        lines = [f"round {self.rounds} of {self.of}; theories {' and '.join(self.survivors)}"]
        lines += [f"round {one.round} replaces slot {one.slot + 1} ({one.kind}): {one.interpretation}" for one in self.verdicts]
        lines += [f"{one.where}: {one.problem}: {one.why}" for one in self.problems]
        lines += [f"{one.name}: {one.why}" for one in self.findings]
        lines += [f"experiment {self.waiting} waits for data"] if self.waiting else []
        yield Section.of(
            "",
            table(("experiment", "proposed by", "gate p", "passed", "people", "measured"), rows),
            "" if rows else "nothing was proposed yet",
            "\n".join(lines),
        )


@dataclass(frozen=True)
class TheoryBoard(Result):
    """Every admitted theory by its score."""

    leaderboard: tuple[loops.RankedTheory, ...]
    survivors: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The leaderboard."""
        yield Section.of("", loops.board_table(self.leaderboard, self.survivors))


@dataclass(frozen=True)
class TheorySource(Result):
    """One theory of a run, as a file to run."""

    label: str
    description: str
    parameters: Mapping[str, str]
    code: str
    rationale: str
    about: Mapping[str, Any]

    def sections(self) -> Iterable[Section]:
        """Its file."""
        theory = Theory(self.description, self.parameters, self.code, self.rationale, self.about)
        yield Section.of("", Verbatim(theory.file(), "python"))


@app.verb()
def show(
    run: RunArgument,
    what: Annotated[
        Literal["status", "leaderboard"],
        argument(
            "WHAT",
            help="status (default): rounds, experiments with their gate and data, verdicts, every problem. leaderboard: every "
            "admitted theory by its score over all experiments; 1 is the best possible, 0 the worst of those here.",
        ),
    ] = "status",
    theory: Annotated[
        str | None,
        option("--theory", metavar="LABEL", help="Of the leaderboard: print the source of this theory, as a file to run."),
    ] = None,
) -> LoopStatus | TheoryBoard | TheorySource:
    """How far a loop came, or its theories by score, or one of them as a program."""
    if what == "status":
        only_for("show status", theory=theory)
    with Run.open(find_run(run)) as opened:
        if what == "status":
            return _status(opened)
        pool = pool_of(opened)
    if theory is None:
        return TheoryBoard(loops.ranked(pool), tuple(pool.slots))
    source = _labelled(pool, theory, opened.folder)
    return TheorySource(theory, source.description, source.parameters, source.code, source.rationale, source.about)


def _status(run: Run) -> LoopStatus:
    pool, (config, specs) = pool_of(run), loops.config_of(run)
    verdicts = run.memo(loops.DECIDED, Verdict)
    told = [one for one in run.findings() if one.maker in (loops.KIND, CONFIRM)]
    return LoopStatus(
        rounds=len(run.journal(loops.REPLACED)),
        of=config.rounds,
        seeds=tuple(specs),
        survivors=tuple(pool.slots),
        experiments=tuple(map(loops.ExperimentSummary.of, pool.observations)),
        verdicts=tuple(RoundVerdict(**asdict(one), round=int(number)) for number, one in verdicts.items()),
        problems=tuple(run.memo(loops.PROBLEM, LoopProblem).values()),
        waiting=next((one.key for one in pool.observations if not one.data), None),
        findings=tuple(LoopFinding(one.name, one.why) for one in told),
    )


@dataclass(frozen=True)
class ReplayDifference:
    """A stored number that did not come out again."""

    what: str
    stored: MetricEstimate | None
    now: MetricEstimate | None


@dataclass(frozen=True)
class LoopReplay(Result):
    """What a run holds, measured and simulated again."""

    PART: ClassVar[str] = "replay"
    experiments: tuple[str, ...]
    compared: int
    differences: tuple[ReplayDifference, ...]
    leaderboard: tuple[ScoredTheory, ...]

    @property
    def exit_code(self) -> int:
        """1 where a number differs."""
        return EXIT_FAILED if self.differences else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """How many numbers came out, and those that did not."""
        came = self.compared - len(self.differences)
        says = f"{came} stored numbers of {len(self.experiments)} experiments came out again, {len(self.differences)} did not"
        rows = [(one.what, *map(_estimate, (one.stored, one.now))) for one in self.differences]
        yield Section.of("", says, table(("what", "stored", "now"), rows))


def _estimate(one: MetricEstimate | None) -> str:
    return NOTHING if one is None else f"{number(one.value)} (variance {number(one.variance)})"


def _replay(run: Run, round: int | None, allow: bool) -> LoopReplay:
    """Measures and simulates again from what the run holds, without a model or participants."""
    pool, (config, _) = pool_of(run), loops.config_of(run)
    chosen = [one for one in pool.observations if one.data and (round is None or one.key.startswith(f"{round}."))]
    if not chosen:
        raise UserError(f"{run.folder} holds no data of {'any round' if round is None else f'round {round}'} yet")
    with progress("replay", len(chosen), "experiments") as bar:
        differences = wait_for(_replayed(run, pool, config, chosen, bar, allow))
    compared = sum(len(one.predictions) + 1 for one in chosen)
    return LoopReplay(tuple(one.key for one in chosen), compared, differences, tuple(loops.rows_of(pool)))


async def _replayed(
    run: Run, pool: TheoryPool, config: LoopConfig, chosen: list[Experiment], bar: Progress, allow: bool
) -> tuple[ReplayDifference, ...]:
    found: list[ReplayDifference] = []

    def same(what: str, stored: MetricEstimate | None, now: MetricEstimate | None) -> None:
        a, b = (None if one is None else (one.value, one.variance) for one in (stored, now))
        if a != b and not (a and b and np.allclose([x or 0.0 for x in a], [x or 0.0 for x in b], rtol=1e-6, atol=1e-9)):
            found.append(ReplayDifference(what, stored, now))

    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        for done, one in enumerate(chosen, 1):
            try:
                real = (await bench.measure(one.metric, loops.data_of_run(run, one), checked=True))[0]
            except TheoryError:
                real = None
            same(f"experiment {one.key}, measured", one.real, real)
            bar.at(done, one.key)
        for label, theory in pool.theories.items():
            stored = [one for one in chosen if label in one.predictions]
            for one, now in zip(stored, await loops.predictions(bench, theory, label, stored, config), strict=True):
                same(f"experiment {one.key}, predicted by {label}", one.predictions[label], now)
    return tuple(found)


@dataclass(frozen=True)
class LimitCheck:
    """With the values of ``limit`` the theory chooses as ``theory`` does on so many pairs."""

    limit: str
    theory: str
    alike: int


@dataclass(frozen=True)
class TheoryCheck(Result):
    """Whether a theory keeps the contract; with a fault ``problem``, what that ``means``, and ``why``."""

    theory: str
    hash: str
    reads_history: bool
    own_policy: bool
    parameters: Mapping[str, str]
    ok: bool
    p_b: tuple[float, ...] = ()
    """Of each pair, of 50 subjects."""
    switch_rate: float | None = None
    pairs: int | None = None
    limits: tuple[LimitCheck, ...] = ()
    problem: str = ""
    means: str = ""
    why: str = ""
    design: Design | None = field(default=None, metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """1 where it does not keep it."""
        return EXIT_DONE if self.ok else EXIT_FAILED

    def sections(self) -> Iterable[Section]:
        """P(B) by pair, limits, or the fault."""
        if self.design is None or self.problem:
            yield Section.of("", f"{self.problem} ({self.means}): {self.why}")
            return
        sides = zip(self.design.a, self.design.b, self.p_b, strict=True)
        short = self.design.rating_max < 10
        rows = [("".join(map(str, a)) if short else str(a), "".join(map(str, b)) if short else str(b), p) for a, b, p in sides]
        reads = "reads" if self.reads_history else "does not read"
        lines = [f"the contract holds; {reads} earlier choices; switches in {percent(self.switch_rate, 0)} of trials"]
        lines += [f"with {one.limit} it chooses as {one.theory} does on {one.alike} of {self.pairs} pairs" for one in self.limits]
        lines.append(
            "what else the prose says is for you to check"
            if self.limits
            else "whether the program says what the prose says is for you to check: --limit tests what it is at an end of its "
            "ranges"
        )
        yield Section.of("", table(("A", "B", "P(B) of 50 subjects"), rows), "\n".join(lines))


def _checked(theory: str, limit: list[str], design: Path | None, seed: int, allow: bool) -> TheoryCheck:
    one, used = find_theory(theory), _design(design)
    limits = one.limits | dict(map(_limit, limit))
    others = {name: find_theory(name) for name in limits.values()}

    asked = TheoryCheck(theory, one.hash, one.reads_history, not one.samples, dict(one.parameters), False, design=used)

    async def main() -> TheoryCheck:
        async with TheoryBench(allow_unsandboxed=allow) as bench:
            try:
                data = await bench.simulate(one, used, 50, seed, "check")
                rows = [
                    LimitCheck(text, name, await alike_pairs(bench, one.at(text), others[name], used, seed))
                    for text, name in limits.items()
                ]
            except TheoryError as error:
                return replace(asked, problem=error.kind, means=PROBLEMS[error.kind], why=error.why)
            return replace(
                asked,
                ok=all(row.alike == used.pairs for row in rows),
                p_b=tuple(round(float(p), 4) for p in data.p_b),
                switch_rate=switch_rate(data.response),
                pairs=used.pairs,
                limits=tuple(rows),
            )

    return wait_for(main())


def _limit(text: str) -> tuple[str, str]:
    values, _, name = text.partition(":")
    if "=" not in values or not name:
        raise UserError(f"--limit {text!r:.60}: write values and a theory, as in gamma=0:tallying")
    return values, name


async def alike_pairs(bench: TheoryBench, theory: Theory, other: Theory, design: Design, seed: int) -> int:
    """On how many pairs the mean P(B) of both is on the same side of one half; at one half is a side of its own."""
    means = [(await bench.tables(one, [(design, 50)], seed, "limit"))[0].mean(axis=0) - 0.5 for one in (theory, other)]
    sides = [np.sign(np.where(abs(mean) < 1e-6, 0.0, mean)) for mean in means]
    return int((sides[0] == sides[1]).sum())


@dataclass(frozen=True)
class TheoryDistance:
    """How near a theory's choices are to others'; None where a number says nothing of it."""

    theory: str
    mse_pb: float | None = None
    r: float | None = None
    log_likelihood: float | None = None
    """Of a choice, in nats."""
    sequence_jsd: float | None = None
    switch_rate: float | None = None


@dataclass(frozen=True)
class TheoryDistances(Result):
    """Theories beside others' choices, a coin, and the others themselves."""

    PART: ClassVar[str] = "against"
    against: str
    pairs: int
    subjects: int
    rows: tuple[TheoryDistance, ...]

    def sections(self) -> Iterable[Section]:
        """A row a theory."""
        head = ("theory", "MSE of P(B)", "r", "log-likelihood a choice", "sequence JSD (nats)", "switches")
        yield Section.of("", table(head, map(astuple, self.rows)))


def _evaluated(
    run: Path | None, theory: str, against: str, design: Path | None, count: int, seed: int, allow: bool
) -> TheoryDistances:
    from ramify.methods.theory_loop.confirmation import errors

    people = None
    if Path(against).suffix in CHOICES:
        people = _data_of(Path(against), None if design is None else _design(design))
    used = _design(design) if people is None else people.design
    if run is None:
        theories = {theory: find_theory(theory)}
    else:
        with Run.open(run) as opened:
            theories = pool_of(opened).theories
    other = None if people is not None else find_theory(against)

    async def main() -> tuple[TheoryDistance, ...]:
        async with TheoryBench(allow_unsandboxed=allow) as bench:
            one_order = used.orders(1, seed, "evaluate")  # everybody's, so that sequences can be compared trial by trial
            order = one_order[np.zeros(count, int)] if people is None else people.order[np.arange(count) % len(people.order)]
            reference = people if people is not None else await _simulated(bench, other, against, used, count, seed, order)
            rows = []
            for name, one in theories.items():
                data = await _simulated(bench, one, name, used, count, seed + 1, order)
                _, likelihood = await errors(bench, one, reference, seed, "evaluate", name)
                rows.append(
                    TheoryDistance(
                        name,
                        mse_pb(data.p_b, reference.p_b),
                        correlation(data.p_b, reference.p_b),
                        likelihood,
                        None if people is not None else sequence_divergence(data.response, reference.response),
                        switch_rate(data.response),
                    )
                )
            flat = mse_pb(np.full(used.pairs, 0.5), reference.p_b)
            coin = TheoryDistance("baseline: a coin", flat, log_likelihood=-LN2, switch_rate=0.5)
            return *rows, coin, TheoryDistance(f"against: {against}", switch_rate=switch_rate(reference.response))

    try:
        rows = wait_for(main())
    except TheoryError as error:
        raise UserError(f"a theory cannot be evaluated ({error.kind}): {error}") from None
    return TheoryDistances(against, used.pairs, count, rows, caveats=_left_out(people))


async def _simulated(
    bench: TheoryBench, theory: Theory | None, name: str, design: Design, n: int, seed: int, order: np.ndarray
) -> Data:
    assert theory is not None
    try:
        return await bench.simulate(theory, design, n, seed, "evaluate", theory.hash, order=order)
    except TheoryError as error:
        raise UserError(f"the theory {name} fails ({error.kind}): {error}") from None


@app.verb(keeps="what")
def check(
    what: Annotated[
        str, argument("WHAT", help="A theory: its name (ttb, tallying, wadd, ...), or a file, .py or .yaml; or a RUN.")
    ],
    against: Annotated[
        str | None,
        option(
            "--against",
            metavar="CHOICES",
            help="Compare with a theory by name or file, or with people's choices as CSV or JSON lines.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        option(
            "--limit",
            metavar="VALUES:THEORY",
            help="Of a theory: with these values it is to choose as THEORY does, gamma=0:tallying; besides the limits that its "
            "file states.",
        ),
    ] = None,
    round: Annotated[
        int | None, option("--round", min=1, metavar="N", help="Of a run: only this round's experiments; default: all.")
    ] = None,
    design: DesignOption = None,
    count: Annotated[
        int | None,
        option("--count", min=10, max=5000, help="With --against: simulated subjects of each theory; default: 100."),
    ] = None,
    seed: DrawSeed = None,
    allow_unsandboxed: Unsandboxed = False,
) -> TheoryCheck | LoopReplay | TheoryDistances:
    """Does a theory keep the contract, does a run come out again, or how near are their choices to others'?

    A theory: its source, its parameters, its probabilities on every pair, the same twice, and the limits it states. A limit says
    what the theory is at an end of its ranges: with those values the mean P(B) is on the other theory's side of one half on every
    pair, before any earlier choice.

    A run: what it holds is measured and simulated again, without a model or participants, and stored numbers must come out.

    --against, outside the loop: MSE of the proportion of B choices, r, log-likelihood, sequences, switches; of a run of every
    theory. Beside people a theory is simulated on their own trials, each person's in the order in which they were made.
    """
    run = run_folder(Path(what))
    if against is not None:
        only_for("check --against", limit=limit, round=round)
        return _evaluated(run, what, against, design, 100 if count is None else count, seed or 0, allow_unsandboxed)
    if run is None:
        only_for("check of a theory without --against", round=round, count=count)
        return _checked(what, limit or [], design, seed or 0, allow_unsandboxed)
    only_for("check of a run without --against", limit=limit, design=design, count=count, seed=seed)
    with Run.open(run) as opened:
        return _replay(opened, round, allow_unsandboxed)


@dataclass(frozen=True)
class SimulatedChoices(Result):
    """A file of simulated choices."""

    out: str
    subjects: int
    trials: int

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        yield Section.of("", f"{self.subjects} subjects, {self.trials} trials in {self.out}")


def _simulate(theory: str, out: Path, design: Path | None, count: int, noise: float, seed: int, allow: bool) -> SimulatedChoices:
    one, used = find_theory(theory), _design(design)

    async def main() -> Data:
        async with TheoryBench(allow_unsandboxed=allow) as bench:
            try:
                return await bench.simulate(one, used, count, seed, "simulate", noise=noise)
            except TheoryError as error:
                raise UserError(f"the theory {theory} fails ({error.kind}): {error}") from None

    data = wait_for(main())
    write_whole(out, data.to_csv())
    return SimulatedChoices(str(out), count, int(data.order.size))


@dataclass(frozen=True)
class ExportedExperiment(Result):
    """A file with an experiment; ``design`` is the hash of what subjects see."""

    out: str
    experiment: str
    design: str
    trials: int

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        yield Section.of("", f"experiment {self.experiment}, {self.trials} trials, in {self.out}")


def _export(
    run: str | None, out: Path, experiment: str | None, design: Path | None, title: str, consent: Path | None, contact: str
) -> ExportedExperiment:
    from ramify.methods.theory_loop.people import task_page

    if (run is None) == (design is None):
        raise UserError("name a run or --design, one of them")
    if design is not None:
        used, key = _design(design), str(design)
    else:
        with Run.open(find_run(str(run))) as opened:
            one = _chosen(pool_of(opened), experiment, opened.folder)
        used, key = one.design, one.key
    if out.suffix not in (".html", ".json"):
        raise UserError(f"{out}: a page ends in .html, an experiment in .json")
    text = _text_file(consent) if consent is not None else ""
    write_whole(
        out, task_page(used, title, text, contact) if out.suffix == ".html" else json.dumps(used.to_json(), indent=1) + "\n"
    )
    return ExportedExperiment(str(out), key, used.hash, used.pairs * used.repeats)


@dataclass(frozen=True)
class ImportedPeople(Result):
    """People's choices of an experiment so far, and who is left out."""

    experiment: str
    new: int
    kept: int
    dropped: int
    wanted: int
    complete: bool
    people: tuple[PersonReport, ...]
    folder: str = field(default="", metadata={"json": False})

    def sections(self) -> Iterable[Section]:
        """A row a person, and what is missing."""
        rows = [
            (
                one.subject,
                one.trials,
                one.mean_rt_ms,
                percent(one.same_key, 0),
                percent(one.alternates, 0),
                one.dropped or "kept",
            )
            for one in self.people
        ]
        then = (
            f"it has its data: `ramify theory-loop run` continues {self.folder}"
            if self.complete
            else "import more, or --fewer takes these"
        )
        yield Section.of(
            "",
            table(("subject", "trials", "ms a choice", "same key", "alternates", ""), rows),
            f"{self.kept} of {self.wanted} people for experiment {self.experiment}; {then}",
        )


def _import(folder: Path, files: list[Path], experiment: str | None, fewer: bool, dry_run: bool, allow: bool) -> ImportedPeople:
    from ramify.methods.theory_loop import people as human

    with Run.open(folder, write=not dry_run) as opened:
        pool, (config, _) = pool_of(opened), loops.config_of(opened)
        one = _chosen(pool, experiment, opened.folder)
        stored = {
            key.partition("/")[2]: record
            for key, record in opened.memo(loops.PERSON, loops.PersonChoices).items()
            if key.startswith(f"{one.key}/")
        }
        if one.data and not stored:
            raise UserError(f"experiment {one.key} of {opened.folder} has its data already")
        new = [person for file in files for person in human.read_people(file, one.design)]
        if one.data and any(stored.get(person.subject) != _choices(person) for person in new):
            raise UserError(f"experiment {one.key} of {opened.folder} has its data already, and these are other people")
        seen: set[str] = set()
        for person in new:
            record = _choices(person)
            if person.subject in seen or (person.subject in stored and stored[person.subject] != record):
                raise UserError(f"subject '{person.subject}' is there already, with other choices: identifiers are unique")
            seen.add(person.subject)
            if person.subject not in stored and not dry_run:
                opened.log(loops.PERSON, f"{one.key}/{person.subject}", codec.to_json(record))
            stored[person.subject] = record
        everybody = [human.Person(record.order, record.response, record.report) for record in stored.values()]
        kept = [person for person in everybody if not person.dropped]
        complete = len(kept) >= config.people or (fewer and len(kept) >= 2)
        if complete and not dry_run and not one.data:
            data = human.data_of(everybody, one.design, config.people)
            wait_for(_taken(opened, config, one, data, allow))
    return ImportedPeople(
        experiment=one.key,
        new=len(new),
        kept=len(kept),
        dropped=len(everybody) - len(kept),
        wanted=config.people,
        complete=complete,
        people=tuple(person.report for person in everybody),
        folder=str(opened.folder),
    )


def _choices(person: Person) -> loops.PersonChoices:
    return loops.PersonChoices(person.order, person.response, person.report)


async def _taken(run: Run, config: LoopConfig, one: Experiment, data: Data, allow: bool) -> None:
    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        await loops.TheoryLoop(config, [], run, bench).take(one, data)


@app.verb()
def data(
    what: Annotated[
        Literal["simulate", "export", "import"],
        argument(
            "WHAT",
            help="simulate: choices of a theory as CSV. export: an experiment as a web page for people, or as JSON. import: "
            "people's choices into a run.",
        ),
    ],
    source: Annotated[
        str | None,
        argument("SOURCE", help="simulate: the theory, by name or file. export: the run, or --design. import: the run."),
    ] = None,
    files: Annotated[
        list[Path] | None, argument("CSV...", help="import: what people saved, one file each or all in one.")
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            metavar="FILE",
            help="simulate: the CSV to write, one row a trial. export: .html is the task as one page (default: task.html), .json "
            "the experiment.",
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        option(
            "--experiment",
            metavar="ROUND.SLOT",
            help="export, import: which experiment; default: the one that waits for data, else the last.",
        ),
    ] = None,
    design: DesignOption = None,
    count: Annotated[int | None, option("--count", min=1, max=5000, help="simulate: subjects; default: 25.")] = None,
    noise: Annotated[
        float | None, option("--noise", min=0, max=1, help="simulate: probability of a uniform choice; default: 0.")
    ] = None,
    seed: DrawSeed = None,
    title: Annotated[str | None, option("--title", help="export: title of the page; default: A study of choices.")] = None,
    consent: Annotated[
        Path | None,
        option(
            "--consent", metavar="FILE", help="export: your consent text; default: a general one that names what is recorded."
        ),
    ] = None,
    contact: Annotated[
        str | None, option("--contact", help="export: whom people can write to, as shown on the first page.")
    ] = None,
    fewer: Annotated[
        bool, option("--fewer", help="import: take what there is, though it is fewer people than were asked for.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="import: say who would be kept; change nothing.")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> SimulatedChoices | ExportedExperiment | ImportedPeople:
    """Choices of a theory as a file, an experiment as a page for people, and what people saved into a run.

    The page takes keys and times, asks for consent, works offline and requests nothing. `data import` leaves out, with the
    reason: one key, alternation, haste, absence, programs; their data is kept. Files may come one after another: the experiment
    has its data once as many people as were asked for are kept.
    """
    page = {"title": title, "consent": consent, "contact": contact}
    drawn = {"count": count, "noise": noise, "seed": seed}
    taken = {"fewer": fewer, "dry_run": dry_run}
    if files and what != "import":
        raise UserError(f"data {what} takes no CSV")
    if what == "export":
        only_for("data export", **drawn, **taken, allow_unsandboxed=allow_unsandboxed)
        return _export(source, out or Path("task.html"), experiment, design, title or TITLE, consent, contact or "")
    if source is None:
        raise UserError(f"data {what} needs {'a theory' if what == 'simulate' else 'a run'} after it")
    if what == "simulate":
        only_for("data simulate", **page, **taken, experiment=experiment)
        if out is None:
            raise UserError("data simulate needs --out, the CSV to write")
        return _simulate(source, out, design, 25 if count is None else count, noise or 0.0, seed or 0, allow_unsandboxed)
    only_for("data import", **page, **drawn, out=out, design=design)
    if not files:
        raise UserError("data import needs what people saved, one CSV or more, after the run")
    return _import(find_run(source), files, experiment, fewer, dry_run, allow_unsandboxed)


@dataclass(frozen=True)
class RegisteredClaim(Result):
    """A claim that was fixed, and its file."""

    KEPT = False
    out: str
    claim: str
    name: str
    label: str
    people: int
    alpha: float
    power: Mapping[str, float]
    """By rival; of a contrast under the theory's own label."""
    hash: str
    expected: Mapping[str, float]
    """Of a contrast, by theory: what it expects."""

    def sections(self) -> Iterable[Section]:
        """The claim, its size, and its power."""
        shown = table(("rival", "power if the theory is true"), self.power.items())
        if self.expected:
            rows = [(name, value, self.power.get(name)) for name, value in self.expected.items()]
            shown = table(("if this is true", "expected contrast", "power"), rows)
        says = f"{self.claim}\n{self.people} people, level {self.alpha:g}"
        yield Section.of("", says, shown, f"{self.out}, hash {self.hash}")


CLAIMS = Literal["predicts", "concave-match", "steep-flat", "level-shift"]


@dataclass(frozen=True)
class ClaimOptions:
    """What is claimed, by whom against whom, of how many people; None: the default that `confirm` names."""

    test: CLAIMS | None = None
    theory: str | None = None
    rival: list[str] | None = None
    design: Path | None = None
    people: int | None = None
    alpha: float | None = None
    two_sided: bool = False
    seed: int | None = None


def _register(run: Path, out: Path, asked: ClaimOptions, allow: bool) -> RegisteredClaim:
    test, alpha, seed = asked.test or "predicts", 0.05 if asked.alpha is None else asked.alpha, asked.seed or 0
    sides: confirmation.Sides = 2 if asked.two_sided else 1
    if test != "predicts" and asked.design is not None:
        raise UserError(f"--test {test} has an experiment of its own: leave --design out")
    with Run.open(run) as opened:
        pool = pool_of(opened)
    best = next(row.label for row in loops.rows_of(pool) if row.label in pool.slots)
    label = asked.theory or best
    own = _labelled_or_found(pool, label, opened.folder)
    usual = {"predicts": ["pi_1", "pi_2", "coin"], "concave-match": ["validity-wadd", "tallying", "ttb"]}
    rivals = {name: _labelled_or_found(pool, name, opened.folder) for name in asked.rival or usual.get(test, ["wadd"])}
    rivals = {name: one for name, one in rivals.items() if one.hash != own.hash}
    if not rivals and test == "predicts":
        raise UserError(f"{label} is the same theory as each of its rivals")

    async def main() -> confirmation.Registration:
        async with TheoryBench(allow_unsandboxed=allow) as bench:
            try:
                if test != "predicts":
                    return await confirmation.register_contrast(bench, test, label, own, rivals, alpha, seed, asked.people, sides)
                return await confirmation.register(
                    bench, label, own, rivals, alpha, seed, asked.people, _design(asked.design), sides
                )
            except TheoryError as error:
                raise UserError(f"a theory of the registration fails ({error.kind}): {error}") from None

    made = wait_for(main())
    filed = made.filed()
    written = json.dumps(codec.to_json(filed), indent=1) + "\n"
    if out.is_file() and out.read_bytes() != written.encode():
        raise UserError(f"{out} is there already and says something else: a registration is not overwritten")
    write_whole(out, written)
    return RegisteredClaim(
        str(out), filed.claim, made.name, made.label, made.people, made.alpha, made.power, filed.hash, made.expected
    )


@app.verb(keeps="run")
def confirm(
    run: RunArgument,
    claim: Annotated[
        Path, argument("CLAIM", help="The registration, as JSON: --register writes it; publish it before anybody takes part.")
    ],
    register: Annotated[bool, option("--register", help="Fix the claim, before the data; test nothing.")] = False,
    test: Annotated[
        CLAIMS | None,
        option(
            "--test",
            help="With --register: that the theory predicts better than its rivals (default); or a choice that people make where "
            "returns diminish (cardinal ratings).",
        ),
    ] = None,
    theory: Annotated[
        str | None,
        option(
            "--theory",
            metavar="THEORY",
            help="With --register: the theory that claims, by label, name or file; default: the better survivor.",
        ),
    ] = None,
    rival: Annotated[
        list[str] | None,
        option(
            "--rival",
            metavar="THEORY",
            help="With --register: a rival by label, name or file; default: both seeds and a coin, of concave-match the rules "
            "that it opposes, of the other tests wadd.",
        ),
    ] = None,
    design: DesignOption = None,
    people: Annotated[
        int | None,
        option("--people", min=5, max=5000, help="With --register: how many; default: what simulation says 99 % power takes."),
    ] = None,
    alpha: Annotated[
        float | None, option("--alpha", min=0.0001, max=0.5, help="With --register: level of the test; default: 0.05.")
    ] = None,
    two_sided: Annotated[
        bool,
        option("--two-sided", help="With --register: count both tails, though only the claimed way holds; default: one-sided."),
    ] = False,
    seed: DrawSeed = None,
    data: Annotated[
        Path | None, option("--data", metavar="FILE", help="Fresh people's choices; default: fresh participants of the run.")
    ] = None,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where no winner is named.")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> RegisteredClaim | confirmation.ClaimTest:
    """Fix a claim before the data, with --register: the test, its pairs, how many people, at what level. Then test it on fresh
    participants, exactly as registered and once: a winner is named only where every rival is beaten.

    predicts: the theory says better what people choose next than each rival. concave-match: people choose as diminishing returns
    do where weighting by validity, tallying and take the best say otherwise. steep-flat and level-shift: a step at the low end of
    a rating draws more than one at the high end, and a pair draws less once it is shifted up; for any linear rule neither does.

    A registration that was changed is refused, and so are people who took part in the loop. `data export --design CLAIM` writes
    its experiment as a page.
    """
    asked = ClaimOptions(test, theory, rival, design, people, alpha, two_sided, seed)
    folder = find_run(run)
    if register:
        only_for("confirm --register", data=data, strict=strict)
        return _register(folder, claim, asked, allow_unsandboxed)
    only_for("confirm without --register", **vars(asked))
    return replace(_tested(folder, claim, data, allow_unsandboxed), strict=strict)


def _tested(run: Path, claim: Path, data: Path | None, allow: bool) -> confirmation.ClaimTest:
    made = confirmation.read_registration(_json_file(claim))
    key = made.filed().hash
    with Run.open(run, write=True) as opened:
        config, _ = loops.config_of(opened)
        pool_of(opened)

        async def tested() -> tuple[confirmation.ClaimTest, tuple[()]]:
            people = _data_of(data, made.design) if data is not None else None
            _fresh(opened, people)
            return await _confirmed(opened, config, made, people, key, allow), ()

        def concluded(_: confirmation.ClaimTest) -> None:
            known = opened.memo(loops.CONFIRMED, confirmation.ClaimTest)
            opened.conclude(CONFIRM, [one.finding(name) for name, one in known.items()])

        if opened.journal(loops.CONFIRMED, key):
            say("this registration was tested already: its first result stands")
        return wait_for(opened.once_awaited(loops.CONFIRMED, key, confirmation.ClaimTest, tested, concluded))


def _fresh(run: Run, people: Data | None) -> None:
    """Raises UserError where somebody took part in an experiment of the loop."""
    seen = {entry.key.partition("/")[2]: entry.key.partition("/")[0] for entry in run.journal(loops.PERSON)}
    for subject in () if people is None else people.subjects:
        if subject in seen:
            raise UserError(
                f"subject '{subject}' took part in experiment {seen[subject]}: a claim is tested on fresh participants"
            )


async def _confirmed(
    run: Run, config: LoopConfig, made: confirmation.Registration, people: Data | None, key: str, allow: bool
) -> confirmation.ClaimTest:
    from ramify.methods.theory_loop.participants import find_participants

    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        caveats = _left_out(people)
        if people is None:
            own = find_participants(config.participants, config.noise, bench)
            people = await own.collect(made.design, made.people, config.seed, f"confirm {key}", loops.kept_in(run))
            if people is None:
                raise UserError(
                    "the participants of this run are people: name their fresh choices with --data (`data export --design` with "
                    "the registration writes the task)"
                )
        if len(people.order) < 2:
            raise UserError(f"{len(people.order)} participants are left, and a test needs two at least")
        try:
            return replace(await confirmation.compare(bench, made, people), caveats=caveats)
        except TheoryError as error:
            raise UserError(f"a theory of the registration fails on this data ({error.kind}): {error}") from None


# -- shared ---------------------------------------------------------------------------------------------------------------------


def _design(path: Path | None) -> Design:
    if path is None:
        return hilbig()
    if path.suffix in CHOICES:
        from ramify.methods.theory_loop.people import read_study

        return read_study(path)[0]
    return design_file(path)


def _text_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None


def _json_file(path: Path) -> Any:
    try:
        return json.loads(_text_file(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def _data_of(path: Path, design: Design | None) -> Data:
    from ramify.methods.theory_loop.people import read_data

    return read_data(path, design)


def _left_out(people: Data | None) -> tuple[str, ...]:
    """Who of people that were read is left out, as a caveat."""
    left = () if people is None else people.extra.dropped
    if people is None or not left:
        return ()
    named = "; ".join(f"{one.subject}: {one.dropped}" for one in left[:5])
    return (f"{len(left)} of {people.extra.asked} people are left out: {named}",)


def _labelled(pool: TheoryPool, label: str, folder: Path) -> Theory:
    if label not in pool.theories:
        raise UserError(f"{folder} has no theory '{label}' ({nearest(label, pool.theories)})")
    return pool.theories[label]


def _labelled_or_found(pool: TheoryPool, spec: str, folder: Path) -> Theory:
    """A theory by its label in a run, else by name or file. Raises UserError with the nearest name."""
    return _labelled(pool, spec, folder) if spec.startswith("pi_") and not Path(spec).suffix else find_theory(spec)


def _chosen(pool: TheoryPool, key: str | None, folder: Path) -> Experiment:
    found = {one.key: one for one in pool.observations}
    if not found:
        raise UserError(f"{folder} has no experiment yet: `ramify theory-loop run` proposes one")
    if key is None:
        return next((one for one in pool.observations if not one.data), pool.observations[-1])
    if key not in found:
        raise UserError(f"{folder} has no experiment '{key}' ({nearest(key, found)})")
    return found[key]
