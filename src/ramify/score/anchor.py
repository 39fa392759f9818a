"""An anchor: items whose right judgement is known. What any judge is worth on it, and whether one is better than another.

An item is a text with a label, an attempt in a run that somebody else has judged, or a pair of texts of which one is better. What
a judge does not answer is missing: it counts neither as right nor as wrong, and it is said how much is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import verdicts
from ramify.base.budget import Budget
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.ledger import Ledger
from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.score.judge import Item, Judge, judged
from ramify.stats.intervals import Interval, Proportion, difference_of_proportions, paired_proportions
from ramify.stats.tests import fisher, sign_test
from ramify.trace.db import Run
from ramify.trace.lines import at_place, field, read_lines
from ramify.trace.outcome import decider, ended
from ramify.trace.sources import run_folder

PAIR = "First:\n{0}\n\nSecond:\n{1}"
"""How a pair is shown to a judge, which says whether the first is better."""
SHORT = 20
"""Artefacts of fewer characters, without spaces, occur anywhere: they are not looked for."""
SHUFFLES = 2000
GROUPS = ("machine", "human")
"""Groups whose acceptance is compared where an anchor names them."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """An item of an anchor."""

    item: Item
    label: bool
    """What a judge should say: yes or no; of a pair whether the first is better."""
    group: str = ""
    """Who made it (``human``, ``machine``), where it is known."""
    other: str = ""
    """Of a pair the text that is shown in the other order."""
    pair: tuple[str, ...] = ()
    """Of a pair its two texts."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Labelled items, and a hash of them."""

    items: tuple[Labelled, ...]
    name: str = "anchor"

    @property
    def labels(self) -> np.ndarray:
        """(n,) bool."""
        return np.array([labelled.label for labelled in self.items], bool)

    @property
    def hash(self) -> str:
        """Stable hash of every item with its label, in any order."""
        return stable_hash(
            "anchor", *sorted(stable_hash(i.item.id, i.item.text, i.item.prompt, i.other, str(i.label)) for i in self.items)
        )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def first_half(self) -> np.ndarray:
        """(n,) bool: the half that a judge is chosen on, the other confirms it;
        by a hash of each item's id, so that it never changes."""
        order = sorted(range(len(self)), key=lambda i: stable_hash("half", self.items[i].item.id))
        return np.isin(np.arange(len(self)), order[: len(self) // 2])

    def joined(self, more: Sequence[Labelled]) -> Anchor:
        """This anchor with further items."""
        return Anchor((*self.items, *more), self.name)


def read_anchor(source: Path, truth: str | None = None) -> Anchor:
    """The anchor in a file of JSON lines, or the attempts of a run with the scores of ``truth`` (default:
    who decides there) as labels, without those whose last reply was cut by its limit of tokens.

    A line is ``{id, artefact, label}`` with optional ``prompt``, ``group`` and ``data``; ``artefacts: [first, second]`` instead
    of ``artefact`` is a pair. ``label`` is true, false, 1 or 0. Raises UserError naming line and field on anything else, on an id
    that is there twice, and on an anchor without both labels.
    """
    folder = run_folder(source)
    if folder is not None:
        items = _attempts(folder, truth)
    elif truth is not None:
        raise UserError(f"{source} is not a run, so no scorer '{truth}' can have labelled it")
    else:
        items = [_labelled(record, f"{source}:{number}") for number, record in read_lines(source)]
    twice = [name for name, times in Counter(labelled.item.id for labelled in items).items() if times > 1]
    if twice:
        raise UserError(
            f"{source}: the id '{twice[0]}' stands for {len([i for i in items if i.item.id == twice[0]])} items of the anchor"
        )
    if {labelled.label for labelled in items} != {True, False}:
        what = f"all {len(items)} items are labelled {items[0].label}" if items else "it holds no item"
        raise UserError(f"{source} is not an anchor: {what}, and both labels are needed")
    return Anchor(tuple(items), str(source))


def _labelled(record: Mapping[str, Any], where: str) -> Labelled:
    with at_place(where):
        row = dict(record)
        name = str(field(row, "id", (str, int), where))
        label = field(row, "label", (bool, int, float), where)
        if label not in (0, 1):
            raise UserError(f"{where}: 'label' must be true or false, not {label!r:.40}")
        shared = {"prompt": field(row, "prompt", str, where, ""), "data": field(row, "data", dict, where, {})}
        group = field(row, "group", str, where, "")
        if "artefacts" not in row:
            return Labelled(Item(field(row, "artefact", str, where), name, **shared), bool(label), group)
        pair = field(row, "artefacts", list, where)
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise UserError(f"{where}: 'artefacts' must be two texts")
        return Labelled(Item(PAIR.format(*pair), name, **shared), bool(label), group, PAIR.format(*reversed(pair)), tuple(pair))


def _attempts(folder: Path, truth: str | None) -> list[Labelled]:
    attempts = []
    with Run.open(folder) as run:
        deciding = decider(run, truth)
        if deciding is None:
            raise UserError(f"{folder} has no score that could label its attempts: import outcomes, or name an anchor file")
        for info in run.trees():
            for end in ended(run, info.name, deciding):
                outcome = None if end.score is None else end.success
                path = run.path(end.node)
                if outcome is not None and path.cut:
                    verdicts.left_open(end.node)
                elif outcome is not None:
                    group = path.segments[-1][0].data.get("group", "")
                    item = replace(
                        Item.of(path, Task(str(info.task.get("id", info.name)), dict(info.task.get("data") or {}))), id=end.node
                    )
                    attempts.append(Labelled(item, outcome, str(group)))
    return attempts


def leaks(anchor: Anchor, texts: Mapping[str, str]) -> tuple[str, str] | None:
    """(item's id, name of the text) of an anchor's item that stands in one of ``texts``,
    up to case and spaces; None where none does."""
    plain = {name: _plain(text) for name, text in texts.items()}
    for labelled in anchor.items:
        for artefact in map(_plain, labelled.pair or (labelled.item.text,)):
            name = next((name for name, text in plain.items() if len(artefact) >= SHORT and artefact in text), None)
            if name is not None:
                return labelled.item.id, name
    return None


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()


@dataclass(frozen=True, slots=True)
class Answers:
    """What a judge said of an anchor's items, in order."""

    judge: str
    identity: str
    final: tuple[bool | None, ...]
    votes: tuple[tuple[bool | None, ...], ...]
    """Of each item every answer, where it was asked several times."""
    swapped: tuple[bool | None, ...]
    """Of each pair, shown in the other order, whether the one that is first in the anchor is better; None of other items."""
    failures: Mapping[str, str]
    """Why an item has no answer, by id."""
    order: tuple[bool | None, ...] = ()
    """Of each pair the answer in its first order alone."""

    @property
    def values(self) -> np.ndarray:
        """(n,) 1 yes, 0 no, nan missing."""
        return np.array([np.nan if accepted is None else float(accepted) for accepted in self.final])


async def answers(
    judge: Judge, anchor: Anchor, repeats: int = 1, ledger: Ledger | None = None, budget: Budget | None = None, tries: int = 2
) -> Answers:
    """Ask ``judge`` about every item, ``repeats`` times (the majority counts, a tie is missing), of pairs in both orders.

    An answer that is neither yes nor no is asked for again, ``tries`` times in all, and then missing. A pair whose two orders
    contradict each other is missing too: the judge does not know.
    """
    votes: list[tuple[bool | None, ...]] = []
    failures: dict[str, str] = {}

    async def ask(items: Sequence[Item]) -> list[bool | None]:
        accepted: list[bool | None] = [None] * len(items)
        left = list(range(len(items)))
        for _ in range(tries):
            again = []
            for at, judgement in zip(left, await judged(judge, [items[i] for i in left], ledger, budget), strict=True):
                if judgement.value in (0, 1):
                    accepted[at] = bool(judgement.value)
                    failures.pop(items[at].id, None)
                else:
                    value = judgement.value
                    said = "it gave no answer" if value is None else f"it gave {value:g}, where only yes and no count"
                    failures[items[at].id] = judgement.failure or said
                    again.append(at)
            left = again
            if not left:
                break
        return accepted

    items = [labelled.item for labelled in anchor.items]
    rounds = [await ask(items) for _ in range(repeats)]
    votes = [tuple(row) for row in zip(*rounds, strict=True)] if items else []
    final = [_majority(row) for row in votes]
    order: list[bool | None] = [None] * len(items)
    swapped: list[bool | None] = [None] * len(items)
    pairs = [i for i, labelled in enumerate(anchor.items) if labelled.other]
    if pairs:
        turned = [await ask([replace(items[i], text=anchor.items[i].other) for i in pairs]) for _ in range(repeats)]
        for at, row_turned in zip(pairs, zip(*turned, strict=True), strict=True):
            back = _majority(row_turned)
            order[at], swapped[at] = final[at], None if back is None else not back
            if final[at] != swapped[at]:
                final[at] = None
                failures.setdefault(items[at].id, "its answer follows the order in which the two are shown")
    failures = {name: why for name, why in failures.items() if final[[i.id for i in items].index(name)] is None}
    return Answers(judge.name, judge.identity, tuple(final), tuple(votes), tuple(swapped), failures, tuple(order))


def _majority(votes: Sequence[bool | None]) -> bool | None:
    yes, no = votes.count(True), votes.count(False)
    return None if yes == no else yes > no


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Chance that of two items with the same label the accepted one is the longer: one half where length does not matter."""

    value: float
    p: float
    n: int


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Of pairs shown in both orders: how many were answered alike, and how often the first or the second place won both times."""

    consistent: Proportion | None
    first: int
    second: int
    p: float


@dataclass(frozen=True, slots=True)
class Parity:
    """Acceptance of what machines made over that of what people made; its interval is Katz's (log ratio), p Fisher's."""

    ratio: float | None
    interval: Interval | None
    difference: float
    difference_interval: Interval
    p: float


@dataclass(frozen=True, slots=True)
class JudgeQuality:
    """What a judge is worth on an anchor."""

    judge: str
    identity: str
    items: int
    missing: int
    accuracy: Proportion | None
    sensitivity: Proportion | None
    """Of items labelled yes those that it accepts."""
    specificity: Proportion | None
    """Of items labelled no those that it refuses."""
    balanced: float | None
    """Mean of both; None without one of them."""
    length: LengthBias | None
    position: PositionBias | None
    groups: Mapping[str, Proportion | None]
    """Of each group what it accepts."""
    parity: Parity | None
    unsteady: int
    """Items that it answered in two ways."""
    failures: Mapping[str, str]
    """Why the first few missing items have no answer, by id."""


def quality(anchor: Anchor, answered: Answers) -> JudgeQuality:
    """What a judge is worth on an anchor: accuracy, each class alone, what is missing,
    and its leaning to length, place and maker."""
    label = np.array([labelled.label for labelled in anchor.items])
    there = np.array([accepted is not None for accepted in answered.final])
    accepted = np.array([bool(answer) for answer in answered.final])
    right = accepted == label
    yes, no = (
        Proportion.of(int(right[there & (label == side)].sum()), int((there & (label == side)).sum())) for side in (True, False)
    )
    groups = {}
    for group in sorted({labelled.group for labelled in anchor.items if labelled.group}):
        members = there & np.array([labelled.group == group for labelled in anchor.items])
        groups[group] = Proportion.of(int(accepted[members].sum()), int(members.sum()))
    return JudgeQuality(
        judge=answered.judge,
        identity=answered.identity,
        items=len(anchor),
        missing=int((~there).sum()),
        accuracy=Proportion.of(int(right[there].sum()), int(there.sum())),
        sensitivity=yes,
        specificity=no,
        balanced=float(np.mean([yes.value, no.value])) if yes and no else None,
        length=length_bias(anchor, answered),
        position=position_bias(answered),
        groups=groups,
        parity=parity(groups),
        unsteady=sum(len({vote for vote in votes if vote is not None}) > 1 for votes in answered.votes),
        failures=dict(list(answered.failures.items())[:5]),
    )


def parity(groups: Mapping[str, Proportion | None]) -> Parity | None:
    """Acceptance of what machines made over that of what people made; None where one is missing."""
    machine, human = (groups.get(name) for name in GROUPS)
    if not machine or not human:
        return None
    k1, n1, k2, n2 = machine.k, machine.n, human.k, human.n
    interval = None
    if k1 and k2:
        middle, half = math.log(k1 * n2 / (n1 * k2)), 1.959964 * math.sqrt(1 / k1 - 1 / n1 + 1 / k2 - 1 / n2)
        interval = math.exp(middle - half), math.exp(middle + half)
    return Parity(
        ratio=(k1 / n1) / (k2 / n2) if k2 else None,
        interval=interval,
        difference=k1 / n1 - k2 / n2,
        difference_interval=difference_of_proportions(k1, n1, k2, n2),
        p=fisher(k1, n1, k2, n2),
    )


def length_bias(anchor: Anchor, answered: Answers) -> LengthBias | None:
    """Chance that of two items with the same label the accepted one is the longer (one half:
    length does not matter), and its p-value.

    The p-value shuffles what the judge said within each label, so that longer items being better is not a bias. None where no
    label has both an accepted and a rejected item, or all are pairs."""
    rows = [
        (labelled.label, len(labelled.item.text), accepted)
        for labelled, accepted in zip(anchor.items, answered.final, strict=True)
        if accepted is not None and not labelled.other
    ]
    if not rows:
        return None
    label, length, accepted = (np.array(column) for column in zip(*rows, strict=True))
    rng = generator(0, "length bias")
    won, pairs, sampled = 0.0, 0.0, np.zeros(SHUFFLES)
    for side in (True, False):
        alike = label == side
        yes, n = int(accepted[alike].sum()), int(alike.sum())
        if not 0 < yes < n:
            continue
        from scipy.stats import rankdata

        ranks = rankdata(length[alike])
        pairs += yes * (n - yes)
        least = yes * (yes + 1) / 2
        won += float(ranks[accepted[alike]].sum()) - least
        sampled += np.array([rng.permutation(ranks)[:yes].sum() for _ in range(SHUFFLES)]) - least
    if not pairs:
        return None
    off, others = abs(won / pairs - 0.5), np.abs(sampled / pairs - 0.5)
    return LengthBias(won / pairs, float((1 + (others >= off - 1e-12).sum()) / (1 + SHUFFLES)), len(rows))


def position_bias(answered: Answers) -> PositionBias | None:
    """Of pairs that were shown in both orders: the share answered alike,
    and whether the first or the second place is preferred; None without pairs."""
    both = [(a, b) for a, b in zip(answered.order, answered.swapped, strict=True) if a is not None and b is not None]
    if not both:
        return None
    first = sum(a and not b for a, b in both)
    second = sum(b and not a for a, b in both)
    return PositionBias(Proportion.of(len(both) - first - second, len(both)), first, second, sign_test(first, first + second))


def needed(level: float) -> int:
    """Items that one judge must have right and the other wrong, at least,
    for the paired test to reach ``level``: log2(1 / level)."""
    return max(1, math.ceil(-math.log2(level) - 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """A challenger and the incumbent on the ``n`` items that both answered."""

    n: int
    better: int
    """Items that the challenger alone has right."""
    worse: int
    """Items that the incumbent alone has right."""
    difference: float | None
    interval: Interval | None
    balanced: float | None
    """Difference of balanced accuracies: one that gains by answering what most items are labelled does not gain here."""
    p: float
    level: float
    needed: int
    possible: int
    """Items that the incumbent has wrong: where that is less than ``needed`` no challenger can pass."""


def compare(label: np.ndarray, incumbent: np.ndarray, challenger: np.ndarray, level: float) -> PairedComparison:
    """Whether ``challenger`` is better than ``incumbent`` on the same items: exact one-sided McNemar's test at ``level``.

    All (n,): labels of 0 and 1, and :attr:`Answers.values`; items that one of them did not answer are left out.
    """
    there = np.isfinite(incumbent) & np.isfinite(challenger)
    truth = label[there].astype(bool)
    old, new = incumbent[there].astype(bool) == truth, challenger[there].astype(bool) == truth
    better, worse = int((new & ~old).sum()), int((old & ~new).sum())
    sides = [float(new[truth == side].mean() - old[truth == side].mean()) for side in (True, False) if (truth == side).any()]
    return PairedComparison(
        n=len(truth),
        better=better,
        worse=worse,
        difference=float(new.mean() - old.mean()) if len(truth) else None,
        interval=paired_proportions(new, old) if len(truth) else None,
        balanced=float(np.mean(sides)) if len(sides) == 2 else None,
        p=one_sided(better, worse),
        level=level,
        needed=needed(level),
        possible=int((~old).sum()),
    )


def one_sided(better: int, worse: int) -> float:
    """Exact p-value of at least ``better`` of better + worse pairs, where either way is as likely; 1 of none."""
    from scipy.special import bdtrc

    n = better + worse
    return float(bdtrc(better - 1, n, 0.5)) if better else 1.0
