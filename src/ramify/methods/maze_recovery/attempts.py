"""Attempts with what was shown and said at each step: from records of whole traces, and from stored runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError, nearest
from ramify.methods.maze_recovery.conversations import MOST
from ramify.methods.maze_recovery.loops import Loops, Ways
from ramify.score.steps import run_attempts
from ramify.trace.aliases import ALIASES, IMPORTED, KNOWN, Fields, name_in
from ramify.trace.db import Run
from ramify.trace.graph import MergedGraph
from ramify.trace.keys import Canonicaliser, StatePattern, canonicaliser
from ramify.trace.lines import at_place, first_record, read_lines
from ramify.trace.message import Message, as_text
from ramify.trace.node import Node
from ramify.trace.sources import opened, run_folder
from ramify.trace.view import TokenMessage

Key = str | Callable[[Mapping[str, Any]], Any]
_SHARED = 1 << 16
"""Messages that are kept at hand to be used again."""


class TraceStep(NamedTuple):
    """One reply of the agent and what it was shown before."""

    state: Any
    """Key of the state in which the reply was given."""
    shown: tuple[TokenMessage, ...]
    reply: TokenMessage
    node: str | None = None
    """The node of a run; equal where attempts of a tree share the step."""
    options: tuple[str, ...] | None = None
    """What could have been done in the state, where the trace says so."""

    @property
    def action(self) -> str:
        """What was done: the text, and the calls of tools in it."""
        return self.reply.message.spoken()


@dataclass(frozen=True, eq=False)
class Trace:
    """One attempt at a task. ``success`` is None where nobody said; ``cut`` is True where a limit ended it."""

    task: Any
    attempt: Any
    success: bool | None
    steps: tuple[TraceStep, ...]
    given: tuple[TokenMessage, ...] = ()
    """What came before the first observation: a system prompt."""
    cut: bool = False


class Traces:
    """Traces and their merged graph: attempt i of ``graph`` is ``traces[i]``, its rows are ``first[i]`` and those that follow."""

    def __init__(
        self, traces: Iterable[Trace], keys: Canonicaliser | None = None, texts: bool = False, pattern: StatePattern | None = None
    ) -> None:
        """``keys`` makes state keys of states, with ``pattern`` where one is given.
        ``texts``: states are what was observed, as text.

        Raises UserError where there is no step, and where no state holds the pattern.
        """
        self.traces = [trace for trace in traces if trace.steps]
        if not self.traces:
            raise UserError("there is no trace with a step")
        self.keys, self.texts = keys, texts
        self.doubts: list[str] = []
        """Why the states may not be what they should."""
        if pattern is not None:
            for trace in self.traces:
                pattern.states([step.state for step in trace.steps])
            self.doubts = pattern.check()
        self.first = np.cumsum([0, *(len(trace.steps) for trace in self.traces)])
        self.success = np.array([trace.success is True for trace in self.traces], np.bool_)
        self.cut = np.array([trace.cut for trace in self.traces], np.bool_)

    @cached_property
    def sampled(self) -> str:
        """What intervals are over: ``tasks``, whose attempts are alike, or ``attempts`` where all are at one task."""
        return "attempts" if len(self.graph.tasks) == 1 else "tasks"

    @cached_property
    def clusters(self) -> np.ndarray:
        """The task of each trace, or the trace itself where all are at one task: what was sampled independently. int64 (A,)."""
        return np.arange(len(self.traces)) if self.sampled == "attempts" else self.graph.visit_task[self.first[:-1]]

    @cached_property
    def number(self) -> np.ndarray:
        """The trace of each row of the graph."""
        return np.repeat(np.arange(len(self.traces)), np.diff(self.first))

    @cached_property
    def steps(self) -> list[TraceStep]:
        """The step of each row of the graph."""
        return [step for trace in self.traces for step in trace.steps]

    @cached_property
    def graph(self) -> MergedGraph:
        """The merged states, one visit a step."""
        states = ([step.state for step in trace.steps] for trace in self.traces)
        keys = [key for own in states for key in (own if self.keys is None else self.keys(own))]
        ends = ["cut" if trace.cut else "success" if trace.success else "failure" for trace in self.traces]
        number = self.number.tolist()  # it keeps traces apart that name no attempt, or the same one
        return MergedGraph.of(
            [self.traces[i].task for i in number],
            number,
            (np.arange(len(number)) - self.first[self.number]).tolist(),
            keys,
            [step.action for step in self.steps],
            [ends[i] for i in number],
        )

    @cached_property
    def loops(self) -> Loops:
        """The loops of every trace."""
        return Loops.of(self.graph)

    @cached_property
    def ways(self) -> Ways:
        """Which states led to success."""
        return Ways.of(self.graph, self.loops, self.success, self.cut)

    def place(self, row: int) -> tuple[int, int]:
        """The trace and the step of a row of the graph."""
        number = int(self.number[row])
        return number, row - int(self.first[number])


def from_records(
    records: Iterable[Mapping[str, Any] | tuple[str, Mapping[str, Any]]],
    state_key: Key | None = None,
    task_key: Key | None = None,
) -> list[Trace]:
    """Traces of records ``{"task_id", "steps": [{"state" or "obs", "action"}, ...], "success"}``, or pairs of (location, record).

    Task, attempt, reward and success may stand under any name of :mod:`ramify.trace.aliases`. Optional: ``attempt_id``,
    ``system``, ``truncated``; of a step ``tokens`` (how many, or their ids), ``reward``, ``actions`` (what could have been done).
    Without ``success`` a reward, or a sum of rewards, above 0 is one. ``state_key`` and ``task_key`` are fields, or functions of
    the step and of the record. Raises UserError naming location and field.
    """
    found = []
    turn = lru_cache(_SHARED)(_turn)  # equal texts recur, as states and actions do: they are one object
    for number, item in enumerate(records, 1):
        where, record = item if isinstance(item, tuple) else (f"trace {number}", item)
        with at_place(where):
            found.append(_trace(record, where, number, state_key, task_key, turn))
    return found


def _turn(role: str, text: str, tokens: int | None = None) -> TokenMessage:
    return TokenMessage(Message(role, text, {} if tokens is None else {"tokens": tokens}))


def _trace(
    record: Mapping[str, Any],
    where: str,
    number: int,
    state_key: Key | None,
    task_key: Key | None,
    turn: Callable[..., TokenMessage],
) -> Trace:
    if callable(task_key):
        task = task_key(record)
    else:
        name = task_key or name_in(record, "task") or ALIASES["task"][0]
        if name not in record:
            raise UserError(f"{where}: a trace has no field '{name}' ({nearest(name, map(str, record))})")
        task = record[name]
    steps = record.get("steps")
    if not isinstance(steps, list) or not steps:
        raise UserError(f"{where}: 'steps' must be a list with at least one step")
    for name in ("success", "truncated"):
        if record.get(name) is not None and not isinstance(record[name], bool):
            raise UserError(f"{where}: '{name}' must be true or false, not {str(record[name])[:40]!r}")
    judged = KNOWN.judged(record, where)
    made = tuple(_step(step, f"{where}: step {at}", state_key, turn) for at, step in enumerate(steps))
    success, reward, system = judged.success, judged.scores.get(IMPORTED), record.get("system")
    rewards = [step["reward"] for step in steps if step.get("reward") is not None]
    if success is None and (rewards or reward is not None):
        success = (sum(rewards) if reward is None else reward) > 0
    given = () if system is None else (_turn("system", as_text(system)),)
    attempt = name_in(record, "attempt")
    return Trace(task, number if attempt is None else record[attempt], success, made, given, bool(record.get("truncated")))


def _step(step: Any, where: str, state_key: Key | None, turn: Callable[..., TokenMessage]) -> TraceStep:
    if not isinstance(step, Mapping):
        raise UserError(f"{where} is not an object")
    if "action" not in step:
        raise UserError(f"{where} has no field 'action' ({nearest('action', map(str, step))})")
    if callable(state_key):
        state = state_key(step)
    elif state_key is None and "state" in step:
        state = step["state"]
    elif (name := state_key or "obs") in step:
        state = step[name]
    else:
        names = ("state", "obs") if state_key is None else (state_key,)
        raise UserError(f"{where} has no field '{' or '.join(names)}' ({nearest(names[0], map(str, step))})")
    reward, tokens, options = step.get("reward"), step.get("tokens"), step.get("actions")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, (int, float)) or not abs(reward) <= MOST):
        raise UserError(f"{where}: 'reward' must be a finite number, not {str(reward)[:40]!r}")
    count = len(tokens) if isinstance(tokens, list) else tokens
    if count is not None and (type(count) is not int or not 0 <= count <= MOST):
        raise UserError(f"{where}: 'tokens' must be how many tokens the action has, or a list of them")
    if options is not None and not (isinstance(options, list) and all(isinstance(option, str) for option in options)):
        raise UserError(f"{where}: 'actions' must be a list of texts")
    shown = turn("user", as_text(step.get("obs", state)))
    reply = turn("assistant", as_text(step["action"]), count)
    return TraceStep(state, (shown,), reply, None, None if options is None else tuple(options))


def from_run(run: Run, group: str | None = None, scorer: str | None = None, texts: bool = False) -> list[Trace]:
    """Traces of the attempts in a run's trees, one per attempt with a score of ``scorer`` (a leaf, in runs without any).

    States are the environment's state keys where it gave some and ``texts`` is false, else the texts of observations. An attempt
    succeeded by the environment's own outcome, else with a reward above 0.
    Raises UserError where there is none, or several scorers judged and none is named.
    """
    found = []
    for attempt, rows in run_attempts(run, group, scorer, unscored=True):
        steps = []
        for row, step in zip(rows, attempt.steps, strict=True):
            anchor = row["anchor"]
            keyed = isinstance(anchor, Mapping) and not texts  # a state's key, not a text
            steps.append(TraceStep(anchor["key"] if keyed else row["text"], step.shown, step.reply, step.node))
        task = attempt.cohort if group is None else attempt.task
        found.append(Trace(task, attempt.leaf, attempt.success, tuple(steps), attempt.opening, attempt.cut))
    return found


# --- files ------------------------------------------------------------------------------------------------------------


class Source(Config):
    """How traces are read."""

    state_field: str | None = None
    """Field of a step that identifies its state (default: state, else obs); for files of whole traces."""
    task_field: str | None = None
    """Field with the task of a trace or of an imported record (default:
    task_id and its like); equal states of two tasks never merge."""
    state_pattern: str | None = None
    """Regular expression that takes the state out of an observation (its groups, else the match);
    a run's states are its texts then."""
    scrub: tuple[str, ...] = ()
    """Taken out of states before they are compared: numbers, timestamps, whitespace. A run's states are its texts then."""
    history: int = Field(0, ge=0)
    """How many earlier states each key includes."""
    group: str | None = None
    """Only trees of this group of a run."""
    scorer: str | None = None
    """Scorer whose score decides what succeeded; by default env, the imported reward, or the only one there is."""

    def keys(self, pattern: StatePattern | None = None) -> Canonicaliser | None:
        """The canonicaliser, None where states are compared as they are; ``pattern`` is that of the settings."""
        if pattern is None and self.state_pattern is not None:
            pattern = StatePattern(self.state_pattern)
        return canonicaliser(pattern, self.scrub, self.history)


