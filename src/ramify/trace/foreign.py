"""Importing traces of other tools: shared functions, and step records in JSON lines.

Traces are read record by record: memory holds one and a few words per attempt. Agent replies of two attempts are two nodes even
when they are equal (they were two samples); what the attempts were given and share (the opening messages of one task) is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.trace.aliases import IMPORTED, KNOWN, NOTHING, RECORD, Fields, Judged, required
from ramify.trace.db import Run
from ramify.trace.failures import failure_of
from ramify.trace.jsonl import new_run
from ramify.trace.lines import at_place, field, read_lines
from ramify.trace.message import FIELDS, Message, as_text
from ramify.trace.node import IMPORT, AttemptRecord, Node, make_node
from ramify.trace.notes import BadRecordError, one_record, skipped, skipping, strange, unread
from ramify.trace.shapes import normal


def import_records(
    path: Path,
    folder: Path,
    form: str,
    add: Callable[[Run, dict[str, Any], str, int], None],
    records: Iterable[tuple[int, dict[str, Any]]] | None = None,
    about: dict[str, Any] | None = None,
    end: Callable[[Run], None] = lambda run: None,
) -> int:
    """Make a run in ``folder`` by calling ``add(run, record, place, number)`` for each record,
    whole or not at all. Returns how many.

    Records are the file's JSON lines unless given with their line numbers; ``about`` is added to the source description in the
    run's configuration; ``end`` is called after the last record.
    Raises UserError naming file and line on anything that does not fit."""

    def read(run: Run, record: dict[str, Any], place: str, number: int) -> None:
        add(run, normal(record, place), place, number)

    count = 0
    with new_run(folder, {"imported": {"form": form, "file": path.name, **(about or {})}}) as run:
        for number, record in read_lines(path) if records is None else records:
            place = f"{path}:{number}"
            count += taken(run, place, partial(read, run, record, place, number))
        if not count:
            raise UserError(f"{path} holds no record" + (" that can be read" if skipping() else ""))
        end(run)
    return count


def taken(run: Run, place: str, add: Callable[[], None]) -> bool:
    """Whether a record was added: every fault is one sentence that starts with ``place``, and ends the import unless bad records
    are skipped (nothing of one stays in the run)."""
    try:
        with run.transaction() if skipping() else nullcontext(), one_record(), at_place(place):
            add()
    except UserError as error:
        if skipped(error):
            return False
        raise BadRecordError(str(error)) from error
    return True


def read_steps(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from step records, one a line, attempts whole or interleaved. Returns how many lines.

    A record is ``{"task_id", "attempt_id", "step", "anchor" or "obs", "action", "reward", "done"}`` with optional ``obs``,
    ``truncated``, ``valid``, ``state_hash`` (graph-credit); task, attempt and reward under any name of
    :mod:`ramify.trace.aliases`. Each becomes an observation (its state key is ``state_hash``, or the anchor) and an action below
    it; a closing empty observation carries the last reward and why the attempt ended, where it did. Other fields are kept with
    the action. Raises UserError naming file and line: also on a step that is there twice, out of order, or missing.
    """
    attempts: dict[tuple[Any, Any], _Attempt] = {}
    counts: dict[Any, int] = {}

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        task_name, task = required(fields.task_of(record, place, record_id=False), record, "task", place)
        attempt_name, name = required(fields.attempt_of(record, place), record, "attempt", place)
        judged = fields.judged(record, place)
        taken = {task_name, attempt_name, *judged.names}
        attempt = attempts.get((task, name))
        if attempt is None:
            run.add_tree(str(task), {"id": task})
            attempt = attempts[task, name] = _Attempt(root(run, str(task)), counts.setdefault(task, 0))
            counts[task] += 1
        attempt.add(run, record, judged, taken, place, f"attempt {name!r} of task {task!r}")

    def end(run: Run) -> None:
        for attempt in attempts.values():
            attempt.close(run)

    return import_records(path, folder, "steps", add, end=end)


