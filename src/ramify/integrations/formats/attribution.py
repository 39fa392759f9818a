"""Logs of failed runs with people's labels of what went wrong: Who&When, and AgentRx with its ground truth.

Several agents speak in one log: each message is a node with its speaker's ``name``. The labels are annotations of the node they
point at, by the data set as maker: no verb reads them, so what a verb finds can be measured against them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.registry import register
from ramify.integrations.formats.attempts import Attempts, WholeAttempt, ending, named, objects, stem_of
from ramify.integrations.formats.exchanges import text_of
from ramify.trace.aliases import IMPORTED, RECORD, Judged
from ramify.trace.db import Run
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.lines import field, read_conversations, read_items
from ramify.trace.message import Message, plain, read_message
from ramify.trace.node import Annotation, Node
from ramify.trace.notes import unread

WHO_WHEN, AGENT_RX = "who-and-when", "agentrx"
MISTAKE, FAILURE, ROOT_CAUSE = "mistake", "failure", "root cause"
"""Names of the annotations: Who&When's one label, AgentRx's, and that of AgentRx which says what decided."""
_GIVEN = ("human", "user", "system", "developer", "tool", "function")
_MACHINES = re.compile(r"^computer_?terminal\b", re.IGNORECASE)
_LABELS = ("mistake_agent", "mistake_step", "mistake_reason", "mistake_type", "labels")
_KNOWN = frozenset(
    (
        *("history", "messages", "question", "question_ID", "ground_truth", "is_correct", "is_corrected", "level"),
        *("system_prompt", *_LABELS),
    )
)
_GROUND_TRUTH = ("failures", "root_cause", "failure_summary")
_TALKS = ("trajectory", "messages", "history", "traj")


def read_who_when(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a log of Who&When, several, or one conversation of several agents. Returns how many
    attempts.

    A record is ``{"question", "history": [{"content", "role", "name"}], "mistake_agent", "mistake_step", "mistake_reason"}``; a
    file may also be the list of one conversation's messages. The task is ``question_ID``, else the file's name; ``is_correct``
    (in the hand-made part ``is_corrected``) is the outcome. The label is the annotation ``mistake`` of the message of that
    number, from 0. Raises UserError naming file, message and field."""
    attempts, stem = Attempts(), stem_of(path)

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        messages = list(_talk(record.get("messages", record.get("history")), f"{place}: 'history'"))
        correct = field(record, "is_correct", bool, place, field(record, "is_corrected", bool, place, None))
        rest = {k: v for k, v in record.items() if k not in _KNOWN}
        unread(rest, RECORD, "record")
        task = field(record, "question_ID", (str, int), place, stem)
        facts = {name: record[name] for name in ("question", "ground_truth", "level") if record.get(name) is not None}
        prompts = record.get("system_prompt")
        about = {**rest, **({"system_prompt": prompts} if prompts else {})}
        attempt = WholeAttempt(str(task), messages, ending({}, place, correct), about, facts)
        nodes = attempts.hang(run, attempt, place)
        label = {name: plain(record[name]) for name in _LABELS if record.get(name) is not None}
        if label:
            step = _step(record.get("mistake_step"))
            node, more = _at(nodes, step, f"{place}: 'mistake_step'")
            run.add(Annotation(node.id, 0, MISTAKE, WHO_WHEN, {**label, **more}))

    records = read_conversations(path, "messages", ("role",), ("messages", "history", "question"))
    return import_records(path, folder, WHO_WHEN, add, records, end=attempts.end)


