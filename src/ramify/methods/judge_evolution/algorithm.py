"""Which evidence counts, who is tried next, and when a judge may be replaced: pure functions and one archive in memory.

Sections are those of the method's description. Axis legend: N nodes of the archive, S and F successes and failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.seeds import generator
from ramify.render.numbers import p_value
from ramify.score.anchor import PairedComparison, compare
from ramify.trace.db import counts

EPSILON = 0.05
"""Quantile of the best belief: the rate that a judge or a workspace exceeds with a probability of 95 %."""
MOST_MISSING = 0.05
"""A challenger that answers fewer items of the anchor than all but this share is not eligible: it could leave out
the hard ones."""
ALPHA = 0.6
"""The archive may grow while outcomes ** ALPHA is at least its size, so that each is measured more as it grows."""
RHO = 2.0
"""Judges are reconsidered after first, first * RHO, first * RHO ** 2, ... outcomes: as often as outcomes double, so that looks at
the anchor stay few."""
Select = Literal["clade", "node"]
Rule = Literal["mcnemar", "confirm", "best_belief", "accuracy"]


class PromotionConfig(Config):
    """When a challenger takes over."""

    rule: Rule = "mcnemar"
    """mcnemar: exact paired test against the incumbent; confirm: chosen on one half of the anchor, tested on the other;
    best_belief: the paper's rule; accuracy: the most items right."""
    delta: float = Field(0.05, gt=0, lt=1)
    """Chance of promoting a judge that is not better, at one look at the anchor; challengers of one look share it."""
    spend: bool = False
    """Share delta among all looks at an anchor, too: look q has delta / (q (q + 1))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengerRow(PairedComparison):
    """A challenger beside the incumbent, and what it is worth by itself."""

    missing: int
    right: int
    belief: float
    """:func:`best_belief` that it is right."""
    accuracy: float
    eligible: bool
    """Whether it answered enough of the anchor."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a look at the anchor came to."""

    winner: int | None
    """Which challenger takes over; None: the incumbent stays."""
    why: str
    """One sentence."""
    rows: tuple[ChallengerRow, ...]
    """Of each challenger."""


def level_of(config: PromotionConfig, challengers: int, look: int = 1) -> float:
    """The level of one challenger's test at the ``look``-th look at an anchor."""
    delta = config.delta / (look * (look + 1)) if config.spend else config.delta
    return delta / max(1, 1 if config.rule == "confirm" else challengers)


def decide(
    label: np.ndarray,
    incumbent: np.ndarray,
    challengers: np.ndarray,
    config: PromotionConfig,
    look: int = 1,
    half: np.ndarray | None = None,
) -> Decision:
    """Which of ``challengers`` (m, n) takes over from ``incumbent`` (n,); answers are 1, 0 or nan, ``label`` (n,) is bool.

    Ties keep the incumbent. ``half`` (n,) is the half that the rule ``confirm`` chooses on (default: every other item).
    """
    level = level_of(config, len(challengers), look)
    rows = [_row(label, incumbent, answers, level) for answers in challengers]
    able = [i for i, row in enumerate(rows) if row.eligible]
    if not able:
        return Decision(None, "no challenger answered enough of the anchor" if rows else "there is no challenger", tuple(rows))
    if config.rule in ("mcnemar", "confirm"):
        return _tested(label, incumbent, challengers, config, rows, able, half, level)
    there = np.isfinite(incumbent)
    own = int(((incumbent > 0.5) == label)[there].sum())
    if config.rule == "best_belief":
        mine, name, worth = float(best_belief(own, int(there.sum()) - own)), "best belief", [row.belief for row in rows]
    else:
        mine, name, worth = own / max(1, int(there.sum())), "accuracy", [row.accuracy for row in rows]
    best = max(able, key=lambda i: worth[i])
    why = f"its {name} is {worth[best]:.4g}, the incumbent's {mine:.4g}"
    return Decision(best if worth[best] > mine else None, why, tuple(rows))


def _row(label: np.ndarray, incumbent: np.ndarray, answers: np.ndarray, level: float) -> ChallengerRow:
    missing = int(np.isnan(answers).sum())
    right = int(((answers > 0.5) == label)[np.isfinite(answers)].sum())
    answered = len(label) - missing
    return ChallengerRow(
        **asdict(compare(label, incumbent, answers, level)),
        missing=missing,
        right=right,
        belief=float(best_belief(right, answered - right)),
        accuracy=right / max(1, answered),
        eligible=bool(len(label)) and missing <= MOST_MISSING * len(label),
    )


