"""Training rows of grown trees, and the report on them."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.words import plural
from ramify.methods.tree_rollouts import algorithm
from ramify.methods.tree_rollouts.record import GrownTree
from ramify.render.numbers import interval
from ramify.render.result import Result, Section, numbers, table
from ramify.stats.evidence import holm
from ramify.stats.intervals import Interval, paired_t, wilson
from ramify.stats.tests import paired_permutation, sign_test

if TYPE_CHECKING:
    from ramify.trace.path import Path as TracePath

UNEQUAL = 0.02
"""Costs of two arms that differ by more than this share are no equal ones."""
LEVEL = 0.05
"""Chance of reporting any difference between arms that are equal."""


def to_rows(
    trees: Sequence[GrownTree],
    path: Callable[[str, str], TracePath],
    advantage: Literal["leaf", "node", "tree_grpo"] = "leaf",
    prefix_weight: Literal["count", "unique"] = "count",
) -> list[dict[str, Any]]:
    """Training rows of every group with mixed outcomes, one per leaf (3.8).
    Uniform groups give none, rather than rows of zero advantage.

    ``path(tree, leaf)`` is the stored path to a leaf (``run.path`` of a store). Each row has ``prompt_ids`` and
    ``completion_ids`` (all tokens after the first sampled one, observations included), and per completion token, shape (T,):
    ``logprobs``, ``mask`` (sampled here), ``advantages`` and ``weights``.
    ``leaves`` is the size of the group, the denominator of the loss.

    ``leaf`` and ``tree_grpo`` train shared prefixes once per leaf; ``prefix_weight="unique"`` then weighs each token by one over
    the leaves below it. ``node`` trains each edge once, in the row of its first leaf, and drops rows that train nothing.
    """
    rows = []
    for tree in trees:
        if not tree.mixed:
            continue
        leaves = tree.group
        rewards = [leaf.reward for leaf in leaves]
        values = algorithm.grpo(rewards)
        if advantage == "tree_grpo":
            values = algorithm.tree_grpo(rewards, [leaf.origin for leaf in leaves])
        paths = [[place.id for place in tree.path(leaf.node)][-2::-1] for leaf in leaves]
        below: dict[str, list[float]] = {}
        for edges, value in zip(paths, values.tolist(), strict=True):
            for edge in edges:
                below.setdefault(edge, []).append(value)
        trained: set[str] = set()
        for leaf, edges, value in zip(leaves, paths, values.tolist(), strict=True):
            stored = path(tree.tree, leaf.stored)
            edge_of = _edges(stored, len(edges))
            per_edge, weight, on = np.full(len(edges), value), np.ones(len(edges)), np.ones(len(edges), bool)
            if advantage == "node":
                per_edge = np.array([algorithm.edge_advantage(below[edge]) for edge in edges])
                on = np.array([edge not in trained for edge in edges])
                trained.update(edges)
            elif prefix_weight == "unique":
                weight = np.array([1 / len(below[edge]) for edge in edges])
            start = int(np.argmax(stored.sampled))
            at, mask = edge_of[start:], stored.sampled[start:] & on[edge_of[start:]]
            if not mask.any():
                continue
            rows.append(
                {
                    "prompt_id": tree.prompt_id,
                    "tree": tree.tree,
                    "leaf": leaf.stored,
                    "leaves": len(leaves),
                    "prompt_ids": stored.tokens[:start].tolist(),
                    "completion_ids": stored.tokens[start:].tolist(),
                    "logprobs": stored.logprobs[start:].tolist(),
                    "mask": mask.tolist(),
                    "advantages": np.where(mask, per_edge[at], 0.0).tolist(),
                    "weights": np.where(mask, weight[at], 0.0).tolist(),
                }
            )
    return rows


def _edges(stored: TracePath, turns: int) -> np.ndarray:
    """Which turn each token of a stored path belongs to, shape (T,); tokens before the first turn count to it."""
    at, edges = -1, []
    for node, kept in stored.segments:
        at += node.role == "assistant" and node.opens
        edges += [max(at, 0)] * kept
    if at + 1 != turns:
        raise UserError(f"the stored path has {plural(at + 1, 'turn')} where the tree has {turns}")
    return np.array(edges, dtype=np.int64)


@dataclass(frozen=True)
class TreeReport(Result):
    """What a set of trees was worth (3.2): every number is explained on the method's page."""

    tasks: int
    mixed: float
    mixed_interval: Interval
    l1_mass: float
    all_success: int
    all_failure: int
    unscored_tasks: int
    unit: str
    budget: float
    cost: float
    leaves: int
    unscored: int
    truncated: int
    duplicates: int
    trained_per_unique: float
    abandoned: tuple[str, ...]
    entropy_kinds: tuple[str, ...]
    notes: Mapping[str, int]
    run: str = ""
    against: Against | None = None

    def sections(self) -> Iterable[Section]:
        """The numbers, and the other arm's."""
        low, high = self.mixed_interval
        shown: dict[str, Any] = {
            attribute.name: getattr(self, attribute.name) for attribute in fields(self) if attribute.name not in _APART
        }
        shown |= {"mixed": f"{self.mixed:.3f} ({low:.3f} to {high:.3f})"}
        texts = {name: ", ".join(value) if isinstance(value, tuple | dict) else value for name, value in shown.items()}
        none = "" if self.mixed else "Every group is uniform: there is nothing to train on."
        look = f"Look at them with `ramify show {shlex.quote(self.run)} --web`." if self.run else ""
        yield Section.of("", numbers({name: value for name, value in texts.items() if value != ""}), none, look)
        if self.against is not None:
            yield from self.against.sections()


