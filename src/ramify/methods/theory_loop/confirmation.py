"""Preregistered confirmation: what is tested, on which design,
with how many people and at which level is fixed before anybody chooses.

``predicts``: a theory says better what each person chooses next than every rival. ``concave-match``, ``steep-flat`` and
``level-shift`` (H1 to H3 of section 3.6) say which choices people make where returns diminish, whatever the theory's parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr

from ramify.base import codec
from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import generator
from ramify.methods.theory_loop.bench import TheoryBench
from ramify.methods.theory_loop.domain import Data, Design, hilbig, read_design
from ramify.methods.theory_loop.theories import Theory
from ramify.render.numbers import number, p_value
from ramify.render.result import Result, Section, table
from ramify.stats.evidence import holm
from ramify.trace.node import Finding

CONFIRM = "theory-loop confirm"
DRAWS = 400
"""Parameter draws of a prediction; of a theory that reads history HISTORY_DRAWS."""
HISTORY_DRAWS = 40
POWER, REPEATS, LAPSE = 0.99, 40, 0.3
"""Power that a registration's size has, over so many simulated repetitions;
of a contrast with so large a share of uniform choices."""
SIZES = (25, 50, 75, 100, 150, 200, 300, 500)
HISTORY_PEOPLE = 100
"""Simulated people from which the power of a claim is estimated about a theory that reads history,
which is asked trial by trial."""


Sides = Literal[1, 2]


def t_test(differences: np.ndarray, sides: Sides = 1) -> tuple[float, float]:
    """(t, p) of the hypothesis that the mean of ``differences`` (S,) is above 0, with two ``sides`` that it is not 0. Without
    spread: p 0 above, 1 otherwise."""
    n, mean = len(differences), float(np.mean(differences))
    spread = float(np.std(differences, ddof=1)) if n > 1 else math.nan
    if not spread > 1e-15:
        return (math.inf, 0.0) if mean > 1e-12 and n > 1 else (0.0, 1.0)
    t = mean / (spread / math.sqrt(n))
    return t, float(stdtr(n - 1, -t) if sides == 1 else 2 * stdtr(n - 1, -abs(t)))


SIDED: dict[Sides, str] = {1: "one-sided", 2: "two-sided"}
Test = Literal["predicts", "concave-match", "steep-flat", "level-shift"]
CLAIMS = {
    "concave-match": (
        "people choose as diminishing returns do where weighting by validity, tallying or take the best say otherwise",
        "per person the share of such choices in the pairs on which each of the three rules says otherwise, above 1/2; "
        "{sided} t tests, Holm; all have to hold",
    ),
    "steep-flat": (
        "people choose a step at the low end of a rating over an equal step at its high end more often than not",
        "per person the share of choices of the low step, over pairs counterbalanced over features, above 1/2; {sided} t test",
    ),
    "level-shift": (
        "people choose the option that a linear rule prefers less often once both options are shifted up",
        "per person the share of choices of that option in the low pairs minus its share in the same pairs shifted up, above 0; "
        "{sided} t test",
    ),
}
"""What each contrast claims, and how it is tested."""


@dataclass(frozen=True)
class Registration:
    """What is going to be tested: fixed, and known by its hash."""

    label: str
    theory: Theory
    rivals: Mapping[str, Theory]
    design: Design
    people: int
    alpha: float
    power: Mapping[str, float]
    """The share of simulated repetitions in which the claim held, if the theory is true:
    by rival, of a contrast under the theory's own label."""
    seed: int
    contrasts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of each contrast (P,): what each pair's proportion of B choices counts. By the rule that it opposes, "" where there is one
    contrast; empty where the claim is that the theory predicts better."""
    above: float = 0.0
    """What a person's sum of each has to be above, on average."""
    name: Test = "predicts"
    expected: Mapping[str, float] = field(default_factory=dict)
    """Of contrasts, by theory: the mean of the sum minus ``above``, the smallest of them, if that theory is true."""
    sides: Sides = 1
    """Of the t tests: 1, or 2, where the claim also has to go the right way."""

    def filed(self) -> RegistrationFile:
        """As written to a file, with its hash."""
        claim, test = CLAIMS.get(
            self.name,
            (
                f"{self.label} says better what each person chooses next than each of {', '.join(self.rivals)}",
                "per person the mean squared error of P(B), one-step-ahead; paired {sided} t test against each rival, Holm; a "
                "winner is named where all hold",
            ),
        )
        made = RegistrationFile(
            claim=claim,
            test=test.format(sided=SIDED[self.sides]),
            name=self.name,
            label=self.label,
            theory=self.theory,
            rivals=dict(self.rivals),
            design=self.design.to_json(),
            people=self.people,
            alpha=self.alpha,
            power=dict(self.power),
            draws=(DRAWS, HISTORY_DRAWS),
            seed=self.seed,
            contrasts=dict(self.contrasts),
            above=self.above,
            expected=dict(self.expected),
            sides=self.sides,
        )
        return replace(made, hash=stable_hash("registration", canonical_json(codec.to_json(made))))


