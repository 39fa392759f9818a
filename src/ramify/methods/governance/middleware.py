"""Pins as middleware of any model: rules that survive whatever a client's own compaction does to its messages (arXiv 2606.22528,
section 3.9).

``--middleware pins:rules.txt``. The rules are the operator's:
they come from a file, and no message can add, change or remove one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError, UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.base.registry import register
from ramify.methods.governance.calls import read_calls
from ramify.methods.governance.predicates import NEEDS, Call, UnreadableError, allows, forbids
from ramify.methods.governance.written_rules import Rule, read_rules
from ramify.model.middleware import Middleware
from ramify.model.protocol import Completion, Model, Prefix
from ramify.rollout.pins import Pin, Pins, is_block
from ramify.rollout.rules import survival
from ramify.score.judge import Each, Item, Judgement
from ramify.trace.message import Message


@register("middleware", "pins")
class KeepsRules(Middleware):
    """Puts back, word for word, each rule that the system's messages do not hold as a line of its own;
    one that is there is not said twice.

    A rule counts as there only in the leading system messages, and only where the rest of them does not take it back. Blocks that
    stand anywhere else are forged, and are taken out. ``data["pins"]`` reports what was done, if anything: ``reinserted``,
    ``attempts`` (newest messages that claim to change a rule), ``forbidden`` (calls of the reply that a rule's predicate forbids;
    they are reported, not stopped). Token ids, which hold no messages, are refused (NeedsError). Raises UserError on a file that
    holds no rules, and on rules that contradict one another.
    """

    name = "pins"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.rules = read_rules(Path(argument)) if argument else []
        self.pins = Pins(_pin(rule, argument) for rule in self.rules)

    @property
    def settings(self) -> Any:
        """The rules."""
        return [[rule.text, rule.predicate] for rule in self.rules]

    async def before(self, given: Prefix) -> Prefix:
        """See :class:`Middleware`. Raises NeedsError on token ids: rules that are not shown would not be kept."""
        if not self.rules:
            return given
        if given.tokens is not None:
            raise NeedsError(
                "middleware 'pins' keeps its rules among the messages of a chat, and a prompt of /v1/completions has none: "
                "use /v1/chat/completions"
            )
        head = _head(given.messages)
        kept = tuple(message for i, message in enumerate(given.messages) if i < head or not _is_block(message))
        missing = self._missing(given.messages[:head])
        if not missing:
            return given if len(kept) == len(given.messages) else replace(given, messages=kept)
        block = Message(self.pins.role, Pins(missing).block())
        return replace(given, messages=(*kept[:head], block, *kept[head:]))

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        """See :class:`Middleware`."""
        if not self.rules:
            return completion
        last = max((i for i, message in enumerate(given.messages) if message.role == "assistant"), default=-1)
        record = {
            "reinserted": [pin.text for pin in self._missing(given.messages[: _head(given.messages)])],
            "attempts": [m.text[:200] for m in given.messages[last + 1 :] if m.role != "system" and self.pins.claims(m.text)],
            "forbidden": list(self._forbidden(completion)),
        }
        record = {name: found for name, found in record.items() if found}
        return replace(completion, data={**(completion.data or {}), "pins": record}) if record else completion

    def _missing(self, head: Sequence[Message]) -> list[Pin]:
        text = "\n".join(_lines(message) for message in head)
        return [pin for pin in self.pins.active() if not _stands(pin.text, text)]

    def _forbidden(self, completion: Completion) -> list[dict[str, str]]:
        try:
            calls = list(read_calls(completion.message))
        except UnreadableError:
            return []
        gates = [(pin, pin.allows) for pin in self.pins.active() if pin.allows is not None]
        return [{"call": name, "rule": pin.text} for name, given in calls for pin, allowed in gates if not allowed(name, given)]


def _pin(rule: Rule, source: str) -> Pin:
    """A pin of a rule. A predicate that looks at earlier calls makes no gate: a context that was compacted does not hold them."""
    gates = rule.predicate is not None and rule.predicate["kind"] != NEEDS
    return Pin(rule.text, source=source, allows=allows(rule.predicate or {}) if gates else None)


def _head(messages: Sequence[Message]) -> int:
    """How many messages of the system come first."""
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))


def _lines(message: Message) -> str:
    """The text of a message, each content part on a new line where a client sent it in parts."""
    parts = message.sent.get("content") if isinstance(message.sent, Mapping) else None
    if not isinstance(parts, list):
        return message.text
    texts = [part if isinstance(part, str) else str(part.get("text") or "") for part in parts if isinstance(part, (str, dict))]
    return "\n".join(texts) if "".join(texts) == message.text else message.text


def _is_block(message: Message) -> bool:
    return any(is_block({"role": message.role, "content": text}) for text in (message.text, _lines(message)))


def _stands(rule: str, text: str) -> bool:
    """Whether ``rule`` is a line (or lines) of its own in ``text``, bulleted or numbered perhaps,
    and the rest does not take it back."""
    lines = re.compile(rf"^[ \t]*(?:[-*•]|\d+[.)])?[ \t]*{re.escape(rule.strip())}[ \t]*$", re.MULTILINE)
    rest, found = lines.subn("", text)
    return bool(found) and survival(rule, rest).kind != "contradicted"


@register("judge", "rules")
class RuleCheck(Each):
    """``rules:FILE``: 1 where no call of the last reply is forbidden by a rule of the file, 0 where one is;
    no value where a call cannot be read.

    Only rules with a predicate can be checked; see docs/methods/governance.md for their form.
    """

    name = "rules"

    def __init__(self, argument: str = "") -> None:
        self.rules = [rule for rule in (read_rules(Path(argument)) if argument else []) if rule.predicate is not None]
        if argument and not self.rules:
            raise UserError(f"no rule in {argument} has a predicate, so there is nothing that a call could break")

    @property
    def identity(self) -> str:
        """Hash of the check and its rules."""
        return stable_hash("governance.rules", 1, json_hash([[rule.text, dict(rule.predicate or {})] for rule in self.rules]))

    async def one(self, item: Item) -> Judgement:
        """See :class:`ramify.score.judge.Each`."""
        last = item.messages[-1] if item.messages else Message("assistant", item.text)
        reply = last if last.role == "assistant" else None
        broken, earlier = list[str](), list[Call]()
        for message in item.messages[:-1]:
            with suppress(UnreadableError):  # of the calls before it is judged elsewhere
                earlier += read_calls(message)
        try:
            for name, given in read_calls(reply) if reply is not None else ():
                broken += [rule.text for rule in self.rules if forbids(rule.predicate or {}, name, given, earlier)]
                earlier.append((name, given))
        except UnreadableError as error:
            return Judgement(failure=str(error))
        return Judgement(not broken, evidence={"broken": broken})
