"""Who proposes designs, metrics, verdicts and theories: the protocol, and the grammar, which needs no model (section 7(a))."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.methods.theory_loop.algorithm import CUES, MUTATE, LoopConfig, MetricEstimate, normalised_distances, norms, welch_p
from ramify.methods.theory_loop.bench import Metric, TheoryBench, projected, projection
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.domain import Data, Design, random_design
from ramify.methods.theory_loop.theories import Theory


@dataclass(frozen=True)
class Gate:
    """What the gate said of a design and a metric: Welch's p on simulated people, and what both theories predict there."""

    p: float = 1.0
    passed: bool = False
    own: MetricEstimate | None = None
    rival: MetricEstimate | None = None
    searched: int = 0
    """Which try of its advocate it was."""


@dataclass(frozen=True)
class LoopProblem:
    """Something that went wrong, and was recorded: where, one of :data:`ramify.methods.theory_loop.domain.PROBLEMS`, and why."""

    where: str
    problem: str
    why: str
    code: str = ""
    """The source that was at fault, where it was one."""


@dataclass
class Experiment:
    """One experiment: who proposed it, its design and metric, what was measured, and what every admitted theory predicts."""

    key: str
    """``round.slot``."""
    proposer: str
    """Label of the theory whose advocate proposed it."""
    design: Design
    metric: Metric
    gate: Gate
    real: MetricEstimate | None = None
    data: str = ""
    """Blob of the data."""
    predictions: dict[str, MetricEstimate | None] = field(default_factory=dict)
    """By label; None where the theory failed."""
    node: str = ""
    people: int | None = None

    def take(self, data: str, real: MetricEstimate | None, people: int) -> None:
        """Its data has come: a blob, what was measured on it, and of how many people it is."""
        self.data, self.real, self.people = data, real, people


@dataclass(frozen=True)
class Verdict:
    """The arbiter's: which slot to replace, by a new model of the same description or by a new theory, and why."""

    slot: int
    kind: str = "new_theory"
    interpretation: str = ""
    recommendation: str = ""


@dataclass(frozen=True)
class TriedTheory:
    """A candidate of a revision: what it lost on the observations, and whether it was accepted."""

    theory: Theory
    loss: float
    accepted: bool
    critique: str = ""


@dataclass
class TheoryPool:
    """All that advocates, arbiter, reviser and critic share. The hidden truth of simulated participants is never in it."""

    theories: dict[str, Theory] = field(default_factory=dict)
    """Every admitted theory by label, in order."""
    slots: list[str] = field(default_factory=list)
    """Labels of the two theories that compete."""
    observations: list[Experiment] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)

    def distances(self, labels: Sequence[str]) -> np.ndarray:
        """(O, L) normalised distances of ``labels`` over the observations with data."""
        done = [one for one in self.observations if one.real is not None]
        table = [[None if (found := one.predictions.get(label)) is None else found.value for label in labels] for one in done]
        return normalised_distances([one.real.value for one in done if one.real], table) if done else np.zeros((0, len(labels)))


@dataclass(frozen=True)
class AdvocateTurn:
    """What an advocate is told: its slot (0 or 1), the number of its try, and what failed before in this round."""

    round: int
    slot: int
    number: int
    failures: Sequence[LoopProblem] = ()


class Proposer(Protocol):
    """Stateless roles that share the pool only. Each raises TheoryError where what it made is none."""

    name: str
    identity: str
    """Hash of what can change a proposal."""
    tries: tuple[int, int] | None
    """(designs, metrics for each) worth asking for; None: as the settings say."""

    async def design(self, pool: TheoryPool, at: AdvocateTurn) -> Design:
        """An experiment that the slot's own theory should win."""
        ...

    async def metric(self, pool: TheoryPool, at: AdvocateTurn, design: Design, own: Data, rival: Data) -> Metric:
        """What to measure in it; ``own`` and ``rival`` are simulated data of both theories."""
        ...

    async def verdict(self, pool: TheoryPool, round: int) -> Verdict:
        """Which theory to replace."""
        ...

    async def theory(
        self,
        pool: TheoryPool,
        round: int,
        iteration: int,
        verdict: Verdict,
        best: Theory | None,
        tried: Sequence[TriedTheory],
        failures: Sequence[str],
    ) -> Theory:
        """A candidate: the first from scratch, later ones as edits of the best accepted one."""
        ...

    async def critique(
        self, pool: TheoryPool, round: int, verdict: Verdict, trial: TriedTheory, tried: Sequence[TriedTheory]
    ) -> tuple[bool, str]:
        """(whether to regenerate, a diagnosis)."""
        ...


BINARY = ("power-weights", "rank-decay", "validity-wadd", "mixture-tallying", "mixture")
CARDINAL = ("dr-wadd", "satisficing-wadd")
HISTORY = ("alternating", "perseveration")


