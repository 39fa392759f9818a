"""The verbs of ``ramify theory-loop``. Exit code 1: ``confirm --strict`` names no winner,
``check`` finds a fault, ``replay`` a difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ramify.base.errors import EXIT_FAILED, UserError, nearest
from ramify.base.files import reason, write_whole
from ramify.base.waiting import wait_for
from ramify.kit import DryRun, Json, RunArgument, Seed, Verbs, argument, find_run, option
from ramify.methods.theory_loop import loop as loops
from ramify.methods.theory_loop.algorithm import (
    DESIGNS,
    LN2,
    METRICS,
    LoopConfig,
    correlation,
    mse_pb,
    sequence_divergence,
    switch_rate,
)
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.domain import PROBLEMS, Data, Design, TheoryError, design_file, hilbig
from ramify.methods.theory_loop.loop import pool_of
from ramify.methods.theory_loop.proposer import Experiment, TheoryPool
from ramify.methods.theory_loop.theories import Theory, find_theory
from ramify.render.terminal import emit, progress, say, table
from ramify.trace.db import Run
from ramify.trace.node import Finding

app = Verbs(
    "theory-loop", help="Which short program explains how somebody chooses? Rival theories, experiments between them, revision."
)

CONFIRM = "theory-loop confirm"
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


@app.verb(settings=LoopConfig)
def run(
    options: LoopConfig,
    out: Annotated[Path, option("--out", metavar="RUN", help="Run to make or to continue.")],
    theory: Theories = None,
    allow_unsandboxed: Unsandboxed = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let two theories compete: experiments that tell them apart, data,
    and the worse one revised against all data, round after round.

    The same command continues an interrupted loop; more --rounds continue one that is done. With --participants web it stops
    where people's data is to come: `export` writes the task as a page, `import-data` takes what they saved,
    and the same command continues.
    """
    specs = theory or ["ttb", "wadd"]
    loops.seeds_of(specs)
    if dry_run:
        cost = plan(options)
        emit({"config": options.to_json(), "seeds": specs, "plan": cost}, as_json, table(["at most", ""], list(cost.items())))
        return
    with progress("theory-loop", 0, "steps", as_json, kept=f"every step is kept in {out}: the same command continues") as bar:
        found = loops.loop_of(options, specs, out, bar, allow_unsandboxed)
    text = _board(found["leaderboard"], found["survivors"])
    text += (
        f"\n\n{found['rounds']} rounds; {found['gate']['passed']} of {found['gate']['of']} experiments passed the gate"
        + _counted(found["problems"])
    )
    if "waiting" in found:
        text += (
            f"\n\nexperiment {found['waiting']} waits for people: `ramify theory-loop export {out} --out task.html`, then "
            "import-data"
        )
    emit(found, as_json, text)


def plan(config: LoopConfig) -> dict[str, Any]:
    """What a loop takes at most."""
    calls = config.rounds * (2 * DESIGNS * (1 + METRICS) + 1 + 2 * config.iterations)
    model = config.proposer != "grammar"
    return {
        "rounds": config.rounds,
        "participants": 2 * config.rounds * config.people,
        "experiments": 2 * config.rounds,
        "candidate theories": config.rounds * config.iterations,
        "simulated subjects": config.rounds * config.iterations * config.rounds * 2 * config.runs,
        "replies of a model, without retries": calls if model else 0,
    }


