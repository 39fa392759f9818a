"""Chat templates that render messages as tokens without re-encoding sampled text, and tool calls with token spans.

A message is header tokens, content tokens, closing tokens. Given messages (system, user, tool) are encoded once. An assistant
message is rendered around the tokens the model sampled, which stay unchanged whatever re-encoding their text would give."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import read_record, read_regular, read_small, reason
from ramify.base.ids import stable_hash
from ramify.model.protocol import Completion, Model, Tokenizer
from ramify.model.tokenizer import HfTokenizer
from ramify.trace.message import parse_tool_calls, write_call

TAGS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
END = "<|end|>"
SPECIALS = (*TAGS.values(), END)
"""The tokens that :class:`TagTemplate` needs."""
TAG_JINJA = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""What :class:`TagTemplate` lays out, as the chat template of a checkpoint:
for other servers, which do not spell out a tag in a message."""


class ChatTemplate(Protocol):
    """Renders messages as tokens. ``after`` is the role of the message before, "" for the first message of a conversation."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that given text is encoded with."""
        ...

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens with which a model ends its turn."""
        ...

    def open(self, role: str, after: str = "user") -> list[int]:
        """Header tokens that start a message; for ``assistant`` those after which the model samples its reply."""
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


def own_template(model: object) -> ChatTemplate | None:
    """The model's own chat template; None where it has none."""
    template: ChatTemplate | None = getattr(model, "template", None)
    return template


def template_of(model: Model, given: Mapping[str, Any] | None = None) -> ChatTemplate | None:
    """The model's chat template; by default that of its tokenizer's tags, and none where it takes messages.

    ``given`` (see :func:`read_template`) replaces a Hugging Face template. Raises UserError where there is none to replace,
    NeedsError where the model takes tokens and there is no chat template.
    """
    template = own_template(model)
    if given:
        if not isinstance(template, JinjaTemplate):
            raise UserError(
                "--chat-template goes with a model in this process (builtin, hf:PATH) or one whose folder has a template"
            )
        return replace(template, source=given.get("text") or template.source, date=given.get("date") or template.date)
    if template is None and "tokens" in model.capabilities:
        tokenizer: Tokenizer | None = getattr(model, "tokenizer", None)
        if tokenizer is None:
            raise NeedsError(f"'{model.identity.name}' has no tokenizer, so no chat can be rendered for it")
        folder: Path | None = getattr(model, "folder", None)
        if folder is not None and isinstance(tokenizer, HfTokenizer):
            template = template_in(folder, tokenizer)
        else:
            template = TagTemplate(tokenizer)
    return template


def read_template(file: Path) -> dict[str, str]:
    """A template of the user's own: its ``text`` and its ``name``.
    Raises UserError where the file cannot be read or is not a template."""
    try:
        text = read_small(file, "the chat template").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the chat template {file}: {error}") from None
    _compile(text, f"the chat template {file}", datetime.datetime.min)
    return {"text": text, "name": f"the chat template {file}"}


def template_in(folder: Path, tokenizer: HfTokenizer, given: Mapping[str, Any] | None = None) -> ChatTemplate:
    """The chat template of the checkpoint in ``folder`` with its ``tokenizer``. Raises NeedsError where it has none.

    ``given``: the ``text`` of a template instead, its ``name`` and the ``date`` it renders, where given.
    """
    given = given or {}
    date = given.get("date", "")
    if given.get("text"):
        return JinjaTemplate.from_folder(tokenizer, folder, source=given["text"], name=given.get("name", ""), date=date)
    try:
        return TagTemplate(tokenizer)
    except NeedsError:
        return JinjaTemplate.from_folder(tokenizer, folder, date=date)