def load(source: Path, settings: Source | None = None, form: str | None = None) -> Traces:
    """Traces of a run's folder, of a file with a whole trace a line (``{"task_id", "steps", "success"}``),
    or of any that can be imported.

    ``form`` names the format of a file that is to be imported, by default it is detected from the content. Raises UserError
    naming the file, line and field that is wrong.
    """
    c = settings or Source()
    pattern = None if c.state_pattern is None else StatePattern(c.state_pattern)
    keys = c.keys(pattern)
    folder = run_folder(source)
    if folder is not None:
        for option, given in (("--state-field", c.state_field), ("--task-field", c.task_field), ("--from", form)):
            if given is not None:
                raise UserError(f"{source} is a run, whose tasks and states are its own, so {option} does not apply")
    else:
        first = None if form is not None or source.is_dir() else first_record(source)[1]
        if first is not None and "steps" in first and not {"kind", "messages"} & first.keys():
            records = ((f"{source}:{number}", record) for number, record in read_lines(source))
            made = from_records(records, c.state_field, c.task_field)
            return Traces(made, keys, c.state_field is None and "state" not in first["steps"][0], pattern)
        if c.state_field is not None:
            raise UserError(f"{source} holds no whole traces (lines with 'steps'), so --state-field does not apply")
    with opened(source, form, Fields(task=c.task_field)) as run:
        texts = keys is not None
        found = from_run(run, c.group, c.scorer, texts)
        return Traces(found, keys, texts or not any(node.state_key is not None for node in run.each(Node)), pattern)
