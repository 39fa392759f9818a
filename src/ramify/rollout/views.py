"""Compaction of plain chats: lists of messages in OpenAI's form, shortened by any compactor or by a harness's own function.

Only the view that is sent to a model is shortened. The history is never changed, and each compaction is recorded.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import canonical_json
from ramify.rollout.compact import Compactor, Entry, Window, called, faults
from ramify.rollout.rules import Survival
from ramify.trace.message import CALL, CALL_END, Message, opaque, plain, read_message

Chat = Sequence[Mapping[str, Any]]
"""Messages in OpenAI's form."""
_CALL = re.compile(rf"{CALL}.*?(?:{CALL_END}|\Z)", re.DOTALL)


def approximate_tokens(text: str) -> int:
    """A quarter of the bytes, rounded up: a common estimate without a tokenizer."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4)


@dataclass(frozen=True)
class Compaction:
    """The record of one compaction."""

    round: int
    operator: str
    budget: int | None
    before: int
    """Size of the messages given, in the unit of the count."""
    after: int
    evicted: tuple[int, ...]
    """Places of the messages that are not shown any more."""
    inserted: tuple[str, ...]
    """Texts of the messages that are new."""
    opaque: bool = False
    """Whether the result holds an unreadable item (a provider's encrypted one): then survival is unknown."""
    failure: str = ""
    """Why the compactor failed; the messages were kept as they are then."""
    rules: Mapping[str, Survival] = field(default_factory=dict)
    """What survived of each rule after the compaction alone, by its text; a pin reinserts it afterwards."""

    @property
    def fired(self) -> bool:
        """Whether anything was dropped or replaced."""
        return bool(self.evicted)

    @property
    def lost(self) -> list[str]:
        """The rules that were lost."""
        return [rule for rule, found in self.rules.items() if not found.survived and found.kind != "unknown"]

    def report(self) -> str:
        """A few lines for a log."""
        head = f"{self.operator}, round {self.round}: {self.before} -> {self.after}, {len(self.evicted)} messages dropped"
        failed = f"\n  failed, messages kept: {self.failure}" if self.failure else ""
        return head + failed + "".join(f"\n  {found.kind}: {rule}" for rule, found in self.rules.items())

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        record: dict[str, Any] = plain(asdict(self))
        return record


def text_of(value: Mapping[str, Any], spot: str = "a message") -> str:
    """All that can be read of a message: its text and the calls it makes.
    Raises UserError naming ``spot`` on what is not a message."""
    content = value.get("content")
    if isinstance(content, str) and content and not value.get("tool_calls") and isinstance(value.get("role"), str):
        return content  # nearly all messages; the rest are looked at closely
    return read_message(value, spot).spoken()


def words_of(value: Mapping[str, Any]) -> str:
    """The text of a message without its tool calls, also without those written into the text."""
    return _CALL.sub("", read_message(value, "a message").text)


def readable(value: Mapping[str, Any]) -> bool:
    """Whether a message is text and calls, all of it; a provider's own item (an encrypted compaction) is not.

    Raises UserError on a message whose role or content is none.
    """
    if (
        isinstance(value.get("content"), str)
        and value["content"]
        and value.get("role") in ("system", "user", "assistant", "tool")
    ):
        return True
    if "role" not in value:
        return False
    message = read_message(value, "a message")
    if opaque(message.data):
        return False
    return bool(message.text or message.data.get("tool_calls")) or not (
        value.keys() - {"role", "content", "tool_call_id", "name", "tool_calls"}
    )


def readable_text(messages: Chat) -> str:
    """The readable text of all messages, in which rules are searched."""
    return "\n\n".join(text_of(value) for value in messages if "role" in value)


async def compact_chat(
    compactor: Compactor | Callable[..., Any],
    messages: Chat,
    budget: int | None = None,
    *,
    count: Callable[[str], int] = approximate_tokens,
    ask: Callable[[Sequence[Message], int], Awaitable[str]] | None = None,
    round: int = 1,
    call: Callable[[], Any] | None = None,
) -> tuple[list[dict[str, Any]], Compaction]:
    """What ``compactor`` makes of ``messages``, and the record. ``messages`` and what is in them stay as they are.

    ``compactor`` is one of ramify's compactors, which needs a ``budget`` and runs only where the messages exceed it, or a
    function of a list of messages that returns one (``call`` calls it with further arguments). ``ask`` answers for a compactor
    that asks the agent's model. Where it fails the messages come back and the record says why: an error never becomes a summary.
    Raises UserError on messages that are none.
    """
    given = [dict(value) for value in messages]
    texts = [
        text_of(value, f"message {at}") if readable(value) else canonical_json(plain(value)) for at, value in enumerate(given)
    ]
    before = sum(count(text) for text in texts)
    name = str(getattr(compactor, "name", "") or getattr(compactor, "__qualname__", type(compactor).__name__))
    record = Compaction(round, name, budget, before, before, (), ())
    try:
        if isinstance(compactor, Compactor):
            if budget is None:
                raise UserError(f"the compactor '{name}' needs a budget")
            if before <= budget:
                return given, record
            shown, evicted, new = await _family(compactor, given, texts, budget, count, ask)
        else:
            found = (call or (lambda: compactor(copy.deepcopy(given))))()
            shown = [dict(value) for value in (await found if inspect.isawaitable(found) else found)]
            evicted, new = _difference(given, shown)
    except UserError:
        raise
    except Exception as error:  # a third-party function or model may raise anything; the messages are kept
        why = str(error) if isinstance(error, RamifyError) else f"{type(error).__name__}: {error}"
        return given, replace(record, failure=why)
    if not shown and given:
        return given, replace(record, failure="it left nothing")
    after = sum(count(text_of(value) if readable(value) else canonical_json(plain(value))) for value in shown)
    opaque = not all(map(readable, new))
    return shown, replace(
        record, after=after, evicted=evicted, inserted=tuple(text_of(v) for v in new if readable(v)), opaque=opaque
    )


async def _family(
    compactor: Compactor,
    given: Sequence[dict[str, Any]],
    texts: Sequence[str],
    budget: int,
    count: Callable[[str], int],
    ask: Callable[[Sequence[Message], int], Awaitable[str]] | None,
) -> tuple[list[dict[str, Any]], tuple[int, ...], list[Mapping[str, Any]]]:
    """What one of the family shows, the places it evicts and the messages it makes up."""

    async def nobody(request: Sequence[Message], length: int) -> str:
        raise UserError(f"the compactor '{compactor.name}' calls a model: give it one (model=), or an `ask`")

    window = Window(budget, lambda new: count(new.text), ask or nobody)
    each = [read_message(value, f"message {at}") if readable(value) else Message("user", "") for at, value in enumerate(given)]
    entries = [
        Entry(message.role, text, count(text), at, *called(message.data))
        for at, (message, text) in enumerate(zip(each, texts, strict=True))
    ]
    shown = await compactor.compact(entries, window)
    broken = faults(entries, shown, window)
    if broken:
        raise RamifyError(f"'{compactor.name}' {broken[0]}")
    made: list[Mapping[str, Any]] = [{"role": item.role, "content": item.text} for item in shown if isinstance(item, Message)]
    kept = {item.place for item in shown if isinstance(item, Entry)}
    parts = iter(made)
    view = [given[item.place] if isinstance(item, Entry) else dict(next(parts)) for item in shown]
    return view, tuple(at for at in range(len(given)) if at not in kept), made


def _difference(given: Chat, shown: Chat) -> tuple[tuple[int, ...], list[Mapping[str, Any]]]:
    """Places of ``given`` that are not in ``shown``, and what is in ``shown`` alone; equal messages are matched newest first."""
    left = Counter(canonical_json(plain(value)) for value in shown)
    evicted = []
    for at in range(len(given) - 1, -1, -1):
        key = canonical_json(plain(given[at]))
        if left[key]:
            left[key] -= 1
        else:
            evicted.append(at)
    new = []
    for value in shown:
        key = canonical_json(plain(value))
        if left[key]:
            left[key] -= 1
            new.append(value)
    return tuple(reversed(evicted)), new
