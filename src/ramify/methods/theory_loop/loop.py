"""The loop (section 3.2), in its run: every step is committed whole, so the same command continues where it was killed.

Theories are nodes of the tree ``theories`` (a candidate hangs below the theory that it is to replace), experiments nodes of the
tree ``experiments`` with their data as a blob; losses and leaderboard scores are scores of the nodes;
what was decided is in the journal.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.ledger import Ledger
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.methods.theory_loop.algorithm import (
    CUES,
    DESIGNS,
    METRICS,
    RETRIES,
    LoopConfig,
    MetricEstimate,
    ScoredTheory,
    accepted,
    candidate_loss,
    scoreboard,
    welch_p,
)
from ramify.methods.theory_loop.bench import Metric, TheoryBench, projection
from ramify.methods.theory_loop.canonical import find_theory
from ramify.methods.theory_loop.domain import (
    PROBLEMS,
    Attendance,
    Data,
    Design,
    PersonReport,
    StoredChoices,
    TheoryError,
    random_design,
    read_design,
)
from ramify.methods.theory_loop.participants import Kept, Participants, SubjectChoices, find_participants, given_participants
from ramify.methods.theory_loop.proposer import (
    AdvocateTurn,
    Experiment,
    Gate,
    LoopProblem,
    Proposer,
    TheoryGrammar,
    TheoryPool,
    TriedTheory,
    Verdict,
)
from ramify.methods.theory_loop.theories import Theory, check_theory
from ramify.render.numbers import p_value
from ramify.render.result import Grid, Result, Section, table
from ramify.trace.db import Record, Run
from ramify.trace.foreign import root
from ramify.trace.node import Finding, Node, Provenance, Score, make_node

KIND = "theory-loop run"
THEORIES, EXPERIMENTS = "theories", "experiments"
SEED, PROPOSED, COLLECTED, PREDICTED, DECIDED, CANDIDATE, REPLACED, PROBLEM, SUBJECT = (
    *("seed theory", "proposal", "data", "prediction", "verdict", "candidate", "replacement", "problem", "subject"),
)  # fmt: skip
"""What the journal calls the steps."""
PERSON, CONFIRMED, ADMITTED = "person", "confirmation", "admitted"
LEADERBOARD, LOSS = "theory-loop leaderboard", "theory-loop loss"


@dataclass(frozen=True)
class AdmittedTheory:
    """A seed theory: its label and its node."""

    label: str
    node: str


@dataclass(frozen=True)
class Replacement:
    """What a round ended with: the theory that holds the slot now, and the one that it replaced, if one could be used."""

    slot: int
    label: str
    node: str
    replaced: str | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Proposal:
    """An advocate's experiment; ``design`` is its JSON."""

    proposer: str
    design: Mapping[str, Any]
    metric: Metric
    gate: Gate
    node: str


@dataclass(frozen=True)
class CollectedData:
    """The data of an experiment: a blob, and what was measured on it; None where the metric failed."""

    data: str
    real: MetricEstimate | None
    people: int
    extra: Attendance


@dataclass(frozen=True)
class StoredPrediction:
    """What a theory predicts of an experiment; None where it failed."""

    estimate: MetricEstimate | None


@dataclass(frozen=True)
class CandidateTheory:
    """A candidate of a revision; no node where none could be used, no loss where it is infinite."""

    node: str | None = None
    loss: float | None = None
    accepted: bool = False
    regenerate: bool = True
    critique: str = ""


@dataclass(frozen=True)
class PersonChoices:
    """Somebody's choices as they were imported."""

    order: tuple[int, ...]
    response: tuple[int, ...]
    report: PersonReport


@dataclass(frozen=True)
class RankedTheory(ScoredTheory):
    """A theory on the leaderboard with what it says and its node."""

    theory: str
    node: str


