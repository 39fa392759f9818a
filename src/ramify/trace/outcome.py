"""Outcomes of attempts: chooses the scorer that decides among several, and reads how attempts ended.

What an attempt is (where it began, for what, how it ended) its record says, and how it was judged the score of the scorer that
decides. Where that is who judged it when it ended, the record's outcome is the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.trace.aliases import IMPORTED
from ramify.trace.node import AttemptRecord, Score

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.path import Path

_FIRST = ("env", IMPORTED)
_PART = "score."


@dataclass(frozen=True, slots=True)
class Decider:
    """The scorer that decides how attempts ended. A score of several numbers is one scorer per part, called ``scorer.part``."""

    name: str
    scorer: str
    unit: str | None = None
    """The part's, None where the score is one number."""
    also: Decider | None = None
    """Decides at nodes that this one did not score."""

    def scores(self, run: Run, tree: str) -> dict[str, Score]:
        """Its scores in a tree, by node."""
        scores = run.scores(tree=tree, scorer=self.scorer)
        deciding = {v.node: v for v in scores if (not v.unit.startswith(_PART) if self.unit is None else v.unit == self.unit)}
        return deciding if self.also is None else {**self.also.scores(run, tree), **deciding}


#: Decides nothing.
NOBODY = Decider("", "")


def decider(run: Run, wanted: str | None = None) -> Decider | None:
    """The deciding scorer: ``wanted``, else the environment, else the imported reward, else the only scorer there is. Where
    attempts that were imported are continued in an environment, the imported rewards decide of those that it did not see.

    Metrics and grades that are not rewards decide only where they are named. None in a run without any scorer. Raises UserError
    where there is not a scorer ``wanted``, or where several could decide."""
    known, able = _scorers(run)
    if wanted is not None:
        if wanted not in known:
            raise UserError(f"{run.folder} has no score of scorer '{wanted}' ({nearest(wanted, known)})")
        return known[wanted]
    if len(able) > 1:
        raise UserError(f"{run.folder} has scores of several scorers: choose one with --scorer ({', '.join(sorted(able))})")
    if able and able[0] == _FIRST[0] and _FIRST[1] in known:
        return replace(known[able[0]], also=known[_FIRST[1]])
    return known[able[0]] if able else None


def undecided(run: Run) -> list[str]:
    """The scorers that could decide where several could; none where it is clear."""
    able = _scorers(run)[1]
    return sorted(able) if len(able) > 1 else []


def settled(run: Run, wanted: str | None = None) -> Decider:
    """:func:`decider`, or :data:`NOBODY` where there is none or it is not clear.
    Raises UserError where there is no scorer ``wanted``."""
    return (None if wanted is None and undecided(run) else decider(run, wanted)) or NOBODY


def _scorers(run: Run) -> tuple[dict[str, Decider], list[str]]:
    """Every scorer by name, and the names of those that decide unless another is wanted:
    one, several where it is not clear, or none."""
    known: dict[str, Decider] = {}
    able: dict[str, bool] = {}
    for scorer, unit, scored in run.scorers():
        part = unit.startswith(_PART)
        name = f"{scorer}.{unit.removeprefix(_PART)}" if part else scorer
        known[name] = Decider(name, scorer, unit if part else None)
        if is_reward(unit):
            able[name] = scored or able.get(name, False)
    first = next((name for name in _FIRST if name in able), None)
    if first is not None:
        return known, [first]
    return known, [name for name, scored in able.items() if scored] or list(able)


def is_reward(unit: str) -> bool:
    """Whether a score of this unit may decide how an attempt ended; metrics and other grades do so only where they are named."""
    return unit in ("reward", "score") or unit.startswith(_PART)


@dataclass(frozen=True, slots=True)
class Ending:
    """How what ends at a node ended: its record and its score, either of which may be missing."""

    node: str
    record: AttemptRecord | None
    score: Score | None

    @property
    def success(self) -> bool | None:
        """See :func:`succeeded`."""
        return succeeded(self.record, self.score)

    @property
    def fork(self) -> bool:
        """Whether it is a fork, not an attempt (:attr:`ramify.trace.node.AttemptRecord.fork`)."""
        return self.record is not None and self.record.fork


def ended(run: Run, tree: str, deciding: Decider) -> list[Ending]:
    """How everything in a tree ended that ``deciding`` scored, or that a failure kept from being scored; where it scored nothing
    there, of every attempt on record. In order of the nodes' ids. Empty in a tree without scores and records, whose leaves are
    the ends."""
    records = by_leaf(run.attempts(tree))
    scores = deciding.scores(run, tree)
    if not scores:
        nodes = set(records)
    elif deciding.name in ("", *_FIRST):
        nodes = {*scores, *(leaf for leaf, record in records.items() if record.failure is not None)}
    else:
        nodes = set(scores)
    return [Ending(node, records.get(node), scores.get(node)) for node in sorted(nodes)]


def by_leaf(records: Iterable[AttemptRecord]) -> dict[str, AttemptRecord]:
    """Records by the node at which they end. Of several that end at one, as where every try failed at once, the last that did not
    fail, else the last."""
    deciding: dict[str, AttemptRecord] = {}
    for record in records:
        if record.failure is None or record.leaf not in deciding:
            deciding[record.leaf] = record
    return deciding


def succeeded(record: AttemptRecord | None, score: Score | None) -> bool | None:
    """Whether an attempt succeeded: by a score of another scorer than who judged it when it ended, else by its record, else
    whether its score is above 0. None where a failure ended it and where nobody said."""
    if record is not None:
        if record.failure is not None:
            return None
        if (score is None or score.scorer in _FIRST) and record.success is not None:
            return record.success
    return None if score is None or score.value is None else score.value > 0


def paid(path: Path) -> float | None:
    """The sum of the rewards along the path; None without any."""
    rewards = [node.reward for node, _ in path.segments if node.reward is not None]
    return sum(rewards) if rewards else None


def successes(run: Run, deciding: Decider) -> Iterator[tuple[bool, bool | None]]:
    """:func:`successes_in` every tree of a run."""
    failed = {node.id for node in run.failed()}
    for info in run.trees():
        yield from successes_in(run, info.name, deciding, failed)


def successes_in(run: Run, tree: str, deciding: Decider, failed: Collection[str]) -> Iterator[tuple[bool, bool | None]]:
    """Of each attempt and fork of a tree: whether it is a fork, and whether it succeeded, by its record and score or by the
    rewards along it; None where nobody said, and where a failure ended it. ``failed``: the run's nodes at which one did."""
    ends = ended(run, tree, deciding)
    if ends:
        yield from ((end.fork, None if end.node in failed else end.success) for end in ends)
    elif not np.isnan(run.columns(["reward"], tree=tree)["reward"]).all():
        whole = run.tree(tree)
        for leaf in whole.leaves():
            reward = None if leaf.id in failed else paid(whole.path(leaf.id))
            yield False, None if reward is None else reward > 0


def cut_short(record: AttemptRecord | None, stop: str) -> bool:
    """Whether a limit ended the attempt, as its record says, else as its last node's ``stop`` does."""
    return stop == "truncated" if record is None else record.truncated
