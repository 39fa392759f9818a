"""The loop (section 3.2), in its run: every step is committed whole, so the same command continues where it was killed.

Theories are nodes of the tree ``theories`` (a candidate hangs below the theory that it is to replace), experiments nodes of the
tree ``experiments`` with their data as a blob; losses and leaderboard scores are scores of the nodes;
what was decided is in the journal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    accepted,
    candidate_loss,
    scoreboard,
    welch_p,
)
from ramify.methods.theory_loop.bench import Metric, TheoryBench, projection
from ramify.methods.theory_loop.domain import PROBLEMS, Data, Design, TheoryError, random_design, read_design
from ramify.methods.theory_loop.participants import Participants, find_participants, given_participants
from ramify.methods.theory_loop.proposer import (
    AdvocateTurn,
    Experiment,
    Proposer,
    TheoryGrammar,
    TheoryPool,
    TriedTheory,
    Verdict,
)
from ramify.methods.theory_loop.theories import Theory, check_theory, find_theory
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.node import Finding, Provenance, Score, make_node

KIND = "theory-loop run"
THEORIES, EXPERIMENTS = "theories", "experiments"
SEED, PROPOSED, COLLECTED, PREDICTED, DECIDED, CANDIDATE, REPLACED, PROBLEM, SUBJECT = (
    *("seed theory", "proposal", "data", "prediction", "verdict", "candidate", "replacement", "problem", "subject"),
)  # fmt: skip
"""What the journal calls the steps."""
PERSON, CONFIRMED, ADMITTED = "person", "confirmation", "admitted"
LEADERBOARD, LOSS = "theory-loop leaderboard", "theory-loop loss"
BLOB = "blob:"


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
        self.known = {(one.kind, one.key): one.payload for one in run.journal()}
        self.participants = participants or find_participants(config.participants, config.noise, bench)
        self.proposer = proposer or find_proposer(config, bench)
        if hasattr(self.proposer, "bind"):
            self.proposer.bind(self)

    async def go(self) -> dict[str, Any]:
        """Every round up to the last; returns :meth:`result`.
        Raises WaitingError where people's data is to come, InfrastructureError."""
        steps = self.config.rounds * (self.config.iterations + 5)
        self.progress.begin(steps, 0, "", "steps")
        await self._begin()
        for number in range(1, self.config.rounds + 1):
            before = (number - 1) * (self.config.iterations + 5)
            await self._observe(number, before)
            await self.backfill()
            verdict = await self._verdict(number)
            self.progress.at(before + 4, f"round {number}: replace {self.pool.slots[verdict.slot]}")
            await self._revise(number, verdict, before + 5)
            await self.backfill()
            self._score(number)
        found = self.result()
        self._conclude(found)
        return found

    # -- steps

    async def _once(self, kind: str, key: str, make: Callable[[], Awaitable[tuple[dict[str, Any], list[Any]]]]) -> dict[str, Any]:
        """A step of the journal: what is stored, else what ``make`` returns, committed together with its records."""
        if (kind, key) not in self.known:
            payload, records = await make()
            with self.run.transaction():
                self.run.add(*records)
                self.run.log(kind, key, payload)
            self.known[kind, key] = payload
        found: dict[str, Any] = self.known[kind, key]
        return found

    def problem(self, where: str, error: TheoryError, **more: Any) -> dict[str, Any]:
        """Record what went wrong; the loop continues."""
        assert error.kind in PROBLEMS, error.kind
        record = {"where": where, **error.to_json(), **more}
        key = f"{where}/{sum(kind == PROBLEM for kind, _ in self.known)}/{stable_hash(canonical_json(record))[:8]}"
        self.run.log(PROBLEM, key, record)
        self.known[PROBLEM, key] = record
        return record

    def _node(self, theory: Theory, parent: str | None, maker: str, index: int, **data: Any) -> Any:
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
            data={"theory": theory.to_json(), **data},
        )

    async def _begin(self) -> None:
        for tree in (THEORIES, EXPERIMENTS):
            self.run.add_tree(tree, {"id": tree})
        for i, theory in enumerate(self.seeds):
            label = f"pi_{i + 1}"

            async def make(theory: Theory = theory, label: str = label, i: int = i) -> tuple[dict[str, Any], list[Any]]:
                provenance, node = self._node(theory, None, "seed", i, label=label)
                return {"label": label, "node": node.id}, [provenance, node]

            self._admit(await self._once(SEED, label, make))
        self.pool.slots = ["pi_1", "pi_2"]

    def _admit(self, record: Mapping[str, Any]) -> None:
        node = self.run.node(str(record["node"]))
        self.pool.theories[record["label"]] = Theory.from_json(node.data["theory"])
        self.pool.nodes[record["label"]] = node.id

    async def _observe(self, number: int, before: int) -> None:
        for slot in (0, 1):
            key = f"{number}.{slot + 1}"
            record = await self._once(PROPOSED, key, partial(self._propose, number, slot, key))
            observation = experiment_of(key, record, None)
            self.progress.at(
                before + 2 * slot + 1, f"round {number}: {observation.proposer} proposed, p {observation.gate['p']:.2g}"
            )
            if (COLLECTED, key) not in self.known:
                await self._collect(observation)
            found = self.known[COLLECTED, key]
            observation.data = found["data"]
            observation.real = (
                None if found["real"] is None else MetricEstimate(found["real"]["value"], found["real"]["variance"])
            )
            self.pool.observations.append(observation)
            self.progress.at(before + 2 * slot + 2, f"round {number}: {found['people']} participants")

    async def _propose(self, number: int, slot: int, key: str) -> tuple[dict[str, Any], list[Any]]:
        """An advocate's designs and metrics until one passes the gate, else the last one (steps 1a to 1e)."""
        config, pool, label = self.config, self.pool, self.pool.slots[slot]
        failures: list[dict[str, Any]] = []
        last: tuple[Design, Metric, dict[str, Any]] | None = None
        designs, metrics = self.proposer.tries or (DESIGNS, METRICS)
        for attempt in range(designs):
            at = AdvocateTurn(number, slot, attempt, failures)
            design: Design | None = await self._retried(partial(self.proposer.design, pool, at), f"{key} design", failures)
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
                if gate["passed"]:
                    return self._proposal(key, label, *last)
                why = f"p {gate['p']:.3g}, which is not below {config.alpha:g}"
                failures.append({"where": f"{key} metric", "problem": "", "why": why, "gate": gate, "code": metric.code})
        if last is None:  # nothing could be used: an experiment by chance, so that the loop learns something
            design = random_design(generator(config.seed, "fallback", key), CUES, rating_max=config.most)
            none = {"value": None, "variance": None}
            last = (
                design,
                projection(design, [1.0] * design.pairs, "how often B is chosen"),
                {"p": 1.0, "passed": False, "own": none, "rival": none, "searched": len(failures)},
            )
        why = f"p {last[2]['p']:.3g} of the one that is used, and {config.alpha:g} was wanted"
        self.problem(f"{key} gate", TheoryError("no metric passed", why))
        return self._proposal(key, label, *last)

    async def _retried(self, make: Callable[[], Awaitable[Any]], where: str, failures: list[dict[str, Any]]) -> Any:
        """What a proposer makes, None where every try was unusable."""
        for _ in range(RETRIES):
            try:
                return await make()
            except TheoryError as error:
                failures.append(self.problem(where, error))
        return None

    async def _gate(
        self, metric: Metric, own: Data, rival: Data, where: str, failures: list[dict[str, Any]]
    ) -> dict[str, Any] | None:
        try:
            first, notes = await self.bench.measure(metric, own)
            second, _ = await self.bench.measure(metric, rival)
        except TheoryError as error:
            failures.append(self.problem(where, error, code=metric.code))
            return None
        for kind, why in notes:
            failures.append(self.problem(where, TheoryError(kind, why)))
        p = welch_p(first, second, self.config.people)
        return {
            "p": p,
            "passed": p < self.config.alpha,
            "own": first.to_json(),
            "rival": second.to_json(),
            "searched": len(failures) + 1,
        }

    def _proposal(
        self, key: str, label: str, design: Design, metric: Metric, gate: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Any]]:
        above, text = root(self.run, EXPERIMENTS), f"{design.rationale}\n{metric.rationale}".strip()
        node = make_node(
            EXPERIMENTS,
            above.id,
            len(above),
            "user",
            f"experiment {key} of {label}: {text}"[:2000],
            data={"key": key, "design": design.to_json(), "metric": metric.to_json()},
        )
        return {"proposer": label, "design": design.to_json(), "metric": metric.to_json(), "gate": gate, "node": node.id}, [node]

    async def _collect(self, observation: Experiment) -> None:
        """Real data of an observation, and its real value (steps 2 and 3). Raises WaitingError."""
        key, config = observation.key, self.config
        data = await self.participants.collect(observation.design, config.people, config.seed, key, self._kept)
        if data is None:
            raise WaitingError(observation)
        await self.take(observation, data)

    async def take(self, observation: Experiment, data: Data) -> None:
        """Keep the data of an observation, and measure it."""
        if len(data.order) < self.config.people:
            why = f"{len(data.order)} of {self.config.people}: {canonical_json(dict(data.extra))[:200]}"
            self.problem(f"{observation.key} data", TheoryError("too few participants", why))

        async def make() -> tuple[dict[str, Any], list[Any]]:
            real: dict[str, Any] | None = None
            if len(data.order):
                try:
                    estimate, notes = await self.bench.measure(observation.metric, data, checked=True)
                    real = estimate.to_json()
                    for kind, why in notes:
                        self.problem(f"{observation.key} data", TheoryError(kind, why))
                except TheoryError as error:
                    self.problem(f"{observation.key} data", error)
            blob = self.run.put_blob(canonical_json(data.to_json()).encode())
            return {"data": blob, "real": real, "people": len(data.order), "extra": dict(data.extra)}, []

        await self._once(COLLECTED, observation.key, make)

    def _kept(self, key: str, value: Any) -> Any:
        if value is not None:
            self.run.log(SUBJECT, key, value)
            self.run.commit()
            self.known[SUBJECT, key] = value
        return self.known.get((SUBJECT, key))

    async def backfill(self) -> None:
        """Predict every observation by every admitted theory that has no prediction of it yet (step 3)."""
        for label, theory in self.pool.theories.items():
            missing = [one for one in self.pool.observations if label not in one.predictions]
            wanted = [one for one in missing if (PREDICTED, f"{label}@{one.key}") not in self.known]
            if wanted:
                found = await self._predict(theory, wanted, f"{label} prediction", ADMITTED, label)
                with self.run.transaction():
                    for one, estimate in zip(wanted, found, strict=True):
                        payload = None if estimate is None else estimate.to_json()
                        self.run.log(PREDICTED, f"{label}@{one.key}", payload)
                        self.known[PREDICTED, f"{label}@{one.key}"] = payload
            for one in missing:
                record = self.known[PREDICTED, f"{label}@{one.key}"]
                one.predictions[label] = None if record is None else MetricEstimate(record["value"], record["variance"])

    async def _predict(
        self, theory: Theory, observations: Sequence[Experiment], where: str, *key: str | int
    ) -> list[MetricEstimate | None]:
        """A theory's predictions; None where it failed, which is recorded.
        Candidates of a round share their ``key``: common random numbers."""
        config = self.config
        asked = [(one.design, config.runs) for one in observations]
        try:
            simulated = await self.bench.simulate_many(theory, asked, config.seed, *key, names=[one.key for one in observations])
        except TheoryError as error:
            self.problem(where, error)
            return [None] * len(observations)
        found: list[MetricEstimate | None] = []
        for one, data in zip(observations, simulated, strict=True):
            try:
                found.append((await self.bench.measure(one.metric, data))[0])
            except TheoryError as error:
                self.problem(f"{where} on {one.key}", error)
                found.append(None)
        return found

    async def _verdict(self, number: int) -> Verdict:
        async def make() -> tuple[dict[str, Any], list[Any]]:
            failures: list[dict[str, Any]] = []
            found = await self._retried(lambda: self.proposer.verdict(self.pool, number), f"{number} verdict", failures)
            if found is None:  # the arbiter could not be understood: the numbers decide
                found = await TheoryGrammar(self.config, self.bench).verdict(self.pool, number)
            return {
                "slot": found.slot,
                "kind": found.kind,
                "interpretation": found.interpretation,
                "recommendation": found.recommendation,
            }, []

        record = await self._once(DECIDED, str(number), make)
        return Verdict(record["slot"], record["kind"], record["interpretation"], record["recommendation"])

    async def _revise(self, number: int, verdict: Verdict, before: int) -> None:
        """Candidates, each simulated on all observations and accepted only where it loses less (step 5), then the replacement."""
        config, old = self.config, self.pool.slots[verdict.slot]
        best: tuple[Theory, float, str] | None = None
        tried: list[TriedTheory] = []
        for iteration in range(config.iterations):
            key = f"{number}.{iteration}"
            make = partial(self._candidate, number, iteration, key, verdict, best, tuple(tried))
            record = await self._once(CANDIDATE, key, make)
            if record["node"] is None:
                continue
            loss = math.inf if record["loss"] is None else float(record["loss"])
            theory = Theory.from_json(self.run.node(record["node"]).data["theory"])
            if record["accepted"]:
                best = theory, loss, record["node"]
            tried.append(TriedTheory(theory, loss, record["accepted"], record["critique"]))
            self.progress.at(before + iteration, f"round {number}: loss {'-' if best is None else format(best[1], '.3f')}")
            if not record["regenerate"] and record["accepted"]:
                break

        async def replaced() -> tuple[dict[str, Any], list[Any]]:
            if best is None:
                self.problem(f"{number} revision", TheoryError("reply", f"no candidate could be used, so {old} keeps its place"))
                return {"slot": verdict.slot, "label": old, "node": self.pool.nodes[old]}, []
            label = next_label(list(self.pool.theories), old, verdict.kind)
            return {
                "slot": verdict.slot,
                "label": label,
                "node": best[2],
                "replaced": old,
                "loss": best[1] if math.isfinite(best[1]) else None,
            }, []

        record = await self._once(REPLACED, str(number), replaced)
        self._admit(record)
        self.pool.slots[verdict.slot] = record["label"]

    async def _candidate(
        self,
        number: int,
        iteration: int,
        key: str,
        verdict: Verdict,
        best: tuple[Theory, float, str] | None,
        tried: Sequence[TriedTheory],
    ) -> tuple[dict[str, Any], list[Any]]:
        old = self.pool.slots[verdict.slot]
        failures: list[dict[str, Any]] = []

        async def proposed() -> Theory:
            theory = await self.proposer.theory(
                self.pool, number, iteration, verdict, None if best is None else best[0], tried, [one["why"] for one in failures]
            )
            check_theory(theory)
            return theory

        theory = await self._retried(proposed, f"{key} candidate", failures)
        if theory is None:
            return {"node": None, "loss": None, "accepted": False, "regenerate": True, "critique": ""}, []
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
        score = Score(node.id, LOSS, loss if math.isfinite(loss) else None, "loss", evidence={"accepted": taken})
        return {
            "node": node.id,
            "loss": loss if math.isfinite(loss) else None,
            "accepted": taken,
            "regenerate": again,
            "critique": critique,
        }, [provenance, node, score]

    # -- results

    def board(self) -> list[dict[str, Any]]:
        """The leaderboard now; see :func:`ramify.methods.theory_loop.algorithm.scoreboard`."""
        return rows_of(self.pool)

    def _score(self, number: int) -> None:
        rows = self.board()
        scores = [
            Score(self.pool.nodes[row["label"]], LEADERBOARD, row["score"], "leaderboard", evidence={"round": number, **row})
            for row in rows
        ]
        with self.run.transaction():
            self.run.add(*scores)

    def result(self) -> dict[str, Any]:
        """What the loop came to: survivors, leaderboard, gates, replacements, problems."""
        rows, problems = self.board(), [one for (kind, _), one in self.known.items() if kind == PROBLEM]
        counted: dict[str, int] = {}
        for one in problems:
            counted[one["problem"]] = counted.get(one["problem"], 0) + 1
        return {
            "rounds": sum(kind == REPLACED for kind, _ in self.known),
            "survivors": list(self.pool.slots),
            "leaderboard": [
                {**row, "theory": self.pool.theories[row["label"]].description, "node": self.pool.nodes[row["label"]]}
                for row in rows
            ],
            "observations": [
                {
                    "key": one.key,
                    "proposer": one.proposer,
                    "p": one.gate["p"],
                    "passed": one.gate["passed"],
                    "real": one.real.to_json() if one.real else None,
                    "people": self.known.get((COLLECTED, one.key), {}).get("people"),
                }
                for one in self.pool.observations
            ],
            "gate": {
                "passed": sum(bool(one.gate["passed"]) for one in self.pool.observations),
                "of": len(self.pool.observations),
            },
            "problems": counted,
            "spent": self.ledger.to_json()["spent"],
        }

    def _conclude(self, found: Mapping[str, Any]) -> None:
        best = {row["label"]: row for row in found["leaderboard"]}
        findings = [
            Finding(
                "surviving theory",
                KIND,
                f"{label}: score {best[label]['score']:.3f} over {found['gate']['of']} experiments; {best[label]['theory']}",
                self.pool.nodes[label],
                0,
                f"ramify theory-loop confirm {self.run.folder} tests it on fresh participants",
                best[label]["score"],
                "score",
                best[label],
            )
            for label in found["survivors"]
        ]
        self.run.conclude(KIND, findings)