@dataclass(frozen=True)
class ExperimentSummary:
    """An experiment: its gate, what was measured, and what every admitted theory predicts of it."""

    key: str
    proposer: str
    p: float
    passed: bool
    people: int | None
    real: MetricEstimate | None
    predictions: Mapping[str, MetricEstimate | None]

    @classmethod
    def of(cls, one: Experiment) -> ExperimentSummary:
        """Of an experiment of the pool."""
        return cls(one.key, one.proposer, one.gate.p, one.gate.passed, one.people, one.real, one.predictions)


@dataclass(frozen=True)
class GateCount:
    """How many experiments passed the gate."""

    passed: int
    of: int


@dataclass(frozen=True)
class TheoryLoopReport(Result):
    """What a loop came to."""

    rounds: int
    survivors: tuple[str, ...]
    leaderboard: tuple[RankedTheory, ...]
    experiments: tuple[ExperimentSummary, ...]
    gate: GateCount
    problems: Mapping[str, int]
    """How often what went wrong."""
    spent: Mapping[str, Mapping[str, float]]
    waiting: str | None = None
    """The experiment that waits for people's data."""
    folder: str = field(default="", metadata={"json": False})

    def sections(self) -> Iterable[Section]:
        """Leaderboard, rounds, gate, problems, and what is waited for."""
        waits = (
            f"experiment {self.waiting} waits for people: `ramify theory-loop data export {self.folder} --out task.html`, "
            "then `data import`"
        )
        counted = [f"{n} times {kind}: {PROBLEMS[kind]}" for kind, n in self.problems.items()]
        yield Section.of(
            "",
            board_table(self.leaderboard, self.survivors),
            "\n".join((f"{self.rounds} rounds; {self.gate.passed} of {self.gate.of} experiments passed the gate", *counted)),
            waits if self.waiting else "",
        )

    def findings(self) -> list[Finding]:
        """The survivors, for the run."""
        best = {row.label: row for row in self.leaderboard}
        return [
            Finding(
                "surviving theory",
                KIND,
                f"{label}: score {best[label].score:.3f} over {self.gate.of} experiments; {best[label].theory}",
                best[label].node,
                0,
                f"ramify theory-loop confirm {self.folder} tests it on fresh participants",
                best[label].score,
                "score",
                codec.to_json(best[label]),
            )
            for label in self.survivors
        ]


def board_table(rows: Sequence[RankedTheory], survivors: Sequence[str]) -> Grid:
    """The leaderboard as a reader sees it."""
    return table(
        ("theory", "score", "mean distance", "", "says"),
        [
            (row.label, row.score, row.mean_distance, "survives" if row.label in survivors else "", row.theory[:90])
            for row in rows
        ],
    )


class WaitingError(Exception):
    """The loop needs data of people, which come by hand: the observation that waits."""

    def __init__(self, observation: Experiment) -> None:
        super().__init__(observation.key)
        self.observation = observation