def _tested(
    label: np.ndarray, incumbent: np.ndarray, challengers: np.ndarray, config: PromotionConfig, rows: list[ChallengerRow],
    able: list[int], half: np.ndarray | None, level: float,
) -> Decision:  # fmt: skip
    if config.rule == "confirm":
        chosen_on = np.arange(len(label)) % 2 == 0 if half is None else half
        gains = {
            i: compare(label[chosen_on], incumbent[chosen_on], challengers[i][chosen_on], level).difference or 0.0 for i in able
        }
        best = max(able, key=lambda i: gains[i])
        confirmed = compare(label[~chosen_on], incumbent[~chosen_on], challengers[best][~chosen_on], level)
        rows[best] = replace(rows[best], **asdict(confirmed))
    else:
        best = min(able, key=lambda i: (rows[i].p, -(rows[i].difference or 0.0)))
    row = rows[best]
    if row.possible < row.needed:
        why = (
            f"the anchor is too small to tell: the incumbent errs on {row.possible} of {row.n} items, and the test needs "
            f"{row.needed} that the challenger alone has right"
        )
        return Decision(None, why, tuple(rows))
    numbers = (
        f"right where the other is wrong on {row.better} items, wrong where it is right on {row.worse}, p = "
        f"{p_value(row.p)} at a level of {p_value(row.level)}"
    )
    if row.p > level:
        return Decision(None, f"it is not shown to be better: {numbers}", tuple(rows))
    if row.balanced is not None and row.balanced < 0:
        return Decision(
            None,
            f"it gains by answering what most items are labelled: {numbers}, and balanced accuracy falls by {-row.balanced:.3f}",
            tuple(rows),
        )
    return Decision(best, f"it is better: {numbers}", tuple(rows))


class SearchConfig(Config):
    """What decides a search, whoever edits and whoever judges."""

    seed: int = 0
    """Decides every sample."""
    budget: int = Field(256, ge=1)
    """Outcomes to spend."""
    first: int = Field(16, ge=1)
    """Outcomes before judges are reconsidered for the first time; then whenever these have doubled (:data:`RHO`)."""


def best_belief(s: float | np.ndarray, f: float | np.ndarray, epsilon: float = EPSILON) -> Any:
    """The ``epsilon`` quantile of Beta(1 + s, 1 + f) (section 3.2)."""
    from scipy.special import betaincinv

    return betaincinv(1.0 + np.asarray(s), 1.0 + np.asarray(f), epsilon)


def gate_open(outcomes: int, size: int, alpha: float) -> bool:
    """Whether an archive of ``size`` nodes may grow after so many outcomes (UCB-Air, section 3.3a)."""
    return bool(float(outcomes) ** alpha >= size)


def checkpoints(first: int, rho: float, budget: int) -> list[int]:
    """Numbers of outcomes below ``budget`` after which judges are reconsidered:
    first * rho ** q (section 3.3c). Raises ValueError where they do not grow."""
    if first < 1 or rho <= 1:
        raise ValueError(f"checkpoints begin at 1 or more and grow by a factor above 1, not at {first} by {rho:g}")
    found: list[int] = []
    at = float(first)
    while at < budget:
        if not found or int(at) > found[-1]:
            found.append(int(at))
        at *= rho
    return found