@app.verb()
def status(run: RunArgument, as_json: Json = False) -> None:
    """How far a loop came: rounds, experiments with their gate and data, verdicts, and every problem that was recorded."""
    with Run.open(find_run(run)) as opened:
        pool, known = pool_of(opened), {(one.kind, one.key): one.payload for one in opened.journal()}
        config, specs = loops.config_of(opened)
        findings = [{"name": one.name, "why": one.why} for one in opened.findings() if one.maker in (loops.KIND, CONFIRM)]
    problems = [one for (kind, _), one in known.items() if kind == loops.PROBLEM]
    waiting = next((one.key for one in pool.observations if not one.data), None)
    found: dict[str, Any] = {
        "rounds": sum(kind == loops.REPLACED for kind, _ in known),
        "of": config.rounds,
        "seeds": specs,
        "survivors": pool.slots,
        "experiments": [_experiment(one, known) for one in pool.observations],
        "verdicts": [{"round": int(key), **payload} for (kind, key), payload in known.items() if kind == loops.DECIDED],
        "problems": [{name: one[name] for name in ("where", "problem", "why")} for one in problems],
        "waiting": waiting,
        "findings": findings,
    }
    rows = [
        [one["key"], one["proposer"], one["p"], "yes" if one["passed"] else "no", one["people"], one["real"]]
        for one in found["experiments"]
    ]
    text = (
        table(["experiment", "proposed by", "gate p", "passed", "people", "measured"], rows)
        if rows
        else "nothing was proposed yet"
    )
    text += f"\n\nround {found['rounds']} of {config.rounds}; theories {' and '.join(pool.slots)}"
    text += "".join(
        f"\nround {one['round']} replaces slot {one['slot'] + 1} ({one['kind']}): {one['interpretation']}"
        for one in found["verdicts"]
    )
    text += "".join(f"\n{one['where']}: {one['problem']}: {one['why']}" for one in found["problems"])
    text += "".join(f"\n{one['name']}: {one['why']}" for one in findings)
    emit(found, as_json, text + (f"\nexperiment {waiting} waits for data" if waiting else ""))


