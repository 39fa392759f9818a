"""Beliefs, exact planning and fixed rules, on plain numbers (Bayesian control for coding agents,
arXiv 2606.24453; here: the paper).

A candidate is right (Y = 1) or wrong (Y = 0); ``b`` is the probability that it is right. A value function over b is convex and
piecewise linear, so it is kept as its lines, each a pair (value if right, value if wrong): no grid, no error of one.

Axis legend: L lines, C functionals (value; where asked for, deliveries and wrong deliveries), K levels of a critic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator, model_validator

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.stats.intervals import Interval

STOP, VERIFY, SHIP, REWRITE = "stop", "verify", "ship", "rewrite"
MOST_CRITICS, MOST_STEPS = 8, 8
_EPS = 1e-12
_SAME = 1e-9
"""Lines that differ by less are one line: sums in another order differ in their last bits."""


# -- what is known of critics and rewrites


class Likelihood(Config):
    """What a critic says of right and of wrong candidates: probabilities (K,) of its levels, the lowest (fail) first."""

    right: tuple[float, ...]
    """P(level | right)"""
    wrong: tuple[float, ...]
    """P(level | wrong)"""
    edges: tuple[float, ...] = ()
    """of a critic that gives numbers: level i begins at edges[i - 1]"""
    n_right: int = Field(0, ge=0)
    """right candidates that it was estimated from"""
    n_wrong: int = Field(0, ge=0)
    """wrong candidates that it was estimated from"""

    @model_validator(mode="after")
    def _fits(self) -> Likelihood:
        if len(self.right) != len(self.wrong) or len(self.right) < 2:
            raise ValueError("a critic needs the same two or more levels of right and of wrong candidates")
        for row in (self.right, self.wrong):
            if min(row) < 0 or abs(sum(row) - 1) > 1e-6:
                raise ValueError("the probabilities of a critic's levels must be 0 or more and sum to 1")
        if self.edges and (len(self.edges) != len(self.right) - 1 or list(self.edges) != sorted(set(self.edges))):
            raise ValueError("the edges of a critic's levels must ascend, one fewer than levels")
        return self

    @classmethod
    def of(cls, t: float, f: float, **more: Any) -> Likelihood:
        """The critic that passes right candidates with probability ``t`` and wrong ones with ``f``."""
        return cls(right=(1 - t, t), wrong=(1 - f, f), **more)

    @property
    def gap(self) -> float:
        """How far apart right and wrong candidates are: t - f of two levels,
        else the largest difference of shares above an edge."""
        ups = [sum(self.right[i:]) - sum(self.wrong[i:]) for i in range(1, len(self.right))]
        return max(ups, key=abs)

    def level(self, value: bool | float | None) -> int | None:
        """The level of what the critic said; None where it could not run.
        Raises UserError on a number where there are no edges."""
        if value is None:
            return None
        if self.edges:
            return int(np.searchsorted(self.edges, float(value), side="right"))
        if value not in (0, 1):
            raise UserError(f"a critic of two levels says true or false, not {value!r}")
        return int(value) * (len(self.right) - 1)

    def update(self, b: float, level: int | None) -> float:
        """The belief after the critic said ``level``; an impossible level leaves it as it was."""
        if level is None:
            return b
        right, wrong = self.right[level] * b, self.wrong[level] * (1 - b)
        return right / (right + wrong) if right + wrong > 0 else b

    def information(self, b: float) -> float:
        """Nats that the critic's word is expected to tell of a candidate that is right with probability ``b``."""
        total = 0.0
        for right, wrong in zip(self.right, self.wrong, strict=True):
            both = b * right + (1 - b) * wrong
            total += sum(w * p * math.log(p / both) for w, p in ((b, right), (1 - b, wrong)) if w * p > 0)
        return total


class Kernel(Config):
    """What a rewrite does to a candidate."""

    fix: float = Field(0.5, ge=0, le=1)
    """P(right after | wrong before, changed)"""
    broken: float = Field(0.05, ge=0, le=1)
    """P(wrong after | right before, changed)"""
    same_right: float = Field(0.0, ge=0, lt=1)
    """P(the same text comes back | right before)"""
    same_wrong: float = Field(0.0, ge=0, lt=1)
    """P(the same text comes back | wrong before)"""
    n: int = Field(0, ge=0)
    """pairs of candidates that it was estimated from"""

    def after(self, b: float, same: bool = False) -> float:
        """The belief after a rewrite that changed the text, or brought the same back."""
        right, wrong = (self.same_right, self.same_wrong) if same else (1 - self.same_right, 1 - self.same_wrong)
        if right * b + wrong * (1 - b) > 0:
            b = right * b / (right * b + wrong * (1 - b))
        return b if same else b * (1 - self.broken) + (1 - b) * self.fix