def pool_of(run: Run) -> TheoryPool:
    """What a run holds of its loop, up to where it came. Raises UserError on a run of another verb, and on a damaged
    experiment."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    known, pool = {(one.kind, one.key): one.payload for one in run.journal()}, TheoryPool()

    def admit(record: Mapping[str, Any]) -> None:
        node = run.node(str(record["node"]))
        pool.theories[record["label"]], pool.nodes[record["label"]] = Theory.from_json(node.data["theory"]), node.id

    for label in ("pi_1", "pi_2"):
        if (SEED, label) in known:
            admit(known[SEED, label])
            pool.slots.append(label)
    number = 1
    while True:
        for key in (f"{number}.1", f"{number}.2"):
            if (PROPOSED, key) in known:
                try:
                    pool.observations.append(experiment_of(key, known[PROPOSED, key], known.get((COLLECTED, key))))
                except TheoryError as error:
                    raise UserError(f"experiment {key} of {run.folder} is damaged: {error}") from None
        if (REPLACED, str(number)) not in known:
            break
        record = known[REPLACED, str(number)]
        admit(record)
        pool.slots[record["slot"]] = record["label"]
        number += 1
    for one in pool.observations:
        for label in pool.theories:
            if (PREDICTED, f"{label}@{one.key}") in known:
                record = known[PREDICTED, f"{label}@{one.key}"]
                one.predictions[label] = None if record is None else MetricEstimate(record["value"], record["variance"])
    return pool


async def predictions(
    bench: TheoryBench, theory: Theory, label: str, chosen: Sequence[Experiment], config: LoopConfig
) -> list[MetricEstimate | None]:
    """The predictions of an admitted theory as the loop makes them; None where it fails."""
    try:
        asked = [(one.design, config.runs) for one in chosen]
        simulated = await bench.simulate_many(theory, asked, config.seed, ADMITTED, label, names=[one.key for one in chosen])
    except TheoryError:
        return [None] * len(chosen)
    found: list[MetricEstimate | None] = []
    for one, data in zip(chosen, simulated, strict=True):
        try:
            found.append((await bench.measure(one.metric, data))[0])
        except TheoryError:
            found.append(None)
    return found


def experiment_of(key: str, record: Mapping[str, Any], found: Mapping[str, Any] | None) -> Experiment:
    """An experiment from the journal: its proposal, and what was collected, if anything."""
    one = Experiment(
        key,
        record["proposer"],
        read_design(record["design"]),
        Metric.from_json(record["metric"]),
        record["gate"],
        node=record["node"],
    )
    if found is not None:
        one.data = found["data"]
        one.real = None if found["real"] is None else MetricEstimate(found["real"]["value"], found["real"]["variance"])
    return one


def data_of_run(run: Run, one: Experiment) -> Data:
    """The stored data of an experiment."""
    return Data.from_json(json.loads(run.get_blob(one.data)))


def config_of(run: Run) -> tuple[LoopConfig, list[str]]:
    """The settings of a run's loop, and the names of its seeds."""
    given = dict(run.config)
    specs = [str(one) for one in given.pop("seeds", [])]
    return LoopConfig(**given), specs


def rows_of(pool: TheoryPool) -> list[dict[str, Any]]:
    """The leaderboard over the experiments that have data and predictions; see
    :func:`ramify.methods.theory_loop.algorithm.scoreboard`."""
    done = [one for one in pool.observations if one.real is not None and one.predictions]
    predicted = [{label: None if v is None else v.value for label, v in one.predictions.items()} for one in done]
    return scoreboard(list(pool.theories), [one.real.value for one in done if one.real], predicted)


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
    """Every admitted theory of a run by its label, in order. Raises UserError on a folder that is no run of a loop."""
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
) -> dict[str, Any]:
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
                return {**loop.result(), "waiting": waiting.observation.key}


def loop_of(
    config: LoopConfig,
    specs: Sequence[str],
    folder: Path | str,
    progress: Progress = SILENT,
    allow_unsandboxed: bool = False,
    participants: Participants | Callable[..., Any] | None = None,
    proposer: Proposer | None = None,
) -> dict[str, Any]:
    """:func:`run_loop` for callers without an event loop."""
    return wait_for(run_loop(config, specs, Path(folder), progress, allow_unsandboxed, participants, proposer))