@app.verb()
def leaderboard(
    run: RunArgument,
    theory: Annotated[
        str | None, option("--theory", metavar="LABEL", help="Print the source of this theory instead, as a file to run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Every admitted theory by its score over all experiments: 1 is the best possible, 0 is the worst of those here."""
    with Run.open(find_run(run)) as opened:
        pool = pool_of(opened)
    if theory is not None:
        one = _labelled(pool, theory, opened.folder)
        emit({"label": theory, **one.to_json()}, as_json, one.file())
        return
    rows = [
        {**row, "theory": pool.theories[row["label"]].description, "node": pool.nodes[row["label"]]}
        for row in loops.rows_of(pool)
    ]
    emit({"leaderboard": rows, "survivors": pool.slots}, as_json, _board(rows, pool.slots))


@app.verb()
def replay(
    run: RunArgument,
    round: Annotated[
        int | None, option("--round", min=1, metavar="N", help="Only this round's experiments; default: all.")
    ] = None,
    allow_unsandboxed: Unsandboxed = False,
    as_json: Json = False,
) -> None:
    """Measure and simulate again from what the run holds, without a model or participants, and compare:
    stored numbers must come out."""
    with Run.open(find_run(run)) as opened:
        pool, (config, _) = pool_of(opened), loops.config_of(opened)
        chosen = [one for one in pool.observations if one.data and (round is None or one.key.startswith(f"{round}."))]
        if not chosen:
            raise UserError(f"{opened.folder} holds no data of {'any round' if round is None else f'round {round}'} yet")
        with progress("replay", len(chosen), "experiments", as_json) as bar:
            differences = wait_for(_replayed(opened, pool, config, chosen, bar, allow_unsandboxed))
    compared = sum(len(one.predictions) + 1 for one in chosen)
    found = {
        "experiments": [one.key for one in chosen],
        "compared": compared,
        "differences": differences,
        "leaderboard": loops.rows_of(pool),
    }
    text = f"{compared} stored numbers of {len(chosen)} experiments came out again, {len(differences)} did not"
    emit(found, as_json, text + "".join(f"\n{one['what']}: stored {one['stored']}, now {one['now']}" for one in differences))
    if differences:
        raise SystemExit(EXIT_FAILED)


async def _replayed(
    run: Run, pool: TheoryPool, config: LoopConfig, chosen: list[Experiment], bar: Any, allow: bool
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def same(what: str, stored: Any, now: Any) -> None:
        a, b = (None if one is None else (one.value, one.variance) for one in (stored, now))
        if a != b and not (a and b and np.allclose([x or 0.0 for x in a], [x or 0.0 for x in b], rtol=1e-6, atol=1e-9)):
            found.append(
                {
                    "what": what,
                    "stored": None if stored is None else stored.to_json(),
                    "now": None if now is None else now.to_json(),
                }
            )

    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        for number, one in enumerate(chosen):
            try:
                real = (await bench.measure(one.metric, loops.data_of_run(run, one), checked=True))[0]
            except TheoryError:
                real = None
            same(f"experiment {one.key}, measured", one.real, real)
            bar.at(number + 1, one.key)
        for label, theory in pool.theories.items():
            stored = [one for one in chosen if label in one.predictions]
            for one, now in zip(stored, await loops.predictions(bench, theory, label, stored, config), strict=True):
                same(f"experiment {one.key}, predicted by {label}", one.predictions[label], now)
    return found


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
    as_json: Json = False,
) -> None:
    """Whether a theory keeps the contract: its source, its parameters, its probabilities on every pair,
    the same twice, and the limits it states.

    A limit says what the theory is at an end of its ranges: with those values the mean P(B) is on the other theory's side of one
    half on every pair, before any earlier choice. It runs in the sandbox.
    """
    one, used = find_theory(theory), _design(design)
    limits = one.limits | dict(_limit(text) for text in limit or ())
    others = {name: find_theory(name) for name in limits.values()}

    async def main() -> dict[str, Any]:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
            try:
                data = await bench.simulate(one, used, 50, seed, "check")
                rows = [
                    {"limit": text, "theory": name, "alike": await alike_pairs(bench, one.at(text), others[name], used, seed)}
                    for text, name in limits.items()
                ]
            except TheoryError as error:
                return {"ok": False, **error.to_json(), "means": PROBLEMS[error.kind]}
            ok = all(row["alike"] == used.pairs for row in rows)
            p_b = [round(float(p), 4) for p in data.p_b]
            return {"ok": ok, "p_b": p_b, "switch_rate": switch_rate(data.response), "pairs": used.pairs, "limits": rows}

    found: dict[str, Any] = {
        "theory": theory,
        "hash": one.hash,
        "reads_history": one.reads_history,
        "own_policy": not one.samples,
        "parameters": dict(one.parameters),
        **wait_for(main()),
    }
    if "p_b" in found:
        rows = [
            [
                "".join(map(str, a)) if used.rating_max < 10 else str(a),
                "".join(map(str, b)) if used.rating_max < 10 else str(b),
                p,
            ]
            for a, b, p in zip(used.a, used.b, found["p_b"], strict=True)
        ]
        text = (
            table(["A", "B", "P(B) of 50 subjects"], rows)
            + f"\n\nthe contract holds; {'reads' if one.reads_history else 'does not read'} earlier choices; switches in "
            f"{found['switch_rate']:.2f} of trials"
        )
        for row in found["limits"]:
            text += f"\nwith {row['limit']} it chooses as {row['theory']} does on {row['alike']} of {used.pairs} pairs"
        text += (
            "\nwhat else the prose says is for you to check"
            if limits
            else "\nwhether the program says what the prose says is for you to check: --limit tests what it is at an end of its "
            "ranges"
        )
    else:
        text = f"{found['problem']} ({found['means']}): {found['why']}"
    emit(found, as_json, text)
    if not found["ok"]:
        raise SystemExit(EXIT_FAILED)


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


@app.verb()
def evaluate(
    theory: Annotated[str, argument("THEORY", help="A theory by name or file; or a RUN, of which every theory is evaluated.")],
    against: Annotated[str, option("--against", metavar="WHAT", help="A theory by name or file, or people's choices as CSV.")],
    design: DesignOption = None,
    count: Annotated[int, option("--count", min=10, max=5000, help="Simulated subjects of each theory.")] = 100,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
    as_json: Json = False,
) -> None:
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

    async def main() -> list[dict[str, Any]]:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
            one_order = used.orders(1, seed, "evaluate")  # everybody's, so that sequences can be compared trial by trial
            order = one_order[np.zeros(count, int)] if people is None else people.order[np.arange(count) % len(people.order)]
            reference = people if people is not None else await _simulated(bench, other, against, used, count, seed, order)
            rows = []
            for name, one in theories.items():
                data = await _simulated(bench, one, name, used, count, seed + 1, order)
                _, likelihood = await errors(bench, one, reference, seed, "evaluate", name)
                rows.append(
                    {
                        "theory": name,
                        "mse_pb": mse_pb(data.p_b, reference.p_b),
                        "r": correlation(data.p_b, reference.p_b),
                        "log_likelihood": likelihood,
                        "sequence_jsd": None if people is not None else sequence_divergence(data.response, reference.response),
                        "switch_rate": switch_rate(data.response),
                    }
                )
            nothing = {"r": None, "sequence_jsd": None}
            coin = {"mse_pb": mse_pb(np.full(used.pairs, 0.5), reference.p_b), "log_likelihood": -LN2, "switch_rate": 0.5}
            theirs = {"mse_pb": None, "log_likelihood": None, "switch_rate": switch_rate(reference.response)}
            rows.append({"theory": "baseline: a coin", **nothing, **coin})
            rows.append({"theory": f"against: {against}", **nothing, **theirs})
            return rows

    try:
        rows = wait_for(main())
    except TheoryError as error:
        raise UserError(f"a theory cannot be evaluated ({error.kind}): {error}") from None
    names = ["theory", "mse_pb", "r", "log_likelihood", "sequence_jsd", "switch_rate"]
    head = ["theory", "MSE of P(B)", "r", "log-likelihood a choice", "sequence JSD (nats)", "switches"]
    found: dict[str, Any] = {"against": against, "pairs": used.pairs, "subjects": count, "rows": rows}
    emit(found, as_json, table(head, [[row[name] for name in names] for row in rows]))


async def _simulated(
    bench: TheoryBench, theory: Theory | None, name: str, design: Design, n: int, seed: int, order: np.ndarray
) -> Data:
    assert theory is not None
    try:
        return await bench.simulate(theory, design, n, seed, "evaluate", theory.hash, order=order)
    except TheoryError as error:
        raise UserError(f"the theory {name} fails ({error.kind}): {error}") from None


@app.verb()
def simulate(
    theory: TheoryArgument,
    out: Annotated[Path, option("--out", metavar="CSV", help="File to write: one row a trial.")],
    design: DesignOption = None,
    count: Annotated[int, option("--count", min=1, max=5000, help="Subjects.")] = 25,
    noise: Annotated[float, option("--noise", min=0, max=1, help="Probability of a uniform choice.")] = 0.0,
    seed: Seed = 0,
    allow_unsandboxed: Unsandboxed = False,
    as_json: Json = False,
) -> None:
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
    emit(
        {"out": str(out), "subjects": count, "trials": int(data.order.size)},
        as_json,
        f"{count} subjects, {data.order.size} trials in {out}",
    )


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
    as_json: Json = False,
) -> None:
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
    trials = used.pairs * used.repeats
    emit(
        {"out": str(out), "experiment": key, "design": used.hash, "trials": trials},
        as_json,
        f"experiment {key}, {trials} trials, in {out}",
    )


@app.verb()
def import_data(
    run: RunArgument,
    files: Annotated[list[Path], argument("CSV...", help="What people saved: one file each, or all in one.")],
    experiment: Annotated[
        str | None, option("--experiment", metavar="ROUND.SLOT", help="Which experiment; default: the one that waits.")
    ] = None,
    fewer: Annotated[bool, option("--fewer", help="Take what there is, though it is fewer people than were asked for.")] = False,
    dry_run: DryRun = False,
    allow_unsandboxed: Unsandboxed = False,
    as_json: Json = False,
) -> None:
    """Take people's choices into a run. Left out, with the reason:
    one key, alternation, haste, absence, programs; their data is kept.

    Files may come one after another: the experiment has its data once as many people as were asked for are kept.
    """
    from ramify.methods.theory_loop import people as human

    with Run.open(find_run(run), write=not dry_run) as opened:
        pool, (config, _) = pool_of(opened), loops.config_of(opened)
        one = _chosen(pool, experiment, opened.folder)
        if one.data and not any(entry.key.startswith(f"{one.key}/") for entry in opened.journal(loops.PERSON)):
            raise UserError(f"experiment {one.key} of {opened.folder} has its data already")
        new = [person for file in files for person in human.read_people(file, one.design)]
        stored = {
            entry.key.partition("/")[2]: entry.payload
            for entry in opened.journal(loops.PERSON)
            if entry.key.startswith(f"{one.key}/")
        }
        if one.data and any(stored.get(person.subject) != _person(person) for person in new):
            raise UserError(f"experiment {one.key} of {opened.folder} has its data already, and these are other people")
        seen: set[str] = set()
        for person in new:
            record = _person(person)
            if person.subject in seen or (person.subject in stored and stored[person.subject] != record):
                raise UserError(f"subject '{person.subject}' is there already, with other choices: identifiers are unique")
            seen.add(person.subject)
            if person.subject not in stored and not dry_run:
                opened.log(loops.PERSON, f"{one.key}/{person.subject}", record)
            stored[person.subject] = record
        everybody = [
            human.Person(s, tuple(r["order"]), tuple(r["response"]), r["report"], r["report"]["dropped"])
            for s, r in stored.items()
        ]
        kept = [person for person in everybody if not person.dropped]
        complete = len(kept) >= config.people or (fewer and len(kept) >= 2)
        if complete and not dry_run and not one.data:
            data = human.data_of(everybody, one.design, config.people)
            wait_for(_taken(opened, config, one, data, allow_unsandboxed))
    reports = [dict(person.report) for person in everybody]
    found = {
        "experiment": one.key,
        "new": len(new),
        "kept": len(kept),
        "dropped": len(everybody) - len(kept),
        "wanted": config.people,
        "complete": complete,
        "people": reports,
    }
    rows = [
        [r["subject"], r["trials"], r["mean_rt_ms"], f"{r['same_key']:.0%}", f"{r['alternates']:.0%}", r["dropped"] or "kept"]
        for r in reports
    ]
    text = (
        table(["subject", "trials", "ms a choice", "same key", "alternates", ""], rows)
        + f"\n\n{len(kept)} of {config.people} people for experiment {one.key}"
    )
    text += (
        f"; it has its data: `ramify theory-loop run` continues {opened.folder}"
        if complete
        else "; import more, or --fewer takes these"
    )
    emit(found, as_json, text)


def _person(person: Any) -> dict[str, Any]:
    return {"order": list(person.order), "response": list(person.response), "report": dict(person.report)}


async def _taken(run: Run, config: LoopConfig, one: Experiment, data: Data, allow: bool) -> None:
    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        await loops.TheoryLoop(config, [], run, bench).take(one, data)


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
    as_json: Json = False,
) -> None:
    """Fix a claim before the data: the test, its pairs, how many people, at what level; `confirm` then tests it, once.

    predicts: the theory says better what people choose next than each rival. concave-match: people choose as diminishing returns
    do where weighting by validity, tallying and take the best say otherwise. steep-flat and level-shift: a step at the low end of
    a rating draws more than one at the high end, and a pair draws less once it is shifted up; for any linear rule neither does.
    """
    from ramify.methods.theory_loop import confirmation

    if test != "predicts" and design is not None:
        raise UserError(f"--test {test} has an experiment of its own: leave --design out")
    with Run.open(find_run(run)) as opened:
        pool = pool_of(opened)
    best = next(row["label"] for row in loops.rows_of(pool) if row["label"] in pool.slots)
    label = theory or best
    own = _labelled_or_found(pool, label, opened.folder)
    usual = {"predicts": ["pi_1", "pi_2", "coin"], "concave-match": ["validity-wadd", "tallying", "ttb"]}
    rivals = {name: _labelled_or_found(pool, name, opened.folder) for name in rival or usual.get(test, ["wadd"])}
    rivals = {name: one for name, one in rivals.items() if one.hash != own.hash}
    if not rivals and test == "predicts":
        raise UserError(f"{label} is the same theory as each of its rivals")

    async def main() -> Any:
        async with TheoryBench(allow_unsandboxed=allow_unsandboxed) as bench:
            try:
                if test != "predicts":
                    return await confirmation.register_contrast(bench, test, label, own, rivals, alpha, seed, people)
                return await confirmation.register(bench, label, own, rivals, alpha, seed, people, _design(design))
            except TheoryError as error:
                raise UserError(f"a theory of the registration fails ({error.kind}): {error}") from None

    made = wait_for(main())
    record = made.to_json()
    written = json.dumps(record, indent=1) + "\n"
    if out.is_file() and out.read_bytes() != written.encode():
        raise UserError(f"{out} is there already and says something else: a registration is not overwritten")
    write_whole(out, written)
    shown = table(["rival", "power if the theory is true"], [[name, power] for name, power in made.power.items()])
    if made.contrasts:
        rows = [[name, value, made.power.get(name)] for name, value in made.expected.items()]
        shown = table(["if this is true", "expected contrast", "power"], rows)
    text = f"{record['claim']}\n{made.people} people, level {alpha:g}\n\n{shown}\n\n{out}, hash {record['hash']}"
    names = ("claim", "label", "people", "alpha", "power", "hash", *(("name", "expected") if made.contrasts else ()))
    emit({"out": str(out), **{name: record[name] for name in names}}, as_json, text)


@app.verb()
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
    as_json: Json = False,
) -> None:
    """Test a registered claim on fresh participants, exactly as registered and once:
    a winner is named only where every rival is beaten.

    People who took part in the loop are refused. `export --design` with the registration writes its experiment as a page.
    """
    from ramify.methods.theory_loop import confirmation

    made = confirmation.read_registration(_json_file(registration))
    record = made.to_json()
    with Run.open(find_run(run), write=True) as opened:
        config, _ = loops.config_of(opened)
        pool_of(opened)
        key = f"{record['hash']}"
        known = {entry.key: entry.payload for entry in opened.journal(loops.CONFIRMED)}
        if key not in known:
            people = _people(data, made.design) if data is not None else None
            _fresh(opened, people)
            found = wait_for(_confirmed(opened, config, made, people, key, allow_unsandboxed))
            with opened.transaction():
                opened.log(loops.CONFIRMED, key, {**found, "claim": record["claim"]})
                known = {entry.key: entry.payload for entry in opened.journal(loops.CONFIRMED)}
                opened.conclude(CONFIRM, [_winner(one, name) for name, one in known.items()])
            found = known[key]
        else:
            found = known[key]
            say("this registration was tested already: its first result stands")
    emit(found, as_json, _confirmation(found))
    if strict and not _holds(found):
        raise SystemExit(EXIT_FAILED)