FIRST, REWRITTEN, REJECTED = "first", "rewritten", "rejected"
"""Histories of a candidate: nobody rewrote it; a rewrite of one that the gate had not failed,
or not seen; of one that it had failed."""
Critics = dict[str, Likelihood]


class Tables(Config):
    """All that a controller knows before a task.

    A rewrite happens because a critic failed, and that selects: what critics say of a rewritten candidate, and of one whose
    predecessor the critic ``gate`` had failed, is counted apart.
    """

    prior: float = Field(gt=0, lt=1)
    """P(a first candidate is right)"""
    critics: Critics
    """of first candidates"""
    kernel: Kernel = Kernel()
    rewritten: Critics | None = None
    """of rewritten candidates, whatever was said of their predecessors; None: as of first ones"""
    rejected: Critics | None = None
    """of candidates whose predecessor the gate had failed; None: as of any rewritten one"""
    kernel_rejected: Kernel | None = None
    """of candidates that the gate has failed"""
    gate: str = ""
    """the critic whose failing selects"""
    instances: int = Field(0, ge=0)
    """instances that the prior was estimated from"""
    trained_on: str = ""
    """hashes of the instances' names, so that an evaluation on the same ones is noticed"""

    @model_validator(mode="after")
    def _fits(self) -> Tables:
        if not 1 <= len(self.critics) <= MOST_CRITICS:
            raise ValueError(f"there are {len(self.critics)} critics, and 1 to {MOST_CRITICS} are planned with")
        if (self.rejected is not None or self.kernel_rejected is not None) and self.gate not in self.critics:
            raise ValueError(f"the gate '{self.gate}' is none of the critics")
        for history, own in ((REWRITTEN, self.rewritten), (REJECTED, self.rejected)):
            levels = {name: len(one.right) for name, one in self.critics.items()}
            if own is not None and {name: len(one.right) for name, one in own.items()} != levels:
                raise ValueError(f"the critics of '{history}' candidates are not those of first ones")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The critics."""
        return tuple(self.critics)

    @property
    def selects(self) -> bool:
        """Whether it matters that the gate failed a candidate."""
        return self.rejected is not None or self.kernel_rejected is not None

    def of(self, history: str) -> Critics:
        """The likelihoods of a candidate with that history."""
        if history == REJECTED and self.rejected is not None:
            return self.rejected
        return self.critics if history == FIRST or self.rewritten is None else self.rewritten

    def after(self, rejected: bool) -> str:
        """The history of the rewrite of a candidate that the gate has ``rejected``, or not."""
        if rejected and self.rejected is not None:
            return REJECTED
        return FIRST if self.rewritten is None else REWRITTEN

    def kernel_of(self, rejected: bool) -> Kernel:
        """What a rewrite does to a candidate that the gate has ``rejected``, or not."""
        return self.kernel_rejected if rejected and self.kernel_rejected is not None else self.kernel

    def plain(self) -> Tables:
        """Without the tables of rewritten candidates."""
        return self.model_copy(update={"rewritten": None, "rejected": None, "kernel_rejected": None, "gate": ""})

    def with_prior(self, prior: float) -> Tables:
        """The same critics where first candidates are right with probability ``prior``."""
        return self.model_copy(update={"prior": prior})

    def only(self, names: Sequence[str]) -> Tables:
        """With these critics alone."""

        def cut(own: Critics | None) -> Critics | None:
            return None if own is None else {name: own[name] for name in self.names if name in names}

        found = self.model_copy(
            update={"critics": cut(self.critics), "rewritten": cut(self.rewritten), "rejected": cut(self.rejected)}
        )
        if self.gate in names:
            return found
        return found.model_copy(update={"rejected": None, "kernel_rejected": None, "gate": ""})


class ControlConfig(Config):
    """What things cost and pay, in one unit of utility, and how far to plan."""

    BASIC = "reward c_ver c_gen costs horizon stop loss planner"
    reward: float = Field(100.0, gt=0)
    """what a delivered right candidate is worth"""
    c_ver: float = Field(30.0, ge=0)
    """cost of the verifier"""
    c_gen: float = Field(5.0, ge=0)
    """cost of a rewrite"""
    costs: tuple[str, ...] = ()
    """NAME=COST of critics; those that are not named cost 1"""
    horizon: int = Field(3, ge=1, le=MOST_STEPS)
    """candidates of a task at most, the first one included"""
    stop: Literal["abandon", "ship"] = "abandon"
    """whether a candidate may be delivered unverified (ship)"""
    loss: float = Field(100.0, ge=0)
    """what a wrong delivery costs, with --stop ship"""
    after_verify: Literal["end", "continue"] = "end"
    """whether a candidate that the verifier refused may be rewritten"""
    planner: Literal["dp", "greedy"] = "dp"
    """exact dynamic programming, or one step ahead"""
    margin: float = Field(0.0, ge=0)
    """utility by which an action must beat stopping"""

    @field_validator("costs")
    @classmethod
    def _named(cls, costs: tuple[str, ...]) -> tuple[str, ...]:
        for one in costs:
            name, equals, cost = one.rpartition("=")
            try:
                fits = bool(name and equals) and math.isfinite(float(cost)) and float(cost) >= 0
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(f"must be NAME=COST with a finite cost of 0 or more, and {one!r} is not")
        return costs

    def cost(self, name: str) -> float:
        """What the critic ``name`` costs."""
        found = {key: float(cost) for key, _, cost in (one.rpartition("=") for one in self.costs)}
        return found.get(name, 1.0)

    def end(self, b: float) -> tuple[str, float]:
        """The best way to end at belief ``b`` and its value: stop, verify or ship."""
        ways = [(STOP, 0.0), (VERIFY, self.reward * b - self.c_ver)]
        if self.stop == "ship":
            ways.append((SHIP, self.reward * b - self.loss * (1 - b)))
        return max(ways, key=lambda way: way[1])


# -- the lines that can be computed without planning (section 3.6 of the specification)


def gate_interval(likelihood: Likelihood, cost: float, reward: float, c_ver: float) -> tuple[float, float] | None:
    """Beliefs between which one critic is worth buying as a gate (verify on pass, stop on fail); None where it never is.

    b_lo = (c + f c_v) / (t (R - c_v) + f c_v), b_hi = ((1 - f) c_v - c) / ((1 - t)(R - c_v) + (1 - f) c_v). Two levels only.
    """
    t, f = likelihood.right[-1], likelihood.wrong[-1]
    low_scale, high_scale = t * (reward - c_ver) + f * c_ver, (1 - t) * (reward - c_ver) + (1 - f) * c_ver
    if low_scale <= 0 or high_scale <= 0:
        return None
    low, high = (cost + f * c_ver) / low_scale, ((1 - f) * c_ver - cost) / high_scale
    return (low, high) if low < high else None


@dataclass(frozen=True)
class ComputableLines:
    """Beliefs that need no planning: ``gates`` holds, for each critic of two levels, where it pays alone as a gate (None: never);
    what is said of shipping is None where nothing may be shipped unverified."""

    verify_from: float
    gates: Mapping[str, Interval | None]
    ship_from: float | None = None
    verify_up_to: float | None = None


def computable_lines(tables: Tables, config: ControlConfig) -> ComputableLines:
    """The beliefs at which verifying beats stopping and shipping, shipping beats stopping, and each critic pays as a gate."""
    gates = {
        name: gate_interval(own, config.cost(name), config.reward, config.c_ver)
        for name, own in tables.critics.items()
        if len(own.right) == 2
    }
    verify_from = config.c_ver / config.reward
    if config.stop != "ship":
        return ComputableLines(verify_from, gates)
    up_to = 1 - config.c_ver / config.loss if config.loss else 0.0
    return ComputableLines(verify_from, gates, config.loss / (config.reward + config.loss), up_to)


# -- envelopes of lines


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest of lines over b in [0, 1]. ``right`` and ``wrong`` (L, C), ``action`` (L,),
    ``breaks`` (L - 1,) between them."""

    right: np.ndarray
    wrong: np.ndarray
    action: np.ndarray
    breaks: np.ndarray

    def at(self, b: float) -> int:
        """The line that is largest at ``b``."""
        return int(np.searchsorted(self.breaks, b))

    def value(self, b: float, functional: int = 0) -> float:
        """The value at ``b``, or another functional of the same plan."""
        i = self.at(b)
        return float(self.right[i, functional] * b + self.wrong[i, functional] * (1 - b))