class TheoryLoop:
    """One loop in its run. ``go`` takes every step that the run does not hold yet."""

    def __init__(
        self,
        config: LoopConfig,
        seeds: Sequence[Theory],
        run: Run,
        bench: TheoryBench,
        progress: Progress = SILENT,
        proposer: Proposer | None = None,
        participants: Participants | None = None,
    ) -> None:
        """``seeds`` are the two theories to begin with; ``proposer`` and ``participants`` replace those that the settings
        name."""
        self.config, self.seeds, self.run, self.bench, self.progress = config, list(seeds), run, bench, progress
        self.pool, self.ledger = TheoryPool(), Ledger()
        self.problems = list(run.memo(PROBLEM, LoopProblem).values())
        self.predicted = run.memo(PREDICTED, StoredPrediction)
        self.participants = participants or find_participants(config.participants, config.noise, bench)
        self.given: Sequence[Design] = getattr(self.participants, "given", ())
        if self.given and 2 * config.rounds > len(self.given):
            raise UserError(
                f"{config.rounds} rounds take {2 * config.rounds} experiments, and {len(self.given)} are given: "
                f"--rounds {len(self.given) // 2} at most"
            )
        self.proposer = proposer or find_proposer(config, bench)
        if hasattr(self.proposer, "bind"):
            self.proposer.bind(self)

    async def go(self) -> TheoryLoopReport:
        """Every round up to the last; returns :meth:`result`.
        Raises WaitingError where people's data is to come, InfrastructureError."""
        steps = self.config.rounds * (self.config.iterations + 5)
        self.progress.begin(steps, 0, "", "steps")
        await self._begin()
        for number in range(1, self.config.rounds + 1):
            before = (number - 1) * (self.config.iterations + 5)
            await self._observe(number, before)
            await self.backfill()
            verdict = await self.run.once_awaited(DECIDED, str(number), Verdict, partial(self._decided, number))
            self.progress.at(before + 4, f"round {number}: replace {self.pool.slots[verdict.slot]}")
            await self._revise(number, verdict, before + 5)
            await self.backfill()
            self._score(number)
        found = self.result()
        self.run.conclude(KIND, found.findings())
        return found

    # -- steps

    def problem(self, where: str, error: TheoryError, code: str = "") -> LoopProblem:
        """Record what went wrong; the loop continues."""
        assert error.kind in PROBLEMS, error.kind
        found = LoopProblem(where, error.kind, error.why, code)
        record = codec.to_json(found)
        self.run.log(PROBLEM, f"{where}/{len(self.problems)}/{stable_hash(canonical_json(record))[:8]}", record)
        self.problems.append(found)
        return found

    def _node(self, theory: Theory, parent: str | None, maker: str, index: int, **data: Any) -> tuple[Provenance, Node]:
        provenance = Provenance(maker, self.proposer.identity if parent else stable_hash("seed"), {}, self.config.seed)
        above = self.run.node(parent) if parent else root(self.run, THEORIES)
        return provenance, make_node(
            THEORIES,
            above.id,
            len(above),
            "assistant",
            theory.file(),
            provenance=provenance.hash,
            index=index,
            data={"theory": codec.to_json(theory), **data},
        )

    async def _begin(self) -> None:
        for tree in (THEORIES, EXPERIMENTS):
            self.run.add_tree(tree, {"id": tree})
        for i, theory in enumerate(self.seeds):
            label = f"pi_{i + 1}"
            seed = self.run.once(SEED, label, AdmittedTheory, partial(self._planted, i, theory, label))
            self._admit(seed.label, seed.node)
        self.pool.slots = ["pi_1", "pi_2"]

    def _planted(self, i: int, theory: Theory, label: str) -> tuple[AdmittedTheory, list[Record]]:
        provenance, node = self._node(theory, None, "seed", i, label=label)
        return AdmittedTheory(label, node.id), [provenance, node]

    def _admit(self, label: str, node: str) -> None:
        self.pool.theories[label], self.pool.nodes[label] = theory_at(self.run, node), node

    async def _observe(self, number: int, before: int) -> None:
        for slot in (0, 1):
            key = f"{number}.{slot + 1}"
            proposal = await self.run.once_awaited(PROPOSED, key, Proposal, partial(self._propose, number, slot, key))
            observation = experiment_of(key, proposal)
            self.progress.at(
                before + 2 * slot + 1,
                f"round {number}: {observation.proposer} proposed, p {p_value(observation.gate.p)}",
            )
            found = await self.run.once_awaited(COLLECTED, key, CollectedData, partial(self._collected, observation))
            observation.take(found.data, found.real, found.people)
            self.pool.observations.append(observation)
            self.progress.at(before + 2 * slot + 2, f"round {number}: {found.people} participants")

    async def _propose(self, number: int, slot: int, key: str) -> tuple[Proposal, list[Record]]:
        """An advocate's designs and metrics until one passes the gate, else the last one (steps 1a to 1e)."""
        config, pool, label = self.config, self.pool, self.pool.slots[slot]
        failures: list[LoopProblem] = []
        last: tuple[Design, Metric, Gate] | None = None
        designs, metrics = self.proposer.tries or (DESIGNS, METRICS)
        for attempt in range(1 if self.given else designs):
            at = AdvocateTurn(number, slot, attempt, failures)
            design: Design | None
            if self.given:
                design = self.given[2 * (number - 1) + slot]
            else:
                design = await self._retried(partial(self.proposer.design, pool, at), f"{key} design", failures)
            if design is None:
                continue
            try:
                own, rival = [
                    await self.bench.simulate(pool.theories[one], design, config.runs, config.seed, "gate", key, attempt, side)
                    for side, one in enumerate((label, pool.slots[1 - slot]))
                ]
            except TheoryError as error:
                failures.append(self.problem(f"{key} gate", error))
                continue
            for _ in range(metrics):
                make = partial(self.proposer.metric, pool, at, design, own, rival)
                metric: Metric | None = await self._retried(make, f"{key} metric", failures)
                if metric is None:
                    break
                gate = await self._gate(metric, own, rival, f"{key} metric", failures)
                if gate is None:
                    continue
                last = design, metric, gate
                if gate.passed:
                    return self._proposal(key, label, *last)
                why = f"p {gate.p:.3g}, which is not below {config.alpha:g}"
                failures.append(LoopProblem(f"{key} metric", "", why, metric.code))
        if last is None:  # nothing could be used: an experiment by chance, so that the loop learns something
            design = random_design(generator(config.seed, "fallback", key), CUES, rating_max=config.most)
            last = (
                design,
                projection(design, [1.0] * design.pairs, "how often B is chosen"),
                Gate(searched=len(failures)),
            )
        why = f"p {last[2].p:.3g} of the one that is used, and {config.alpha:g} was wanted"
        self.problem(f"{key} gate", TheoryError("no metric passed", why))
        return self._proposal(key, label, *last)

    async def _retried(self, make: Callable[[], Awaitable[Any]], where: str, failures: list[LoopProblem]) -> Any:
        """What a proposer makes, None where every try was unusable."""
        for _ in range(RETRIES):
            try:
                return await make()
            except TheoryError as error:
                failures.append(self.problem(where, error))
        return None

    async def _gate(self, metric: Metric, own: Data, rival: Data, where: str, failures: list[LoopProblem]) -> Gate | None:
        try:
            first, notes = await self.bench.measure(metric, own)
            second, _ = await self.bench.measure(metric, rival)
        except TheoryError as error:
            failures.append(self.problem(where, error, metric.code))
            return None
        for kind, why in notes:
            failures.append(self.problem(where, TheoryError(kind, why)))
        p = welch_p(first, second, self.config.people)
        return Gate(p, p < self.config.alpha, first, second, len(failures) + 1)

    def _proposal(self, key: str, label: str, design: Design, metric: Metric, gate: Gate) -> tuple[Proposal, list[Record]]:
        above, text = root(self.run, EXPERIMENTS), f"{design.rationale}\n{metric.rationale}".strip()
        node = make_node(
            EXPERIMENTS,
            above.id,
            len(above),
            "user",
            f"experiment {key} of {label}: {text}"[:2000],
            data={"key": key, "design": design.to_json(), "metric": codec.to_json(metric)},
        )
        return Proposal(label, design.to_json(), metric, gate, node.id), [node]

    async def _collected(self, observation: Experiment) -> tuple[CollectedData, tuple[()]]:
        """Real data of an observation, and its real value (steps 2 and 3). Raises WaitingError."""
        config, kept = self.config, kept_in(self.run)
        data = await self.participants.collect(observation.design, config.people, config.seed, observation.key, kept)
        if data is None:
            raise WaitingError(observation)
        return await self._measured(observation, data)

    async def take(self, observation: Experiment, data: Data) -> None:
        """Keep the data of an observation, and measure it."""
        make = partial(self._measured, observation, data)
        await self.run.once_awaited(COLLECTED, observation.key, CollectedData, make)

    async def _measured(self, observation: Experiment, data: Data) -> tuple[CollectedData, tuple[()]]:
        where = f"{observation.key} data"
        if len(data.order) < self.config.people:
            why = f"{len(data.order)} of {self.config.people}: {canonical_json(codec.to_json(data.extra))[:200]}"
            self.problem(where, TheoryError("too few participants", why))
        real: MetricEstimate | None = None
        if len(data.order):
            try:
                real, notes = await self.bench.measure(observation.metric, data, checked=True)
                for kind, why in notes:
                    self.problem(where, TheoryError(kind, why))
            except TheoryError as error:
                self.problem(where, error)
        blob = self.run.put_blob(canonical_json(codec.to_json(data.stored())).encode())
        return CollectedData(blob, real, len(data.order), data.extra), ()

    async def backfill(self) -> None:
        """Predict every observation by every admitted theory that has no prediction of it yet (step 3)."""
        for label, theory in self.pool.theories.items():
            missing = [one for one in self.pool.observations if label not in one.predictions]
            wanted = [one for one in missing if f"{label}@{one.key}" not in self.predicted]
            if wanted:
                found = await self._predict(theory, wanted, f"{label} prediction", ADMITTED, label)
                with self.run.transaction():
                    for one, estimate in zip(wanted, found, strict=True):
                        made = self.predicted[f"{label}@{one.key}"] = StoredPrediction(estimate)
                        self.run.log(PREDICTED, f"{label}@{one.key}", codec.to_json(made))
            for one in missing:
                one.predictions[label] = self.predicted[f"{label}@{one.key}"].estimate

    async def _predict(
        self, theory: Theory, observations: Sequence[Experiment], where: str, *key: str | int
    ) -> list[MetricEstimate | None]:
        """A theory's predictions; None where it failed, which is recorded.
        Candidates of a round share their ``key``: common random numbers."""
        failed = lambda at, error: self.problem(where + at, error)  # noqa: E731
        return await _predicted(self.bench, theory, observations, self.config, failed, *key)

    async def _decided(self, number: int) -> tuple[Verdict, tuple[()]]:
        found = await self._retried(lambda: self.proposer.verdict(self.pool, number), f"{number} verdict", [])
        if found is None:  # the arbiter could not be understood: the numbers decide
            found = await TheoryGrammar(self.config, self.bench).verdict(self.pool, number)
        return found, ()

    async def _revise(self, number: int, verdict: Verdict, before: int) -> None:
        """Candidates, each simulated on all observations and accepted only where it loses less (step 5), then the replacement."""
        best: tuple[Theory, float, str] | None = None
        tried: list[TriedTheory] = []
        for iteration in range(self.config.iterations):
            key = f"{number}.{iteration}"
            make = partial(self._candidate, number, iteration, key, verdict, best, tuple(tried))
            found = await self.run.once_awaited(CANDIDATE, key, CandidateTheory, make)
            if found.node is None:
                continue
            loss = math.inf if found.loss is None else found.loss
            theory = theory_at(self.run, found.node)
            if found.accepted:
                best = theory, loss, found.node
            tried.append(TriedTheory(theory, loss, found.accepted, found.critique))
            self.progress.at(before + iteration, f"round {number}: loss {'-' if best is None else format(best[1], '.3f')}")
            if not found.regenerate and found.accepted:
                break
        replaced = self.run.once(REPLACED, str(number), Replacement, partial(self._replacement, number, verdict, best))
        self._admit(replaced.label, replaced.node)
        self.pool.slots[verdict.slot] = replaced.label

    def _replacement(
        self, number: int, verdict: Verdict, best: tuple[Theory, float, str] | None
    ) -> tuple[Replacement, tuple[()]]:
        old = self.pool.slots[verdict.slot]
        if best is None:
            self.problem(f"{number} revision", TheoryError("reply", f"no candidate could be used, so {old} keeps its place"))
            return Replacement(verdict.slot, old, self.pool.nodes[old]), ()
        label = next_label(list(self.pool.theories), old, verdict.kind)
        return Replacement(verdict.slot, label, best[2], old, best[1] if math.isfinite(best[1]) else None), ()

    async def _candidate(
        self,
        number: int,
        iteration: int,
        key: str,
        verdict: Verdict,
        best: tuple[Theory, float, str] | None,
        tried: Sequence[TriedTheory],
    ) -> tuple[CandidateTheory, list[Record]]:
        old = self.pool.slots[verdict.slot]
        failures: list[LoopProblem] = []

        async def proposed() -> Theory:
            theory = await self.proposer.theory(
                self.pool, number, iteration, verdict, None if best is None else best[0], tried, [one.why for one in failures]
            )
            check_theory(theory)
            return theory

        theory = await self._retried(proposed, f"{key} candidate", failures)
        if theory is None:
            return CandidateTheory(), []
        predicted = await self._predict(theory, self.pool.observations, f"{key} candidate", "candidate", number)
        labels = list(self.pool.theories)
        loss = candidate_loss(
            [None if one.real is None else one.real.value for one in self.pool.observations],
            [None if one is None else one.value for one in predicted],
            [
                [None if (v := one.predictions.get(label)) is None else v.value for label in labels]
                for one in self.pool.observations
            ],
        )
        taken = best is None or accepted(iteration, loss, best[1])
        trial = TriedTheory(theory, loss, taken)
        again, critique = True, ""
        if iteration + 1 < self.config.iterations:
            found = await self._retried(
                lambda: self.proposer.critique(self.pool, number, verdict, trial, tried), f"{key} critique", failures
            )
            again, critique = found or (True, "")
        provenance, node = self._node(
            theory, self.pool.nodes[old], self.proposer.name, number * 1000 + iteration, round=number, iteration=iteration
        )
        told = loss if math.isfinite(loss) else None
        score = Score(node.id, LOSS, told, "loss", evidence={"accepted": taken})
        return CandidateTheory(node.id, told, taken, again, critique), [provenance, node, score]

    # -- results

    def board(self) -> list[ScoredTheory]:
        """The leaderboard now; see :func:`ramify.methods.theory_loop.algorithm.scoreboard`."""
        return rows_of(self.pool)

    def _score(self, number: int) -> None:
        scores = [
            Score(
                self.pool.nodes[row.label],
                LEADERBOARD,
                row.score,
                "leaderboard",
                evidence={"round": number, **codec.to_json(row)},
            )
            for row in self.board()
        ]
        with self.run.transaction():
            self.run.add(*scores)

    def result(self) -> TheoryLoopReport:
        """What the loop came to: survivors, leaderboard, gates, replacements, problems."""
        seen = self.pool.observations
        return TheoryLoopReport(
            rounds=len(self.run.journal(REPLACED)),
            survivors=tuple(self.pool.slots),
            leaderboard=ranked(self.pool),
            experiments=tuple(ExperimentSummary.of(one) for one in seen),
            gate=GateCount(sum(one.gate.passed for one in seen), len(seen)),
            problems=dict(Counter(one.problem for one in self.problems)),
            spent=self.ledger.spent,
            folder=str(self.run.folder),
        )


