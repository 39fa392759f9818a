"""A whole conversation as a Hugging Face chat template renders it, in tokens:
sampled text keeps its tokens wherever it is still shown.

A template may rewrite the past at every turn: drop earlier thinking, move the system message, merge messages, trim. The prompt is
then the rendering, not the messages end to end. Here the rendering is cut into pieces that exist as tokens already and text
between them, which is encoded. Where the messages laid end to end say the same, they are left as they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.protocol import Tokenizer

_FIRST, _MARKS = 0xF0000, 0xFFFD
"""Private characters that mark messages in a rendering, which is read and thrown away."""
_CUT = "\U00100000"


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPiece:
    """Existing tokens of a message, the template's included. ``text`` is the part of the message that they spell."""

    tokens: np.ndarray
    text: str
    sampled: np.ndarray | None = None
    """bool (T,), or None where a model sampled none of them."""
    ends: np.ndarray | None = None
    """int32 (T,): offsets into ``text``, or None where they are not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A message, and its pieces where it was rendered before."""

    role: str
    text: str
    pieces: tuple[RenderedPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class Reused:
    """Tokens ``start`` to ``end`` of a piece of message ``message``."""

    message: int
    piece: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Text that was encoded: message ``message`` of ``role``, or its beginning, or, with role "", more of the one before."""

    role: str
    text: str
    tokens: tuple[int, ...]
    message: int = -1


@dataclass(frozen=True, slots=True)
class Rendered:
    """The rendered prompt of a reply."""

    pieces: tuple[Reused | Filled, ...] | None
    """None where it is the messages' own pieces, end to end."""
    header: tuple[int, ...]
    """Tokens after the messages that open the reply."""


@dataclass
class _Region:
    """Characters ``start`` to ``end`` of a rendering that a message is shown in, and the tokens that say them."""

    start: int
    end: int
    message: int
    reused: Reused | None = None


def laid_out(template: ChatTemplate, messages: Sequence[tuple[str, str]]) -> list[int]:
    """Tokens of given messages (role, text), and of the header of a reply to them.
    Raises NeedsError where the template refuses them."""
    if isinstance(template, JinjaTemplate):
        layout = rendered(template, [Known(role, text) for role, text in messages])
        filled = [piece.tokens for piece in layout.pieces or () if isinstance(piece, Filled)]
        return [token for tokens in (*filled, layout.header) for token in tokens]
    tokens: list[int] = []
    after = ""
    for role, text in messages:
        tokens += template.render(role, text, after)[0]
        after = role
    return tokens + template.open("assistant", after)


def rendered(template: JinjaTemplate, messages: Sequence[Known]) -> Rendered:
    """What ``template`` shows of ``messages`` to a model that replies to them, exactly as transformers renders it.

    Text inside a message that spells a special token is encoded as text, so content cannot forge a message border. Raises
    NeedsError where the template refuses the messages.
    """
    conversation = template.in_openai_form((message.role, message.text) for message in messages)
    text = template.whole(conversation)
    tokenizer = template.tokenizer
    pieces = [piece for message in messages for piece in message.pieces]
    if pieces and all(message.pieces for message in messages):
        path = tokenizer.decode(np.concatenate([piece.tokens for piece in pieces]).tolist())
        if text.startswith(path):
            forged = any(template.spells_special(str(message.get("content"))) for message in conversation)
            cuts = _located(template, conversation, text)[1] if forged else []
            return Rendered(None, tuple(_encoded(tokenizer, text, len(path), len(text), cuts)[0]))
    body = template.whole(conversation, add_generation_prompt=False)
    body = body if text.startswith(body) else text
    located, cuts = _located(template, conversation, text)
    regions = _regions(tokenizer, messages, conversation, located, body)
    assembled = _assembled(tokenizer, messages, regions, located, body, cuts)
    return Rendered(tuple(assembled), tuple(_encoded(tokenizer, text, len(body), len(text), cuts)[0]))


def _encoded(tokenizer: Tokenizer, text: str, start: int, stop: int, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Tokens of characters ``start`` to ``stop``, encoded apart at ``cuts``, and where each ends in ``text``."""
    bounds = [start, *(cut for cut in cuts if start < cut < stop), stop]
    tokens: list[int] = []
    ends: list[int] = []
    for a, b in itertools.pairwise(bounds):
        new = tokenizer.encode(text[a:b])
        tokens += new
        ends += [a + int(end) for end in tokenizer.ends(new)]
    return tokens, ends


# -- where the messages are in a rendering


@dataclass(frozen=True)
class _Located:
    """Characters ``start`` to ``end`` of the rendering are those from ``first`` on of the content of a message."""

    start: int
    end: int
    first: int


def _located(
    template: JinjaTemplate, conversation: Sequence[Mapping[str, Any]], text: str
) -> tuple[dict[int, _Located], list[int]]:
    """Where each message's content is in the rendering ``text``, and where special tokens that content spells are cut in two.

    Found by a second rendering with a private character inside each content. A template that looks at what it marks (the end of a
    tag) is given marks elsewhere, or none; NeedsError where a content that none can be put in spells a special token.
    """
    together = _marked(template, conversation, [(i, "last") for i in range(len(conversation))], text)
    if together is not None:
        return _spread(conversation, together[0], text), together[1]
    positions: dict[int, int] = {}
    cuts: list[int] = []
    for i, message in enumerate(conversation):  # some mark changes what is rendered: find which
        tried = (_marked(template, conversation, [(i, where)], text) for where in ("last", "first", ""))
        placed = next((attempt for attempt in tried if attempt is not None), None)
        if placed is None:
            raise NeedsError(f"{template.name} changes with a special token's text inside a '{message['role']}' message")
        positions |= placed[0]
        cuts += placed[1]
    return _spread(conversation, positions, text), sorted(set(cuts))


def _marked(
    template: JinjaTemplate, conversation: Sequence[Mapping[str, Any]], spots: Sequence[tuple[int, str]], text: str
) -> tuple[dict[int, int], list[int]] | None:
    """Positions in ``text`` of the marked characters by message, and of the cuts; None where the marks change the rendering."""
    marked = [dict(message) for message in conversation]
    for i, where in spots:
        content = str(conversation[i].get("content") or "")
        at = _markable(content, where)
        marks = [] if at is None else [(at, chr(_FIRST + i % _MARKS))]
        marked[i]["content"] = _with(content, [*marks, *_cuts_of(template, content)])
        if "tool_calls" in marked[i]:
            marked[i]["tool_calls"] = _everywhere(marked[i]["tool_calls"], lambda value: _with(value, _cuts_of(template, value)))
    try:
        shown = template.whole(marked)
    except NeedsError:
        return None
    names = {_FIRST + i % _MARKS: i for i, _ in spots}
    positions: dict[int, int] = {}
    cuts: list[int] = []
    plain: list[str] = []
    for character in shown:
        if character == _CUT:
            cuts.append(len(plain))
        elif ord(character) in names:
            positions.setdefault(names[ord(character)], len(plain))
        else:
            plain.append(character)
    return (positions, cuts) if "".join(plain) == text else None


def _with(content: str, inserts: Sequence[tuple[int, str]]) -> str:
    for at, character in sorted(inserts, reverse=True):
        content = content[:at] + character + content[at:]
    return content


def _cuts_of(template: JinjaTemplate, content: str) -> list[tuple[int, str]]:
    """Where every text of a special token in ``content`` is to be cut."""
    return [(at, _CUT) for at in template.spells_special(content)]


def _markable(content: str, where: str) -> int | None:
    """Before which character of ``content`` a mark goes: the last that is not space, or the first.
    None where there is no such place."""
    full = content.rstrip()
    if not full or not where:
        return None
    return len(full) - 1 if where == "last" else len(content) - len(content.lstrip())


def _everywhere(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` (JSON) with ``change`` made to each of its texts."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _everywhere(item, change) for key, item in value.items()}
    return [_everywhere(item, change) for item in value] if isinstance(value, list) else value


def _spread(conversation: Sequence[Mapping[str, Any]], positions: Mapping[int, int], text: str) -> dict[int, _Located]:
    """As much of each content as ``text`` shows around the marked place."""
    spread = {}
    for i, position in positions.items():
        content = str(conversation[i]["content"])
        last = _markable(content, "last")
        at = last if last is not None and text[position] == content[last] else _markable(content, "first")
        assert at is not None
        before = _common(reversed(content[:at]), reversed(text[max(0, position - at) : position]))
        after = _common(iter(content[at:]), iter(text[position : position + len(content) - at]))
        spread[i] = _Located(position - before, position + after, at - before)
    return spread


def _common(first: Any, other: Any) -> int:
    """How many items two sequences begin with in common."""
    return (
        next((k for k, (x, y) in enumerate(pairs) if x != y), len(pairs))
        if (pairs := list(zip(first, other, strict=False)))
        else 0
    )


# -- which tokens say them


def _regions(
    tokenizer: Tokenizer,
    messages: Sequence[Known],
    conversation: Sequence[Mapping[str, Any]],
    located: Mapping[int, _Located],
    body: str,
) -> list[_Region]:
    """The stretches of ``body`` that pieces of the messages say, in the order of ``body``, none overlapping another."""
    cores: list[tuple[_Region, np.ndarray, str]] = []
    for i, location in located.items():
        if not messages[i].text.startswith(str(conversation[i]["content"])):
            continue  # the content is not the message's text: calls were taken out of it
        offset = 0
        for j, piece in enumerate(messages[i].pieces):
            first, last = (
                max(location.first, offset),
                min(location.first + location.end - location.start, offset + len(piece.text)),
            )
            core = _core(tokenizer, piece, first - offset, last - offset, body, location.start + first - location.first)
            if core is not None:
                region, ends, decoded = core
                region.message = i
                region.reused = Reused(i, j, region.reused.start, region.reused.end) if region.reused else None
                cores.append((region, ends, decoded))
            offset += len(piece.text)
    cores.sort(key=lambda core: core[0].start)
    regions: list[_Region] = []
    for k, (region, ends, decoded) in enumerate(cores):
        left = regions[-1].end if regions else 0
        right = cores[k + 1][0].start if k + 1 < len(cores) else len(body)
        if region.start < left:
            continue
        _grow(region, ends, decoded, body, left, right, whole=located[region.message].first == 0)
        regions.append(region)
    return regions


def _core(
    tokenizer: Tokenizer, piece: RenderedPiece, first: int, last: int, body: str, at: int
) -> tuple[_Region, np.ndarray, str] | None:
    """The tokens of ``piece`` that say characters ``first`` to ``last`` of its text, which ``body`` has from ``at`` on.

    With them the ends of all its tokens in what they say altogether. None where there are none, or where they say something else.
    """
    if first >= last:
        return None
    ids = piece.tokens.tolist()
    decoded, ends = tokenizer.decode(ids), tokenizer.ends(ids)
    if piece.sampled is not None and piece.sampled.any():
        opening = int(np.argmax(piece.sampled))
    else:
        opening = 0 if piece.ends is None else int(np.argmax(piece.ends > 0))
    begins = decoded.find(piece.text, int(ends[opening - 1]) if opening else 0)
    if begins < 0:
        return None
    starts = np.concatenate([[0], ends[:-1]])
    inside = np.flatnonzero((starts >= begins + first) & (ends <= begins + last) & (ends > starts))
    if not len(inside):
        return None
    start, end = int(inside[0]), int(inside[-1]) + 1
    if first == 0:
        while start > opening and starts[start - 1] >= begins:
            start -= 1  # bytes of a character that the next token ends
    shift = at - begins - first
    region = _Region(int(starts[start]) + shift, int(ends[end - 1]) + shift, 0, Reused(0, 0, start, end))
    if body[region.start : region.end] != decoded[starts[start] : ends[end - 1]]:
        return None
    return region, ends, decoded


def _grow(region: _Region, ends: np.ndarray, decoded: str, body: str, left: int, right: int, whole: bool) -> None:
    """Take in the piece's tokens around, the template's, as far as ``body`` says the same between ``left`` and ``right``."""
    assert region.reused is not None
    start, end = region.reused.start, region.reused.end
    while end < len(ends):
        more = decoded[ends[end - 1] : ends[end]]
        if region.end + len(more) > right or not body.startswith(more, region.end):
            break
        region.end += len(more)
        end += 1
    while start > 0 and whole:
        more = decoded[(ends[start - 2] if start > 1 else 0) : ends[start - 1]]
        if region.start - len(more) < left or body[region.start - len(more) : region.start] != more:
            break
        region.start -= len(more)
        start -= 1
    region.reused = Reused(region.message, region.reused.piece, start, end)


# -- what is shown, piece by piece


def _assembled(
    tokenizer: Tokenizer,
    messages: Sequence[Known],
    regions: Sequence[_Region],
    located: Mapping[int, _Located],
    body: str,
    cuts: Sequence[int],
) -> list[Reused | Filled]:
    """``body`` as the pieces of ``regions`` and the text between them, encoded, message by message."""
    pieces: list[Reused | Filled] = []
    begun: set[int] = set()
    at = 0
    for region in [*regions, None]:
        stop = len(body) if region is None else region.start
        covered = {r.message for r in regions}
        inside = sorted((p.start, p.end, i) for i, p in located.items() if i not in covered and at <= p.start < stop)
        opens = -1
        if region is not None and region.message not in begun:
            assert region.reused is not None
            if region.reused.start or region.reused.piece:  # a piece from its first token on opens its message itself
                opens = region.message
        first = messages[inside[0][2]].role if inside else ""
        pieces += _filled(tokenizer, messages, body, at, stop, inside, opens, cuts, bool(pieces) or bool(first))
        if region is not None:
            assert region.reused is not None
            begun.add(region.message)
            pieces.append(region.reused)
            at = region.end
    return pieces


def _filled(
    tokenizer: Tokenizer,
    messages: Sequence[Known],
    body: str,
    start: int,
    stop: int,
    inside: Sequence[tuple[int, int, int]],
    opens: int,
    cuts: Sequence[int],
    follows: bool,
) -> list[Filled]:
    """Characters ``start`` to ``stop`` of ``body``: a piece for each message ``inside``,
    and the header of the one that ``opens``."""
    tokens, ends = _encoded(tokenizer, body, start, stop, cuts)
    filled: list[Filled] = []
    done = 0
    for k, (a, b, i) in enumerate(inside):
        last = k + 1 == len(inside) and opens < 0
        end = len(tokens) if last else next((t + 1 for t in range(done, len(tokens)) if ends[t] >= b), len(tokens))
        filled.append(Filled(messages[i].role, body[a:b], tuple(tokens[done:end]), i))
        done = end
    if opens >= 0:
        filled.append(Filled(messages[opens].role, "", tuple(tokens[done:]), opens))
    elif done < len(tokens):
        filled.append(Filled("" if follows else "system", "", tuple(tokens[done:])))
    return filled
