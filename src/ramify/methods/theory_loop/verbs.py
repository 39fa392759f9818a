"""The verbs of ``ramify theory-loop``. Exit code 1: ``confirm --strict`` names no winner,
``check`` finds a fault, ``replay`` a difference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ramify.base import codec
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError, nearest
from ramify.base.files import reason, write_whole
from ramify.base.progress import Progress
from ramify.base.waiting import wait_for
from ramify.kit import RunArgument, Seed, Verbs, argument, find_run, option
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
from ramify.methods.theory_loop.confirmation import CONFIRM
from ramify.methods.theory_loop.domain import PROBLEMS, Data, Design, PersonReport, TheoryError, design_file, hilbig
from ramify.methods.theory_loop.loop import pool_of
from ramify.methods.theory_loop.proposer import Experiment, LoopProblem, TheoryPool, Verdict
from ramify.methods.theory_loop.theories import Theory, find_theory
from ramify.render.numbers import NOTHING, number, p_value, percent
from ramify.render.result import Planned, Result, Section, Verbatim, table
from ramify.render.terminal import progress, say
from ramify.trace.db import Run

if TYPE_CHECKING:
    from ramify.methods.theory_loop.people import Person

app = Verbs(
    "theory-loop", help="Which short program explains how somebody chooses? Rival theories, experiments between them, revision."
)

SEEDS = ["ttb", "wadd"]
Theories = Annotated[
    list[str] | None,
    option("--theory", metavar="THEORY", help="The two theories to begin with, by name or file; default: ttb and wadd."),
]
TheoryArgument = Annotated[
    str, argument("THEORY", help="A theory: its name (ttb, tallying, wadd, ...), or a file, .py or .yaml.")
]
Unsandboxed = Annotated[bool, option("--allow-unsandboxed", help="Run theories with limits only where nothing isolates.")]
DesignOption = Annotated[
    Path | None,
    option(
        "--design",
        metavar="FILE",
        help="An experiment as JSON, or a registration; default: the 24 pairs of Hilbig and Moshagen (2014).",
    ),
]


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
    where people's data is to come: `export` writes the task as a page, `import-data` takes what they saved,
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


@app.verb()
def status(run: RunArgument) -> LoopStatus:
    """How far a loop came: rounds, experiments with their gate and data, verdicts, and every problem that was recorded."""
    with Run.open(find_run(run)) as opened:
        pool, (config, specs) = pool_of(opened), loops.config_of(opened)
        verdicts = opened.memo(loops.DECIDED, Verdict)
        told = [one for one in opened.findings() if one.maker in (loops.KIND, CONFIRM)]
        return LoopStatus(
            rounds=len(opened.journal(loops.REPLACED)),
            of=config.rounds,
            seeds=tuple(specs),
            survivors=tuple(pool.slots),
            experiments=tuple(map(loops.ExperimentSummary.of, pool.observations)),
            verdicts=tuple(RoundVerdict(**asdict(one), round=int(number)) for number, one in verdicts.items()),
            problems=tuple(opened.memo(loops.PROBLEM, LoopProblem).values()),
            waiting=next((one.key for one in pool.observations if not one.data), None),
            findings=tuple(LoopFinding(one.name, one.why) for one in told),
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
def leaderboard(
    run: RunArgument,
    theory: Annotated[
        str | None, option("--theory", metavar="LABEL", help="Print the source of this theory instead, as a file to run.")
    ] = None,
) -> TheoryBoard | TheorySource:
    """Every admitted theory by its score over all experiments: 1 is the best possible, 0 is the worst of those here."""
    with Run.open(find_run(run)) as opened:
        pool = pool_of(opened)
    if theory is not None:
        one = _labelled(pool, theory, opened.folder)
        return TheorySource(theory, one.description, one.parameters, one.code, one.rationale, one.about)
    return TheoryBoard(loops.ranked(pool), tuple(pool.slots))


@dataclass(frozen=True)
class ReplayDifference:
    """A stored number that did not come out again."""

    what: str
    stored: MetricEstimate | None
    now: MetricEstimate | None


@dataclass(frozen=True)
class LoopReplay(Result):
    """What a run holds, measured and simulated again."""

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


@app.verb(keeps="run")
def replay(
    run: RunArgument,
    round: Annotated[
        int | None, option("--round", min=1, metavar="N", help="Only this round's experiments; default: all.")
    ] = None,
    allow_unsandboxed: Unsandboxed = False,
) -> LoopReplay:
    """Measure and simulate again from what the run holds, without a model or participants, and compare:
    stored numbers must come out."""
    with Run.open(find_run(run)) as opened:
        pool, (config, _) = pool_of(opened), loops.config_of(opened)
        chosen = [one for one in pool.observations if one.data and (round is None or one.key.startswith(f"{round}."))]
        if not chosen:
            raise UserError(f"{opened.folder} holds no data of {'any round' if round is None else f'round {round}'} yet")
        with progress("replay", len(chosen), "experiments") as bar:
            differences = wait_for(_replayed(opened, pool, config, chosen, bar, allow_unsandboxed))
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


@app.verb()
def check(
    theory: TheoryArgument,
    limit: Annotated[
        list[str] | None,
        option(
            "--limit",
            metavar="VALUES:THEORY",
            help="With these values it is to choose as THEORY does, gamma=0:tallying; besides the limits that its file states.",
        ),
    ] = None,
    design: DesignOption = None,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
) -> TheoryCheck:
    """Whether a theory keeps the contract: its source, its parameters, its probabilities on every pair,
    the same twice, and the limits it states.

    A limit says what the theory is at an end of its ranges: with those values the mean P(B) is on the other theory's side of one
    half on every pair, before any earlier choice. It runs in the sandbox.
    """
    one, used = find_theory(theory), _design(design)
    limits = one.limits | dict(_limit(text) for text in limit or ())
    others = {name: find_theory(name) for name in limits.values()}

    asked = TheoryCheck(theory, one.hash, one.reads_history, not one.samples, dict(one.parameters), False, design=used)

    async def main() -> TheoryCheck:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
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

    against: str
    pairs: int
    subjects: int
    rows: tuple[TheoryDistance, ...]

    def sections(self) -> Iterable[Section]:
        """A row a theory."""
        head = ("theory", "MSE of P(B)", "r", "log-likelihood a choice", "sequence JSD (nats)", "switches")
        yield Section.of("", table(head, map(astuple, self.rows)))


@app.verb(keeps="theory")
def evaluate(
    theory: Annotated[str, argument("THEORY", help="A theory by name or file; or a RUN, of which every theory is evaluated.")],
    against: Annotated[str, option("--against", metavar="WHAT", help="A theory by name or file, or people's choices as CSV.")],
    design: DesignOption = None,
    count: Annotated[int, option("--count", min=10, max=5000, help="Simulated subjects of each theory.")] = 100,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
) -> TheoryDistances:
    """How near a theory's choices are to others', outside the loop:
    MSE of the proportion of B choices, r, log-likelihood, sequences, switches.

    Beside people a theory is simulated on their own trials, each person's in the order in which they were made.
    """
    from ramify.methods.theory_loop.confirmation import errors
    from ramify.trace.sources import run_folder

    used = _design(design)
    folder = run_folder(Path(theory))
    if folder is None:
        theories = {theory: find_theory(theory)}
    else:
        with Run.open(folder) as opened:
            theories = pool_of(opened).theories
    people = _people(Path(against), used) if against.endswith(".csv") else None
    other = None if people is not None else find_theory(against)

    async def main() -> tuple[TheoryDistance, ...]:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
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


@dataclass(frozen=True)
class SimulatedChoices(Result):
    """A file of simulated choices."""

    out: str
    subjects: int
    trials: int

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        yield Section.of("", f"{self.subjects} subjects, {self.trials} trials in {self.out}")


@app.verb()
def simulate(
    theory: TheoryArgument,
    out: Annotated[Path, option("--out", metavar="CSV", help="File to write: one row a trial.")],
    design: DesignOption = None,
    count: Annotated[int, option("--count", min=1, max=5000, help="Subjects.")] = 25,
    noise: Annotated[float, option("--noise", min=0, max=1, help="Probability of a uniform choice.")] = 0.0,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
) -> SimulatedChoices:
    """Write simulated choices of a theory as CSV, in the columns that `import-data` reads."""
    one, used = find_theory(theory), _design(design)

    async def main() -> Data:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
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


@app.verb()
def export(
    run: Annotated[str | None, argument("RUN", help="Folder of a run, or its name under ./runs; or --design.")] = None,
    out: Annotated[
        Path, option("--out", metavar="FILE", help="File to write: .html is the task as one page, .json the experiment.")
    ] = Path("task.html"),
    experiment: Annotated[
        str | None,
        option(
            "--experiment", metavar="ROUND.SLOT", help="Which experiment; default: the one that waits for data, else the last."
        ),
    ] = None,
    design: DesignOption = None,
    title: Annotated[str, option("--title", help="Title of the page.")] = "A study of choices",
    consent: Annotated[
        Path | None,
        option("--consent", metavar="FILE", help="Your consent text; default: a general one that names what is recorded."),
    ] = None,
    contact: Annotated[str, option("--contact", help="Whom people can write to, as shown on the first page.")] = "",
) -> ExportedExperiment:
    """Write an experiment as a web page for people (keyboard, times, consent; works offline, requests nothing), or as JSON."""
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


@app.verb()
def import_data(
    run: RunArgument,
    files: Annotated[list[Path], argument("CSV...", help="What people saved: one file each, or all in one.")],
    experiment: Annotated[
        str | None, option("--experiment", metavar="ROUND.SLOT", help="Which experiment; default: the one that waits.")
    ] = None,
    fewer: Annotated[bool, option("--fewer", help="Take what there is, though it is fewer people than were asked for.")] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Say who would be kept; change nothing.")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> ImportedPeople:
    """Take people's choices into a run. Left out, with the reason:
    one key, alternation, haste, absence, programs; their data is kept.

    Files may come one after another: the experiment has its data once as many people as were asked for are kept.
    """
    from ramify.methods.theory_loop import people as human

    with Run.open(find_run(run), write=not dry_run) as opened:
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
            wait_for(_taken(opened, config, one, data, allow_unsandboxed))
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


@dataclass(frozen=True)
class RegisteredClaim(Result):
    """A claim that was fixed, and its file."""

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


@app.verb()
def preregister(
    run: RunArgument,
    out: Annotated[
        Path, option("--out", metavar="FILE", help="The registration, as JSON: publish it before anybody takes part.")
    ],
    test: Annotated[
        Literal["predicts", "concave-match", "steep-flat", "level-shift"],
        option(
            "--test",
            help="That the theory predicts better than its rivals; or a choice that people make where returns diminish "
            "(cardinal ratings).",
        ),
    ] = "predicts",
    theory: Annotated[
        str | None,
        option(
            "--theory", metavar="THEORY", help="The theory that claims, by label, name or file; default: the better survivor."
        ),
    ] = None,
    rival: Annotated[
        list[str] | None,
        option(
            "--rival",
            metavar="THEORY",
            help="A rival by label, name or file; default: both seeds and a coin, of concave-match the rules that it opposes, "
            "of the other tests wadd.",
        ),
    ] = None,
    design: DesignOption = None,
    people: Annotated[
        int | None, option("--people", min=5, max=5000, help="How many; default: what simulation says 99 % power takes.")
    ] = None,
    alpha: Annotated[float, option("--alpha", min=0.0001, max=0.5, help="Level of the test.")] = 0.05,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
) -> RegisteredClaim:
    """Fix a claim before the data: the test, its pairs, how many people, at what level; `confirm` then tests it, once.

    predicts: the theory says better what people choose next than each rival. concave-match: people choose as diminishing returns
    do where weighting by validity, tallying and take the best say otherwise. steep-flat and level-shift: a step at the low end of
    a rating draws more than one at the high end, and a pair draws less once it is shifted up; for any linear rule neither does.
    """
    if test != "predicts" and design is not None:
        raise UserError(f"--test {test} has an experiment of its own: leave --design out")
    with Run.open(find_run(run)) as opened:
        pool = pool_of(opened)
    best = next(row.label for row in loops.rows_of(pool) if row.label in pool.slots)
    label = theory or best
    own = _labelled_or_found(pool, label, opened.folder)
    usual = {"predicts": ["pi_1", "pi_2", "coin"], "concave-match": ["validity-wadd", "tallying", "ttb"]}
    rivals = {name: _labelled_or_found(pool, name, opened.folder) for name in rival or usual.get(test, ["wadd"])}
    rivals = {name: one for name, one in rivals.items() if one.hash != own.hash}
    if not rivals and test == "predicts":
        raise UserError(f"{label} is the same theory as each of its rivals")

    async def main() -> confirmation.Registration:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
            try:
                if test != "predicts":
                    return await confirmation.register_contrast(bench, test, label, own, rivals, alpha, seed, people)
                return await confirmation.register(bench, label, own, rivals, alpha, seed, people, _design(design))
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
    registration: Annotated[
        Path, option("--registration", metavar="FILE", help="What `preregister` wrote; a changed one is refused.")
    ],
    data: Annotated[
        Path | None, option("--data", metavar="CSV", help="Fresh people's choices; default: fresh participants of the run.")
    ] = None,
    strict: Annotated[bool, option("--strict", help="Exit code 1 where no winner is named.")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> confirmation.ClaimTest:
    """Test a registered claim on fresh participants, exactly as registered and once:
    a winner is named only where every rival is beaten.

    People who took part in the loop are refused. `export --design` with the registration writes its experiment as a page.
    """
    made = confirmation.read_registration(_json_file(registration))
    key = made.filed().hash
    with Run.open(find_run(run), write=True) as opened:
        config, _ = loops.config_of(opened)
        pool_of(opened)

        async def tested() -> tuple[confirmation.ClaimTest, tuple[()]]:
            people = _people(data, made.design) if data is not None else None
            _fresh(opened, people)
            return await _confirmed(opened, config, made, people, key, allow_unsandboxed), ()

        def concluded(_: confirmation.ClaimTest) -> None:
            known = opened.memo(loops.CONFIRMED, confirmation.ClaimTest)
            opened.conclude(CONFIRM, [one.finding(name) for name, one in known.items()])

        if opened.journal(loops.CONFIRMED, key):
            say("this registration was tested already: its first result stands")
        found = wait_for(opened.once_awaited(loops.CONFIRMED, key, confirmation.ClaimTest, tested, concluded))
    return replace(found, strict=strict)


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
                    "the participants of this run are people: name their fresh choices with --data (`export --design` with the "
                    "registration writes the task)"
                )
        if len(people.order) < 2:
            raise UserError(f"{len(people.order)} participants are left, and a test needs two at least")
        try:
            return replace(await confirmation.compare(bench, made, people), caveats=caveats)
        except TheoryError as error:
            raise UserError(f"a theory of the registration fails on this data ({error.kind}): {error}") from None


# -- shared ---------------------------------------------------------------------------------------------------------------------


def _design(path: Path | None) -> Design:
    return hilbig() if path is None else design_file(path)


def _text_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from None


def _json_file(path: Path) -> Any:
    try:
        return json.loads(_text_file(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def _people(path: Path, design: Design) -> Data:
    from ramify.methods.theory_loop.people import data_of, read_people

    data = data_of(read_people(path, design), design)
    if not len(data.order):
        raise UserError(f"{path}: nobody is left after the quality filters")
    return data


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
