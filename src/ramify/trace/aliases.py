"""Field names that other tools use for task, attempt and outcome: one table for all readers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
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
    "answer": ("ground_truth", "reference_answer", "expected_answer", "correct_answer", "gold_answer"),
}
#: Fields in which other tools say what ended an attempt that was not the model's doing, at the top of a record or in one of
#: ``INSIDE``. Nothing, false, 0 and an object without text say that there was none.
FAILURES = ("error", "errors", "exception", "exception_info", "error_message", "error_info", "infrastructure_error", "failure")
#: Fields with a word for how an attempt ended (tau2-bench, verifiers, SWE-agent, Harbor), at the same places.
ENDINGS = ("termination_reason", "stop_condition", "exit_status", "end_reason", "stop_reason", "finish_reason", "status")
INSIDE = ("info", "metadata", "result", "state")
#: Objects that hold the outcome alone.
_OUTCOMES = ("reward_info", "verifier_result")
#: Whose fault an ending is, by its letters. A limit that the model ran into counts as the model's: the attempt counts, and is cut
#: short. tau2-bench ends an attempt by ``too_many_errors`` after so many wrong calls of tools, and by ``agent_error`` where the
#: agent's message is none: both are the agent's.
_AGENTS = re.compile(r"agent_?error|format|parse|invalid|assert|tool_?(call)?_?error")
_LIMITS = re.compile(
    r"max|limit|length|context|cost|budget|time_?out|timed_?out|time_?(limit|exceeded)|execution_time|deadline|truncat|too_?many|too_?long|over_?long"
)
_OTHERS = re.compile(
    r"rate_?limit|infra|environment|verifier|network|connect|server|provider|docker|sandbox|api|user_?error|crash"
)
_FAULT = re.compile(r"error|exception|fail|infra|crash|unavailable|rate_?limit|exit_api")
#: Of a field of :data:`FAILURES`, which names what was raised, only these are the model's.
_RAISED = re.compile(
    r"agent_?timeout|max_?(steps|turns|iterations|tokens)|(?<!rate)_?limits?_?exceeded|context_?(window|length)|over_?long|"
    r"too_?many_?(steps|turns)|graph_?recursion"
)
#: Fields of a record that say nothing of what was said or done: they are kept, and need no word.
RECORD = frozenset(
    (
        *(
            "id",
            "uuid",
            "name",
            "model",
            "timestamp",
            "created",
            "created_at",
            "usage",
            "tools",
            "functions",
            "tool_choice",
            "split",
        ),
        *(
            "trial",
            "seed",
            "turns",
            "index",
            "start_time",
            "end_time",
            "started_at",
            "finished_at",
            "duration",
            "cost",
            "version",
        ),
        *(*FAILURES, *ENDINGS, *_OUTCOMES),
    )
)
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
    failure: str | None = None
    """What ended the attempt that was not the model's doing; None where nothing did. Its scores are then no outcome."""
    cut: bool = False
    """Whether a limit ended it."""

    @property
    def stop(self) -> str:
        """Why its last node ended, as far as this says it."""
        return "failed" if self.failure is not None else "truncated" if self.cut else ""

    def as_scores(self, node: str) -> Iterator[Score]:
        """As scores of the attempt's last node. Those of a failed attempt have no value: it was not judged."""
        for scorer, value in self.scores.items():
            if self.failure is None:
                yield Score(node, scorer, value)
            elif value is not None:
                yield Score(node, scorer, None, evidence={"reported": value})


