"""A memory around any model: recall before, record after (arXiv 2606.24151, section 3.3).

``--middleware memory:FILE``: what is near the last request of a chat is put after the system's messages, the same for all turns
of a task; a reply without a tool call ends the task, which is then recorded.
Reflection and code are for other hours: `ramify earned-code-memory learn FILE --write text`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ramify.base.errors import NeedsError, RamifyError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.base.waiting import wait_for
from ramify.methods.earned_code_memory.memory import HEAD, Injection, Memory
from ramify.methods.earned_code_memory.store import file_of
from ramify.model.middleware import Middleware
from ramify.model.protocol import Completion, Model, Prefix
from ramify.trace.message import Message

REMEMBERED = 4096
"""Tasks under way whose injection is kept as it was."""


@register("middleware", "memory")
class Remembers(Middleware):
    """Text of a memory for every task, and a record of every task. Without a file it does nothing.

    ``data["memory"]`` of a reply holds the task's id and what was given. Tools of a memory are offered over MCP, where they can
    be run (`ramify earned-code-memory export FILE mcp`). A memory that cannot be written stops no reply:
    ``data["memory"]["failed"]`` says why. Token ids, which hold no messages, are refused (NeedsError). Raises UserError on a file
    that is not a memory.
    """

    name = "memory"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.memory = Memory(file_of(argument)) if argument else None
        self._given: OrderedDict[str, Injection] = OrderedDict()
        self._spent: dict[str, Counter[str]] = {}
        """Tokens of each task's replies so far."""

    @property
    def settings(self) -> Any:
        """Its settings, and how far its log had come when it was opened: what it gives changes with every entry."""
        return None if self.memory is None else [self.memory.config.to_json(), self.memory.store.state.seq]

    async def before(self, given: Prefix) -> Prefix:
        """See :class:`Middleware`. Raises NeedsError on token ids."""
        if self.memory is None:
            return given
        if given.tokens is not None:
            raise NeedsError(
                "middleware 'memory' puts what it knows among the messages of a chat, and a prompt of /v1/completions has none: "
                "use /v1/chat/completions"
            )
        task = _task(given.messages)
        if task is None:
            return given
        found = await self._recalled(*task)
        if not found.text:
            return given
        head = next((i for i, message in enumerate(given.messages) if message.role != "system"), len(given.messages))
        return replace(given, messages=(*given.messages[:head], Message("system", found.text), *given.messages[head:]))

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        """See :class:`Middleware`."""
        task = None if self.memory is None else _task(given.messages)
        if self.memory is None or task is None:
            return completion
        found = self._given.get(task[0])
        record: dict[str, Any] = {"task": task[0], "ids": list(found.ids) if found is not None else []}
        usage = (completion.data or {}).get("usage") or {}
        spent = self._spent.setdefault(task[0], Counter())
        spent.update(input=int(usage.get("prompt_tokens") or 0), output=int(usage.get("completion_tokens") or 0))
        if completion.stop != "cancelled" and not completion.message.calls:
            try:
                messages = [*given.messages[_from(given.messages) :], completion.message]
                await asyncio.to_thread(self.memory.record, task[1], messages, None, found, task[0], dict(spent))
            except RamifyError as error:
                record["failed"] = str(error)
        return replace(completion, data={**(completion.data or {}), "memory": record})

    async def _recalled(self, name: str, query: str) -> Injection:
        """What the task is given; the same at its every turn, so that a cached prompt stays one."""
        assert self.memory is not None
        if name not in self._given:
            try:
                # in a thread: another process may be writing, and the server's loop waits for no disk
                self._given[name] = await asyncio.to_thread(wait_for, self.memory.select(query, task=name))
            except RamifyError:  # a memory that cannot be read or written is not a reason to answer nothing
                self._given[name] = Injection(name, query)
            if len(self._given) > REMEMBERED:
                self._spent.pop(self._given.popitem(last=False)[0], None)
        self._given.move_to_end(name)
        return self._given[name]


def _from(messages: Sequence[Message]) -> int:
    """Where the last task begins: the last request of the user."""
    return max((i for i, one in enumerate(messages) if one.role == "user" and one.text.strip()), default=0)


def _task(messages: Sequence[Message]) -> tuple[str, str] | None:
    """Id and request of the task that a chat is at: its last request and all before it. None where there is none."""
    at = _from(messages)
    if not messages or messages[at].role != "user" or messages[at].text.startswith(HEAD):
        return None
    parts = [part for one in messages[: at + 1] for part in (one.role, one.text)]
    return stable_hash("chat", *parts)[:16], messages[at].text