def pool_of(run: Run) -> TheoryPool:
    """What a run holds of its loop, up to where it came. Raises UserError on a run of another verb, and on a damaged
    experiment."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    pool = TheoryPool()
    seeds, replaced = run.memo(SEED, AdmittedTheory), run.memo(REPLACED, Replacement)
    proposed, collected = run.memo(PROPOSED, Proposal), run.memo(COLLECTED, CollectedData)
    for one in seeds.values():
        pool.theories[one.label], pool.nodes[one.label] = theory_at(run, one.node), one.node
        pool.slots.append(one.label)
    for key, proposal in proposed.items():
        try:
            observation = experiment_of(key, proposal)
        except TheoryError as error:
            raise UserError(f"experiment {key} of {run.folder} is damaged: {error}") from None
        if key in collected:
            observation.take(collected[key].data, collected[key].real, collected[key].people)
        pool.observations.append(observation)
    for made in replaced.values():
        pool.theories[made.label], pool.nodes[made.label] = theory_at(run, made.node), made.node
        pool.slots[made.slot] = made.label
    experiments = {one.key: one for one in pool.observations}
    for name, found in run.memo(PREDICTED, StoredPrediction).items():
        label, _, key = name.partition("@")
        if label in pool.theories and key in experiments:
            experiments[key].predictions[label] = found.estimate
    return pool


def theory_at(run: Run, node: str) -> Theory:
    """The theory that a node holds. Raises UserError where it holds none."""
    return codec.from_json(Theory, run.node(node).data.get("theory"), f"{run.folder}, node {node}")


def kept_in(run: Run) -> Kept:
    """Subjects that are asked once, and then stand in the run's journal."""

    async def kept(key: str, make: Callable[[], Awaitable[SubjectChoices]]) -> SubjectChoices:
        async def made() -> tuple[SubjectChoices, tuple[()]]:
            return await make(), ()

        return await run.once_awaited(SUBJECT, key, SubjectChoices, made)

    return kept


