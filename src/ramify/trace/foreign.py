"""Traces that other tools wrote, as text-only nodes: chat logs and step records in JSON lines.

Both are read line by line: memory holds one line and a few words per attempt. Agent replies of two attempts are two nodes even when
they are equal (they were two draws); what the attempts were given and share (the opening messages of one task) is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.trace.db import Run
from ramify.trace.jsonl import new_run
from ramify.trace.lines import field, read_lines
from ramify.trace.node import Node, Verdict, make_node

IMPORTED = "imported"
_ROLES = {"developer": "system", "function": "tool", "human": "user", "ai": "assistant", "gpt": "assistant"}


def read_chats(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from chats, one a line: ``{"messages": [{"role", "content"}, ...]}``. Returns how many.

    Optional fields: ``task`` (text; chats of one task share a tree, otherwise each line is its own), ``reward`` (a number: becomes a
    verdict of scorer "imported" on the last message). Other fields are kept with the last message. Raises UserError naming file and
    line; nothing is left in ``folder`` then.
    """
    return _import(path, folder, "chats", _add_chat)


def read_steps(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from step records, one a line, attempts whole or interleaved. Returns how many lines.

    A record is ``{"task_id", "attempt_id", "step", "anchor" or "obs", "action", "reward", "done"}`` with optional ``obs``,
    ``truncated``, ``valid``, ``state_hash`` (graph-credit). Each becomes an observation (its state key is ``state_hash``, or the
    anchor) and an action below it; a closing empty observation carries the last reward and why the attempt ended. Other fields are
    kept with the action. Raises UserError naming file and line: also on a step that is there twice, out of order, or missing.
    """
    attempts: dict[tuple[Any, Any], _Attempt] = {}
    counts: dict[Any, int] = {}

    def add(run: Run, record: dict[str, Any], place: str, _: int) -> None:
        task = field(record, "task_id", (str, int), place)
        name = field(record, "attempt_id", (str, int), place)
        attempt = attempts.get((task, name))
        if attempt is None:
            attempt = attempts[task, name] = _Attempt(str(task), counts.setdefault(task, 0))
            counts[task] += 1
            if attempt.index == 0:
                _add_root(run, str(task), {"id": task})
        attempt.add(run, record, place, f"attempt {name!r} of task {task!r}")

    return _import(path, folder, "steps", add)


class _Attempt:
    """Where one attempt stands: its last node, its next step, and the reward its next observation carries."""

    def __init__(self, tree: str, index: int) -> None:
        self.tree, self.index = tree, index
        self.last = _root(tree)
        self.next: int | None = None
        self.reward: float | None = None

    def add(self, run: Run, record: dict[str, Any], place: str, who: str) -> None:
        step = field(record, "step", int, place)
        if self.next is None and step not in (0, 1):
            raise UserError(f"{place}: {who} starts at step {step}; steps start at 0 or 1 and are in order")
        if self.next is not None and step != self.next:
            fault = "has step %d twice or out of order" if step < self.next else "misses a step before %d"
            raise UserError(f"{place}: {who} {fault % step}")
        if self.next is not None and self.last.stop:
            raise UserError(f"{place}: {who} goes on after its last step")
        anchor = record.get("anchor", record.get("obs"))
        if anchor is None and "anchor" not in record and "obs" not in record:
            raise UserError(f"{place}: a step needs 'anchor' or 'obs'")
        shown = record.get("obs", anchor)
        key = record.get("state_hash", anchor)
        self._hang(run, "user", _text(shown), reward=self.reward, state_key=key if isinstance(key, str) else canonical_json(key))
        extra = {
            k: v
            for k, v in record.items()
            if k not in ("task_id", "attempt_id", "step", "obs", "state_hash", "action", "reward", "done")
        }
        self._hang(run, "assistant", _text(record.get("action")), index=self.index, data=extra)
        self.reward = field(record, "reward", (float, int), place, None)
        self.next = step + 1
        truncated = field(record, "truncated", bool, place, False)
        if field(record, "done", bool, place, False) or truncated:
            # an index of its own: attempts that end alike below one shared node are still two ends
            stop = "truncated" if truncated else "terminated"
            self._hang(run, "user", "", reward=self.reward, stop=stop, index=self.index)

    def _hang(self, run: Run, role: str, text: str, **fields: Any) -> None:
        self.last = make_node(self.tree, self.last.id, len(self.last), role, text, **fields)
        run.add(self.last)


def _add_chat(run: Run, record: dict[str, Any], place: str, number: int) -> None:
    messages = field(record, "messages", list, place)
    if not messages:
        raise UserError(f"{place}: 'messages' is empty")
    task = field(record, "task", str, place, None)
    tree = f"chat-{number:06d}" if task is None else task
    _add_root(run, tree, {} if task is None else {"id": task})
    node = _root(tree)
    for at, message in enumerate(messages):
        spot = f"{place}: message {at}"
        if not isinstance(message, dict):
            raise UserError(f"{spot} is no object")
        role = field(message, "role", str, spot)
        role = _ROLES.get(role, role)
        if role not in ("system", "user", "assistant", "tool"):
            raise UserError(f"{spot} has the role '{role}', which is none of system, user, assistant, tool")
        data: dict[str, Any] = {k: v for k, v in message.items() if k not in ("role", "content") and v is not None}
        if at == len(messages) - 1:
            extra = {k: v for k, v in record.items() if k not in ("messages", "task", "reward")}
            data |= {"record": extra} if extra else {}
        drawn = number if role == "assistant" else -1
        node = make_node(tree, node.id, len(node), role, _content(message.get("content"), spot), index=drawn, data=data)
        run.add(node)
    reward = field(record, "reward", (float, int), place, None)
    if reward is not None:
        run.add(Verdict(node.id, IMPORTED, reward))


def _import(path: Path, folder: Path, form: str, add: Callable[[Run, dict[str, Any], str, int], None]) -> int:
    count = 0
    lines: Iterator[tuple[int, dict[str, Any]]] = read_lines(path)
    with new_run(folder, {"imported": {"form": form, "file": path.name}}) as run:
        for number, record in lines:
            place = f"{path}:{number}"
            try:
                add(run, record, place, number)
            except UserError as error:
                raise error if str(error).startswith(place) else UserError(f"{place}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise UserError(f"{place}: {error}") from error
            count += 1
        if not count:
            raise UserError(f"{path} holds no record")
    return count


def _root(tree: str) -> Node:
    return make_node(tree, None, 0, "root", "")


def _add_root(run: Run, tree: str, task: Mapping[str, Any]) -> None:
    run.add_tree(tree, task)
    run.add(_root(tree))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _content(content: Any, spot: str) -> str:
    """The text of a message's content: text, null, or a list of parts of which the text ones count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, (str, dict)) for part in content):
        texts = [part if isinstance(part, str) else part.get("text") or "" for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise UserError(f"{spot} has a 'content' that is neither text nor a list of parts")