@dataclass(frozen=True, slots=True)
class UtilityRecord:
    """One utility record: a node did one task of one role, and succeeded or not by the word of ``judges`` (slot -> judge; empty:
    of none)."""

    node: int
    role: str
    task: str
    success: bool
    judges: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it one observation: the same artefact scored again by the same judges is not a second one."""
        return self.node, self.role, self.task, tuple(sorted(self.judges.items()))


@dataclass(slots=True)
class Archive:
    """Nodes with their parents, every outcome ever seen, and counts of those that count now. Nothing is ever removed."""

    parents: list[int | None] = field(default_factory=lambda: [None])
    """(N,) the seed is node 0."""
    outcomes: list[UtilityRecord] = field(default_factory=list)
    incumbents: dict[str, str] = field(default_factory=dict)
    """The judge of each slot."""
    own: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    """(N, 2) successes and failures that count."""
    clade: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    """(N, 2) the same of a node with all its descendants."""
    _keys: set[tuple[Any, ...]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.parents)

    def grow(self, parent: int) -> int:
        """Add a child; returns its number."""
        self.parents.append(parent)
        self.own.append([0, 0])
        self.clade.append([0, 0])
        return len(self.parents) - 1

    def lineage(self, node: int) -> list[int]:
        """A node, its parent, and so on to the seed."""
        found, at = [], node
        while True:
            found.append(at)
            above = self.parents[at]
            if above is None:
                return found
            at = above

    def valid(self, outcome: UtilityRecord) -> bool:
        """Whether an outcome counts: every judge that it depends on is the incumbent of its slot (Definition F.1)."""
        return counts(outcome.judges, self.incumbents)

    def add(self, outcome: UtilityRecord) -> bool:
        """Take an outcome in, with the judges that it was scored by, whoever is the incumbent by now.
        False where it is there already."""
        if outcome.key in self._keys:
            return False
        self._keys.add(outcome.key)
        self.outcomes.append(outcome)
        if self.valid(outcome):
            self._count(outcome)
        return True

    def _count(self, outcome: UtilityRecord) -> None:
        side = 0 if outcome.success else 1
        self.own[outcome.node][side] += 1
        for node in self.lineage(outcome.node):
            self.clade[node][side] += 1

    def replace(self, judges: Mapping[str, str]) -> int:
        """Make ``judges`` the incumbents of their slots, all at once (Definition F.2).
        Returns how many outcomes stopped counting."""
        before = [self.valid(one) for one in self.outcomes]
        self.incumbents.update(judges)
        after = [self.valid(one) for one in self.outcomes]
        if before != after:
            for table in (self.own, self.clade):
                table[:] = [[0, 0] for _ in self.parents]
            for one, counts_now in zip(self.outcomes, after, strict=True):
                if counts_now:
                    self._count(one)
        return sum(old and not new for old, new in zip(before, after, strict=True))

    def counting(self) -> list[UtilityRecord]:
        """The outcomes that count now, in order."""
        return [one for one in self.outcomes if self.valid(one)]

    def productivity(self, node: int) -> float | None:
        """CMP: the share of successes in the clade (section 3.2); None without outcomes."""
        s, f = self.clade[node]
        return s / (s + f) if s + f else None

    def thompson(
        self, config: SearchConfig, *position: str | int, nodes: Sequence[int] | None = None, by: Select = "clade"
    ) -> int:
        """The node with the highest of one sample each of Beta(1 + S, 1 + F) (section 3.3); keyed by ``position`` alone."""
        table = np.asarray(self.clade if by == "clade" else self.own, np.float64)
        sampled = generator(config.seed, "thompson", *position).beta(1.0 + table[:, 0], 1.0 + table[:, 1])
        among = np.arange(len(self)) if nodes is None else np.asarray(nodes)
        return int(among[int(np.argmax(sampled[among]))])

    def best(self, epsilon: float = EPSILON, role: str | None = None) -> tuple[int, str]:
        """The endpoint: the node of the highest best belief of its own outcomes that count (of ``role``, the specialist).

        The second is how it was found: "best belief", or "balanced utility" where no node has an outcome that counts.
        """
        table = np.zeros((len(self), 2))
        for one in self.counting():
            if role in (None, one.role):
                table[one.node, 0 if one.success else 1] += 1
        seen = np.flatnonzero(table.sum(axis=1) > 0)
        if not len(seen):
            return int(np.argmax([self.balanced(node) for node in range(len(self))])), "balanced utility"
        belief = best_belief(table[seen, 0], table[seen, 1], epsilon)
        return int(seen[int(np.argmax(belief))]), "best belief"

    def balanced(self, node: int, roles: Mapping[str, Iterable[str]] | None = None) -> float:
        """Mean over roles of the mean over tasks of (1 + S) / (2 + S + F); a cell without outcomes is one half (section 3.2)."""
        found: dict[tuple[str, str], list[int]] = {(r, t): [0, 0] for r, tasks in (roles or {}).items() for t in tasks}
        for one in self.outcomes:
            if one.node == node and self.valid(one):
                found.setdefault((one.role, one.task), [0, 0])[0 if one.success else 1] += 1
        by_role: dict[str, list[float]] = {}
        for (role, _), (s, f) in found.items():
            by_role.setdefault(role, []).append((1 + s) / (2 + s + f))
        return float(np.mean([np.mean(cells) for cells in by_role.values()])) if by_role else 0.5


def cell(
    archive: Archive, node: int, open_cells: Sequence[tuple[str, str]], *position: str | int, seed: int = 0
) -> tuple[str, str]:
    """The least-measured cell of a node among ``open_cells`` (role, task):
    the role with fewest outcomes that count, then the task (section 3.3b)."""
    by_role: dict[str, int] = {role: 0 for role, _ in open_cells}
    by_cell: dict[tuple[str, str], int] = dict.fromkeys(open_cells, 0)
    for one in archive.outcomes:
        if one.node == node and archive.valid(one):
            by_role[one.role] = by_role.get(one.role, 0) + 1
            if (one.role, one.task) in by_cell:
                by_cell[one.role, one.task] += 1
    fewest = min(by_role[role] for role, _ in open_cells)
    left = [one for one in open_cells if by_role[one[0]] == fewest]
    least = min(by_cell[one] for one in left)
    left = sorted(one for one in left if by_cell[one] == least)
    return left[int(generator(seed, "cell", *position).integers(len(left)))]