async def predictions(
    bench: TheoryBench, theory: Theory, label: str, chosen: Sequence[Experiment], config: LoopConfig
) -> list[MetricEstimate | None]:
    """The predictions of an admitted theory as the loop makes them; None where it fails."""
    return await _predicted(bench, theory, chosen, config, lambda at, error: None, ADMITTED, label)


async def _predicted(
    bench: TheoryBench,
    theory: Theory,
    chosen: Sequence[Experiment],
    config: LoopConfig,
    failed: Callable[[str, TheoryError], object],
    *key: str | int,
) -> list[MetricEstimate | None]:
    """A theory's predictions; None where it fails, of which ``failed`` is told: at all, or on which experiment."""
    try:
        asked = [(one.design, config.runs) for one in chosen]
        simulated = await bench.simulate_many(theory, asked, config.seed, *key, names=[one.key for one in chosen])
    except TheoryError as error:
        failed("", error)
        return [None] * len(chosen)
    found: list[MetricEstimate | None] = []
    for one, data in zip(chosen, simulated, strict=True):
        try:
            found.append((await bench.measure(one.metric, data))[0])
        except TheoryError as error:
            failed(f" on {one.key}", error)
            found.append(None)
    return found


def experiment_of(key: str, proposal: Proposal) -> Experiment:
    """An experiment as it was proposed, without data. Raises TheoryError on a design that is none."""
    design = read_design(proposal.design)
    return Experiment(key, proposal.proposer, design, proposal.metric, proposal.gate, node=proposal.node)