class TheoryGrammar:
    """Draws theories from families and narrows ranges, those of the leaders too;
    compares random designs; replaces what is further from the data."""

    tries: tuple[int, int] | None = (1, 1)

    def __init__(self, config: LoopConfig, bench: TheoryBench) -> None:
        self.config, self.bench = config, bench
        self.families = BINARY + (CARDINAL if config.ratings == "cardinal" else ()) + (HISTORY if config.history else ())
        self.name, self.identity = (
            "grammar",
            stable_hash("proposer", "grammar", 2, *self.families, repr(MUTATE), config.searched, config.designer),
        )
        self.theories: Mapping[str, Theory] = CANONICAL
        """What the families are drawn from, by name."""
        self._weights: dict[str, np.ndarray] = {}

    async def design(self, pool: TheoryPool, at: AdvocateTurn) -> Design:
        """The random design with the smallest Welch p of its projection, out of ``searched``;
        a blind designer takes the first."""
        config, rng = self.config, generator(self.config.seed, "designs", at.round, at.slot, at.number)
        designs = [
            random_design(rng, CUES, rating_max=config.most) for _ in range(1 if config.designer == "blind" else config.searched)
        ]
        sides = []
        for side, label in enumerate((pool.slots[at.slot], pool.slots[1 - at.slot])):
            asked = [(design, config.runs) for design in designs]
            sides.append(
                await self.bench.simulate_many(
                    pool.theories[label], asked, config.seed, "search", at.round, at.slot, at.number, side
                )
            )
        found: list[tuple[float, int, Design, np.ndarray]] = []
        for design, own, rival in zip(designs, *sides, strict=True):
            weights = own.p_b - rival.p_b
            found.append(
                (welch_p(projected(own, weights), projected(rival, weights), config.people), len(found), design, weights)
            )
        p, _, design, weights = min(found, key=lambda one: one[:2])
        self._weights[design.hash] = weights
        return replace(design, rationale=f"{len(designs)} random designs compared; p {p:.2g} in the search")

    async def metric(self, pool: TheoryPool, at: AdvocateTurn, design: Design, own: Data, rival: Data) -> Metric:
        """The projection on the difference of both theories' choices, as the search saw it."""
        weights = self._weights.get(design.hash)
        weights = own.p_b - rival.p_b if weights is None else weights
        return projection(
            design, [round(float(w), 6) for w in weights], "how far choices go the way of the own theory instead of the rival's"
        )

    async def verdict(self, pool: TheoryPool, round: int) -> Verdict:
        """The slot with the larger norm over all observations; the first one where they are equal."""
        labels = list(pool.theories)
        found = dict(zip(labels, norms(pool.distances(labels)).tolist(), strict=True))
        first, second = (found[label] for label in pool.slots)
        return Verdict(
            int(second > first),
            "new_theory",
            f"norms of the normalised distances: {pool.slots[0]} {first:.3f}, {pool.slots[1]} {second:.3f}",
        )

    async def theory(
        self,
        pool: TheoryPool,
        round: int,
        iteration: int,
        verdict: Verdict,
        best: Theory | None,
        tried: Sequence[TriedTheory],
        failures: Sequence[str],
    ) -> Theory:
        """With probability ``mutate`` the accepted candidate with one range narrowed, else a new beginning.

        That is one of the three theories that lead, with one range narrowed, or, half the time and in the first round, a family
        of which each range is whole or, as often, a random part of it.
        """
        rng = generator(self.config.seed, "grammar", round, iteration, len(failures))
        if iteration and best is not None and rng.random() < MUTATE:
            return narrowed(best, rng)
        if round > 1 and rng.random() < 0.5:
            found = norms(pool.distances(list(pool.theories)))
            leaders = [theory for _, theory in sorted(zip(found, pool.theories.values(), strict=True), key=lambda one: one[0])][
                :3
            ]
            leader = leaders[int(rng.integers(len(leaders)))]
            if ranges(leader):
                return narrowed(leader, rng)
        family = self.families[int(rng.integers(len(self.families)))]
        return partial(replace(self.theories[family], about={"family": family}), rng)

    async def critique(
        self, pool: TheoryPool, round: int, verdict: Verdict, trial: TriedTheory, tried: Sequence[TriedTheory]
    ) -> tuple[bool, str]:
        """Always regenerate: the accept gate alone decides."""
        return True, ""


def ranges(theory: Theory) -> dict[str, tuple[float, float]]:
    """Its parameters that are intervals, by name in order."""
    return {
        name: ast.literal_eval(text)
        for name, text in sorted(theory.parameters.items())
        if text.startswith("[") and "*" not in text
    }


def partial(theory: Theory, rng: np.random.Generator) -> Theory:
    """Each range whole or, as often, between two numbers drawn from it."""
    for name, ends in ranges(theory).items():
        if rng.random() < 0.5:
            theory = _with_range(theory, name, *sorted(rng.uniform(*ends, 2)))
    return theory


def narrowed(theory: Theory, rng: np.random.Generator) -> Theory:
    """One range shrunk from below or above by 10 to 60 %, or to 70 % of its width around another centre."""
    found = ranges(theory)
    name = list(found)[int(rng.integers(len(found)))]
    low, high = found[name]
    width, way = high - low, int(rng.integers(3))
    if way == 2:
        low = rng.uniform(low, low + 0.3 * width)
        high = low + 0.7 * width
    else:
        cut = rng.uniform(0.1, 0.6) * width
        low, high = (low + cut, high) if way == 0 else (low, high - cut)
    return _with_range(theory, name, low, high)


def _with_range(theory: Theory, name: str, low: float, high: float) -> Theory:
    low = float(f"{low:.6g}")
    return replace(theory, parameters={**theory.parameters, name: f"[{low:.6g}, {max(low, float(f'{high:.6g}')):.6g}]"})
