"""Prompts of an episode: what the model is shown at a position, rendered for it in parts of the tree, with a node's own tokens
wherever they are still shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.env.protocol import chat_of
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.laid import ToolTemplates, said
from ramify.model.protocol import Prefix
from ramify.model.rendered import Filled, Known, RenderedPiece, rendered
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Turn
from ramify.rollout.compact import compacted, window_of
from ramify.rollout.record import Position, Prompt, Record
from ramify.rollout.sampler import Sampler
from ramify.trace.context import changed, seen, whole_tokens
from ramify.trace.message import Message, read_message
from ramify.trace.node import Insert, Node
from ramify.trace.path import Part, as_messages, by_message, message_of, text_between


class Prompts:
    """Renders the prompts of one agent."""

    def __init__(self, agent: Agent, record: Record, sampler: Sampler) -> None:
        self.agent, self.record, self.sampler = agent, record, sampler
        self._tools = None if agent.template is None else ToolTemplates(agent.template)

    def at(self, node: Node, offset: int | None = None) -> Position:
        """The position after ``node``, or after ``offset`` tokens of it, with what the model will be shown.

        Offset 0 of an agent's message means after the message before it: a sample there is a sibling.
        """
        if node.role == "assistant" and offset == 0:
            node, offset = self.record.load(node.tree).node(str(node.parent)), None
        path = self.record.trees[node.tree].path(node.id)
        if offset is not None:
            path = path.upto(offset)
        nodes = [n for n, _ in path.segments]
        explicit = any(changed(n) for n in nodes)
        parts = self.shown(node, offset)
        prompt = self._encoded(parts)
        inside = node.role == "assistant" and (offset is not None or node.provenance is None)
        replies = sum(n.role == "assistant" and n.opens for n in nodes)
        return Position(
            node,
            len(node) if offset is None else offset,
            prompt["tokens"],
            prompt["messages"],
            sum(n.reward or 0.0 for n in nodes),
            replies - inside,
            prompt["messages"][-1].text if inside else None,
            parts if explicit else None,
        )

    def after(self, position: Position, turn: Turn) -> Position:
        """The position after a turn."""
        node, answer = turn.node, turn.answer
        if node.context is not None:
            return self.at(answer)
        tokens = [*position.tokens]
        if node.tokens is not None and answer.tokens is not None:
            tokens += [node.tokens, answer.tokens]
        before = position.messages if position.begun is None else position.messages[:-1]
        reply = Message("assistant", (position.begun or "") + node.text, dict(node.data))
        messages = [*before, reply, Message(answer.role, answer.text, dict(answer.data))]
        return Position(answer, len(answer), tokens, messages, position.reward + (answer.reward or 0.0), position.turns + 1)

    def shown(self, node: Node, offset: int | None = None) -> list[Part]:
        """The history of a model that continues after ``node``, or after ``offset`` tokens of it."""
        known = self.record.load(node.tree)
        path = known.path(node.id)
        return seen(path if offset is None else path.upto(offset), known.node, self.record.run.context)

    def instead(self, position: Position, parts: list[Part]) -> Position:
        """``position`` with ``parts`` shown instead of the history."""
        return replace(position, **self._encoded(parts), shown=parts)

    async def fitted(self, position: Position) -> Position:
        """``position`` with what is shown shortened by the agent's compactor where it is beyond the window.

        Raises InfrastructureError("compactor") where the compactor breaks a promise.
        """
        if self.agent.compactor is None:
            return position
        parts = position.shown or self.shown(position.parent, position.offset)
        agent, template, messages = self.agent, self.agent.template, as_messages(parts)
        head = (
            0
            if template is None or position.begun is not None
            else len(template.open("assistant", messages[-1].role if messages else ""))
        )
        size = sum(len(message.text) for message in messages) if template is None else len(whole_tokens(parts))
        if size + head <= agent.window:
            return position
        limit = (
            agent.window - head - (_front(template) if template is not None and messages and messages[0].role != "system" else 0)
        )
        window = window_of(self.sampler, template, agent.sampling, limit, ("compact", position.parent.id, position.offset))
        shown = await compacted(parts, self.agent.compactor, window, template)
        if template is not None and (size := len(whole_tokens(shown)) + head) > agent.window:
            raise InfrastructureError("compactor", f"the prompt takes {size} tokens rendered, where at most {agent.window} fit")
        return self.instead(position, shown)

    def sends(self, position: Position) -> bool:
        """Whether the model is shown messages that are sent: it takes messages, or an agent's program sends it some."""
        return self.agent.template is None or any(chat_of(one.data) for one in position.messages if one.role in ("user", "tool"))

    def prompt(
        self,
        position: Position,
        tools: Sequence[Mapping[str, Any]],
        asked: Mapping[str, Any] | None = None,
        edit: Callable[[Prefix], Prefix] | None = None,
    ) -> Prompt:
        """The model's prompt at ``position``; ``asked`` are further fields of the request where the history says none, ``edit``
        changes what is sent (:meth:`sends`). Raises InfrastructureError("template") where the template refuses the history."""
        messages, fields = chat_shown(position.messages)
        prefix = Prefix(None, messages, tuple(tools), fields or asked or {})
        prefix = prefix if edit is None else edit(prefix)
        rendered, head = self._rendered(position, prefix)
        pieces = list(position.tokens) if rendered is None else [whole_tokens(rendered)]
        if head is not None:
            pieces.append(head)
        tokens = np.concatenate(pieces) if pieces else None
        return Prompt(replace(prefix, tokens=tokens), rendered, head)

    def tokens_of(self, parts: list[Part], begun: bool) -> np.ndarray:
        """int32 (T,): the prompt rendered from the history ``parts``; ``begun``: it ends in the model's own unfinished reply.

        Raises NeedsError where a part has text only, InfrastructureError("template") where the template refuses the history.
        """
        if isinstance(self.agent.template, JinjaTemplate):
            parts = rendered_parts(self.agent.template, parts, not begun)[0] or parts
        return whole_tokens(parts)

    def _encoded(self, parts: list[Part]) -> dict[str, Any]:
        tokens = [] if self.agent.template is None else [whole_tokens(parts)]
        return {"tokens": tokens, "messages": as_messages(parts)}

    def _rendered(self, position: Position, prefix: Prefix) -> tuple[list[Part] | None, np.ndarray | None]:
        """The prompt where it is not the history's own tokens, since the template rewrites the history or an agent's program
        sent other messages or tools; and the tokens that open the reply."""
        if self._tools is None:
            return None, None
        opens, asked = position.begun is None, prefix.asked
        template, told = self._tools.tools(
            prefix.messages, () if asked.get("tool_choice") == "none" else asked.get("tools") or ()
        )
        sent = self._sent(position, template, told)
        if not isinstance(template, JinjaTemplate):
            return sent, head_of(template, told) if opens else None
        parts = sent or position.shown or self.shown(position.parent, position.offset)
        rendered, head = rendered_parts(template, parts, opens)
        return rendered or sent, head

    def _sent(self, position: Position, template: ChatTemplate, messages: Sequence[Message]) -> list[Part] | None:
        """``messages`` as parts: what stands in the history, replies above all, keeps its tokens. None where they are it."""
        history = position.messages
        if len(messages) == len(history) and all(a is b or said(a) == said(b) for a, b in zip(messages, history, strict=True)):
            return None
        groups = by_message(position.shown or self.shown(position.parent, position.offset))
        known: dict[tuple[str, str], list[list[Part]]] = {}
        for message, group in zip(history, groups, strict=True):
            known.setdefault(said(message), []).append(group)
        parts, after = list[Part](), ""
        for message in messages:
            if same := known.get(said(message)):
                parts += same.pop(0) if len(same) > 1 else same[0]
            else:
                tokens, _, text = template.render(message.role, message.written(), after)
                parts.append(Insert(text, tuple(tokens), message.role))
            after = message.role
        return parts


