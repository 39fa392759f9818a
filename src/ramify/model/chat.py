"""Chat templates that lay messages out as tokens without ever encoding drawn text again, and tool calls with token spans.

A message is header tokens, content tokens, closing tokens. Given messages (system, user, tool) are encoded once. An assistant message is
laid out around the tokens the model drew: they stay what they were, whatever encoding their text again would give.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import reason
from ramify.model.protocol import Draw, Model, Tokenizer
from ramify.model.tokenizer import HfTokenizer

TAGS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
END = "<|end|>"


class ChatTemplate(Protocol):
    """Lays messages out as tokens. ``after`` is the role of the message before, "" for the first message of a conversation."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that given text is encoded with."""
        ...

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens with which a model ends its turn."""
        ...

    def open(self, role: str, after: str = "user") -> list[int]:
        """Header tokens that start a message; for ``assistant`` those after which the model draws its reply."""
        ...

    def close(self, role: str, after: str = "user") -> list[int]:
        """Tokens that follow a message's content, end of turn first."""
        ...

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        """Tokens, ends and text of one given message.

        ``ends`` has one character offset into the text a token; template tokens add no text, so theirs repeats the one before.
        The text may differ from the one given where the template trims it.
        """
        ...


def template_of(model: Model) -> ChatTemplate | None:
    """The template a model brings along; by default that of its tokenizer's tags, and none where it takes messages."""
    template: ChatTemplate | None = getattr(model, "template", None)
    if template is None and "tokens" in model.capabilities:
        return TagTemplate(model.tokenizer)  # type: ignore[attr-defined]
    return template


