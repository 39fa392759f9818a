"""Section 7(a2), the executor: a planner without weights that picks the next API from what is left to do, at most 30 calls a
task.

It sees answers, not rules. What it cannot see it may overlook, with the chances below. Text only reorders its choices: a hint
that an answer contradicts is noticed more often than not. A tool's answer looks like success, so nothing is looked at again.
Tokens are those of a chat that is sent whole at every turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify_experiments.earned_code_memory.office import Goal, Office, picked

CALLS, BASE, REPLY, DOCS = 30, 700, 50, 450
"""Calls of a task; tokens of the instructions, of a reply, of a document of an API."""
LOGS_IN = 0.5
"""Without a hint: chance that it logs in before it is told to."""
OVERLOOKS_PAGES, OVERLOOKS_PENDING, READS = 0.22, 0.18, 0.5
"""Without a hint: chance that it stops at a page, that it takes pending for done;
that it reads the documents where it does neither."""
HINTED = 0.03
"""The same chances with a hint that is right."""
NOTICES = 0.8
"""Chance that it notices that a hint contradicts an answer; else it follows the hint once and is then as one without."""
MISTAKES = 0.04
"""Chance that it picks a wrong item, with or without a memory."""
TRUST = 0.8
"""Chance that it calls a tool whose description names other values than the request."""


def tokens(text: str) -> int:
    """Tokens of a text, by the usual four characters each."""
    return len(text) // 4


@dataclass
class Chat:
    """A conversation and what it costs: every turn sends all that came before."""

    given: int
    """Tokens of memory and of tools' schemas in the prompt."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    input: int = 0
    output: int = 0
    calls: int = 0
    _history: int = 0

    def turn(self, name: str, arguments: Mapping[str, Any], answer: str) -> None:
        """One call and what came back."""
        call = {"id": f"c{self.calls}", "type": "function", "function": {"name": name, "arguments": json.dumps(dict(arguments))}}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
        self._pay(REPLY)
        self._history += REPLY + tokens(answer)
        self.calls += 1

    def read(self) -> None:
        """The documents of an API."""
        self._pay(REPLY)
        self._history += REPLY + DOCS

    def end(self) -> None:
        """The last reply."""
        self.messages.append({"role": "assistant", "content": "Done."})
        self._pay(REPLY)

    def _pay(self, output: int) -> None:
        self.input += BASE + self.given + self._history
        self.output += output


class StopError(Exception):
    """The calls are used up."""


@dataclass
class Executor:
    """One task. ``text`` is what the memory gave, ``tools`` what may be called."""

    goal: Goal
    office: Office
    text: str
    luck: np.random.Generator
    chat: Chat
    token: str | None = None

    def call(self, name: str, **given: Any) -> dict[str, Any]:
        """Call an API. Raises UserError, which is visible, and StopError."""
        if self.chat.calls >= CALLS:
            raise StopError
        try:
            answer = self.office.call(name, given)
        except UserError as error:
            self.chat.turn(name, given, f"error: {error}")
            raise
        self.chat.turn(name, given, json.dumps(answer))
        return answer

    def chance(self, p: float) -> bool:
        """Whether something of probability ``p`` happens."""
        return bool(self.luck.random() < p)

    # -- hints

    def pages(self) -> str:
        """How the text says that the list of the goal's application continues: cursor, page, or nothing."""
        found = re.findall(rf"{self.goal.app}\.list[^\n;]*?\b(cursor|page)\b", self.text)
        return found[-1] if found else ""

    def confirms(self) -> bool | None:
        """Whether the text says that the action is to be confirmed; None where it says nothing of the action."""
        name = f"{self.goal.app}.{self.goal.action}"
        if name not in self.text:
            return None
        return re.search(rf"{re.escape(name)}[^\n]*?{self.goal.app}\.confirm", self.text) is not None

    # -- by hand

    def by_hand(self) -> None:
        """Do the task with the base APIs."""
        items = self.collect()
        wanted = picked(items, self.goal.selector, **self.goal.values)
        if self.chance(MISTAKES) and items:
            wanted = [*wanted[1:], items[int(self.luck.integers(len(items)))]]
        hint, overlooks = self.confirms(), False
        for i, item in enumerate(wanted):
            done = self.call(f"{self.goal.app}.{self.goal.action}", token=self.token, id=item["id"])
            if i == 0 and done.get("status") == "pending":
                contradicted = hint is False and self.chance(NOTICES)
                p = HINTED if hint else 0.5 * OVERLOOKS_PENDING if contradicted else OVERLOOKS_PENDING
                overlooks = self.chance(p)
                if not overlooks and not hint and self.chance(READS):
                    self.chat.read()
            if done.get("status") == "pending" and not overlooks:
                self.call(f"{self.goal.app}.confirm", token=self.token, code=done["code"])

    def collect(self) -> list[dict[str, Any]]:
        """The items that it sees, page by page."""
        app, hint = self.goal.app, self.pages()
        if not (f"{app}.login" in self.text or self.chance(LOGS_IN)):
            with suppress(UserError):
                self.call(f"{app}.list", token="")
        self.token = self.call(f"{app}.login", user="me")["token"]
        answer = self.call(f"{app}.list", token=self.token)
        items, style = list(answer["items"]), "cursor" if "next" in answer else "page"
        if len(items) >= answer["total"]:
            return items
        if hint and hint != style and not self.chance(NOTICES):
            self.call(
                f"{app}.list", token=self.token, **({"page": 1} if hint == "page" else {"cursor": "c5"})
            )  # the first page again: it sees it
        if self.chance(HINTED if hint == style else OVERLOOKS_PAGES):
            return items
        if hint != style and self.chance(READS):
            self.chat.read()
        page = 1
        while len(items) < answer["total"]:
            answer = self.call(
                f"{app}.list", token=self.token, **({"cursor": answer["next"]} if style == "cursor" else {"page": page})
            )
            items, page = items + answer["items"], page + 1
        return items


def arguments_for(schema: Mapping[str, Any], goal: Goal) -> dict[str, Any] | None:
    """What a tool is called with for a goal; None where it is for something else, or needs what the goal does not say."""
    function = schema["function"]
    if not function["name"].startswith(f"{goal.app}_{goal.action}"):
        return None
    wanted = function["parameters"]["properties"]
    return {name: goal.values[name] for name in wanted} if set(wanted) <= set(goal.values) else None


def fits(schema: Mapping[str, Any], goal: Goal) -> bool:
    """Whether a tool's description names the kind of request and every value that is not a parameter."""
    function = schema["function"]
    description = function["description"]
    rest = [str(value) for name, value in goal.values.items() if name not in function["parameters"]["properties"]]
    return f"[{goal.selector}]" in description and all(re.search(rf"\b{re.escape(value)}\b", description) for value in rest)


def play(goal: Goal, office: Office, text: str, luck: np.random.Generator, schemas: Sequence[Mapping[str, Any]] = ()) -> Executor:
    """An executor at the beginning of a task."""
    given = tokens(text) + tokens(json.dumps(list(schemas)) if schemas else "")
    return Executor(goal, office, text, luck, Chat(given, [{"role": "user", "content": goal.query}]))


def finish(executor: Executor) -> None:
    """Do by hand what is to be done, as far as the calls reach."""
    with suppress(StopError, UserError):
        executor.by_hand()
    executor.chat.end()