class _Attempt:
    """The state of one attempt while reading: its last node, its next step, and the reward of its next observation."""

    def __init__(self, last: Node, index: int) -> None:
        self.last, self.index = last, index
        self.next: int | None = None
        self.reward: float | None = None
        self.paid: float | None = None
        self.success: bool | None = None
        self.broken = False

    def add(self, run: Run, record: dict[str, Any], judged: Judged, taken: Collection[str], place: str, who: str) -> None:
        if self.broken:
            raise UserError(f"{place}: {who} has a step before this one that could not be read")
        self.broken = True  # until this step is read
        step = field(record, "step", int, place)
        if self.next is None and step not in (0, 1):
            raise UserError(f"{place}: {who} starts at step {step}; steps start at 0 or 1 and are in order")
        if self.next is not None and step != self.next:
            fault = "has step %d twice or out of order" if step < self.next else "misses a step before %d"
            raise UserError(f"{place}: {who} {fault % step}")
        if self.next is not None and self.last.stop:
            raise UserError(f"{place}: {who} continues after its last step")
        truncated, done = (field(record, name, bool, place, False) for name in ("truncated", "done"))
        anchor = record.get("anchor", record.get("obs"))
        if "action" not in record:
            raise UserError(f"{place}: 'action' is missing")
        if anchor is None and "anchor" not in record and "obs" not in record:
            raise UserError(f"{place}: a step needs 'anchor' or 'obs'")
        shown = record.get("obs", anchor)
        key = record.get("state_hash", anchor)
        self._hang(
            run, "user", as_text(shown), reward=self.reward, state_key=key if isinstance(key, str) else canonical_json(key)
        )
        extra = {k: v for k, v in record.items() if k not in ("step", "obs", "state_hash", "action", "done") and k not in taken}
        self._hang(run, "assistant", as_text(record.get("action")), index=self.index, data=extra)
        unread(extra, {*RECORD, "anchor", "valid", "truncated"}, "step")
        self.reward = None if judged.failure is not None else judged.scores.get(IMPORTED)
        if self.reward is not None:
            self.paid, self.success = (self.paid or 0.0) + self.reward, judged.success
        self.next = step + 1
        if judged.failure is not None:  # it was not judged, whatever was paid on the way
            self._hang(run, "user", "", stop="failed", index=self.index, data={"failure": judged.failure})
            self.broken = False
            return
        if done or truncated:
            # an index of its own: attempts that end alike below one shared node are still two ends
            stop = "truncated" if truncated else "terminated"
            self._hang(run, "user", "", reward=self.reward, stop=stop, index=self.index)
        self.broken = False

    def close(self, run: Run) -> None:
        """An attempt without a final ``done`` gets its last reward, too; one of which a step was left out has no outcome."""
        if self.broken:
            if run.has_tree(self.last.tree):
                root(run, self.last.tree)
                why = "a step of it could not be read"
                self._hang(run, "user", "", stop="failed", index=self.index, data={"failure": why})
                self._end(run)
            return
        if self.last.role == "assistant" and self.reward is not None:
            self._hang(run, "user", "", reward=self.reward, index=self.index)
        self._end(run)

    def _end(self, run: Run) -> None:
        why = failure_of(self.last)
        outcome, reward = (self.success, self.paid) if why is None else (None, None)
        cut = self.last.stop == "truncated"
        run.add(AttemptRecord(self.last.id, self.last.tree, None, 0, IMPORT, self.index, outcome, reward, cut, why))

    def _hang(self, run: Run, role: str, text: str, **fields: Any) -> None:
        self.last = make_node(self.last.tree, self.last.id, len(self.last), role, text, **fields)
        run.add(self.last)


def end_attempt(
    run: Run,
    end: Node,
    judged: Judged = NOTHING,
    before: AttemptRecord | None = None,
    purpose: str = IMPORT,
    provenance: str | None = None,
) -> None:
    """Store the record of the attempt that ends at ``end``, and its scores. ``before``: its record so far, which this replaces;
    ``provenance``: who sampled it, by default its last node."""
    known = before or AttemptRecord(
        end.id, end.tree, None, 0, purpose, max(0, end.index), provenance=provenance or end.provenance
    )
    failure = judged.failure or failure_of(end)
    outcome, reward = (judged.success, judged.scores.get(IMPORTED)) if failure is None else (None, None)
    cut = known.truncated or end.stop == "truncated"
    record = replace(known, leaf=end.id, outcome=outcome, reward=reward, truncated=cut, failure=failure)
    run.add(*judged.as_scores(end.id), record)


def open_attempt(run: Run, reply: Node) -> AttemptRecord | None:
    """The record of the attempt that ends at ``reply`` so far, where nobody judged it: what follows there continues it."""
    records = run.attempts(leaf=reply.id)
    return next((record for record in records if record.success is None and record.failure is None), None)


class Thread:
    """Adds one attempt to its tree, message by message.

    Given messages that are equal are one node for all attempts; sampled ones are each a node. ``completion`` is the attempt's
    sample index: it keeps its samples apart from those of others below the same prefix."""

    def __init__(self, run: Run, tree: str, completion: int, at: Node | None = None) -> None:
        self.run, self.tree, self.completion = run, tree, completion
        self.node = root(run, tree) if at is None else at

    def hang(
        self, message: Message, replied: bool, last: bool = False, about: Mapping[str, Any] | None = None, **fields: Any
    ) -> Node:
        """Add a message below the last one, ``about`` among its data. The attempt's last message is its own node even where it
        was given, since it holds the outcome.

        So is one with parts that are not text, or fields that are not known, since the text alone does not tell it from another.
        """
        data = {**message.data, **(about or {})}
        given = not (replied or last or "content" in data)
        at = (self.tree, self.node.id, len(self.node), message.role, message.text)
        node = make_node(*at, index=-1 if given else self.completion, data=data, **fields)
        odd = strange(message.data, FIELDS) if given else []
        if odd and self._is_another(node, odd):
            node = make_node(*at, index=self.completion, data=data, **fields)
        self.node = node
        self.run.add(node)
        return node

    def _is_another(self, node: Node, odd: Collection[str]) -> bool:
        """Whether the run has a node of this text that says something else in the ``odd`` fields."""
        try:
            there = self.run.node(node.id).data
        except UserError:
            return False
        return any(there.get(name) != node.data.get(name) for name in odd)


def root(run: Run, tree: str) -> Node:
    """The empty first node of a tree, added where it is not there yet."""
    node = make_node(tree, None, 0, "root", "")
    run.add(node)
    return node
