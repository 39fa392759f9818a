"""Tables from records: what critics said of right and wrong candidates, what rewrites did, and whether critics are independent.

Every number is counted over candidates whose truth is known. First candidates give the prior and the first tables; rewritten
candidates, and those whose predecessor the gate had failed, give tables of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.methods.verify_or_ship.algorithm import FIRST, REJECTED, REWRITTEN, Critics, Kernel, Likelihood, Tables
from ramify.stats.evidence import holm
from ramify.stats.intervals import Interval, difference_of_proportions, wilson
from ramify.stats.ranking import auroc

FEW = 10
"""Below so many candidates of a stratum a share is not to be trusted."""


@dataclass(frozen=True, slots=True)
class CodeCandidate:
    """One candidate: its truth, what each critic said, and its text."""

    right: bool | None
    """What the verifier says; None where nobody asked it or it could not run."""
    checks: Mapping[str, bool | float | None]
    payload: str = ""
    """Its text, or a hash of it; equal texts are one candidate. Empty: not known."""
    node: str = ""
    """The node of a run that holds it."""


@dataclass(frozen=True, slots=True)
class CandidateAttempt:
    """Candidates of one attempt, each a rewrite of the one before."""

    instance: str
    candidates: tuple[CodeCandidate, ...]


class CalibrateConfig(Config):
    """How tables are made of records."""

    BASIC = "critics gate levels pessimism"
    critics: tuple[str, ...] = ()
    """critics to use; all where none is named"""
    gate: str | None = None
    """critic whose failing selects the second tables; by default the one that tells most, none: no second tables"""
    levels: int = Field(4, ge=2, le=8)
    """levels of a critic that gives numbers"""
    pessimism: float = Field(0.0, ge=0, lt=1)
    """credible level of bounds used instead of means: 0.9 takes t low and f high, of critics of two levels"""


def same_text(one: CodeCandidate, other: CodeCandidate) -> bool:
    """Whether two candidates are one: equal but for blanks at the ends of lines."""
    return bool(one.payload) and _plain(one.payload) == _plain(other.payload)


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def short_name(instance: str) -> str:
    """What tables remember of an instance that they were calibrated on."""
    return stable_hash(instance)[:8]


def overlap(tables: Tables, trajectories: Iterable[CandidateAttempt]) -> int:
    """How many instances of ``trajectories`` the tables were calibrated on."""
    known = set(tables.trained_on.split())
    return len({one.instance for one in trajectories if short_name(one.instance) in known})


# -- counting


def critic_names(trajectories: Sequence[CandidateAttempt], config: CalibrateConfig) -> list[str]:
    """The critics of the records, in the order of their names or as the settings have them.
    Raises UserError where there is none."""
    found = dict.fromkeys(name for one in trajectories for candidate in one.candidates for name in candidate.checks)
    if unknown := [name for name in config.critics if name not in found]:
        raise UserError(f"no record has a critic '{unknown[0]}'; there are {', '.join(found) or 'none'}")
    names = list(config.critics) or sorted(found)
    if not names:
        raise UserError("the records hold no critic: nothing but the verifier was asked")
    return names


def _rejected(before: CodeCandidate, gate: str) -> bool:
    return before.checks.get(gate) is not None and float(before.checks[gate] or 0.0) == 0.0


def _smoothed(counts: np.ndarray) -> tuple[float, ...]:
    """Laplace: (count + 1) / (n + K)."""
    shares = (counts + 1) / (counts.sum() + len(counts))
    return tuple(float(share) for share in shares)


def _edges(values: np.ndarray, right: np.ndarray, levels: int) -> tuple[float, ...]:
    """Edges of levels: quantiles, neighbours joined until the odds of being right ascend (pool adjacent violators)."""
    cuts = sorted({float(edge) for edge in np.quantile(values, np.arange(1, levels) / levels) if edge > values.min()})
    if not cuts:
        raise UserError("a critic gave one and the same number of every candidate")
    descending = (auroc(values, right) or 0.5) < 0.5
    while len(cuts) > 1:
        level = np.searchsorted(cuts, values, side="right")
        odds = [(right[level == i].sum() + 1) / ((~right[level == i]).sum() + 1) for i in range(len(cuts) + 1)]
        steps = np.diff(odds) * (-1 if descending else 1)
        if (steps > 0).all():
            break
        del cuts[int(np.argmin(steps))]
    return tuple(cuts)


def _likelihood(name: str, seen: Sequence[tuple[CodeCandidate, bool]], edges: tuple[float, ...]) -> Likelihood:
    counts = np.zeros((2, len(edges) + 1 if edges else 2))
    shape = Likelihood(right=(0.5,) * counts.shape[1] if not edges else (1 / counts.shape[1],) * counts.shape[1],
                       wrong=(1 / counts.shape[1],) * counts.shape[1], edges=edges)  # fmt: skip
    for candidate, right in seen:
        level = shape.level(candidate.checks.get(name))
        if level is not None:
            counts[int(right), level] += 1
    n_wrong, n_right = (int(row.sum()) for row in counts)
    return Likelihood(right=_smoothed(counts[1]), wrong=_smoothed(counts[0]), edges=edges, n_right=n_right, n_wrong=n_wrong)


def _kernel(pairs: Sequence[tuple[CodeCandidate, CodeCandidate]], default: Kernel) -> Kernel:
    """From consecutive candidates whose truth is known: p_fix = (n01 + 1)/(n0 + 2) and p_break = (n10 + 1)/(n1 + 2) of those that
    changed."""
    known = [(one, other) for one, other in pairs if one.right is not None and other.right is not None]
    if not known:
        return default
    counts = {(before, after): 0 for before in (False, True) for after in (False, True)}
    same = {False: 0, True: 0}
    for one, other in known:
        if same_text(one, other):
            same[bool(one.right)] += 1
        else:
            counts[bool(one.right), bool(other.right)] += 1
    wrong, right = (counts[y, False] + counts[y, True] for y in (False, True))
    rates = {y: (same[y] + 1) / (n + same[y] + 2) if any(same.values()) else 0.0 for y, n in ((False, wrong), (True, right))}
    return Kernel(
        fix=(counts[False, True] + 1) / (wrong + 2),
        broken=(counts[True, False] + 1) / (right + 2),
        same_right=rates[True],
        same_wrong=rates[False],
        n=len(known),
    )


def _unique(trajectories: Sequence[CandidateAttempt]) -> Iterator[tuple[CodeCandidate | None, CodeCandidate]]:
    """(predecessor, candidate), each node of a tree of attempts once."""
    seen: set[tuple[str, str]] = set()
    for one in trajectories:
        before: CodeCandidate | None = None
        for candidate in one.candidates:
            key = (before.node if before else "", candidate.node)
            if not candidate.node or key not in seen:
                seen.add(key)
                yield before, candidate
            before = candidate


def calibrate(trajectories: Sequence[CandidateAttempt], config: CalibrateConfig | None = None) -> Tables:
    """The tables of ``trajectories``. Raises UserError where no first candidate has a known truth or there is no critic.

    Without any rewrite in the records a rewrite is taken for a fresh sample: p_fix is the prior, p_break one minus it.
    """
    config = config or CalibrateConfig()
    names = critic_names(trajectories, config)
    pairs = list(_unique(trajectories))
    first = [(candidate, bool(candidate.right)) for before, candidate in pairs if before is None and candidate.right is not None]
    if not first:
        raise UserError("no first candidate has a score of the verifier, so nothing can be calibrated")
    wins = sum(right for _, right in first)
    prior = (wins + 1) / (len(first) + 2)
    every = [(candidate, bool(candidate.right)) for _, candidate in pairs if candidate.right is not None]
    edges = {name: _levels(name, every, config.levels) for name in names}
    fresh = Kernel(fix=prior, broken=1 - prior)
    rewrites = [(before, after) for before, after in pairs if before is not None]
    kernel = _kernel(rewrites, fresh)
    tables = {name: _likelihood(name, first, edges[name]) for name in names}
    made = Tables(
        prior=prior,
        critics=tables,
        kernel=kernel,
        instances=len({one.instance for one in trajectories}),
        trained_on=" ".join(sorted({short_name(one.instance) for one in trajectories})),
    )
    made = _with_histories(made, rewrites, edges, config.gate)
    return pessimistic(made, config.pessimism) if config.pessimism else made


def _levels(name: str, seen: Sequence[tuple[CodeCandidate, bool]], levels: int) -> tuple[float, ...]:
    """Edges of a critic that gives numbers; none of one that says yes and no."""
    given = [(float(candidate.checks[name] or 0.0), right) for candidate, right in seen if candidate.checks.get(name) is not None]
    values = np.array([value for value, _ in given])
    if not len(values):
        raise UserError(f"the critic '{name}' said nothing of any candidate whose truth is known")
    if np.isin(values, (0.0, 1.0)).all():
        return ()
    try:
        return _edges(values, np.array([right for _, right in given]), levels)
    except UserError as error:
        raise UserError(f"the critic '{name}' cannot be used: {error}") from None


Edges = Mapping[str, tuple[float, ...]]


def _of_history(rewrites: Sequence[tuple[CodeCandidate, CodeCandidate]], edges: Edges) -> Critics | None:
    """Likelihoods of rewritten candidates whose text changed; None of too few."""
    after = [(one, bool(one.right)) for before, one in rewrites if one.right is not None and not same_text(before, one)]
    if min(sum(right for _, right in after), sum(not right for _, right in after)) < FEW:
        return None
    return {name: _likelihood(name, after, own) for name, own in edges.items()}


def _with_histories(
    made: Tables, rewrites: Sequence[tuple[CodeCandidate, CodeCandidate]], edges: Edges, gate: str | None
) -> Tables:
    """``made`` with the tables of rewritten candidates, where the records hold enough of them."""
    if gate == "none":
        return made
    if gate is not None and gate not in made.names:
        raise UserError(f"the gate '{gate}' is none of the critics {', '.join(made.names)}")
    if gate is not None and edges[gate]:
        raise UserError(f"the gate '{gate}' gives numbers, and a gate says yes or no")
    made = made.model_copy(update={"rewritten": _of_history(rewrites, edges)})
    two = [name for name in made.names if not edges[name]]
    gate = gate or max(two, key=lambda name: made.critics[name].information(made.prior), default=None)
    if gate is None:
        return made
    of_rejected = [(before, one) for before, one in rewrites if _rejected(before, gate)]
    rejected = _of_history(of_rejected, edges)
    if rejected is None:
        return made
    return made.model_copy(update={"rejected": rejected, "kernel_rejected": _kernel(of_rejected, made.kernel), "gate": gate})


def pessimistic(tables: Tables, level: float) -> Tables:
    """Bounds instead of means: prior, t and p_fix low, f and p_break high, each at the credible ``level`` of its Beta."""
    from scipy.special import betaincinv

    def bound(share: float, n: float, up: bool) -> float:
        hits = share * (n + 2)
        return float(betaincinv(hits, n + 2 - hits, level if up else 1 - level))

    def critic(own: Likelihood) -> Likelihood:
        if len(own.right) != 2:
            return own
        t, f = bound(own.right[1], own.n_right, False), bound(own.wrong[1], own.n_wrong, True)
        t, f = (t, f) if t > f or own.gap < 0 else (tables.prior, tables.prior)  # no signal is left
        return own.model_copy(update={"right": (1 - t, t), "wrong": (1 - f, f)})

    def critics(one: Critics | None) -> Critics | None:
        return None if one is None else {name: critic(own) for name, own in one.items()}

    def kernel(one: Kernel | None) -> Kernel | None:
        if one is None or not one.n:
            return one
        return one.model_copy(update={"fix": bound(one.fix, one.n, False), "broken": bound(one.broken, one.n, True)})

    return tables.model_copy(
        update={
            "prior": bound(tables.prior, tables.instances, False),
            "critics": critics(tables.critics),
            "rewritten": critics(tables.rewritten),
            "rejected": critics(tables.rejected),
            "kernel": kernel(tables.kernel),
            "kernel_rejected": kernel(tables.kernel_rejected),
        }
    )


@dataclass
class Counters:
    """What a controller learns while it runs: each verified transition moves p_fix and p_break, which begin at Beta(1, 1)."""

    fixed: int = 0
    stayed_wrong: int = 0
    broke: int = 0
    stayed_right: int = 0

    def add(self, before: bool, after: bool) -> None:
        """Count a rewrite whose two candidates were both verified."""
        name = ("stayed_right" if after else "broke") if before else ("fixed" if after else "stayed_wrong")
        setattr(self, name, getattr(self, name) + 1)

    @property
    def n(self) -> int:
        """Transitions so far; below about 10 their mean is not to be trusted."""
        return self.fixed + self.stayed_wrong + self.broke + self.stayed_right

    def kernel(self) -> Kernel:
        """The means."""
        return Kernel(
            fix=(self.fixed + 1) / (self.fixed + self.stayed_wrong + 2),
            broken=(self.broke + 1) / (self.broke + self.stayed_right + 2),
            n=self.n,
        )


# -- doubts


class Doubt(NamedTuple):
    """What makes the tables less than they seem: of one critic, or of all ("")."""

    kind: str
    critic: str
    says: str


def doubts(tables: Tables, trajectories: Sequence[CandidateAttempt]) -> list[Doubt]:
    """Everything that makes the tables less than they seem."""
    found: list[Doubt] = []
    for name, own in tables.critics.items():
        if min(own.n_right, own.n_wrong) < FEW:
            seen = f"'{name}' was seen on {own.n_right} right and {own.n_wrong} wrong first candidates"
            found.append(Doubt("few records", name, f"{seen}: below {FEW} a share says little"))
        if len(own.right) == 2:
            t, f = (round(share * (n + 2) - 1) for share, n in ((own.right[1], own.n_right), (own.wrong[1], own.n_wrong)))
            low, high = difference_of_proportions(t, own.n_right, f, own.n_wrong)
            if high < 0:
                says = f"'{name}' passes wrong candidates more often than right ones: it is used the other way round"
                found.append(Doubt("inverted critic", name, says))
            elif low <= 0:
                says = (
                    f"'{name}' passes right and wrong candidates alike as far as these records tell ([{low:+.2f}, {high:+.2f}])"
                )
                found.append(Doubt("no signal", name, says))
    unread = sum(candidate.right is None for one in trajectories for candidate in one.candidates)
    if unread:
        found.append(Doubt("unverified", "", f"{unread} candidates have no score of the verifier and are left out"))
    if not any(len(one.candidates) > 1 for one in trajectories):
        says = "the records hold no rewrite: one is taken for a fresh sample, which a repair is not"
        found.append(Doubt("no rewrites", "", says))
    elif tables.rewritten is None:
        says = (
            f"fewer than {FEW} right or wrong candidates were rewritten, so rewritten ones are judged by the tables of first ones"
        )
        found.append(Doubt("one table", "", says))
    return found


# -- independence of the critics, given the truth


@dataclass
class Stratum:
    """The test among right or among wrong candidates."""

    right: bool
    n: int
    critics: list[str]
    degenerate: list[str] = field(default_factory=list)
    chi2: float = 0.0
    g2: float = 0.0
    df: int = 0
    few_expected: int = 0
    """Cells in which fewer than 5 were expected: there chi-square does not hold."""


@dataclass(frozen=True)
class CriticPair:
    """Two critics among ``right`` or among wrong candidates: Cramer's ``v``, and ``p`` corrected over all pairs (Holm)."""

    critics: tuple[str, str]
    right: bool
    n: int
    v: float
    p: float
    few_expected: int
    p_corrected: float = 1.0