def _front(template: ChatTemplate) -> int:
    """Tokens a template puts before a conversation; they move to the next message when the first is dropped."""
    first, later = (len(template.render("user", "x", after)[0]) for after in ("", "user"))
    return max(0, first - later)


def chat_shown(messages: Sequence[Message]) -> tuple[tuple[Message, ...], Mapping[str, Any]]:
    """The messages of a chat, with those that an observation stands for in its place, and the further fields of the request
    (:func:`ramify.env.protocol.chat_of`)."""
    found: list[Message] = []
    asked: Mapping[str, Any] = {}
    for message in messages:
        about = chat_of(message.data) if message.role in ("user", "tool") else {}
        asked = about.get("asked", asked)
        if "shown" in about:
            found = []
        given = about.get("shown", about.get("messages"))
        found += [message] if given is None else [replace(read_message(one, "a message"), sent=one) for one in given]
    return tuple(found), asked


def sent_as(messages: Sequence[Message], at: int) -> list[tuple[Message, int]]:
    """The messages of the chat that ``messages[at]`` stands for, each with how many before it say the same; none where it stands
    for the whole chat."""
    if "shown" in chat_of(messages[at].data):
        return []
    before, chat = len(chat_shown(messages[:at])[0]), chat_shown(messages[: at + 1])[0]
    return [(chat[i], sum(said(chat[i]) == said(other) for other in chat[:i])) for i in range(before, len(chat))]


