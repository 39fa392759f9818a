"""Shared by the readers of benchmarks' and agents' logs: one whole attempt into the tree of its task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.base.secrets import redact
from ramify.trace.aliases import IMPORTED, KNOWN, NOTHING, Judged
from ramify.trace.chats import open_calls
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, root
from ramify.trace.message import Message, number, plain
from ramify.trace.node import Node, Provenance, Score, TreeInfo


@dataclass(frozen=True, slots=True)
class WholeAttempt:
    """An attempt as a log tells it from beginning to end."""

    task: str
    """What the attempts at one task have in common; the tree's name."""
    messages: Sequence[Message]
    """Those of role assistant were sampled."""
    judged: Judged = NOTHING
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the log says of it, kept with its last message."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the log says of the task. Two tasks of one name that differ in it are two trees."""
    group: str = ""
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Further scores, which decide nothing."""


class Attempts:
    """Hangs the attempts of a file."""

    def __init__(self) -> None:
        self._numbers = count()
        self._left_out: dict[tuple[str, str], int] = {}

    def hang(self, run: Run, attempt: WholeAttempt, place: str) -> list[Node]:
        """Hang one attempt, a node a message; returns them. Raises UserError naming ``place`` where it has no message, and
        nothing says what ended it before it began."""
        messages = list(attempt.messages)
        if not messages and attempt.judged.failure is None:
            raise UserError(f"{place}: the attempt has no message, and no failure is named that ended it before it began")
        closing: dict[str, Any] = redact({**plain(attempt.about), **open_calls(messages)})
        by = {}
        if attempt.model:
            provenance = Provenance(attempt.model, "", redact(plain(attempt.settings)), 0)
            run.add(provenance)
            by = {"provenance": provenance.hash}
        thread = Thread(run, _grown(run, attempt), next(self._numbers))
        nodes = []
        for at, message in enumerate(messages or [Message("user", "")], 1):
            last, replied = at >= len(messages), message.role == "assistant"
            stop = {"stop": attempt.judged.stop} if last and attempt.judged.stop else {}
            nodes.append(thread.hang(message, replied, last, closing if last else None, **stop, **(by if replied else {})))
        end_attempt(run, thread.node, attempt.judged, provenance=by.get("provenance"))
        run.add(*(Score(thread.node.id, name, value, "metric") for name, value in attempt.metrics.items()))
        return nodes

    def leave_out(self, kind: str, what: str) -> None:
        """Count something that says nothing of an attempt; ``what`` it is a kind of, in the plural."""
        self._left_out[kind, what] = self._left_out.get((kind, what), 0) + 1

    def end(self, run: Run) -> None:
        """Keep what was left out in the journal; ``ramify import`` says it."""
        for (kind, what), times in self._left_out.items():
            run.log("ignored", kind, {"count": times, "what": what})


def _grown(run: Run, attempt: WholeAttempt) -> str:
    facts = plain(attempt.facts)
    name, task = attempt.task, {"id": attempt.task, **facts}
    if run.has_tree(name) and run.tree_info(name) != TreeInfo(name, task, attempt.group):
        name = f"{name}#{json_hash(facts)[:12]}"
    run.add_tree(name, task, attempt.group)
    root(run, name)
    return name


def ending(record: Mapping[str, Any], place: str, reward: Any = None, full: float = 1.0) -> Judged:
    """How an attempt ended, by the words of its ``record`` (:data:`ramify.trace.aliases.ENDINGS`) for what ended it, and by its
    ``reward``: a number, which is a success from ``full`` on, true or false, or nothing."""
    judged = KNOWN.judged(record, place)._replace(scores={}, success=None)
    value = number(reward)
    if value is None:
        return judged
    return judged._replace(scores={IMPORTED: value}, success=reward if isinstance(reward, bool) else value >= full - 1e-6)


def stem_of(path: Path) -> str:
    """The name of a file without its endings, for what names its task nowhere else."""
    name = re.sub(r"^(unpacked|decoded)-", "", path.name)
    return re.sub(r"(\.(gz|json|jsonl|ndjson|traj))+$", "", name) or name


def asked(messages: Sequence[Message]) -> str:
    """A name for the task of a log that names none: the same for every log whose first user's message is the same."""
    return f"task-{stable_hash(next((message.text for message in messages if message.role == 'user'), ''))[:12]}"


def objects(values: Any, spot: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(spot, object) of each item of a list. Raises UserError naming ``spot`` where it is none, or an item is not an object."""
    if not isinstance(values, list):
        raise UserError(f"{spot} must be a list")
    for at, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise UserError(f"{spot}: item {at} is not an object")
        yield f"{spot}: item {at}", value


def named(value: Any, *names: str) -> Any:
    """What stands at a path of names inside objects; None where it does not go on."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def words(value: Any) -> str:
    """Text as it is; "" for anything else."""
    return value if isinstance(value, str) else ""