@dataclass(frozen=True)
class Independence:
    """Whether critics are independent given the truth (:func:`independence`); p-values are None where nothing can be tested."""

    n: int
    chi2: float
    g2: float
    df: int
    p_chi2: float | None
    p_g2: float | None
    p: float | None
    few_expected: int
    strata: tuple[Stratum, ...]
    pairs: tuple[CriticPair, ...]


def independence(
    trajectories: Sequence[CandidateAttempt], tables: Tables, seed: int = 0, permutations: int = 999
) -> Independence:
    """Whether the critics are independent given the truth, on the first candidate of each instance.

    The paper's test (joint counts against the product of the marginals: Pearson's chi-square and G2, strata pooled) with its
    asymptotic p, and ``p``: the share of 999 permutations within strata whose G2 is as large, which holds however sparse the
    cells are. ``pairs`` have Cramer's V, with p corrected over all pairs (Holm).
    """
    from scipy.special import chdtrc

    names = list(tables.names)
    levels: dict[bool, list[list[int]]] = {False: [], True: []}
    met: set[str] = set()
    for one in trajectories:
        candidate = one.candidates[0]
        if one.instance in met or candidate.right is None:
            continue
        row = [tables.critics[name].level(candidate.checks.get(name)) for name in names]
        if any(level is None for level in row):
            continue
        met.add(one.instance)
        levels[bool(candidate.right)].append([int(level or 0) for level in row])
    rng = generator(seed, "verify-or-ship", "independence")
    strata, permuted = [], np.zeros(permutations)
    pairs: list[CriticPair] = []
    for right, rows in levels.items():
        table = np.array(rows, np.int64).reshape(len(rows), len(names))
        varied = [j for j in range(len(names)) if len(np.unique(table[:, j])) > 1]
        stratum = Stratum(right, len(rows), [names[j] for j in varied], [n for j, n in enumerate(names) if j not in varied])
        strata.append(stratum)
        if len(varied) < 2:
            continue
        x = table[:, varied]
        stratum.chi2, stratum.g2, stratum.df, stratum.few_expected = _joint(x)
        shuffled = [rng.permuted(np.tile(x[:, j], (permutations, 1)), axis=1) for j in range(x.shape[1])]
        permuted += _many_g2(x, shuffled)
        for i, j in itertools.combinations(range(len(varied)), 2):
            pair = x[:, [i, j]]
            chi2, g2, _, few = _joint(pair)
            own = _many_g2(pair, [shuffled[i], shuffled[j]])
            v = (chi2 / len(x) / (min(len(np.unique(pair[:, 0])), len(np.unique(pair[:, 1]))) - 1)) ** 0.5
            p = float((1 + (own >= g2 - 1e-9).sum()) / (1 + permutations))
            pairs.append(CriticPair((stratum.critics[i], stratum.critics[j]), right, len(x), v, p, few))
    corrected = holm([pair.p for pair in pairs])
    g2, chi2, df = sum(s.g2 for s in strata), sum(s.chi2 for s in strata), sum(s.df for s in strata)
    return Independence(
        n=len(met),
        chi2=chi2,
        g2=g2,
        df=df,
        p_chi2=float(chdtrc(df, chi2)) if df else None,
        p_g2=float(chdtrc(df, g2)) if df else None,
        p=float((1 + (permuted >= g2 - 1e-9).sum()) / (1 + permutations)) if df else None,
        few_expected=sum(s.few_expected for s in strata),
        strata=tuple(strata),
        pairs=tuple(replace(pair, p_corrected=p) for pair, p in zip(pairs, corrected, strict=True)),
    )


