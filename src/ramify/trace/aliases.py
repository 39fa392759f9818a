"""Field names that other tools use for task, attempt and outcome: one table for all readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ramify.base.errors import UserError, nearest
from ramify.trace.lines import field
from ramify.trace.node import Score

#: Scorer name of an imported reward that has no name.
IMPORTED = "imported"

#: Meaning -> the fields that may hold it; the first that is present and not null counts.
ALIASES: dict[str, tuple[str, ...]] = {
    "task": ("task_id", "problem_id", "question_id", "example_id", "instance_id", "sample_id", "prompt_id", "task", "id"),
    "attempt": ("attempt_id", "attempt", "trial", "epoch", "rollout_id", "trajectory_id", "episode_id", "session_id", "session"),
    "reward": ("reward", "score", "final_reward", "total_reward", "return"),
    "success": ("success", "correct", "passed", "solved", "resolved", "is_correct"),
}
#: Often the id of a record, not of a task: counts only where a record is a whole conversation and nothing else names its task.
_RECORD_ID = "id"


class Found(NamedTuple):
    """A field of a record: its name and value."""

    name: str
    value: Any


class Judged(NamedTuple):
    """The outcome of a record's attempt."""

    scores: Mapping[str, float | None]
    """By scorer; :data:`IMPORTED` where the score has no name."""
    success: bool | None
    names: frozenset[str]
    """The fields that hold it."""

    def as_scores(self, node: str) -> Iterator[Score]:
        """As scores of the attempt's last node."""
        evidence = None if self.success is None else {"outcome": self.success}
        for scorer, value in self.scores.items():
            yield Score(node, scorer, value, evidence=evidence if scorer == IMPORTED else None)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields named by the user for task and reward; where none is named, the first of :data:`ALIASES` that is present.

    ``metadata.task`` names a field inside another.
    """

    task: str | None = None
    reward: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """What the user named: "task" or "reward" -> field."""
        return {what: name for what, name in (("task", self.task), ("reward", self.reward)) if name is not None}

    def task_of(self, record: Mapping[str, Any], place: str, *, record_id: bool = True) -> Found | None:
        """The task a record is of, text or an integer; None where it names none. ``record_id``: ``id`` counts, too.

        Raises UserError naming ``place`` and field.
        """
        found = self._found(record, "task", place, () if record_id else (_RECORD_ID,))
        return None if found is None else _checked(found, place)

    def attempt_of(self, record: Mapping[str, Any], place: str) -> Found | None:
        """The attempt a record is of, text or an integer; None where it names none."""
        found = self._found(record, "attempt", place)
        return None if found is None else _checked(found, place)

    def judged(self, record: Mapping[str, Any], place: str) -> Judged:
        """How the attempt ended: a number, numbers by name, or whether it succeeded. Raises UserError naming ``place`` and field.

        ``reward``, ``success`` and a field that the user named must be valid;
        other names may mean something else and are then ignored.
        """
        strict = {"reward", "success", self.reward}
        scores: dict[str, float | None] = {}
        names = set()
        found = self._found(record, "reward", place, fits=lambda name, value: name in strict or _is_score(value))
        if found is not None:
            names.add(found.name)
            scores = _scores(found, place)
        flag = self._found(record, "success", place, fits=lambda name, value: name in strict or _is_success(value))
        success = None
        if flag is not None:
            if not _is_success(flag.value):
                raise UserError(f"{place}: '{flag.name}' must be true or false")
            names.add(flag.name)
            success = bool(flag.value)
            scores.setdefault(IMPORTED, float(success))
        return Judged(scores, success, frozenset(names))

    def _found(
        self,
        record: Mapping[str, Any],
        what: str,
        place: str,
        skipped: tuple[str, ...] = (),
        fits: Callable[[str, Any], bool] = lambda name, value: True,
    ) -> Found | None:
        named = self.named.get(what)
        if named is not None:
            return Found(named, _inside(record, named, what, place))
        for name in ALIASES[what]:
            value = record.get(name)
            if value is not None and name not in skipped and fits(name, value):
                return Found(name, value)
        return None


#: Nothing named by the user.
KNOWN = Fields()


def required(found: Found | None, record: Mapping[str, Any], what: str, place: str) -> Found:
    """``found``. Raises UserError naming the first name of ``what`` where it is None."""
    if found is None:
        field(dict(record), ALIASES[what][0], (str, int), place)
    assert found is not None
    return found


def name_in(record: Mapping[str, Any], what: str) -> str | None:
    """The first field of ``record`` for ``what``, a null one only where all are null; None where there is none."""
    there = [name for name in ALIASES[what] if name in record]
    return next((name for name in there if record[name] is not None), there[0] if there else None)


def _inside(record: Mapping[str, Any], name: str, what: str, place: str) -> Any:
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = nearest(part, map(str, value)) if isinstance(value, Mapping) else "it is no object"
            raise UserError(f"{place}: there is no field '{name}', which --{what}-field names ({known})")
        value = value[part]
    return value


def _checked(found: Found, place: str) -> Found:
    field({found.name: found.value}, found.name, (str, int), place)
    return found


def _is_score(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(number is None or isinstance(number, (bool, int, float)) for number in value.values())
    return isinstance(value, (bool, int, float))


def _is_success(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1))


def _scores(found: Found, place: str) -> dict[str, float | None]:
    if found.value is None:
        return {}
    if not _is_score(found.value):
        raise UserError(f"{place}: '{found.name}' must be a number, or an object with numbers by name")
    if isinstance(found.value, Mapping):
        return {str(name): None if value is None else _number(value) for name, value in found.value.items()}
    return {IMPORTED: _number(found.value)}


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