def _holds(found: Mapping[str, Any]) -> bool:
    return bool(found.get("holds", found.get("winner")))


def _confirmation(found: Mapping[str, Any]) -> str:
    """A confirmation as the terminal shows it."""
    people = f"{found['people']} of {found['registered']} people"
    if "rivals" not in found:
        expected = [[f"expected by {name}", value, None, None] for name, value in found["expected"].items()]
        each = [[f"against {row['opposes']}", row["estimate"], row["t"], row["holm"]] for row in found.get("contrasts", ())]
        measured = each or [["measured", found["estimate"], found["t"], found["p"]]]
        text = table(["", "contrast", "t", "p, Holm" if each else "p"], [*measured, *expected])
        return f"{found['claim']}\n\n{text}\n\n{people}: {'it holds' if _holds(found) else 'it is not shown'}"
    rows = [[row["rival"], row["difference"], row["t"], row["p"], row["holm"], row["log_likelihood"]] for row in found["rivals"]]
    text = table(["rival", "its error - own", "t", "p", "Holm", "log-likelihood a choice"], rows)
    text += f"\n\n{found['label']}: error {found['error']:.4f}, log-likelihood {found['log_likelihood']:.4f} a choice, {people}"
    return text + f"\n{'winner: ' + found['winner'] if found['winner'] else 'no winner: not every rival is beaten'}"