def read_agentrx(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from AgentRx's ground truth and the trajectories that it labels. Returns how many records.

    A record is ``{"trajectory_id", "failures": [{"step_number", "failure_category", "failed_agent", ...}], "root_cause"}``. Its
    conversation stands in the record (``trajectory``), or in a file beside: ``TRAJECTORY_ID.json``, or an item with that
    ``task_id`` of a JSON list, in the folder of the file or one beside it. Every failure is an annotation of its message,
    counted from 1; that of the root cause is called so. A record whose conversation is not there is counted as left out. Raises
    UserError naming file, record and field, and where no conversation is there."""
    attempts, beside, read = Attempts(), _Beside(path), 0

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        nonlocal read
        name = field(record, "trajectory_id", (str, int), place)
        failures = list(objects(record.get("failures"), f"{place}: 'failures'"))
        talk = next((record[key] for key in _TALKS if record.get(key) is not None), None)
        facts: Any = {}
        if talk is None:
            talk, facts = beside.find(name)
        if talk is None:
            attempts.leave_out("trajectory_id", "labels without a conversation")
            return
        rest = {k: v for k, v in record.items() if k not in (*_GROUND_TRUTH, *_TALKS, "trajectory_id")}
        unread(rest, RECORD | {"task", "domain"}, "record")
        lost = Judged({IMPORTED: 0.0}, False, frozenset())
        attempt = WholeAttempt(str(name), list(_talk(talk, f"{place}: 'trajectory'")), lost, rest, facts)
        nodes = attempts.hang(run, attempt, place)
        read += 1
        root = named(record, "root_cause", "failure_id")
        for at, (spot, failure) in enumerate(failures):
            step = _step(failure.get("step_number"))
            node, more = _at(nodes, None if step is None else step - 1, f"{spot}: 'step_number'")
            label = {**plain(failure), **more}
            run.add(Annotation(node.id, 0, f"{FAILURE} {failure.get('failure_id', at + 1)}", AGENT_RX, label))
            if root is not None and failure.get("failure_id") == root:
                why = {k: plain(v) for k, v in record["root_cause"].items()}
                run.add(Annotation(node.id, 0, ROOT_CAUSE, AGENT_RX, {**label, **why, "summary": record.get("failure_summary")}))

    def end(run: Run) -> None:
        if not read:
            raise UserError(f"{path} holds labels, and no file in its folder or beside it a conversation that they are of")
        attempts.end(run)

    return import_records(path, folder, AGENT_RX, add, read_items(path), end=end)


class _Beside:
    """The conversations in the folder of a file with labels, and in those beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lists: dict[str, tuple[Any, Any]] | None = None

    def _folders(self) -> Iterator[Path]:
        yield self.path.parent
        if self.path.parent.parent != self.path.parent:
            yield from sorted(folder for folder in self.path.parent.parent.iterdir() if folder.is_dir())

    def find(self, name: str | int) -> tuple[Any, Any]:
        """The messages of a conversation and what is known of its task; nothing where it is not there."""
        if isinstance(name, str) and re.fullmatch(r"[\w-]{8,}", name):
            for folder in self._folders():
                if (folder / f"{name}.json").is_file():
                    return [value for _, value in read_items(folder / f"{name}.json")], {}
        if self.lists is None:
            self.lists = dict(self._results())
        return self.lists.get(str(name), (None, {}))

    def _results(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        """The results of tau-bench: the last list that names a task counts, and of several with all and with the failed the
        latter."""
        files = [file for folder in self._folders() for file in sorted(folder.glob("*.json")) if file != self.path]
        for file in sorted(files, key=lambda file: "failed" in file.name):
            try:
                (first,) = islice(read_items(file), 1)
                if {"task_id", "traj"} <= first[1].keys():
                    for _, value in read_items(file):
                        yield str(value.get("task_id")), (value.get("traj"), named(value, "info", "task") or {})
            except (RamifyError, ValueError):
                continue


def _talk(values: Any, place: str) -> Iterator[Message]:
    """The messages of a conversation in which several agents speak. Of role assistant is what an agent said; the question,
    tools and terminals are given."""
    for spot, entry in objects(values, place):
        role, name = text_of(entry, "role", spot), entry.get("name")
        who = name if isinstance(name, str) and name else role
        if role in ("system", "developer", "tool") or entry.get("tool_calls") or (role == "assistant" and not name):
            yield read_message({k: v for k, v in entry.items() if k != "index"}, spot)
            continue
        said = "user" if who in _GIVEN or _MACHINES.match(who) else "assistant"
        kept = {k: v for k, v in entry.items() if k not in ("role", "name", "index")}
        message = read_message({**kept, "role": said}, spot)
        about = {} if who in _GIVEN else {"name": who}
        yield Message(said, message.text, {**message.data, **about, **({"said_as": role} if who != role else {})})


def _step(value: Any) -> int | None:
    """The number of a labelled step, which stands as a number or as text; None where it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value) else None


def _at(nodes: Sequence[Node], step: int | None, spot: str) -> tuple[Node, dict[str, Any]]:
    """The node of a step; the last one where the label names none, which is said. Raises UserError on a step that is not
    there."""
    if step is None:
        return nodes[-1], {"where": "the label names no step"}
    if not 0 <= step < len(nodes):
        raise UserError(f"{spot} is not the number of one of its {len(nodes)} messages")
    return nodes[step], {}


def _is_who_when(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return False
    talk = first.get("messages", first.get("history"))
    if isinstance(talk, list):
        return {"mistake_agent", "mistake_step"} <= first.keys()
    if not {"content", "role"} <= first.keys() <= {"content", "role", "name"} or first["role"] != "human":
        return False
    try:  # the list of one conversation's messages: several agents speak in it
        roles = {value.get("role") for _, value in islice(read_items(path), 8)}
    except RamifyError:
        return False
    return any(isinstance(role, str) and role.startswith("Orchestrator") for role in roles)


def _is_agentrx(path: Path, first: Mapping[str, Any] | None) -> bool:
    return (
        first is not None and {"trajectory_id", "failures", "root_cause"} <= first.keys() and isinstance(first["failures"], list)
    )


_EXAMPLE = {
    "is_correct": False,
    "question": "How many rows?",
    "question_ID": "q-1",
    "level": "1",
    "ground_truth": "8",
    "history": [
        {"content": "How many rows?", "role": "user", "name": "Manager"},
        {"content": "print(7)", "role": "assistant", "name": "Excel_Expert"},
        {"content": "7", "role": "user", "name": "Computer_terminal"},
        {"content": "7 rows.", "role": "assistant", "name": "Checker_Expert"},
    ],
    "mistake_agent": "Excel_Expert",
    "mistake_step": "1",
    "mistake_reason": "It printed a number without reading the table.",
}
_RX_EXAMPLE = {
    "trajectory_id": "t-1",
    "trajectory": [
        {"role": "human", "content": "How high is it?"},
        {"role": "Orchestrator (thought)", "content": "I ask the searcher."},
        {"role": "WebSurfer", "content": "It is 3 m."},
    ],
    "failures": [
        {
            "failure_id": 1,
            "step_number": 3,
            "step_reason": "Nothing was looked up.",
            "failure_category": "Invention of new information",
            "failed_agent": "WebSurfer",
        }
    ],
    "root_cause": {"failure_id": 1, "reason_for_root_cause": "Nothing corrected it."},
    "failure_summary": "The height was invented.",
}
for _reader in (
    Reader(
        WHO_WHEN,
        "Logs of Who&When: who spoke with each message, the labelled mistake as an annotation.",
        _is_who_when,
        read_who_when,
        example=json.dumps(_EXAMPLE) + "\n",
    ),
    Reader(
        AGENT_RX,
        "Labels of AgentRx with the conversations beside them: failures and root cause as annotations.",
        _is_agentrx,
        read_agentrx,
        example=json.dumps(_RX_EXAMPLE) + "\n",
    ),
):
    register("reader", _reader.name)(_reader)