def data_of_run(run: Run, one: Experiment) -> Data:
    """The stored data of an experiment."""
    where = f"{run.folder}, data of experiment {one.key}"
    return Data.of(codec.from_json(StoredChoices, json.loads(run.get_blob(one.data)), where))


def config_of(run: Run) -> tuple[LoopConfig, list[str]]:
    """The settings of a run's loop, and the names of its seeds."""
    given = dict(run.config)
    specs = [str(one) for one in given.pop("seeds", [])]
    return LoopConfig(**given), specs


def rows_of(pool: TheoryPool) -> list[ScoredTheory]:
    """The leaderboard over the experiments that have data and predictions; see
    :func:`ramify.methods.theory_loop.algorithm.scoreboard`."""
    done = [one for one in pool.observations if one.real is not None and one.predictions]
    predicted = [{label: None if v is None else v.value for label, v in one.predictions.items()} for one in done]
    return scoreboard(list(pool.theories), [one.real.value for one in done if one.real], predicted)


def ranked(pool: TheoryPool) -> tuple[RankedTheory, ...]:
    """:func:`rows_of` with what each theory says, and its node."""
    return tuple(
        RankedTheory(**asdict(row), theory=pool.theories[row.label].description, node=pool.nodes[row.label])
        for row in rows_of(pool)
    )