#: Nothing is said of an outcome.
NOTHING = Judged({}, None, frozenset())


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields named by the user for task, reward and the task's right answer; where none is named, the first of :data:`ALIASES`
    that is present. A field ``answer`` has to be named: in many logs it is what the model said.

    ``metadata.task`` names a field inside another.
    """

    task: str | None = None
    reward: str | None = None
    answer: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """What the user named: "task", "reward" or "answer" -> field."""
        named = {"task": self.task, "reward": self.reward, "answer": self.answer}
        return {what: name for what, name in named.items() if name is not None}

    def task_of(self, record: Mapping[str, Any], place: str, *, record_id: bool = True) -> Found | None:
        """The task a record is of, text or an integer; None where it names none. ``record_id``: ``id`` counts, too.

        Raises UserError naming ``place`` and field.
        """
        named = self._first_of(record, "task", place, () if record_id else (_RECORD_ID,))
        return None if named is None else _checked(named, place)

    def attempt_of(self, record: Mapping[str, Any], place: str) -> Found | None:
        """The attempt a record is of, text or an integer; None where it names none."""
        named = self._first_of(record, "attempt", place)
        return None if named is None else _checked(named, place)

    def answer_of(self, record: Mapping[str, Any], place: str) -> Found | None:
        """The right answer of a record's task, any JSON; None where it names none."""
        return self._first_of(record, "answer", place)

    def judged(self, record: Mapping[str, Any], place: str) -> Judged:
        """How the attempt ended: a number, numbers by name, or whether it succeeded. Raises UserError naming ``place`` and field.

        ``reward``, ``success`` and a field that the user named must be valid;
        other names may mean something else and are then ignored.
        """
        strict = {"reward", "success", self.reward}
        scores: dict[str, float | None] = {}
        names = set()
        scored = self._first_of(record, "reward", place, fits=lambda name, value: name in strict or _is_score(value))
        if scored is None:
            scored = next((Found(name, value) for name in _OUTCOMES if (value := _outcome(record.get(name))) is not None), None)
        if scored is not None:
            names.add(scored.name)
            scores = _scores(scored, place)
        flag = self._first_of(record, "success", place, fits=lambda name, value: name in strict or _is_success(value))
        success = None
        if flag is not None:
            if not _is_success(flag.value):
                raise UserError(f"{place}: '{flag.name}' must be true or false")
            names.add(flag.name)
            success = bool(flag.value)
            scores.setdefault(IMPORTED, float(success))
        return Judged(scores, success, frozenset(names), *_ended(record, names))

    def _first_of(
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


def required(field_read: Found | None, record: Mapping[str, Any], what: str, place: str) -> Found:
    """``field_read``. Raises UserError naming the first name of ``what`` where it is None."""
    if field_read is None:
        field(dict(record), ALIASES[what][0], (str, int), place)
    assert field_read is not None
    return field_read


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
            known = nearest(part, map(str, value)) if isinstance(value, Mapping) else "it is not an object"
            raise UserError(f"{place}: there is no field '{name}', which --{what}-field names ({known})")
        value = value[part]
    return value


def _ended(record: Mapping[str, Any], judged: Collection[str]) -> tuple[str | None, bool]:
    """What ended an attempt that was not the model's doing, and whether a limit did."""
    places = [(record, ""), *((inside, f"{name}.") for name in INSIDE if isinstance(inside := record.get(name), Mapping))]
    cut = False
    for fields, where in places:
        for name in FAILURES:
            if f"{where}{name}" not in judged and (why := message_of(fields.get(name))):
                kind = _kind_of(fields[name])
                if not kind or not _RAISED.search(kind):
                    return why, False
                cut = True
    for fields, where in places:
        for name in ENDINGS:
            word = fields.get(name)
            if not isinstance(word, str) or f"{where}{name}" in judged:
                continue
            word = _letters(word)
            if _AGENTS.search(word):
                continue
            if _FAULT.search(word) and (_OTHERS.search(word) or not _LIMITS.search(word)) and not word.startswith("fail"):
                return f"{name}: {fields[name]}"[:300], False
            cut = cut or bool(_LIMITS.search(word))
    return None, cut


def _letters(name: str) -> str:
    """``AgentTimeoutError`` and ``agent-timeout error`` as ``agent_timeout_error``."""
    return re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _kind_of(error: Any) -> str:
    """The name of an error's class or code; "" where it has none."""
    if isinstance(error, list):
        error = error[0]
    if isinstance(error, Mapping):
        names = ("exception_type", "error_type", "type", "code", "class", "error")
        error = next((value for name in names if isinstance(value := error.get(name), str)), "")
    named = re.match(r"\s*([\w.]+)\s*(?:$|[:(])", error) if isinstance(error, str) else None
    return _letters(named[1].rsplit(".", 1)[-1]) if named else ""


def message_of(error: object) -> str:
    """Another tool's error on one line: its text, or its message with its type; "" where it says that there was none."""
    if isinstance(error, list):
        return next((text for part in error if (text := message_of(part))), "")
    if isinstance(error, Mapping):
        kind = next((error[k] for k in ("error_type", "exception_type", "type", "error", "code") if error.get(k)), None)
        message = next((error[k] for k in ("message", "exception_message", "detail", "traceback") if error.get(k)), None)
        if kind is None and message is None:
            return next((text for value in error.values() if (text := message_of(value))), "")
        error = f"{kind}: {message}" if kind and message and kind != message else message or kind
    text = (
        "it gives no reason"
        if error is True
        else " ".join(str(error or "").split())[:300]
        if isinstance(error, (str, dict))
        else ""
    )
    return "" if text.strip(" .").lower() in _NOTHING else text


#: What a text says that names no error.
_NOTHING = ("", "none", "null", "no", "no error", "no errors", "ok", "success", "false", "n/a", "nan")


def _outcome(value: Any) -> Any:
    """The reward in an object that holds the outcome alone: a number, or numbers by name."""
    if not isinstance(value, Mapping):
        return None
    rewards = value.get("rewards")
    inside: Mapping[str, Any] = rewards if isinstance(rewards, Mapping) else value
    number = inside.get("reward", inside.get("score"))
    return number if _is_score(number) else inside if inside is not value and _is_score(inside) else None


def _checked(named: Found, place: str) -> Found:
    field({named.name: named.value}, named.name, (str, int), place)
    return named


def _is_score(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(number is None or isinstance(number, (bool, int, float)) for number in value.values())
    return isinstance(value, (bool, int, float))


def _is_success(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1))


def _scores(scored: Found, place: str) -> dict[str, float | None]:
    if scored.value is None:
        return {}
    if not _is_score(scored.value):
        raise UserError(f"{place}: '{scored.name}' must be a number, or an object with numbers by name")
    if isinstance(scored.value, Mapping):
        return {str(name): None if value is None else _number(value) for name, value in scored.value.items()}
    return {IMPORTED: _number(scored.value)}


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