@dataclass(frozen=True, kw_only=True)
class RegistrationFile:
    """A registration as its file says it: what is claimed, how it is tested, all that decides it, and the hash of that."""

    claim: str
    test: str
    name: Test
    label: str
    theory: Theory
    rivals: Mapping[str, Theory]
    design: Mapping[str, Any]
    people: int
    alpha: float
    power: Mapping[str, float]
    draws: tuple[int, int]
    seed: int
    contrasts: Mapping[str, tuple[float, ...]]
    above: float
    expected: Mapping[str, float]
    sides: Sides
    hash: str = ""


def read_registration(record: Any) -> Registration:
    """The registration that a file holds. Raises UserError where it is none, or was changed after it was made."""
    try:
        read = codec.from_json(RegistrationFile, record)
        design = read_design(read.design)
        if any(len(weights) != design.pairs for weights in read.contrasts.values()):
            raise ValueError("a contrast has one number for each pair")
    except Exception as error:
        raise UserError(f"this is not a registration: {str(error)[:160]}") from None
    made = Registration(
        read.label,
        read.theory,
        read.rivals,
        design,
        read.people,
        read.alpha,
        read.power,
        read.seed,
        read.contrasts,
        read.above,
        read.name,
        read.expected,
        read.sides,
    )
    known, given = codec.to_json(made.filed()), codec.to_json(read)
    changed = [name for name in known if given[name] != known[name]]
    if changed:
        raise UserError(f"the registration was changed after it was made: its '{changed[0]}' is not what its hash says")
    return made


async def errors(bench: TheoryBench, theory: Theory, data: Data, seed: int, *key: str | int) -> tuple[np.ndarray, float]:
    """((S,) each subject's mean squared error of P(B) one step ahead,
    mean log-likelihood of a choice in nats). Raises TheoryError."""
    draws = HISTORY_DRAWS if theory.reads_history else DRAWS
    p = await bench.forced(theory, data, draws, seed, *key)
    likelihood = np.clip(np.where(data.response == 1, p, 1 - p), 1e-9, 1)
    return ((p - data.response) ** 2).mean(axis=1), float(np.log(likelihood).mean())


@dataclass(frozen=True)
class RivalTest:
    """A claimant against one rival, person by person."""

    rival: str
    difference: float
    """Mean of the rival's error minus the claimant's."""
    t: float | None
    p: float
    log_likelihood: float
    """Of the rival, a choice."""
    holm: float = math.nan


@dataclass(frozen=True)
class ContrastTest:
    """One contrast of a registration, and the rule that it opposes."""

    opposes: str
    estimate: float
    t: float | None
    p: float
    holm: float = math.nan