def head_of(template: ChatTemplate, messages: Sequence[Message]) -> np.ndarray:
    """int32 (T,): the tokens that open a reply to ``messages`` where a template only ever adds to what it rendered."""
    return np.asarray(template.open("assistant", messages[-1].role if messages else ""), np.int32)


def rendered_parts(template: JinjaTemplate, parts: Sequence[Part], opens: bool) -> tuple[list[Part] | None, np.ndarray | None]:
    """What ``template`` shows of the history ``parts``, None where it is the history itself;
    and the tokens (T,) that open a reply.

    ``opens`` is False where the last message is the agent's own, begun: it is shown as it is, and there is no header. Raises
    InfrastructureError("template") where the template refuses the history.
    """
    groups = by_message(parts)
    begun = [] if opens else groups.pop()
    messages = [message_of(group) for group in groups]
    known = [Known(m.role, m.text, tuple(map(_piece, group))) for m, group in zip(messages, groups, strict=True)]
    try:
        found = rendered(template, known)
    except NeedsError as error:
        raise InfrastructureError("template", str(error)) from error
    head = np.asarray(found.header, np.int32) if opens else None
    if found.pieces is None:
        return None, head
    made: list[Part] = []
    for piece in found.pieces:
        if isinstance(piece, Filled):
            made.append(Insert(piece.text, piece.tokens, piece.role))
            continue
        part = groups[piece.message][piece.piece]
        if not isinstance(part, Insert):
            made.append((part[0], part[1] + piece.start, part[1] + piece.end))
        elif (piece.start, piece.end) == (0, len(part.tokens or ())):
            made.append(part)
        else:
            made.append(Insert(part.text, tuple(part.tokens or ())[piece.start : piece.end], part.role))
    return [*made, *begun], head


def _piece(part: Part) -> RenderedPiece:
    if isinstance(part, Insert):
        return RenderedPiece(np.asarray(part.tokens or (), np.int32), part.text)
    node, start, end = part
    tokens = np.zeros(0, np.int32) if node.tokens is None else node.tokens[start:end]
    ends = None if node.ends is None else node.ends[start:end] - (node.ends[start - 1] if start else 0)
    return RenderedPiece(tokens, text_between(node, start, end), None if node.sampled is None else node.sampled[start:end], ends)