def next_label(labels: Sequence[str], old: str, kind: str) -> str:
    """A label never used before: of a new model ``pi_N_1``, ``pi_N_2``, ...; of a new theory ``pi_`` and the next number."""
    bases = [int(label.split("_")[1]) for label in labels]
    if kind != "new_model":
        return f"pi_{max(bases) + 1}"
    base = int(old.split("_")[1])
    return f"pi_{base}_{sum(label.startswith(f'pi_{base}_') for label in labels) + 1}"


def find_proposer(config: LoopConfig, bench: TheoryBench) -> Proposer:
    """The grammar, or a model by name. Raises UserError where there is none such."""
    if config.proposer == "grammar":
        return TheoryGrammar(config, bench)
    from ramify.methods.theory_loop.asked import AskedProposer

    return AskedProposer(config.proposer, config)


def seeds_of(specs: Sequence[str]) -> list[Theory]:
    """The two theories to begin with. Raises UserError on another number of them."""
    if len(specs) != 2:
        raise UserError(f"a loop begins with two theories, and {len(specs)} are named")
    return [find_theory(spec) for spec in specs]


def begin(config: LoopConfig, seeds: Sequence[Theory], specs: Sequence[str], folder: Path, identities: Mapping[str, str]) -> Run:
    """The run of a loop; all that decides it is compared. More rounds continue one that is done."""
    decides: dict[str, Any] = {name: value for name, value in config.to_json().items() if name != "rounds"}
    parts = {"seeds": [theory.hash for theory in seeds], **identities}
    return Run.begin(folder, KIND, {**decides, "seeds": list(specs)}, {"rounds": config.rounds}, parts=parts)


