"""Stores requests to a server in a run as trees of conversations: messages, rendered prompts, answers.

A conversation is a tree; it begins with the messages up to the user's first. A request that repeats what was answered before
continues below the node that was sampled then, and several choices are siblings. Where a client has compacted its messages, so
that only its newest exchange is known, the history stays whole: the reply hangs below that exchange, and its explicit context
says what the model was shown instead. Only the same client's exchanges are looked at (``Exchange.client``): "hi" and its answer
open many conversations.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ramify.base.ids import canonical_json, stable_hash
from ramify.base.secrets import redact
from ramify.model.chat import ChatTemplate, assistant_node_parts
from ramify.model.protocol import Completion, Prefix
from ramify.model.wire import clean
from ramify.trace.context import with_rest
from ramify.trace.db import Run
from ramify.trace.foreign import end_attempt, open_attempt, root
from ramify.trace.message import Message, plain, split_reply
from ramify.trace.node import RECORDED, AttemptRecord, Insert, Node, Provenance, Score, Span, make_node
from ramify.trace.parallel import results_in_order
from ramify.trace.view import TokenMessage
from ramify.web.exchange import Exchange
from ramify.web.fields import IGNORED
from ramify.web.redaction import scrub

_ROLES = ("system", "user", "assistant", "tool")
_REPLY, _EXCHANGE, _AGAIN, _PROMPT = "reply", "exchange", "exchange-again", "prompt"
"""Kinds of journal entries, by which a later request finds the node to continue from."""
_LABELS = ("seed", *IGNORED)
"""Fields of a request that do not change replies (or, like the seed, are stored as the sample key) and so are not settings."""
_PROMPTS = 1 << 16
"""Ends of prompts of token ids, and of what was sampled after them, that are remembered."""


@dataclass(frozen=True, slots=True)
class _Keyed:
    """One message as it is stored, with its tokens where the model was shown it so. ``key`` identifies it, however its tool calls
    were written."""

    shown: TokenMessage
    key: str


@dataclass(frozen=True, slots=True)
class _Known:
    """The node of an earlier reply, and whether the path to it equals what the client sent."""

    node: Node
    whole: bool


class Conversations:
    """Adds exchanges to ``run``. ``template`` lays sampled tokens out;
    ``hidden`` takes addresses, keys and numbers out of every text.

    Memory does not grow: what was sampled is found through the run's journal,
    and of prompts of token ids the newest are remembered.
    """

    def __init__(self, run: Run, template: ChatTemplate | None = None, hidden: bool = False) -> None:
        self.run, self.template, self.hidden = run, template, hidden
        self._index = itertools.count(len(run))  # above every sample index that an earlier server used in this run
        self._ends: OrderedDict[str, str] = OrderedDict()
        for entry in run.journal(_PROMPT)[-_PROMPTS:]:
            self._ends[entry.key] = entry.payload["node"]
        self._sizes = {entry.payload["bytes"] for entry in run.journal(_PROMPT)}

    def add(self, exchange: Exchange) -> None:
        """Store one exchange, whole or not at all, and commit. Raises RamifyError where the disk refuses."""
        with self.run.transaction():
            self._provenance = self._made_by(exchange)
            for prefix, keys, outcomes in zip(exchange.prompts, exchange.keys, exchange.outcomes, strict=True):
                if prefix.tokens is None:
                    self._chat(prefix, exchange, keys, outcomes)
                else:
                    self._completion(prefix.tokens, exchange, keys, outcomes)

    def _made_by(self, exchange: Exchange) -> str:
        settings = {"route": exchange.route, **exchange.settings.to_json()}
        self._labels: Any = {}
        for prefix in exchange.prompts[:1]:
            fields = redact(plain(prefix.asked))
            settings |= {name: value for name, value in fields.items() if name not in _LABELS}
            self._labels = {name: value for name, value in fields.items() if name in IGNORED and value is not None}
            self._labels = scrub(self._labels) if self.hidden else self._labels
            if prefix.tools:
                settings["tools"] = list(prefix.tools)
        settings = scrub(plain(settings)) if self.hidden else plain(settings)
        provenance = Provenance(exchange.identity.name, exchange.identity.weights, settings, 0)
        self.run.add(provenance)
        return provenance.hash

    # -- chats

    def _chat(self, prefix: Prefix, exchange: Exchange, keys: Sequence[int], outcomes: Sequence[Completion | Exception]) -> None:
        shown = next((completion.shown for completion in outcomes if isinstance(completion, Completion) and completion.shown), ())
        messages = self._messages(prefix.messages, shown)
        ordered = results_in_order(messages, lambda one: one.shown.data, lambda one: one.shown.role)
        positions = list(itertools.accumulate((m.key for m in ordered), stable_hash, initial=""))
        at, known = self._known(ordered, positions, exchange.client)
        if known is None:
            head = next((i for i, m in enumerate(messages) if m.shown.role == "user"), len(messages) - 1) + 1
            name = f"chat-{positions[head][:16]}"
            if not self.run.has_tree(name):
                self.run.add_tree(name, {"id": name, "asked": messages[head - 1].shown.text[:200] if messages else ""})
            known = _Known(root(self.run, name), True)
        node = known.node
        for message in messages[at:]:
            node = self._given(node, message)
        continued = self._continued(known.node, node)
        context = None if known.whole and not shown else self._context(node, messages, shown)
        for key, outcome in zip(keys, outcomes, strict=True):
            reply = self._reply(node, exchange, key, outcome, context, messages[-1].shown.role if messages else "", continued)
            if isinstance(outcome, Completion):
                self._remember(reply, outcome, ordered, positions, known.whole, exchange.client)

    def _messages(self, messages: Sequence[Message], shown: Sequence[TokenMessage]) -> list[_Keyed]:
        """The client's messages, each with its tokens where the prompt contains it unchanged."""
        waiting: dict[str, list[TokenMessage]] = {}
        for rendered, keyed in zip(shown, self._all_keyed([rendered.message for rendered in shown]), strict=True):
            waiting.setdefault(keyed.key, []).append(rendered)
        found = []
        for one in self._all_keyed(messages):
            same = waiting.get(one.key)
            found.append(self._with_tokens(one, same.pop(0)) if same else one)
        return found

    def _all_keyed(self, messages: Sequence[Message]) -> list[_Keyed]:
        """Messages in their order, each keyed with what was called before it."""
        called = _Called()
        return [self._keyed(message, called) for message in messages]

    def _keyed(self, message: Message, called: _Called | None = None) -> _Keyed:
        role = message.role if message.role in _ROLES else "system"
        data = plain(message.data)
        text, data = clean(message.text), json.loads(clean(json.dumps(data, ensure_ascii=False)))
        if self.hidden:
            text, data = scrub(text), scrub(data)
        stored = Message(role, text, data)
        return _Keyed(TokenMessage(stored), _key(stored, called or _Called()))

    def _with_tokens(self, message: _Keyed, rendered: TokenMessage) -> _Keyed:
        """Tokens spell the text, so they are dropped where something was redacted."""
        text = clean(rendered.message.text)
        if rendered.tokens is None or (self.hidden and scrub(text) != text):
            return message
        return _Keyed(TokenMessage(replace(message.shown.message, text=text), rendered.tokens, rendered.ends), message.key)

    def _known(self, messages: Sequence[_Keyed], positions: Sequence[str], client: str) -> tuple[int, _Known | None]:
        """How many messages are below a node that was sampled, and that node.

        By all that was said before it, else by the client's newest exchange.
        """
        replies = [i for i in range(len(messages)) if messages[i].shown.role == "assistant"]
        for i in reversed(replies):
            for entry in self.run.journal(_REPLY, positions[i + 1]):
                return i + 1, _Known(self.run.node(entry.payload["node"]), entry.payload["whole"])
        last = replies[-1] if replies else 0
        if last:
            exchange = stable_hash(client, messages[last - 1].key, messages[last].key)
            if not self.run.journal(_AGAIN, exchange):
                for entry in self.run.journal(_EXCHANGE, exchange):
                    return last + 1, _Known(self.run.node(entry.payload), False)
        return 0, None

    def _remember(
        self, reply: Node, completion: Completion, messages: Sequence[_Keyed], positions: Sequence[str], whole: bool, client: str
    ) -> None:
        key = self._keyed(Message("assistant", self._text(completion), dict(completion.data or {}))).key
        self.run.log(_REPLY, stable_hash(positions[-1], key), {"node": reply.id, "whole": whole})
        if messages:
            exchange = stable_hash(client, messages[-1].key, key)
            if not self.run.log(_EXCHANGE, exchange, reply.id):
                self.run.log(_AGAIN, exchange)

    def _given(self, parent: Node, message: _Keyed) -> Node:
        one = message.shown
        arrays = {"tokens": one.tokens, "ends": one.ends}
        node = make_node(parent.tree, parent.id, len(parent), one.role, one.text, data=one.data, **arrays)
        self.run.add(node)
        return node

    def _context(self, end: Node, messages: Sequence[_Keyed], shown: Sequence[TokenMessage]) -> str | None:
        """The hash of the context that was shown, where the path to ``end`` does not say the same."""
        path = self.run.path(end.id).segments
        nodes = [node for node, _ in path if len(node)]
        keyed = self._all_keyed([rendered.message for rendered in shown])
        seen = [self._with_tokens(one, rendered) for one, rendered in zip(keyed, shown, strict=True)] if shown else messages
        spots: dict[str, list[int]] = {}
        called = _Called()
        for i, node in enumerate(nodes):
            spots.setdefault(_key(node.message, called), []).append(i)
        parts: list[Span | Insert] = []
        at = 0
        for one in seen:
            found = next((i for i in spots.get(one.key, ()) if i >= at and _same_tokens(nodes[i], one)), None)
            if found is None:
                tokens = None if one.shown.tokens is None else tuple(one.shown.tokens.tolist())
                parts.append(Insert(one.shown.text, tokens, one.shown.role))
            else:
                parts.append(Span(nodes[found].id, 0, len(nodes[found])))
                at = found + 1
        if [part.node for part in parts if isinstance(part, Span)] == [node.id for node in nodes] and len(parts) == len(nodes):
            return None
        context = with_rest(parts, path)
        self.run.add(context)
        return context.hash

    def _text(self, completion: Completion) -> str:
        return completion.text if self.template is None else str(assistant_node_parts(self.template, completion)["text"])

    # -- completions

    def _completion(
        self, tokens: np.ndarray, exchange: Exchange, keys: Sequence[int], outcomes: Sequence[Completion | Exception]
    ) -> None:
        """A prompt of token ids continues below the longest prompt with its completion that it begins with."""
        raw = np.ascontiguousarray(tokens, np.int32).tobytes()
        size, name = self._longest(raw)
        if name:
            node = self.run.node(name)
        else:
            tree = f"completion-{_digest(raw)}"
            self.run.add_tree(tree, {"id": tree})
            node = root(self.run, tree)
        known = node
        if size < len(raw):
            new = tokens[size // 4 :]
            spelled = self.template.tokenizer.decode(new.tolist()) if self.template else ""
            fields: dict[str, Any] = {
                "tokens": new,
                "ends": self.template.tokenizer.ends(new.tolist()) if self.template else None,
            }
            text = clean(spelled)
            if self.hidden and (not spelled or scrub(text) != text):  # tokens spell what was taken out
                text, fields = scrub(text) or "[token ids]", {}
            node = make_node(node.tree, node.id, len(node), "user", text, opens=not size, **fields)
            self.run.add(node)
            self._end(raw, node)
        continued = self._continued(known, node)
        for key, outcome in zip(keys, outcomes, strict=True):
            reply = self._reply(node, exchange, key, outcome, None, None, continued)
            if isinstance(outcome, Completion) and reply.tokens is not None:
                self._end(raw + reply.tokens.tobytes(), reply)

    def _longest(self, raw: bytes) -> tuple[int, str]:
        """Bytes of the longest known end that ``raw`` begins with, and its node; 0 and "" where there is none."""
        found, digest, at = (0, ""), hashlib.blake2b(digest_size=12), 0
        for size in sorted(size for size in self._sizes if size <= len(raw)):
            digest.update(raw[at:size])
            at, node = size, self._ends.get(digest.copy().hexdigest())
            found = found if node is None else (size, node)
        return found

    def _end(self, raw: bytes, node: Node) -> None:
        name = _digest(raw)
        if self.run.log(_PROMPT, name, {"node": node.id, "bytes": len(raw)}):
            self._ends[name] = node.id
            self._sizes.add(len(raw))
        while len(self._ends) > _PROMPTS:
            self._ends.popitem(last=False)

    # -- replies

    def _continued(self, known: Node, asked: Node) -> list[AttemptRecord]:
        """The records of the attempts that replies below ``asked`` continue: of the conversation that ends at ``known`` so far,
        and of those that failed where the same is asked again."""
        before = open_attempt(self.run, known)
        failed = [record for node in self.run.failed(asked.id) for record in self.run.attempts(leaf=node.id)]
        return failed if before is None else [before, *failed]

    def _reply(
        self,
        parent: Node,
        exchange: Exchange,
        key: int,
        outcome: Completion | Exception,
        context: str | None,
        after: str | None,
        continued: list[AttemptRecord],
    ) -> Node:
        """Add what was sampled, or that it failed, and that the conversation so far ends with it: the first record of
        ``continued`` is taken and replaced. ``after`` is the role before a chat's reply, None for a completion's."""
        before = continued.pop(0) if continued else None
        about = {"key": key, "request": exchange.id, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        about |= {"asked": self._labels} if self._labels else {}
        fields: dict[str, Any] = {"provenance": self._provenance, "context": context, "index": next(self._index)}
        if not isinstance(outcome, Completion):
            failure = scrub(str(outcome)) if self.hidden else str(outcome)
            data = about | {"failure": clean(redact(failure)), "error": type(outcome).__name__}
            node = make_node(parent.tree, parent.id, len(parent), "assistant", "", stop="failed", data=data, **fields)
            self.run.add(node)
            end_attempt(self.run, node, before=before, purpose=RECORDED)
            return node
        parts = self._parts(outcome, after)
        data = plain(outcome.data or {})
        if self.hidden and (scrub(parts["text"]) != parts["text"] or scrub(data) != data):
            parts, data = {"text": scrub(parts["text"])}, scrub(data)
        text = clean(parts.pop("text"))
        node = make_node(
            parent.tree, parent.id, len(parent), "assistant", text,
            stop=outcome.stop, data=data | about, opens=after is not None, **parts, **fields,
        )  # fmt: skip
        self.run.add(node, *_scores(node.id, data))
        end_attempt(self.run, node, before=before, purpose=RECORDED)
        return node

    def _parts(self, completion: Completion, after: str | None) -> dict[str, Any]:
        if after is not None and self.template is not None:
            return assistant_node_parts(self.template, completion, after=after, head=completion.head)
        sampled = None if completion.tokens is None else np.ones(len(completion.tokens), np.bool_)
        return {
            "text": completion.text,
            "tokens": completion.tokens,
            "sampled": sampled,
            "logprobs": completion.logprobs,
            "ends": completion.ends,
        }


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def _scores(node: str, data: Mapping[str, Any]) -> Iterator[Score]:
    for score in data.get("scores") or ():
        yield Score(
            node,
            score["scorer"],
            score["value"],
            score.get("unit", "reward"),
            evidence=score.get("evidence"),
            judges=score["judges"],
        )


def _same_tokens(node: Node, message: _Keyed) -> bool:
    tokens = message.shown.tokens
    return np.array_equal(node.tokens, tokens) if node.tokens is not None and tokens is not None else node.tokens is tokens


class _Called:
    """The calls of a conversation so far: a client may give a call another id in each request."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._results = 0

    def note(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """A reply, and its calls as far as they have ids."""
        self._places |= {str(call.get("id")): at for at, call in enumerate(calls)}
        self._results = 0

    def place(self, id: Any) -> int:
        """The number of the call that a result answers, among those of its reply; of an unknown call that of the result."""
        at, self._results = self._results, self._results + 1
        return self._places.get(str(id), at)


def _key(message: Message, called: _Called) -> str:
    """What identifies a message: role, text, calls by name and arguments, which call of the reply before it a result answers, and
    parts that are not text."""
    text, calls = split_reply(message.text.strip()) if message.role == "assistant" else (message.text, [])
    attached = [call for call in message.data.get("tool_calls") or () if isinstance(call, Mapping) and "function" in call]
    made = [list(found) for found in Message("assistant", "", {"tool_calls": calls or attached}).functions]
    if message.role == "assistant":
        called.note(attached)
    rest = {name: message.data[name] for name in ("content", "tool_call_id", "name") if message.data.get(name) is not None}
    if message.role == "tool" and "tool_call_id" in rest:
        rest["tool_call_id"] = called.place(rest["tool_call_id"])
    return stable_hash(message.role, text, canonical_json(plain(made)), canonical_json(plain(rest)))