class TagTemplate:
    """For tokenizers whose role headers are one special token each and whose messages all end with ``<|end|>``.

    Raises NeedsError where the tokenizer has no single token for a tag.
    """

    def __init__(self, tokenizer: Tokenizer, tags: Mapping[str, str] = TAGS, end: str = END) -> None:
        self.tokenizer = tokenizer
        self._specials = _pattern((*tags.values(), end))
        self._headers = {role: _single(tokenizer, tag) for role, tag in tags.items()}
        self._end = _single(tokenizer, end)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The end-of-message token."""
        return (self._end,)

    def open(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`. Raises UserError on a role without a tag."""
        if role not in self._headers:
            raise UserError(f"the chat template has no role '{role}'; {nearest(role, self._headers)}")
        return [self._headers[role]]

    def close(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`."""
        return [self._end]

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        """See :class:`ChatTemplate`. A tag inside ``text`` is spelled out, so content cannot forge a message border."""
        tokens, ends = _encode(self.tokenizer, self._specials, "", text, "")
        return [*self.open(role), *tokens, self._end], [0, *ends, len(text)], text


class RawTemplate:
    """Texts as they are, without headers or ends: what a model without a chat template is shown."""

    stop_tokens: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def open(self, role: str, after: str = "user") -> list[int]:
        """Nothing."""
        return []

    def close(self, role: str, after: str = "user") -> list[int]:
        """Nothing."""
        return []

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        """See :class:`ChatTemplate`."""
        tokens, ends = _encode(self.tokenizer, None, "", text, "")
        return tokens, ends, text


_PROBE = "ramify-probe"
_THOUGHT = "ramify-thought"
_HISTORY: dict[str, list[dict[str, str]]] = {
    "": [],
    "system": [{"role": "system", "content": _PROBE}],
    "user": [{"role": "user", "content": _PROBE}],
}
_HISTORY["assistant"] = [
    *_HISTORY["user"],
    {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_PROBE}"},
]
_HISTORY["tool"] = [*_HISTORY["assistant"], {"role": "tool", "content": _PROBE}]


@dataclass
class JinjaTemplate:
    """A Hugging Face chat template.

    The text of one more message is the difference of two renderings of a short stand-in conversation, without and with it; only that
    difference is encoded. So the cost of a message does not grow with the conversation, and the template must add to what it
    rendered before: NeedsError where it rewrites past messages (for example drops past thinking) or refuses a role.
    """

    tokenizer: Tokenizer
    source: str
    """The jinja text; it runs in jinja2's immutable sandbox."""
    specials: tuple[str, ...] = ()
    """Texts of the tokenizer's special tokens; where they occur in a message's content they are spelled out."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Handed to the template: bos_token, eos_token, tools, enable_thinking, ..."""
    name: str = "the chat template"

    def __post_init__(self) -> None:
        self._template = _compile(self.source, self.name)
        self._specials = _pattern(self.specials)
        self._frames: dict[tuple[str, str], tuple[str, str]] = {}
        self._bases: dict[str, str] = {}
        self.stop_tokens = self._find_stops()

    @classmethod
    def from_folder(cls, tokenizer: HfTokenizer, folder: Path, variables: Mapping[str, Any] | None = None) -> JinjaTemplate:
        """Read the template of a checkpoint: ``chat_template.jinja``, or ``chat_template`` of ``tokenizer_config.json``.

        Raises UserError where a file cannot be read, NeedsError where the checkpoint has no template.
        """
        path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            source = jinja.read_text(encoding="utf-8") if jinja.exists() else config.get("chat_template")
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"cannot read the chat template from {path}: {reason(error)}") from error
        if isinstance(source, list):
            source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
        if not isinstance(source, str):
            raise NeedsError(f"{folder} has no chat template")
        texts = {key: _text(config.get(key, "")) for key in ("bos_token", "eos_token")}
        added = tokenizer.raw.get_added_tokens_decoder().values()
        specials = tuple(sorted({*texts.values(), *(token.content for token in added if token.special)} - {""}))
        return cls(tokenizer, source, specials, {**texts, **(variables or {})}, f"the chat template of {folder}")

    def open(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`."""
        if role != "assistant":
            return self.tokenizer.encode(self._frame(role, after)[0])
        prompted = self._render(_HISTORY[after], add_generation_prompt=True)
        return self.tokenizer.encode(self._difference(self._base(after), prompted, role, after))

    def close(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`."""
        return self.tokenizer.encode(self._frame(role, after)[1])

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        """See :class:`ChatTemplate`. Special tokens inside ``text`` are spelled out, so content cannot forge a message border."""
        header, footer = self._frame(role, after)
        added = self._added(role, text, after)
        content = added[len(header) : len(added) - len(footer)]
        if added != header + content + footer:
            raise NeedsError(f"{self.name} changes the frame of a '{role}' message with its content")
        return *_encode(self.tokenizer, self._specials, header, content, footer), content

    def _frame(self, role: str, after: str) -> tuple[str, str]:
        """Template text before and after a message's content."""
        if (role, after) not in self._frames:
            header, found, footer = self._added(role, _PROBE, after).partition(_PROBE)
            if not found:
                raise NeedsError(f"{self.name} does not show the content of a '{role}' message")
            self._frames[role, after] = header, footer
        return self._frames[role, after]

    def _added(self, role: str, text: str, after: str) -> str:
        extended = self._render([*_HISTORY[after], {"role": role, "content": text}])
        return self._difference(self._base(after), extended, role, after)

    def _base(self, after: str) -> str:
        if after not in self._bases:
            # No message renders to nothing: what a template puts in front of the first message (BOS, a default
            # system message) belongs to that message.
            base = self._render(_HISTORY[after]) if after else ""
            if after in ("assistant", "tool") and _THOUGHT not in base:
                raise NeedsError(f"{self.name} drops past thinking, so it cannot go on after an assistant message; {_ADVICE}")
            self._bases[after] = base
        return self._bases[after]

    def _difference(self, base: str, extended: str, role: str, after: str) -> str:
        if not extended.startswith(base):
            raise NeedsError(f"{self.name} rewrites past messages when a '{role}' message follows '{after}'; {_ADVICE}")
        return extended[len(base) :]

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool = False) -> str:
        import jinja2

        try:
            return str(self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self.variables))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise NeedsError(f"{self.name} does not render the roles {roles}: {error}") from error

    def _find_stops(self) -> tuple[int, ...]:
        # What the template puts first after a reply ends the turn, where it is a special token (a plain line break is not).
        footer = self._frame("assistant", "user")[1]
        ended = self._specials.match(footer) if self._specials else None
        texts = {self.variables.get("eos_token", ""), ended.group(1) if ended else ""} - {""}
        return tuple(sorted(_single(self.tokenizer, text) for text in texts))


_ADVICE = "give the model a template that renders past messages unchanged"