def _fresh(run: Run, people: Data | None) -> None:
    """Raises UserError where somebody took part in an experiment of the loop."""
    seen = {entry.key.partition("/")[2]: entry.key.partition("/")[0] for entry in run.journal(loops.PERSON)}
    for subject in () if people is None else people.subjects:
        if subject in seen:
            raise UserError(
                f"subject '{subject}' took part in experiment {seen[subject]}: a claim is tested on fresh participants"
            )


async def _confirmed(run: Run, config: LoopConfig, made: Any, people: Data | None, key: str, allow: bool) -> dict[str, Any]:
    from ramify.methods.theory_loop import confirmation
    from ramify.methods.theory_loop.participants import find_participants

    async with TheoryBench(config.seconds, allow_unsandboxed=allow) as bench:
        if people is None:
            known = {entry.key: entry.payload for entry in run.journal(loops.SUBJECT)}

            def kept(name: str, value: Any) -> Any:
                if value is not None:
                    run.log(loops.SUBJECT, name, value)
                    run.commit()
                return known.get(name, value)

            people = await find_participants(config.participants, config.noise, bench).collect(
                made.design, made.people, config.seed, f"confirm {key}", kept
            )
            if people is None:
                raise UserError(
                    "the participants of this run are people: name their fresh choices with --data (`export --design` with the "
                    "registration writes the task)"
                )
        if len(people.order) < 2:
            raise UserError(f"{len(people.order)} participants are left, and a test needs two at least")
        try:
            return await confirmation.compare(bench, made, people)
        except TheoryError as error:
            raise UserError(f"a theory of the registration fails on this data ({error.kind}): {error}") from None


