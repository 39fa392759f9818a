"""Who says how the attempts of a run ended, and what was said: the one place that chooses among several scorers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.trace.aliases import IMPORTED
from ramify.trace.node import Score

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.path import Path

_FIRST = ("env", IMPORTED)
_PART = "score."


@dataclass(frozen=True, slots=True)
class Decider:
    """The scorer whose verdicts say how attempts ended. A score of several numbers is one a part, called ``scorer.part``."""

    name: str
    scorer: str
    unit: str | None = None
    """The part's, None where the score is one number."""

    def scores(self, run: Run, tree: str) -> dict[str, Score]:
        """Its verdicts in a tree, by node."""
        found = run.scores(tree=tree, scorer=self.scorer)
        return {v.node: v for v in found if (not v.unit.startswith(_PART) if self.unit is None else v.unit == self.unit)}


#: Decides nothing.
NOBODY = Decider("", "")


def decider(run: Run, wanted: str | None = None) -> Decider | None:
    """Who decides: the scorer ``wanted``, else the environment, else the reward that was imported, else the only scorer there is.

    Metrics and grades that are no rewards decide only where they are wanted. None in a run without any scorer. Raises UserError where
    nobody is called ``wanted``, or where several could decide.
    """
    known, able = _scorers(run)
    if wanted is not None:
        if wanted not in known:
            raise UserError(f"{run.folder} has no verdict of scorer '{wanted}' ({nearest(wanted, known)})")
        return known[wanted]
    if len(able) > 1:
        raise UserError(f"{run.folder} has verdicts of several scorers: choose one with --scorer ({', '.join(sorted(able))})")
    return known[able[0]] if able else None


def undecided(run: Run) -> list[str]:
    """The scorers that could decide where several could; none where it is clear."""
    able = _scorers(run)[1]
    return sorted(able) if len(able) > 1 else []


def settled(run: Run, wanted: str | None = None) -> Decider:
    """:func:`decider`, or :data:`NOBODY` where there is none or it is not clear. Raises UserError where nobody is called ``wanted``."""
    return (None if wanted is None and undecided(run) else decider(run, wanted)) or NOBODY


def _scorers(run: Run) -> tuple[dict[str, Decider], list[str]]:
    """Every scorer by name, and the names of those that decide unless another is wanted: one, several where it is not clear, or none."""
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
    """Whether a verdict of this unit may say how an attempt ended; metrics and grades of other kinds do only where they are wanted."""
    return unit in ("reward", "score") or unit.startswith(_PART)


def succeeded(score: Score | None) -> bool | None:
    """Whether the attempt succeeded: what was said of it, else whether its reward is above 0; None where nobody said."""
    if score is None or score.value is None:
        return None
    outcome = score.evidence.get("outcome") if isinstance(score.evidence, Mapping) else None
    return outcome if isinstance(outcome, bool) else score.value > 0


def paid(path: Path) -> float | None:
    """The sum of the rewards on the way; None where none was paid."""
    rewards = [node.reward for node, _ in path.segments if node.reward is not None]
    return sum(rewards) if rewards else None


def successes(run: Run, deciding: Decider) -> Iterator[bool | None]:
    """Whether each attempt of a run succeeded, by a verdict or by the rewards on its way; None where nobody said."""
    for info in run.trees():
        scores = deciding.scores(run, info.name)
        if scores:
            yield from map(succeeded, scores.values())
        elif not np.isnan(run.columns(["reward"], tree=info.name)["reward"]).all():
            tree = run.tree(info.name)
            for reward in (paid(tree.path(leaf.id)) for leaf in tree.leaves()):
                yield None if reward is None else reward > 0


def cut_short(score: Score | None, stop: str) -> bool:
    """Whether a limit ended the attempt, as its verdict says, else as its last node's ``stop`` does."""
    evidence = score.evidence if score is not None and isinstance(score.evidence, Mapping) else {}
    return bool(evidence.get("truncated", stop == "truncated"))