def train_tokenizer(texts: Iterable[str], vocab: int, pieces: str = r" ?[^\s.,:]+|\s|[.,:]") -> HfTokenizer:
    """A byte-level BPE tokenizer of ``vocab`` tokens learnt from ``texts``, with :data:`SPECIALS`; any text round-trips.

    ``pieces``: a regular expression of what no merge crosses; by default words with their leading space, and punctuation alone.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(pieces), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(texts, trainer)
    return HfTokenizer(raw)


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
    """Texts unchanged, without headers or ends: for a model without a chat template."""

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
_HISTORY: dict[str, list[dict[str, Any]]] = {
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

    :meth:`whole` renders a conversation as transformers' ``apply_chat_template`` does, so it may rewrite past messages (drop past
    thinking, move the system message): :mod:`ramify.model.rendered` makes tokens of it without encoding sampled text again.

    ``open``, ``close`` and ``render`` lay out one more message instead: its text is the difference of two renderings of a short
    stand-in conversation, without and with it. So the cost of a message does not grow with the conversation, and the template
    must add to what it rendered before: NeedsError where it rewrites past messages or refuses a role.
    """

    tokenizer: Tokenizer
    source: str
    """The jinja text; it runs in jinja2's immutable sandbox."""
    specials: tuple[str, ...] = ()
    """Texts of the tokenizer's special tokens; where they occur in a message's content they are spelled out."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Handed to the template: bos_token, eos_token, tools, enable_thinking, ..."""
    name: str = "the chat template"
    date: str = ""
    """YYYY-MM-DD: the day that ``strftime_now`` returns, at midnight; today where it is empty."""
    strict: bool = True
    """False: a message that the template cannot add to what it rendered before gets the frame it has elsewhere, or none. For a
    caller that compares what it has with :meth:`whole` before every reply."""

    def __post_init__(self) -> None:
        self.date = self.date or datetime.date.today().isoformat()
        try:
            day = datetime.datetime.combine(datetime.date.fromisoformat(self.date), datetime.time())
        except ValueError:
            raise UserError(f"'{self.date}' is not a date for {self.name}: write YYYY-MM-DD") from None
        self._template = _compile(self.source, self.name, day)
        self._specials = _pattern(self.specials)
        self._frames: dict[tuple[str, str], tuple[str, str]] = {}
        self._bases: dict[str, str] = {}
        self._trailer = ""  # ends a conversation without a generation prompt, and belongs to no message
        self._parted = False  # contents as lists of parts, for a template of a model that sees pictures, too
        self.stop_tokens = self._find_stops()
        self._trailer = self._find_trailer()

    @classmethod
    def from_folder(
        cls,
        tokenizer: HfTokenizer,
        folder: Path,
        variables: Mapping[str, Any] | None = None,
        source: str | None = None,
        name: str = "",
        date: str = "",
    ) -> JinjaTemplate:
        """Read the template of a checkpoint: ``chat_template.jinja``, or ``chat_template`` of ``tokenizer_config.json``.

        ``source`` is used instead, and ``name`` names that. Raises UserError where a file cannot be read, NeedsError where the
        checkpoint has no template.
        """
        path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            config = read_record(path, "the tokenizer's") if source is None or path.exists() else {}
            stored = (
                source
                if source is not None
                else (read_regular(jinja, "the chat template").decode() if jinja.exists() else config.get("chat_template"))
            )
            texts = {key: _text(config.get(key, "")) for key in ("bos_token", "eos_token")}
            texts |= {key: text for key in _OTHER_TOKENS if (text := _text(config.get(key)))}
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"cannot read the chat template from {path}: {reason(error)}") from error
        if isinstance(stored, list):
            stored = {entry.get("name"): entry.get("template") for entry in stored}.get("default")
        if not isinstance(stored, str):
            raise NeedsError(f"{folder} has no chat template: give one with --chat-template FILE")
        added = tokenizer.raw.get_added_tokens_decoder().values()
        specials = tuple(sorted({*texts.values(), *(token.content for token in added if token.special)} - {""}))
        named = name or f"the chat template of {folder}"
        return cls(tokenizer, stored, specials, {**texts, **(variables or {})}, named, date)

    def to_json(self) -> dict[str, str]:
        """What determines a rendering, as a run stores it: the text, its date, and a hash of the two."""
        day = self.date if "strftime_now" in self.source else ""
        return {"text": self.source, "date": self.date, "hash": stable_hash("chat template", self.source, day)}

    @cached_property
    def lenient(self) -> JinjaTemplate:
        """This template with ``strict=False``."""
        return self if not self.strict else replace(self, strict=False)

    def spells_special(self, text: str) -> list[int]:
        """Where to cut ``text`` so that no text of a special token in it is encoded as that token."""
        return [] if self._specials is None else [match.start() + 1 for match in self._specials.finditer(text)]

    # -- a whole conversation

    def whole(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """A conversation (OpenAI's form) as transformers' ``apply_chat_template`` renders it.
        Raises NeedsError where it refuses it."""
        return self._render(messages, add_generation_prompt)

    def in_openai_form(self, messages: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """Messages (role, text) as the template takes them.

        A reply's text is unchanged, with its thinking and its tool calls, where the template shows a tool's result after it.
        Where the template needs calls in fields of their own, they are removed from the text that a tool's result follows. Raises
        NeedsError where it shows no tool's result either way."""
        given = list(messages)
        as_fields = self._calls_as_fields if any(role == "tool" for role, _ in given) else False
        converted: list[dict[str, Any]] = []
        for at, (role, text) in enumerate(given):
            message: dict[str, Any] = {"role": role, "content": text}
            if as_fields and role == "assistant" and at + 1 < len(given) and given[at + 1][0] == "tool":
                message = _with_calls(text, at)
            elif as_fields and role == "tool":
                calls = converted[-1].get("tool_calls") if converted else None
                message = {"role": "user", "content": text}
                if calls:
                    function = calls[0]["function"]
                    message = {"role": "tool", "content": text, "name": function["name"], "tool_call_id": calls[0]["id"]}
            converted.append(message)
        return converted

    @cached_property
    def _calls_as_fields(self) -> bool:
        """Whether a tool's result is only shown after a message that has its calls in fields of their own."""
        call = write_call("probe", {}, lines=True)
        question, answer = {"role": "user", "content": "x"}, {"role": "tool", "content": _PROBE}
        refused = ""
        plain: dict[str, Any] = {"role": "assistant", "content": call}
        for reply in (plain, _with_calls(call, 0)):
            as_fields = "tool_calls" in reply
            result = {**answer, "name": "probe", "tool_call_id": reply["tool_calls"][0]["id"]} if as_fields else answer
            try:
                rendered = self._render([question, reply, result], add_generation_prompt=True)
            except NeedsError as error:
                refused = str(error)
                continue
            if _PROBE in rendered and "probe" in rendered.replace(_PROBE, ""):
                return as_fields
        raise NeedsError(refused or f"{self.name} does not show the result of a tool")

    def check(self, system: bool, tools: bool) -> None:
        """Raises NeedsError where the template refuses what an environment needs: a system message, a tool's result."""
        if system:
            try:
                rendered = self._render([{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}], True)
            except NeedsError as error:
                raise NeedsError(f"{self.name} refuses the system message of the environment; {_OTHER} ({error})") from None
            if _PROBE not in rendered:
                raise NeedsError(f"{self.name} does not show the system message of the environment; {_OTHER}")
        if tools:
            try:
                _ = self._calls_as_fields
            except NeedsError as error:
                raise NeedsError(f"{self.name} refuses the tool results of the environment; {_OTHER} ({error})") from None

    # -- one more message

    def open(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`."""
        if role != "assistant":
            return self.tokenizer.encode(self._frame(role, after)[0])
        for before in self._elsewhere(after):
            try:
                prompted = self._render(_HISTORY[before], add_generation_prompt=True)
                return self.tokenizer.encode(self._difference(self._base(before), prompted, role, before))
            except NeedsError:
                if self.strict:
                    raise
        return []

    def close(self, role: str, after: str = "user") -> list[int]:
        """See :class:`ChatTemplate`."""
        return self.tokenizer.encode(self._frame(role, after)[1])

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        """See :class:`ChatTemplate`. Special tokens inside ``text`` are spelled out, so content cannot forge a message border."""
        header, footer = self._frame(role, after)
        if not self.strict:
            return *_encode(self.tokenizer, self._specials, header, text, footer), text
        added = self._added(role, text, after)
        content = added[len(header) : len(added) - len(footer)]
        if added != header + content + footer:
            raise NeedsError(f"{self.name} changes the frame of a '{role}' message with its content")
        return *_encode(self.tokenizer, self._specials, header, content, footer), content

    def _elsewhere(self, after: str) -> list[str]:
        """What to put before a message to see its frame: ``after``, and where that will not do, others."""
        return [after] if self.strict else list(dict.fromkeys((after, "user", "system", "")))

    def _frame(self, role: str, after: str) -> tuple[str, str]:
        """Template text before and after a message's content."""
        if (role, after) not in self._frames:
            for before in self._elsewhere(after):
                try:
                    header, probe, footer = self._added(role, _PROBE, before).partition(_PROBE)
                    if not probe:
                        raise NeedsError(f"{self.name} does not show the content of a '{role}' message")
                except NeedsError:
                    if self.strict:
                        raise
                    header, footer = self._led() if role == "system" else ("", "")
                    continue
                break
            self._frames[role, after] = header, footer
        return self._frames[role, after]

    def _led(self) -> tuple[str, str]:
        """The frame of a system message of a template that renders none without a user's, as far as it can be determined."""
        try:
            header, _, rest = self._render([{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]).partition(
                _PROBE
            )
            user = self._frame("user", "")[0]
        except NeedsError:
            return "", ""
        while user and f"{user}x" not in rest:
            user = user[1:]
        return (header, rest[: rest.rindex(f"{user}x")]) if user else ("", "")

    def _added(self, role: str, text: str, after: str) -> str:
        extended = self._render([*_HISTORY[after], {"role": role, "content": text}])
        return self._difference(self._base(after), extended, role, after)

    def _base(self, after: str) -> str:
        if after not in self._bases:
            # No message renders to nothing: what a template puts before the first message (BOS, a default
            # system message) belongs to that message.
            base = self._render(_HISTORY[after]) if after else ""
            if after in ("assistant", "tool") and _THOUGHT not in base:
                raise NeedsError(f"{self.name} drops past thinking, so it cannot continue after an assistant message; {_ADVICE}")
            self._bases[after] = base
        return self._bases[after]

    def _difference(self, base: str, extended: str, role: str, after: str) -> str:
        if not extended.startswith(base):
            raise NeedsError(f"{self.name} rewrites past messages when a '{role}' message follows '{after}'; {_ADVICE}")
        return extended[len(base) :]

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str:
        import jinja2

        variables = {"tools": None, "documents": None, **self.variables}
        if self._parted:
            messages = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
        try:
            # a copy: a template must not change what the next one is shown
            text = str(self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **variables))
        except (jinja2.TemplateError, *_STRANGE) as error:
            raise NeedsError(f"{self.name} does not render {_roles(messages)}: {_reason(error)}") from error
        return text if add_generation_prompt else text.removesuffix(self._trailer)

    def _find_trailer(self) -> str:
        end, messages = str(self.variables.get("eos_token") or ""), [{"role": "user", "content": "x"}]
        ended, open_ = self._render(messages), self._render(messages, add_generation_prompt=True)
        return end if end and ended.endswith(end) and not open_.startswith(ended) and open_.startswith(ended[: -len(end)]) else ""

    def _find_stops(self) -> tuple[int, ...]:
        # What the template puts first after a reply ends the turn, where it is a special token (a plain line break is not).
        probe, footer, refused = "", "", None
        for self._parted in (False, True):
            try:
                shown = self._render([{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}])
            except NeedsError as error:
                refused = refused or error
                continue
            probe, footer = shown.partition(_PROBE)[1:]
            if probe:
                break
        if not probe:
            if refused is not None:
                raise refused
            raise NeedsError(f"{self.name} does not show the content of an 'assistant' message")
        ended = self._specials.match(footer) if self._specials else None
        texts = {self.variables.get("eos_token", ""), ended.group(1) if ended else ""} - {""}
        return tuple(sorted(_single(self.tokenizer, text) for text in texts))


_OTHER_TOKENS = ("pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_STRANGE = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError, RecursionError)
"""What a third-party template may raise besides jinja2's own errors."""


def _roles(messages: Sequence[Mapping[str, Any]]) -> str:
    roles = [str(message["role"]) for message in messages]
    return "the roles " + ", ".join(roles if len(roles) < 7 else [*roles[:3], "...", *roles[-2:]])


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _with_calls(text: str, at: int) -> dict[str, Any]:
    """A reply with its tool calls in fields of their own; ids of nine letters and digits, as some templates want them."""
    calls = [call for call in parse_tool_calls(text) if not call.error]
    if not calls:
        return {"role": "assistant", "content": text}
    content = text[: calls[0].char_span[0]].rstrip()
    tool_calls = [
        {
            "id": f"call{at % 1000:03d}{i % 100:02d}",
            "type": "function",
            "function": {"name": c.name, "arguments": dict(c.arguments)},
        }
        for i, c in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


_OTHER = "choose another environment, or give a template that takes it with --chat-template FILE"
_ADVICE = "give the model a template that renders past messages unchanged"


def assistant_node_parts(
    template: ChatTemplate,
    completion: Completion,
    *,
    opens: bool = True,
    after: str = "user",
    head: Sequence[int] | np.ndarray | None = None,
) -> dict[str, Any]:
    """A node's arrays from a sample: header (not sampled), the sampled tokens, and the closing tokens not sampled.

    ``opens=False`` for a sample that continues inside a message; ``head`` is the header where it is known, else the template's
    own ``after`` a message of that role. Returns ``tokens``, ``sampled``, ``logprobs``, ``ends`` (shape (T,), None where the
    sample has none) and ``text``, the reply without the token that ended it.
    """
    if completion.tokens is None:
        return {"tokens": None, "sampled": None, "logprobs": None, "ends": None, "text": completion.text}
    sampled = np.asarray(completion.tokens, dtype=np.int32)
    ended = len(sampled) > 0 and int(sampled[-1]) in template.stop_tokens
    completion_ends = template.tokenizer.ends(sampled.tolist()) if completion.ends is None else completion.ends
    spoken = len(sampled) - ended
    text = completion.text[: int(completion_ends[spoken - 1])] if spoken else ""
    head = [] if not opens else template.open("assistant", after) if head is None else head
    tail = template.close("assistant")
    if ended and tail and tail[0] in template.stop_tokens:
        tail = tail[1:]
    first, last = len(head), len(head) + len(sampled)
    count = last + len(tail)
    ends = np.full(count, len(text), dtype=np.int32)
    ends[:first] = 0
    ends[first : first + spoken] = completion_ends[:spoken]
    mask, logprobs = np.zeros(count, np.bool_), None
    mask[first:last] = True
    if completion.logprobs is not None:
        logprobs = np.zeros(count, np.float32)
        logprobs[first:last] = completion.logprobs
    return {
        "tokens": np.concatenate([np.asarray(head, np.int32), sampled, np.asarray(tail, np.int32)]),
        "sampled": mask,
        "logprobs": logprobs,
        "ends": ends,
        "text": text,
    }


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


def _compile(source: str, name: str, day: datetime.datetime) -> Any:
    """The template in an environment with what transformers' offers (``_compile_jinja_template`` of its
    ``chat_template_utils``)."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import jinja2.sandbox
    import jinja2.utils

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks what a model sampled; the sampled-mask knows that already, so the block is only rendered."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # a block of its own, as transformers': what is set inside it is not seen outside
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Any) -> str:
            return str(caller())

    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that lead into the interpreter."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace takes no name such as '{name}'")
            super().__setitem__(name, value)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = day.strftime  # one day for a run: it must not differ from day to day
    environment.globals["namespace"] = Namespace
    environment.filters["tojson"] = tojson
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"{name} is not a jinja template: {error}") from error