def assistant_node_parts(
    template: ChatTemplate, draw: Draw, *, opens: bool = True, closes: bool = True, after: str = "user"
) -> dict[str, Any]:
    """Lay a draw into a node's arrays: header (not drawn), drawn tokens as they are, and the closing tokens not drawn.

    ``opens=False`` for a draw that goes on inside a message, ``closes=False`` to leave the message open. Returns ``tokens``,
    ``sampled``, ``logprobs``, ``ends`` (shape (T,), None where the draw has none) and ``text``, the reply without the token that ended it.
    """
    if draw.tokens is None:
        return {"tokens": None, "sampled": None, "logprobs": None, "ends": None, "text": draw.text}
    drawn = np.asarray(draw.tokens, dtype=np.int32)
    ended = len(drawn) > 0 and int(drawn[-1]) in template.stop_tokens
    draw_ends = template.tokenizer.ends(drawn.tolist()) if draw.ends is None else draw.ends
    spoken = len(drawn) - ended
    text = draw.text[: int(draw_ends[spoken - 1])] if spoken else ""
    head = template.open("assistant", after) if opens else []
    tail = template.close("assistant") if closes else []
    if ended and tail and tail[0] in template.stop_tokens:
        tail = tail[1:]
    pad = (len(head), len(tail))
    ends = np.full(len(drawn) + sum(pad), len(text), dtype=np.int32)
    ends[: len(head)] = 0
    ends[len(head) : len(head) + spoken] = draw_ends[:spoken]
    return {
        "tokens": np.concatenate([np.asarray(head, np.int32), drawn, np.asarray(tail, np.int32)]),
        "sampled": np.pad(np.ones(len(drawn), dtype=np.bool_), pad),
        "logprobs": None if draw.logprobs is None else np.pad(np.asarray(draw.logprobs, dtype=np.float32), pad),
        "ends": ends,
        "text": text,
    }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call in a reply. Spans are half-open; ``token_span`` is None where the node has no tokens."""

    name: str
    arguments: Mapping[str, Any]
    char_span: tuple[int, int]
    token_span: tuple[int, int] | None
    error: str = ""
    """Why the call cannot be made, one clause; "" where it can."""


def parse_tool_calls(text: str, ends: np.ndarray | Sequence[int] | None = None) -> list[ToolCall]:
    """Tool calls of the form ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen), in order.

    ``ends`` are a node's character ends, shape (T,). A malformed call comes back with ``error``; nothing is raised.
    """
    calls, start = [], text.find(_OPEN)
    while start >= 0:
        name, arguments, end, error = _parse_call(text, start + len(_OPEN))
        span = None
        if ends is not None:
            # The first token that reaches beyond the start, and the first that reaches the end: zero-width template tokens stay out.
            span = (int(np.searchsorted(ends, start, "right")), min(len(ends), int(np.searchsorted(ends, end, "left")) + 1))
        calls.append(ToolCall(name, arguments, (start, end), span, error))
        start = text.find(_OPEN, end)
    return calls


_OPEN, _SHUT = "<tool_call>", "</tool_call>"


def _parse_call(text: str, start: int) -> tuple[str, dict[str, Any], int, str]:
    body = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        call, stop = json.JSONDecoder().raw_decode(text, body)
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        shut = text.find(_SHUT, start)
        end = len(text) if shut < 0 else shut + len(_SHUT)
        return "", {}, end, f"the call is not JSON ({str(error).split(':')[0]})"
    stop += len(text[stop:]) - len(text[stop:].lstrip())
    shut = text.find(_SHUT, stop)
    end = len(text) if shut < 0 else shut + len(_SHUT)
    name = call.get("name") if isinstance(call, dict) else None
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return "", {}, end, "the call has no name"
    if not isinstance(arguments, dict):
        return name, {}, end, "the arguments are not an object"
    if shut < 0:
        return name, arguments, end, "the call is not closed"
    if shut != stop:
        return name, arguments, end, "text follows the call's JSON"
    return name, arguments, end, ""


def _encode(
    tokenizer: Tokenizer, specials: re.Pattern[str] | None, header: str, content: str, footer: str
) -> tuple[list[int], list[int]]:
    """Tokens of header + content + footer, and their ends as offsets into ``content``.

    One call in the ordinary case. Where the content holds a special token's text it is cut after that text's first character.
    """
    cuts = [match.start() + 1 for match in specials.finditer(content)] if specials else []
    bounds = [0, *cuts, len(content)]
    parts = [content[a:b] for a, b in itertools.pairwise(bounds)]
    parts[0] = header + parts[0]
    parts[-1] += footer
    tokens: list[int] = []
    ends: list[int] = []
    offset = -len(header)
    for part in parts:
        new = tokenizer.encode(part)
        tokens += new
        ends += [min(max(int(end) + offset, 0), len(content)) for end in tokenizer.ends(new)]
        offset += len(part)
    return tokens, ends


def _pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Matches (with zero width, so overlaps are found too) where one of ``texts`` starts; group 1 is the text."""
    longest_first = sorted((text for text in texts if text), key=lambda text: (-len(text), text))
    return re.compile("(?=(" + "|".join(map(re.escape, longest_first)) + "))") if longest_first else None


def _single(tokenizer: Tokenizer, text: str) -> int:
    tokens = tokenizer.encode(text)
    if len(tokens) != 1:
        raise NeedsError(f"the chat template needs a tokenizer with one token for '{text}', which takes {len(tokens)} here")
    return tokens[0]


def _text(token: Any) -> str:
    """Text of a special token, which configurations give as text, as an object with ``content``, or as null."""
    return str(token.get("content", "")) if isinstance(token, dict) else token if isinstance(token, str) else ""


def _compile(source: str, name: str) -> Any:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks what a model drew; the sampled-mask knows that already, so the block is only rendered."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    # ``strftime_now`` stays undefined: a prompt that holds today's date would make runs differ from day to day.
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"{name} is not a jinja template: {error}") from error