def _codes(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    code = np.zeros(columns[0].shape, np.int64)
    for column, size in zip(columns, sizes, strict=True):
        code = code * size + column
    return code


def _expected(x: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Levels of each of the columns (n, m), and the counts of their combinations were the columns independent."""
    n, m = x.shape
    sizes = [int(x[:, j].max()) + 1 for j in range(m)]
    expected = np.ones(1)
    for j in range(m):
        expected = np.multiply.outer(expected, np.bincount(x[:, j], minlength=sizes[j]) / n).ravel()
    return sizes, expected * n


def _joint(x: np.ndarray) -> tuple[float, float, int, int]:
    """Pearson's chi-square, G2, their degrees of freedom and the cells with fewer than 5 expected,
    of columns (n, m) of levels."""
    m = x.shape[1]
    sizes, expected = _expected(x)
    observed = np.bincount(_codes([x[:, j] for j in range(m)], sizes), minlength=len(expected))
    there = expected > 0
    o, e = observed[there], expected[there]
    chi2 = float(((o - e) ** 2 / e).sum())
    g2 = float(2 * (o[o > 0] * np.log(o[o > 0] / e[o > 0])).sum())
    kinds = [len(np.unique(x[:, j])) for j in range(m)]
    return chi2, g2, int(np.prod(kinds)) - 1 - sum(kind - 1 for kind in kinds), int((e < 5).sum())


def _many_g2(x: np.ndarray, shuffled: Sequence[np.ndarray]) -> np.ndarray:
    """G2 of each of the permuted tables: ``shuffled`` columns of shape (permutations, n) with the marginals of ``x`` (n, m)."""
    sizes, expected = _expected(x)
    codes = _codes(shuffled, sizes)
    cells = len(expected)
    rows = codes + cells * np.arange(len(codes))[:, None]
    observed = np.bincount(rows.ravel(), minlength=cells * len(codes)).reshape(len(codes), cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(observed > 0, observed * np.log(observed / expected), 0.0)
    found: np.ndarray = 2 * terms.sum(axis=1)
    return found


# -- belief as a confidence score


def prr(scores: Sequence[float] | np.ndarray, right: Sequence[bool] | np.ndarray, most: float = 0.5) -> float | None:
    """Prediction rejection ratio up to a rejection of ``most`` (section 3.8):
    1 orders as an oracle would, 0 as chance; None of one class.

    The retained accuracy is averaged over the rejection rates 0 to ``most``, least confident first; ties count as their average
    order. Random rejection keeps the plain accuracy, which is what its shuffles average to.
    """
    x, y = np.asarray(scores, np.float64), np.asarray(right, np.float64)
    if x.shape != y.shape or x.ndim != 1 or np.isnan(x).any():
        raise ValueError(f"scores {x.shape} and truths {y.shape} need one shape (n,) and no NaN")
    if not len(y) or y.min() == y.max():
        return None

    def area(confidence: np.ndarray) -> float:
        _, codes, counts = np.unique(confidence, return_inverse=True, return_counts=True)
        expected = (np.bincount(codes, y) / counts)[codes]  # of equals, the average
        kept = np.cumsum(expected[np.argsort(-confidence, kind="stable")]) / np.arange(1, len(y) + 1)
        least = max(1, int(np.ceil((1 - most) * len(y))))
        return float(kept[least - 1 :].mean())

    chance = float(y.mean())
    return (area(x) - chance) / (area(y) - chance)


@dataclass(frozen=True)
class CriticShares:
    """What a critic says of right and of wrong candidates: of two levels the share that it passes with its interval, of more the
    share of each."""

    history: str
    critic: str
    levels: int
    gap: float
    n_right: int
    n_wrong: int
    pass_right: float | None
    interval_right: Interval | None
    pass_wrong: float | None
    interval_wrong: Interval | None
    levels_right: tuple[float, ...] | None
    levels_wrong: tuple[float, ...] | None


def summary(tables: Tables) -> list[CriticShares]:
    """One row a critic and history: shares with their intervals."""

    def passed(shares: tuple[float, ...], n: int) -> tuple[float, Interval]:
        return shares[1], wilson(min(max(round(shares[1] * (n + 2) - 1), 0), n), n)

    rows = []
    for history, critics in ((FIRST, tables.critics), (REWRITTEN, tables.rewritten), (REJECTED, tables.rejected)):
        for critic, own in (critics or {}).items():
            about = (history, critic, len(own.right), own.gap, own.n_right, own.n_wrong)
            if len(own.right) == 2:
                sides = (*passed(own.right, own.n_right), *passed(own.wrong, own.n_wrong))
                rows.append(CriticShares(*about, *sides, None, None))
            else:
                rows.append(CriticShares(*about, None, None, None, None, own.right, own.wrong))
    return rows


def folds(
    trajectories: Sequence[CandidateAttempt], count: int, seed: int = 0
) -> Iterator[tuple[list[CandidateAttempt], list[CandidateAttempt]]]:
    """(the others, a fold): instances are dealt out whole, so that none is on both sides.
    Raises UserError with fewer instances than folds."""
    instances = sorted({one.instance for one in trajectories})
    if len(instances) < count:
        raise UserError(f"{len(instances)} instances are too few for {count} folds: name tables from elsewhere with --tables")
    order = generator(seed, "verify-or-ship", "folds").permutation(len(instances))
    of = {instances[j]: int(i % count) for i, j in enumerate(order)}
    for fold in range(count):
        held = [one for one in trajectories if of[one.instance] == fold]
        yield [one for one in trajectories if of[one.instance] != fold], held