_APART = {"mixed_interval", "run", "against", "caveats"}


@dataclass(frozen=True)
class Compared:
    """One number of two arms, task by task."""

    difference: float
    interval: Interval
    p: float
    p_corrected: float


@dataclass(frozen=True)
class Against:
    """Whether two arms differ (:func:`against`)."""

    other: str
    pairs: int
    unpaired: int
    costs: tuple[float, float]
    equal_cost: bool
    level: float
    compared: Mapping[str, Compared]
    differ: tuple[str, ...]
    verdict: str

    def sections(self) -> Iterable[Section]:
        """The differences and the verdict."""
        rows = [
            (name, comparison.difference, interval(comparison.interval), comparison.p_corrected)
            for name, comparison in self.compared.items()
        ]
        head = ("number", "difference", "95 % interval", "p, corrected")
        yield Section.of("", table(head, rows, f"difference to {self.other}"), self.verdict)


def report(trees: Sequence[GrownTree]) -> TreeReport:
    """The report on a set of trees. Raises UserError where there is none."""
    if not trees:
        raise UserError("there is no tree to report on")
    roots = [tree.root for tree in trees]
    mixed = sum(tree.mixed for tree in trees)
    leaves = [leaf for tree in trees for leaf in tree.leaves]
    edges = [
        (p, p.path_cost - tree.places[p.parent].path_cost) for tree in trees for p in tree.places.values() if p.parent is not None
    ]
    unique = sum(cost for place, cost in edges if place.n)
    return TreeReport(
        tasks=len(trees),
        mixed=mixed / len(trees),
        mixed_interval=wilson(mixed, len(trees)),
        l1_mass=float(np.mean([algorithm.l1_mass(root.s, root.n) for root in roots])),
        all_success=sum(0 < root.n == root.s for root in roots),
        all_failure=sum(root.n > 0 == root.s for root in roots),
        unscored_tasks=sum(root.n == 0 for root in roots),
        unit=trees[0].unit,
        budget=sum(tree.budget for tree in trees),
        cost=sum(tree.cost for tree in trees),
        leaves=len(leaves),
        unscored=sum(leaf.outcome is None or leaf.failure is not None for leaf in leaves),
        truncated=sum(leaf.truncated for leaf in leaves),
        duplicates=sum(place.duplicate for place, _ in edges),
        trained_per_unique=sum(place.n * cost for place, cost in edges) / unique if unique else 0.0,
        abandoned=tuple(tree.prompt_id for tree in trees if tree.abandoned),
        entropy_kinds=tuple(sorted({at.entropy_kind for tree in trees for at in tree.places.values() if at.samples})),
        notes=dict(Counter(note for tree in trees for note in tree.notes)),
    )