@dataclass(frozen=True)
class ClaimTest(Result):
    """A registered claim, tested once on fresh participants."""

    claim: str
    name: Test
    label: str
    people: int
    registered: int
    holds: bool
    p: float
    """The largest of all rivals or contrasts, after Holm, with so many ``sides`` as were registered."""
    sides: Sides
    winner: str | None = None
    error: float | None = None
    """The claimant's, where the claim is that it predicts better; with it what it is compared with."""
    log_likelihood: float | None = None
    rivals: tuple[RivalTest, ...] = ()
    estimate: float | None = None
    """Of the contrast that is furthest from holding, with its t; and what each theory expects."""
    t: float | None = None
    contrasts: tuple[ContrastTest, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    strict: bool = field(default=False, metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """1 of a strict one where the claim does not hold."""
        return EXIT_FAILED if self.strict and not self.holds else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """The test and what it comes to."""
        people = f"{self.people} of {self.registered} people, {SIDED[self.sides]} as registered"
        if not self.rivals:
            several = len(self.contrasts) > 1
            measured = [
                (f"against {one.opposes}" if several else "measured", one.estimate, one.t, p_value(one.holm))
                for one in self.contrasts
            ]
            expected = [(f"expected by {name}", value, None, None) for name, value in self.expected.items()]
            head = ("", "contrast", "t", "p, Holm" if several else "p")
            says = f"{people}: {'it holds' if self.holds else 'it is not shown'}"
            yield Section.of("", self.claim, table(head, (*measured, *expected)), says)
            return
        rows = [(one.rival, one.difference, one.t, p_value(one.p), p_value(one.holm), one.log_likelihood) for one in self.rivals]
        yield Section.of(
            "",
            self.claim,
            table(("rival", "its error - own", "t", "p", "Holm", "log-likelihood a choice"), rows),
            f"{self.label}: error {number(self.error)}, log-likelihood {number(self.log_likelihood)} a choice, {people}\n"
            + (f"winner: {self.winner}" if self.winner else "no winner: not every rival is beaten"),
        )

    def finding(self, key: str) -> Finding:
        """What it came to, for the run; ``key`` is the registration's hash."""
        people = f"{self.people} fresh participants"
        if self.rivals:
            said = "; ".join(f"{one.rival}: p {p_value(one.holm)}" for one in self.rivals)
            what = "says better what people choose next than each rival" if self.holds else "does not beat every rival"
            name, value, unit = "winner" if self.holds else "no winner", self.error, "mean squared error"
            why = f"{self.label} {what} ({said}, Holm), {people}"
        else:
            name, value, unit = f"{self.name} {'holds' if self.holds else 'is not shown'}", self.estimate, "contrast"
            why = f"{self.claim}: {self.estimate:+.3f}, p {p_value(self.p)}, {people}"
        evidence, identity = codec.to_json(self), {"registration": key}
        return Finding(name, CONFIRM, why, value=value, unit=unit, evidence=evidence, identity=identity)


async def compare(bench: TheoryBench, registration: Registration, data: Data) -> ClaimTest:
    """The registered test on data: for each rival mean difference, t, p and Holm's p;
    whether the claim holds. Raises TheoryError, UserError."""
    claim, alpha = registration.filed().claim, registration.alpha
    known = (claim, registration.name, registration.label, len(data.order), registration.people)
    if registration.contrasts:
        tested = _tested(registration, data)
        worst = max(tested, key=lambda row: row.holm)
        return ClaimTest(
            *known,
            worst.holm < alpha and all(row.estimate > 0 for row in tested),
            worst.holm,
            registration.sides,
            estimate=worst.estimate,
            t=worst.t,
            contrasts=tested,
            expected=dict(registration.expected),
        )
    own, likelihood = await errors(bench, registration.theory, data, registration.seed, "confirm", registration.label)
    rows: list[RivalTest] = []
    for name, rival in registration.rivals.items():
        other, rival_likelihood = await errors(bench, rival, data, registration.seed, "confirm", name)
        t, p = t_test(other - own, registration.sides)
        rows.append(RivalTest(name, float(np.mean(other - own)), _finite(t), p, rival_likelihood))
    rivals = tuple(replace(row, holm=p) for row, p in zip(rows, holm([row.p for row in rows]), strict=True))
    worst_p = max((row.holm for row in rivals), default=1.0)
    named = worst_p < alpha and all(row.difference > 0 for row in rivals)
    return ClaimTest(
        *known,
        named,
        worst_p,
        registration.sides,
        winner=registration.label if named else None,
        error=float(own.mean()),
        log_likelihood=likelihood,
        rivals=rivals,
    )


def _finite(t: float) -> float | None:
    return t if math.isfinite(t) else None


def _tested(registration: Registration, data: Data) -> tuple[ContrastTest, ...]:
    """Each contrast of a registration: the rule that it opposes, estimate, t, p, and p after Holm."""
    rows: list[ContrastTest] = []
    for name, weights in registration.contrasts.items():
        values = sums(weights, data) - registration.above
        t, p = t_test(values, registration.sides)
        rows.append(ContrastTest(name, float(values.mean()), _finite(t), p))
    return tuple(replace(row, holm=p) for row, p in zip(rows, holm([row.p for row in rows]), strict=True))


def sums(contrast: Sequence[float] | np.ndarray, data: Data) -> np.ndarray:
    """(S,) each subject's proportions of B choices times ``contrast`` (P,).
    Raises UserError where a subject did not see every pair."""
    shown = ~np.isnan(data.proportions).any(axis=1)
    if not shown.all():
        who = data.subjects[int(np.argmin(shown))] if data.subjects else int(np.argmin(shown))
        raise UserError(f"subject '{who}' did not see every pair of the registered experiment")
    return np.asarray(data.proportions @ np.asarray(contrast))


async def register(
    bench: TheoryBench,
    label: str,
    theory: Theory,
    rivals: Mapping[str, Theory],
    alpha: float,
    seed: int,
    people: int | None = None,
    design: Design | None = None,
    sides: Sides = 1,
) -> Registration:
    """A registration; without ``people`` the smallest of :data:`SIZES` at which simulation finds 99 % power against every rival.

    Raises TheoryError where a theory cannot be simulated.
    """
    design = design or hilbig()
    most = people or SIZES[-1]
    if any(one.reads_history for one in (theory, *rivals.values())):
        most = min(most, HISTORY_PEOPLE)
    power: dict[str, float] = {}
    needed = people or SIZES[0]
    data = await bench.simulate(theory, design, most, seed, "power")
    own, _ = await errors(bench, theory, data, seed, "power", label)
    for name, rival in rivals.items():
        differences = (await errors(bench, rival, data, seed, "power", name))[0] - own
        rng = generator(seed, "power", name)
        for size in (people,) if people else SIZES:
            assert size is not None
            level = alpha / len(rivals)
            power[name] = float(np.mean([t_test(rng.choice(differences, size), sides)[1] < level for _ in range(REPEATS)]))
            if power[name] >= POWER:
                break
        needed = max(needed, size)
    return Registration(label, theory, rivals, design, needed, alpha, power, seed, sides=sides)


async def register_contrast(
    bench: TheoryBench,
    name: Test,
    label: str,
    theory: Theory,
    rivals: Mapping[str, Theory],
    alpha: float,
    seed: int,
    people: int | None = None,
    sides: Sides = 1,
) -> Registration:
    """As :func:`register`, of a hypothesis of section 3.6; ``rivals`` are theories whose expected contrast is told beside the
    theory's own.

    Raises UserError where no size has the power, TheoryError where a theory cannot be simulated.
    """
    design, contrasts, above = CONTRASTS[name](seed)
    found: dict[str, np.ndarray] = {}
    for one, made in {label: theory, **rivals}.items():
        data = await bench.simulate(made, design, SIZES[-1], seed, "power", noise=LAPSE)
        found[one] = np.stack([sums(weights, data) - above for weights in contrasts.values()], axis=1)
    expected = {one: round(float(values.mean(axis=0).min()), 6) for one, values in found.items()}
    rng = generator(seed, "power", name)

    def holds(sample: np.ndarray) -> bool:
        return max(holm([t_test(values, sides)[1] for values in sample.T])) < alpha

    for size in (people,) if people else SIZES:
        power = float(np.mean([holds(rng.choice(found[label], size)) for _ in range(REPEATS)]))
        if power >= POWER:
            break
    else:
        if people is None:
            raise UserError(
                f"{label} expects a contrast of {expected[label]:+.4f}: {SIZES[-1]} people do not find that with power "
                f"{POWER:g}; --people N registers N all the same"
            )
    return Registration(
        label, theory, rivals, design, size, alpha, {label: power}, seed,
        {one: tuple(weights.tolist()) for one, weights in contrasts.items()}, above, name, expected, sides,
    )  # fmt: skip


# -- the hypotheses of section 3.6 ----------------------------------------------------------------------------------------------

GRID = [(alpha, s) for alpha in np.linspace(0.1, 0.95, 10) for s in np.linspace(0.1, 5.0, 10)]


LINEAR = np.array(
    [np.array([0.9, 0.8, 0.7, 0.6]) ** gamma for gamma in (0.0, 0.5, 2.0, 4.0, 8.0)]
    + [[1, d, d**2, d**3] for d in (0.25, 0.5, 0.75)]
)
"""Weights of linear rules other than the validities: powers of them, and a decay over their ranks."""


def worth(x: np.ndarray, alpha: np.ndarray | float, s: np.ndarray | float) -> np.ndarray:
    """u(x) = (x + s)^alpha - s^alpha."""
    return np.asarray((x + s) ** alpha - np.asarray(s) ** alpha)


def steep_flat(rating_max: int = 5, step: int = 2) -> Design:
    """H2: pairs of an equal step at the low end of one feature against one at the high end of another,
    counterbalanced over features.

    Every linear rule, whatever its weights, then chooses the low step in exactly half of them on average. A is the low step.
    """
    a, b = [], []
    for i, j in itertools.permutations(range(4), 2):
        low, high = [2] * 4, [2] * 4
        # A has gained the low step on i, B the high step on j; without either both stand at (0 on i, max - step on j)
        low[i], low[j] = step, rating_max - step
        high[i], high[j] = 0, rating_max
        a.append(tuple(low))
        b.append(tuple(high))
    return Design((0.8, 0.8, 0.8, 0.8), tuple(a), tuple(b), rating_max)


def level_shift(seed: int, n: int = 12, rating_max: int = 5, searched: int = 400) -> tuple[Design, Design, np.ndarray]:
    """H3: (low pairs, the same pairs shifted up by a constant, the side (P,) of their effect),
    searched for the largest predicted offset.

    The effect is the share of choices of the side that a linear rule prefers, above one half;
    shifted up it is weaker where returns diminish.
    """
    rng, v = generator(seed, "level shift"), np.array([0.9, 0.8, 0.7, 0.6])
    share = v / v.sum()
    found: list[tuple[float, tuple[int, ...], tuple[int, ...], int, int]] = []
    draws = [(alpha, s) for alpha, s in GRID[::7]]
    for _ in range(searched):
        a, b = rng.integers(0, 3, (2, 4))
        shift = rating_max - int(max(a.max(), b.max()))
        if (a == b).all() or shift < 2:
            continue
        side = int(((b - a) * share).sum() > 0)

        def effect(up: int, a: np.ndarray = a, b: np.ndarray = b, side: int = side) -> float:
            gaps = np.array([(share * (worth(b + up, alpha, s) - worth(a + up, alpha, s))).sum() for alpha, s in draws])
            p = np.mean([1 / (1 + np.exp(-beta * gaps)) for beta in (1.0, 4.0, 8.0, 12.0, 16.0)])
            return float(p if side else 1 - p)

        found.append((effect(0) - effect(shift), tuple(a.tolist()), tuple(b.tolist()), shift, side))
    best = sorted(set(found), reverse=True)[:n]
    low = Design(tuple(v.tolist()), tuple(a for _, a, _, _, _ in best), tuple(b for _, _, b, _, _ in best), rating_max)
    up = [tuple(tuple(x + shift for x in one) for one in (a, b)) for _, a, b, shift, _ in best]
    high = Design(low.validities, tuple(a for a, _ in up), tuple(b for _, b in up), rating_max)
    return low, high, np.array([side for *_, side in best])


def opposed(seed: int, n: int = 8, rating_max: int = 5, searched: int = 200_000) -> tuple[Design, dict[str, np.ndarray]]:
    """H1: (pairs, for each of three rules the contrast (P,) of ``n`` of them on which diminishing returns say otherwise).

    A pair counts against a rule that is decided where u(x) prefers the other option on at least 85 % of :data:`GRID`; those whose
    predicted share is largest are taken, half of them with that option as B. On those against weighting by validity no other
    weights of :data:`LINEAR` prefer that option either: without that the paper's test also passes where weights are a power of
    validity.
    """
    rng, v = generator(seed, "opposed"), np.array([0.9, 0.8, 0.7, 0.6])
    share = v / v.sum()
    a, b = rng.integers(0, rating_max + 1, (2, searched, 4))
    steps, linear = np.sign(b - a), np.round((b - a) @ LINEAR.T, 9)
    sides = {
        "validity-wadd": np.sign(np.round((b - a) @ v, 9)),
        "tallying": np.sign(steps.sum(axis=1)),
        "ttb": steps[np.arange(searched), (steps != 0).argmax(axis=1)],
    }
    between = (
        worth(b, 0.5, 1.0) - worth(a, 0.5, 1.0)
    ) @ share  # in the middle of the grid: who does not oppose there is not looked at further
    found: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for name, side in sides.items():
        against = between * side < 0
        if name == "validity-wadd":
            against &= (linear * side[:, None] >= 0).all(axis=1)
        some = np.flatnonzero(against)[:3000]
        gaps = (
            np.stack([(worth(b[some], *point) - worth(a[some], *point)) @ share for point in GRID]) * side[some]
        )  # (grid, some)
        p = np.mean([1 / (1 + np.exp(beta * gaps)) for beta in (1.0, 4.0, 8.0, 12.0, 16.0)], axis=(0, 1))
        p[(gaps < 0).mean(axis=0) < 0.85] = 0.0
        taken = dict.fromkeys(pair for one in found.values() for pair in one)
        for j in np.argsort(-p, kind="stable"):
            pair = tuple(a[some[j]].tolist()), tuple(b[some[j]].tolist())
            pair = pair if side[some[j]] > 0 else pair[::-1]  # the option of diminishing returns is the first
            if p[j] > 0 and len(taken) < n * (len(found) + 1):
                taken[pair] = None
        found[name] = list(taken)[n * len(found) :]
    pairs = [pair if i % 2 else pair[::-1] for i, pair in enumerate(itertools.chain(*found.values()))]
    contrasts = {name: np.zeros(len(pairs)) for name in found}
    for i, name in enumerate(name for name, taken_of in found.items() for _ in taken_of):
        contrasts[name][i] = (-1 if i % 2 else 1) / n
    return Design(tuple(v.tolist()), tuple(one for one, _ in pairs), tuple(two for _, two in pairs), rating_max), contrasts


def concave_match_contrast(seed: int) -> tuple[Design, dict[str, np.ndarray], float]:
    """(design, contrasts (P,), above) of H1: half of each rule's pairs have the option of diminishing returns as B, so that 1/2
    is 0."""
    return *opposed(seed), 0.0


def steep_flat_contrast(seed: int) -> tuple[Design, dict[str, np.ndarray], float]:
    """(design, contrast (P,), above) of H2: the share of choices of A, the low step, is above 1/2."""
    design = steep_flat()
    return design, {"": np.full(design.pairs, -1 / design.pairs)}, -0.5


def level_shift_contrast(seed: int) -> tuple[Design, dict[str, np.ndarray], float]:
    """(design, contrast (P,), above) of H3: low pairs, then the same pairs shifted up, each shown equally often."""
    low, high, side = level_shift(seed)
    design = Design(low.validities, low.a + high.a, low.b + high.b, low.rating_max)
    signs = np.where(side == 1, 1.0, -1.0) / low.pairs
    return design, {"": np.concatenate([signs, -signs])}, 0.0


CONTRASTS = {"concave-match": concave_match_contrast, "steep-flat": steep_flat_contrast, "level-shift": level_shift_contrast}