def _hull(right: np.ndarray, wrong: np.ndarray, rank: np.ndarray) -> tuple[list[int], list[float]]:
    """Indices of the lines (L,) that are largest somewhere in [0, 1], by slope, and where one takes over from the other.

    Of equal lines the one of least ``rank`` stays.
    """
    slopes = right - wrong
    order = slopes.argsort(kind="stable")
    if len(order) > _FEW:
        order = order[_near(slopes[order], wrong[order])]
    kept: list[int] = []
    begins: list[float] = []  # where each kept line takes over, the first one at 0
    slope = height = preferred = 0.0  # of the line kept last
    rows = zip(order.tolist(), slopes[order].tolist(), wrong[order].tolist(), rank[order].tolist(), strict=True)
    for i, own_slope, own_height, own_rank in rows:
        crossing = 0.0
        while kept:
            rise, lead = own_slope - slope, height - own_height
            if rise <= _SAME:  # parallel: the higher one, of equals the one that is preferred
                crossing = -1.0 if lead < -_SAME or (lead <= _SAME and own_rank < preferred) else 2.0
            else:
                crossing = lead / rise
            if crossing > begins[-1] + _EPS:
                break
            kept.pop(), begins.pop()
            if kept:
                last = kept[-1]
                slope, height, preferred = float(slopes[last]), float(wrong[last]), float(rank[last])
        if kept and crossing >= 1 - _EPS:
            continue
        begins.append(crossing if kept else 0.0)
        kept.append(i)
        slope, height, preferred = own_slope, own_height, own_rank
    return kept, begins[1:]