def _winner(found: Mapping[str, Any], key: str) -> Finding:
    people, holds = f"{found['people']} fresh participants", _holds(found)
    if "rivals" in found:
        said = "; ".join(f"{row['rival']}: p {row['holm']:.2g}" for row in found["rivals"])
        what = "says better what people choose next than each rival" if holds else "does not beat every rival"
        name, value, unit = "winner" if holds else "no winner", found["error"], "mean squared error"
        why = f"{found['label']} {what} ({said}, Holm), {people}"
    else:
        name, value, unit = f"{found['name']} {'holds' if holds else 'is not shown'}", found["estimate"], "contrast"
        why = f"{found['claim']}: {found['estimate']:+.3f}, p {found['p']:.2g}, {people}"
    return Finding(name, CONFIRM, why, value=value, unit=unit, evidence=dict(found), identity={"registration": key})


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
    if left := data.extra["dropped"]:
        say(
            f"{len(left)} of {data.extra['asked']} people are left out: "
            + "; ".join(f"{one['subject']}: {one['dropped']}" for one in left[:5])
        )
    return data


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


def _experiment(one: Experiment, known: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    record = known.get((loops.COLLECTED, one.key))
    return {
        "key": one.key,
        "proposer": one.proposer,
        "p": one.gate["p"],
        "passed": one.gate["passed"],
        "people": None if record is None else record["people"],
        "real": None if one.real is None else one.real.value,
        "predictions": {label: None if v is None else v.value for label, v in one.predictions.items()},
    }


def _board(rows: list[dict[str, Any]], slots: list[str]) -> str:
    return table(
        ["theory", "score", "mean distance", "", "says"],
        [
            [row["label"], row["score"], row["mean_distance"], "survives" if row["label"] in slots else "", row["theory"][:90]]
            for row in rows
        ],
    )


def _counted(problems: Mapping[str, int]) -> str:
    return "".join(f"\n{n} times {kind}: {PROBLEMS[kind]}" for kind, n in problems.items())