def against(
    first: Sequence[GrownTree], second: Sequence[GrownTree], level: float = LEVEL, other: str = "the other arm"
) -> Against:
    """Whether two arms differ in groups with mixed outcomes or L1 mass, task by task:
    differences with 95 % intervals, p-values corrected for both.

    Trees are paired by task, several of one task in their order; those without a partner count as ``unpaired``. Groups with mixed
    outcomes are compared by McNemar's exact test, L1 mass by permutation within pairs. Raises UserError where fewer than two
    tasks are shared or the units differ.
    """
    pairs = _pairs(first, second)
    units = {tree.unit for tree in (*first, *second)}
    if len(units) > 1:
        raise UserError(f"one arm was grown in {' and the other in '.join(sorted(units))}: their budgets cannot be equal")
    mixed = np.array([[tree.mixed for tree in pair] for pair in pairs], dtype=float)
    mass = np.array([[algorithm.l1_mass(tree.root.s, tree.root.n) for tree in pair] for pair in pairs])
    up, down = (int((mixed @ sign > 0).sum()) for sign in (np.array([1, -1]), np.array([-1, 1])))
    p = [sign_test(up, up + down), paired_permutation(mass[:, 0], mass[:, 1], samples=2000)]
    compared = {
        name: Compared(float((values[:, 0] - values[:, 1]).mean()), paired_t(values[:, 0], values[:, 1]), raw, both)
        for name, values, raw, both in zip(("mixed", "l1_mass"), (mixed, mass), p, holm(p), strict=True)
    }
    costs = (sum(pair[0].cost for pair in pairs), sum(pair[1].cost for pair in pairs))
    out = tuple(name for name, comparison in compared.items() if comparison.p_corrected <= level)
    names = {"mixed": "the share of groups with mixed outcomes", "l1_mass": "the L1 mass"}
    if out:
        sentence = " and ".join(f"{names[name]} is {'higher' if compared[name].difference > 0 else 'lower'}" for name in out)
    else:
        sentence = "nothing stands out: the arms differ in neither groups with mixed outcomes nor L1 mass by more than chance"
    return Against(
        other=other,
        pairs=len(pairs),
        unpaired=len(first) + len(second) - 2 * len(pairs),
        costs=costs,
        equal_cost=max(costs) <= (1 + UNEQUAL) * min(costs),
        level=level,
        compared=compared,
        differ=out,
        verdict=f"{sentence}, at level {level:g} over {plural(len(pairs), 'task')}",
    )


def _pairs(first: Sequence[GrownTree], second: Sequence[GrownTree]) -> list[tuple[GrownTree, GrownTree]]:
    arms: list[dict[str, list[GrownTree]]] = [defaultdict(list), defaultdict(list)]
    for arm, trees in zip(arms, (first, second), strict=True):
        for tree in trees:
            arm[tree.prompt_id].append(tree)
    shared = [task for task in arms[0] if task in arms[1]]
    if len(shared) < 2:
        missing = next((task for task in arms[1] if task not in arms[0]), "")
        near = f" (of '{missing}' {nearest(missing, arms[0])})" if missing else ""
        raise UserError(f"two arms are compared on tasks that both have, at least 2, and these share {len(shared)}{near}")
    return [pair for task in shared for pair in zip(arms[0][task], arms[1][task], strict=False)]