_FEW = 24
_SPOTS = np.linspace(0, 1, 17)[:, None]


def _near(slopes: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Indices of the lines, of ascending slopes (L,), that may be largest somewhere: the largest ones at some beliefs, and of the
    others those that lie above the crossing of the two of these that are next to them in slope."""
    best = (heights + _SPOTS * slopes).argmax(axis=1)
    best = best[np.concatenate((_TRUE, slopes[best[1:]] - slopes[best[:-1]] > _SAME))]
    first, end = slopes.searchsorted(slopes[best[0]] - _SAME), slopes.searchsorted(slopes[best[-1]] + _SAME, side="right")
    each = np.arange(first, end)
    if len(best) == 1:
        return each
    grade = (heights[best[1:]] - heights[best[:-1]]) / (slopes[best[1:]] - slopes[best[:-1]])
    at = (best.searchsorted(each, side="right") - 1).clip(0, len(grade) - 1)
    left = best[at]
    found: np.ndarray = each[heights[each] - heights[left] >= grade[at] * (slopes[each] - slopes[left]) - _SAME]
    return found


_TRUE, _ENDS = np.array([True]), np.array([0.0, 1.0])


def _envelope(right: np.ndarray, wrong: np.ndarray, action: np.ndarray, rank: np.ndarray) -> Envelope:
    kept, breaks = _hull(right[:, 0], wrong[:, 0], rank[action])
    return Envelope(right.take(kept, 0), wrong.take(kept, 0), action.take(kept), np.array(breaks))


_Piece = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Lines sorted by slope: right (L, C), wrong (L, C), breaks (L - 1,)."""


def _weighted(found: Envelope, right: float, wrong: float) -> _Piece:
    """``found`` at the belief after an outcome with these likelihoods, one of them above 0, times the outcome's probability."""
    x = found.breaks
    part = wrong * x
    return right * found.right, wrong * found.wrong, part / (part + right * (1 - x))


def _sum(pieces: Sequence[_Piece]) -> tuple[np.ndarray, np.ndarray]:
    """The lines of the sum of convex functions: on each stretch between breaks one line of each."""
    ends = np.concatenate((_ENDS, *(breaks for _, _, breaks in pieces)))
    ends.sort()
    apart = ends[1:] - ends[:-1] > _EPS
    cuts = ends[1:][apart & (ends[1:] < 1 - _EPS)]
    ends = np.concatenate((_ENDS[:1], cuts, _ENDS[1:]))
    middles = (ends[:-1] + ends[1:]) / 2
    places = [breaks.searchsorted(middles) for _, _, breaks in pieces]
    right, wrong = pieces[0][0].take(places[0], 0), pieces[0][1].take(places[0], 0)
    for (one, other, _), at in zip(pieces[1:], places[1:], strict=True):
        right += one.take(at, 0)
        wrong += other.take(at, 0)
    return right, wrong


# -- exact planning


@dataclass(frozen=True, slots=True)
class ControlState:
    """Where an episode stands: all that a policy may look at."""

    belief: float
    step: int = 0
    """Index of the candidate, 0 for the first."""
    unused: frozenset[str] = frozenset()
    """Critics that have not been asked about this candidate."""
    seen: tuple[tuple[str, int | None], ...] = ()
    """What the others said of it, in order."""
    history: str = FIRST
    """How it came about."""
    rejected: bool = False
    """The gate has failed this candidate."""
    refused: bool = False
    """The verifier has refused this candidate."""


class TakenAction(NamedTuple):
    """An action, and the belief at which it was taken."""

    action: str
    belief: float


class PlanRates(NamedTuple):
    """Shares of tasks that a plan delivers, and delivers wrongly, and of deliveries that are wrong."""

    delivered: float
    wrong: float
    false_accept: float


class PlanSizes(NamedTuple):
    """How many value functions a plan has, and how many lines they have."""

    functions: int
    lines: int
    most_lines: int


class Plan:
    """The optimal policy under ``tables`` and ``config``: a value function as lines for every step,
    history and set of unused critics.

    Raises UserError where it would be too large.
    """

    def __init__(self, tables: Tables, config: ControlConfig, functionals: bool = False) -> None:
        """``functionals``: also carry how often the plan delivers, and delivers wrongly, along every line."""
        if len(tables.names) > MOST_CRITICS:
            raise UserError(f"{len(tables.names)} critics are more than the {MOST_CRITICS} that are planned with")
        self.tables, self.config, self.names = tables, config, tables.names
        self.actions = (STOP, VERIFY, SHIP, REWRITE, *self.names)
        self._costs = [config.cost(name) for name in self.names]
        self._rank = np.array([0.0, 1.0, 2.0, 3.0 + config.c_gen, *(3.0 + cost for cost in self._costs)])
        self._gate = self.names.index(tables.gate) if tables.selects else -1
        self._columns = 3 if functionals else 1
        self._full = (1 << len(self.names)) - 1
        self.envelopes: dict[tuple[int, str, int, bool], Envelope] = {}
        self._pieces: dict[tuple[int, bool], _Piece] = {}
        sets = sorted(range(self._full + 1), key=int.bit_count)
        again = any(one is not None and (one.same_right or one.same_wrong) for one in (tables.kernel, tables.kernel_rejected))
        later = dict.fromkeys([*([FIRST] if again else []), tables.after(False), tables.after(True)])
        for step in range(config.horizon - 1, -1, -1):
            for history in later if step else (FIRST,):
                for unused in sets:
                    for rejected in self._flags(unused):
                        self.envelopes[step, history, unused, rejected] = self._state(step, history, unused, rejected)

    def _flags(self, unused: int) -> tuple[bool, ...]:
        """Whether the gate can have failed a candidate of which these critics are unused."""
        return (False,) if self._gate < 0 or unused >> self._gate & 1 else (False, True)

    def _ends(self) -> tuple[list[list[float]], list[list[float]], list[int]]:
        """Lines of stopping, verifying and shipping: value, deliveries, wrong deliveries."""
        c = self.config
        right, wrong, action = [[0.0, 0.0, 0.0], [c.reward - c.c_ver, 1.0, 0.0]], [[0.0, 0.0, 0.0], [-c.c_ver, 0.0, 0.0]], [0, 1]
        if c.stop == "ship":
            right, wrong, action = [*right, [c.reward, 1.0, 0.0]], [*wrong, [-c.loss, 1.0, 1.0]], [*action, 2]
        cut = slice(self._columns)
        return [row[cut] for row in right], [row[cut] for row in wrong], action

    def _state(self, step: int, history: str, unused: int, rejected: bool) -> Envelope:
        right, wrong, action = self._ends()
        rights, wrongs = [np.array(right)], [np.array(wrong)]
        if step < self.config.horizon - 1:
            refined = self._rewritten(step, history, unused, rejected)
            if self.config.after_verify == "continue":
                best = int(np.argmax(refined[1][:, 0]))
                if refined[1][best, 0] > 0:
                    wrongs[0][1] += refined[1][best]
            rights.append(refined[0])
            wrongs.append(refined[1])
            action += [3] * len(refined[0])
        critics = self.tables.of(history)
        for j, name in enumerate(self.names):
            if unused >> j & 1:
                rest = unused & ~(1 << j)
                own = critics[name]
                pieces = []
                for level, (of_right, of_wrong) in enumerate(zip(own.right, own.wrong, strict=True)):
                    if of_right > 0 or of_wrong > 0:
                        flag = level == 0 if j == self._gate else rejected
                        pieces.append(_weighted(self.envelopes[step, history, rest, flag], of_right, of_wrong))
                one, other = _sum(pieces)
                one[:, 0] -= self._costs[j]
                other[:, 0] -= self._costs[j]
                rights.append(one)
                wrongs.append(other)
                action += [4 + j] * len(one)
        return _envelope(np.concatenate(rights), np.concatenate(wrongs), np.array(action), self._rank)

    def _changed(self, step: int, rejected: bool) -> _Piece:
        """Lines of a rewrite that changed the text, all critics unused, times the probability that it did."""
        key = (step, rejected)
        if key not in self._pieces:
            kernel = self.tables.kernel_of(rejected)
            fresh = self.envelopes[step + 1, self.tables.after(rejected), self._full, False]
            right = (1 - kernel.same_right) * ((1 - kernel.broken) * fresh.right + kernel.broken * fresh.wrong)
            wrong = (1 - kernel.same_wrong) * (kernel.fix * fresh.right + (1 - kernel.fix) * fresh.wrong)
            kept, breaks = _hull(right[:, 0], wrong[:, 0], np.zeros(len(right)))
            self._pieces[key] = right[kept], wrong[kept], np.array(breaks)
        return self._pieces[key]

    def _rewritten(self, step: int, history: str, unused: int, rejected: bool) -> tuple[np.ndarray, np.ndarray]:
        """Lines of rewriting: a changed candidate, or the same text with what is known of it."""
        kernel, changed = self.tables.kernel_of(rejected), self._changed(step, rejected)
        right, wrong = changed[0].copy(), changed[1].copy()
        if kernel.same_right > 0 or kernel.same_wrong > 0:
            same = _weighted(self.envelopes[step + 1, history, unused, rejected], kernel.same_right, kernel.same_wrong)
            right, wrong = _sum([changed, same])
        right[:, 0] -= self.config.c_gen
        wrong[:, 0] -= self.config.c_gen
        return right, wrong

    @property
    def value(self) -> float:
        """What the plan is worth at the prior, the first candidate's making left out."""
        return self._start.value(self.tables.prior)

    @property
    def _start(self) -> Envelope:
        return self.envelopes[0, FIRST, self._full, False]

    def rates(self) -> PlanRates:
        """Shares of tasks that the plan delivers, and delivers wrongly, at the prior. Needs ``functionals``."""
        delivered, wrong = (self._start.value(self.tables.prior, i) for i in (1, 2))
        return PlanRates(delivered, wrong, wrong / delivered if delivered > 0 else 0.0)

    def envelope(self, state: ControlState) -> Envelope:
        """The value function where an episode stands."""
        return self.envelopes[state.step, *self._key(state)]

    def _key(self, state: ControlState) -> tuple[str, int, bool]:
        unused = sum(1 << j for j, name in enumerate(self.names) if name in state.unused)
        return state.history, unused, self._gate >= 0 and state.rejected and not unused >> self._gate & 1

    def decide(self, state: ControlState) -> str:
        """The best action; stopping where it does not beat that by the margin."""
        if state.refused:  # nothing is left to ask: rewrite or stop
            again = state.step < self.config.horizon - 1
            worth = float(self._rewritten(state.step, *self._key(state))[1][:, 0].max()) if again else 0.0
            return REWRITE if worth > 0 and worth >= self.config.margin else STOP
        found = self.envelope(state)
        i, belief = found.at(state.belief), state.belief
        worth = float(found.right[i, 0] * belief + found.wrong[i, 0] * (1 - belief))
        if worth < self.config.margin:
            return STOP
        return self.actions[int(found.action[i])]

    def intervals(self, state: ControlState) -> list[tuple[float, float, str]]:
        """The policy at a step and history: (from belief, to belief, action), neighbours of one action joined."""
        found = self.envelope(state)
        ends = [0.0, *found.breaks.tolist(), 1.0]
        joined: list[tuple[float, float, str]] = []
        for low, high, action in zip(ends, ends[1:], found.action, strict=False):
            name = self.actions[int(action)]
            if joined and joined[-1][2] == name:
                joined[-1] = (joined[-1][0], high, name)
            else:
                joined.append((low, high, name))
        return joined

    def sizes(self) -> PlanSizes:
        """How many value functions there are and how many lines they have."""
        lines = [len(one.action) for one in self.envelopes.values()]
        return PlanSizes(len(lines), sum(lines), max(lines))


# -- policies: functions of a state

Policy = Callable[[ControlState], str]


def greedy(tables: Tables, config: ControlConfig, kernel: bool = False) -> Policy:
    """One step ahead: each critic is followed by the best end, a rewrite by the verifier.

    A rewrite is taken for a fresh sample, right with the prior's probability,
    as the paper's code does; ``kernel`` uses the kernel.
    """

    def decide(state: ControlState) -> str:
        b = 0.0 if state.refused else state.belief
        ways = [(0.0, 0.0, STOP) if state.refused else (config.end(b)[1], 0.0, config.end(b)[0])]
        if state.step < config.horizon - 1:
            after = tables.kernel_of(state.rejected).after(b) if kernel else tables.prior
            ways.append((-config.c_gen + config.reward * after - config.c_ver, config.c_gen, REWRITE))
        critics = tables.of(state.history)
        for name in tables.names:
            if name in state.unused and not state.refused:
                own, worth = critics[name], -config.cost(name)
                for level, (right, wrong) in enumerate(zip(own.right, own.wrong, strict=True)):
                    worth += (right * b + wrong * (1 - b)) * config.end(own.update(b, level))[1]
                ways.append((worth, config.cost(name), name))
        best = max(worth for worth, _, _ in ways)
        if best < config.margin:
            return STOP
        _, i = min((cost, i) for i, (worth, cost, _) in enumerate(ways) if worth >= best - _SAME)
        return ways[i][2]

    return decide


def _passed(tables: Tables, state: ControlState, name: str) -> bool:
    """Whether the critic gave its highest level; one that could not run has not."""
    return dict(state.seen).get(name) == len(tables.critics[name].right) - 1


def fixed_rules(tables: Tables, config: ControlConfig) -> dict[str, Policy]:
    """Every rule that is compared with: none looks at the belief.

    ``stop at once`` (null), ``always verify``, ``best of N`` (rewrite N - 1 times, verify the last: the paper's self-refine),
    ``gate(critic)`` (pass: verify, fail: rewrite, last fail: stop), ``reflexion(critic)`` (last fail: verify all the same),
    ``all critics`` (any fail: rewrite), and where a refused candidate may be rewritten ``verify until passed``.
    """
    last = config.horizon - 1
    cheap_first = sorted(tables.names, key=config.cost)

    def again(state: ControlState, end: str) -> str:
        return REWRITE if state.step < last else end

    def gate(name: str, end: str) -> Policy:
        def decide(state: ControlState) -> str:
            if state.refused:
                return again(state, STOP)
            if name in state.unused:
                return name
            return VERIFY if _passed(tables, state, name) else again(state, end)

        return decide

    def pipeline(state: ControlState) -> str:
        if state.refused or any(not _passed(tables, state, name) for name, _ in state.seen):
            return again(state, STOP)
        return next((name for name in cheap_first if name in state.unused), VERIFY)

    def always(state: ControlState) -> str:
        return STOP if state.refused else VERIFY

    rules: dict[str, Policy] = {"stop at once": lambda state: STOP, "always verify": always}

    def best_of(n: int) -> Policy:
        return lambda state: REWRITE if state.step < n - 1 else always(state)

    rules |= {f"best of {n}": best_of(n) for n in range(2, config.horizon + 1)}
    rules |= {f"gate({name})": gate(name, STOP) for name in tables.names}
    rules |= {f"reflexion({name})": gate(name, VERIFY) for name in tables.names}
    if len(tables.names) > 1:
        rules["all critics"] = pipeline
    if config.after_verify == "continue":
        rules["verify until passed"] = lambda state: again(state, STOP) if state.refused else VERIFY
    if config.stop == "ship":
        rules["always ship"] = lambda state: SHIP
    return rules


def planned(tables: Tables, config: ControlConfig) -> Policy:
    """The controller that ``config.planner`` names."""
    return Plan(tables, config).decide if config.planner == "dp" else greedy(tables, config)


# -- following an episode


@dataclass(slots=True)
class Tracker:
    """The belief of an episode and what has been asked, as a controller sees it.
    ``resets``: a rewrite starts at the prior again (greedy)."""

    tables: Tables
    resets: bool = False
    state: ControlState = field(default_factory=lambda: ControlState(0.5))
    contradicted: bool = False
    """Something was seen that the tables say is impossible."""

    def __post_init__(self) -> None:
        self.state = ControlState(self.tables.prior, unused=frozenset(self.tables.names))

    def observe(self, name: str, level: int | None) -> None:
        """A critic said ``level``, or could not run (None): no update then, but it is used."""
        state = self.state
        own = self.tables.of(state.history)[name]
        if level is not None and own.right[level] * state.belief + own.wrong[level] * (1 - state.belief) <= 0:
            self.contradicted = True
        self.state = replace(
            state,
            belief=own.update(state.belief, level),
            unused=state.unused - {name},
            seen=(*state.seen, (name, level)),
            rejected=level == 0 if name == self.tables.gate else state.rejected,
        )

    def refused(self) -> None:
        """The verifier refused the candidate."""
        self.state = replace(self.state, belief=0.0, refused=True)

    def rewritten(self, same: bool) -> None:
        """A rewrite came back: with the same text nothing new may be observed, with another the critics may be asked again."""
        state = self.state
        kernel = self.tables.kernel_of(state.rejected)
        if same:
            belief = state.belief if kernel.same_right == kernel.same_wrong else kernel.after(state.belief, True)
            self.state = replace(state, step=state.step + 1, belief=belief)
            return
        belief = self.tables.prior if self.resets else kernel.after(state.belief)
        self.state = ControlState(belief, state.step + 1, frozenset(self.tables.names), history=self.tables.after(state.rejected))


def bounded(tables: Tables, config: ControlConfig, most: float) -> ControlConfig:
    """``config`` with the least loss at which the plan's predicted share of wrong deliveries among all is at most ``most``."""

    def rate(loss: float) -> float:
        return Plan(tables, config.model_copy(update={"loss": loss}), functionals=True).rates().false_accept

    low, high = config.loss, max(config.loss, 1.0)
    if rate(low) <= most:
        return config
    while rate(high) > most:
        low, high = high, 2 * high
        if high > 1e9:
            raise UserError(f"no loss makes the predicted share of wrong deliveries at most {most:g}")
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if rate(middle) <= most else (middle, high)
    return config.model_copy(update={"loss": high})


# -- what a policy is worth where the tables are the truth


def worth(policy: Policy, believed: Tables, config: ControlConfig, truth: Tables | None = None, resets: bool = False) -> float:
    """Expected utility of ``policy``, which believes ``believed``, where ``truth`` (the same tables by default) holds: every
    outcome enumerated. The two must have the same critics with the same levels."""
    truth = believed if truth is None else truth

    def from_(tracker: Tracker, true: ControlState, right: float, wrong: float) -> float:
        """Utility times probability from here on; ``right`` and ``wrong`` are the joint probabilities of the past and of Y."""
        total = right + wrong
        if total <= _EPS:
            return 0.0
        action = policy(tracker.state)
        if action == STOP:
            return 0.0
        if action == SHIP:
            return config.reward * right - config.loss * wrong
        if action == VERIFY:
            got = config.reward * right - config.c_ver * total
            if config.after_verify == "end" or tracker.state.refused:
                return got
            mine = _copied(tracker)
            mine.refused()
            return got + from_(mine, true, 0.0, wrong)
        if action == REWRITE:
            return -config.c_gen * total + _rewrites(tracker, true, right, wrong)
        own, got = truth.of(true.history)[action], -config.cost(action) * total
        for level, (of_right, of_wrong) in enumerate(zip(own.right, own.wrong, strict=True)):
            mine = _copied(tracker)
            mine.observe(action, level)
            flag = level == 0 if action == truth.gate else true.rejected
            got += from_(mine, replace(true, rejected=flag), right * of_right, wrong * of_wrong)
        return got

    def _rewrites(tracker: Tracker, true: ControlState, right: float, wrong: float) -> float:
        kernel = truth.kernel_of(true.rejected)
        changed_right, changed_wrong = right * (1 - kernel.same_right), wrong * (1 - kernel.same_wrong)
        mine, got = _copied(tracker), 0.0
        mine.rewritten(False)
        after = ControlState(0.0, history=truth.after(true.rejected))
        new_right = changed_right * (1 - kernel.broken) + changed_wrong * kernel.fix
        got += from_(mine, after, new_right, changed_right + changed_wrong - new_right)
        if kernel.same_right > 0 or kernel.same_wrong > 0:
            mine = _copied(tracker)
            mine.rewritten(True)
            got += from_(mine, true, right * kernel.same_right, wrong * kernel.same_wrong)
        return got

    return from_(Tracker(believed, resets), ControlState(0.0), truth.prior, 1 - truth.prior)


def _copied(tracker: Tracker) -> Tracker:
    made = Tracker(tracker.tables, tracker.resets)
    made.state, made.contradicted = tracker.state, tracker.contradicted
    return made