def theories_of(folder: Path | str) -> dict[str, Theory]:
    """Every admitted theory of a run by its label, in order. Raises UserError on a folder that is not a run of a loop."""
    with Run.open(Path(folder)) as run:
        return pool_of(run).theories


async def run_loop(
    config: LoopConfig,
    specs: Sequence[str],
    folder: Path,
    progress: Progress = SILENT,
    allow_unsandboxed: bool = False,
    participants: Participants | Callable[..., Any] | None = None,
    proposer: Proposer | None = None,
) -> TheoryLoopReport:
    """Run or continue a loop; what :meth:`TheoryLoop.result` says, with ``waiting`` where people's data is to come.

    ``participants``, an object or a function of (design, orders, seed), and ``proposer`` take the places of those that the
    settings name. Raises UserError on settings that do not fit, NeedsError where nothing isolates,
    InfrastructureError where a model or the sandbox fails.
    """
    seeds = seeds_of(specs)
    async with TheoryBench(config.seconds, allow_unsandboxed=allow_unsandboxed) as bench:
        if participants is None:
            people = find_participants(config.participants, config.noise, bench)
        else:
            people = given_participants(participants)
            config = LoopConfig(**config.to_json() | {"participants": people.name})
        proposer = proposer or find_proposer(config, bench)
        identities = {"participants": people.identity, "proposer": proposer.identity}
        with begin(config, seeds, specs, folder, identities) as run:
            loop = TheoryLoop(config, seeds, run, bench, progress, proposer, people)
            try:
                return await loop.go()
            except WaitingError as waiting:
                loop.pool.observations.append(waiting.observation)
                return replace(loop.result(), waiting=waiting.observation.key)


def loop_of(
    config: LoopConfig,
    specs: Sequence[str],
    folder: Path | str,
    progress: Progress = SILENT,
    allow_unsandboxed: bool = False,
    participants: Participants | Callable[..., Any] | None = None,
    proposer: Proposer | None = None,
) -> TheoryLoopReport:
    """:func:`run_loop` for callers without an event loop."""
    return wait_for(run_loop(config, specs, Path(folder), progress, allow_unsandboxed, participants, proposer))
