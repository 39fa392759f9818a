"""Compactors that a study of compaction compares: a summary in a number of words, summaries of summaries, head and tail.

Their request is neutral: it neither speaks of rules, which would protect them, nor tells the model to leave them out, which would
make the effect that is to be measured. Algorithms of section 3.5 of arXiv 2606.22528, which names the strategies and no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model, Sampling
from ramify.rollout.compact import Entry, Window, fitting, leading, newest, opened, reply, spare, units
from ramify.rollout.sampler import Sampler
from ramify.trace.message import Message

NEUTRAL = (
    "Condense the conversation below into at most {words} words, so that the work can go on from it. Reply with the condensed "
    "text only.\n\n"
    "{text}"
)
_WORD = re.compile(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff]+")


def first_words(text: str, words: int) -> str:
    """The first ``words`` words of a text; a Chinese character counts as one."""
    found = [match.end() for _, match in zip(range(words + 1), _WORD.finditer(text), strict=False)]
    return text.strip() if len(found) <= words else text[: found[words - 1]].strip()


@register("compactor", "llm-summarize")
class LlmSummarize:
    """Replaces all but the last ``keep`` turns with a summary of at most ``words`` words.

    The summary stands where what it replaces began, after the system messages; a later one summarises it in turn. ``model`` and
    ``template`` are those that write it, by default the agent's own; ``length`` bounds its tokens, thought included. Raises
    InfrastructureError("compactor") where the summary is empty or repeats what it should shorten.
    """

    name = "llm-summarize"

    def __init__(
        self,
        words: int = 50,
        keep: int = 2,
        request: str = NEUTRAL,
        model: Model | None = None,
        template: ChatTemplate | None = None,
        length: int = 1024,
    ) -> None:
        """``request`` holds {words} and {text}. Raises UserError on a number below 1 and on a request without {text}."""
        if min(words, keep, length) < 1:
            raise UserError(f"a summary takes at least 1 word, turn and token, not {words}, {keep} and {length}")
        if "{text}" not in request:
            raise UserError("a request for a summary must say where {text} goes")
        self.words, self.keep, self.request, self.length = words, keep, request, length
        self.model, self.template = model, template

    @property
    def identity(self) -> str:
        """See :class:`ramify.rollout.compact.Compactor`."""
        weights = "" if self.model is None else self.model.identity.weights
        return stable_hash("compactor", self.name, 1, self.words, self.keep, self.request, self.length, weights)

    async def compact(self, messages: Sequence[Entry], window: Window) -> list[Entry | Message]:
        """See :class:`ramify.rollout.compact.Compactor`."""
        if sum(message.size for message in messages) <= window.limit:
            return [*messages]
        head = leading(messages)
        rest = messages[len(head) :]
        limit = window.limit - sum(message.size for message in head) - spare(rest, window)
        turns = units(rest)
        kept = newest(_recent(turns, self.keep), limit, limit)
        old = list(rest[: len(rest) - len(kept)])
        if not old:
            return opened(head, kept)
        text = first_words(await self.summary(old, window), self.words)
        summary = fitting(text, limit - sum(message.size for message in kept), window)
        return opened(head, kept) if summary is None else [*head, summary, *kept]

    async def summary(self, old: Sequence[Entry], window: Window) -> str:
        """The summary of ``old``."""
        return await self.ask("\n\n".join(f"[{message.role}]\n{message.text}" for message in old), window)

    async def ask(self, text: str, window: Window) -> str:
        """The summary of one text. Raises InfrastructureError("compactor") where there is none."""
        request = [Message("user", self.request.replace("{words}", str(self.words)).replace("{text}", text))]
        if self.model is None:
            summary = await window.ask(request, self.length)
        else:
            settings = Sampling(0.0, max_tokens=self.length)
            summary = (await reply(Sampler(self.model), self.template, request, settings, ("compact",)))[0]
        summary = summary.strip()
        if not summary:
            raise InfrastructureError("compactor", f"'{self.name}' got an empty summary")
        if len(text.split()) > self.words and " ".join(summary.split()) == " ".join(text.split()):
            raise InfrastructureError("compactor", f"'{self.name}' got a summary that repeats what it should shorten")
        return summary


@register("compactor", "hierarchical")
class Hierarchical(LlmSummarize):
    """Summarises chunks of ``chunk`` messages, then the summaries, to ``words`` words each time."""

    name = "hierarchical"

    def __init__(self, words: int = 50, keep: int = 2, chunk: int = 6, request: str = NEUTRAL, **options: object) -> None:
        """As :class:`LlmSummarize`. Raises UserError on a chunk below 1."""
        super().__init__(words, keep, request, **options)  # type: ignore[arg-type]
        if chunk < 1:
            raise UserError(f"a chunk holds at least 1 message, not {chunk}")
        self.chunk = chunk

    @property
    def identity(self) -> str:
        """See :class:`ramify.rollout.compact.Compactor`."""
        return stable_hash(super().identity, self.chunk)

    async def summary(self, old: Sequence[Entry], window: Window) -> str:
        """The summary of ``old``, through summaries of its chunks."""
        chunks = [old[i : i + self.chunk] for i in range(0, len(old), self.chunk)]
        parts = [first_words(await super(Hierarchical, self).summary(part, window), self.words) for part in chunks]
        return parts[0] if len(parts) == 1 else await self.ask("\n\n".join(parts), window)


def _size(turn: Sequence[Entry]) -> int:
    return sum(message.size for message in turn)


def _recent(turns: Sequence[Sequence[Entry]], keep: int) -> list[Entry]:
    """The messages of the last ``keep`` turns, and of those before them up to the observation that they answer."""
    first = max(0, len(turns) - keep)
    while first and not any(message.role in ("user", "tool") for turn in turns[first:] for message in turn):
        first -= 1
    return [message for turn in turns[first:] for message in turn]


def _least(turns: Sequence[Sequence[Entry]]) -> int:
    """Size of the newest turns from the last observation on."""
    size = 0
    for turn in reversed(turns):
        size += _size(turn)
        if any(message.role in ("user", "tool") for message in turn):
            break
    return size


@register("compactor", "head-tail")
class HeadTail:
    """Keeps the first ``head`` messages (the system's among them) and the last ``tail``; drops the middle, or has it summarised.

    The head is shorter where it and the newest messages do not fit together.
    """

    name = "head-tail"

    def __init__(self, head: int = 4, tail: int = 4, middle: LlmSummarize | None = None) -> None:
        """``middle`` writes the summary. Raises UserError on a number below 1."""
        if min(head, tail) < 1:
            raise UserError(f"head and tail must be at least 1, not {head} and {tail}")
        self.head, self.tail, self.middle = head, tail, middle

    @property
    def identity(self) -> str:
        """See :class:`ramify.rollout.compact.Compactor`."""
        return stable_hash("compactor", self.name, 1, self.head, self.tail, "" if self.middle is None else self.middle.identity)

    async def compact(self, messages: Sequence[Entry], window: Window) -> list[Entry | Message]:
        """See :class:`ramify.rollout.compact.Compactor`."""
        if sum(message.size for message in messages) <= window.limit:
            return [*messages]
        system = leading(messages)
        turns = units(messages[len(system) :])
        first: list[list[Entry]] = []
        limit = window.limit - sum(message.size for message in system) - spare(messages, window)
        least = _least(turns)  # what must be shown comes before the head
        while len(turns) > 1 and len(system) + sum(map(len, first)) < self.head and _size(turns[0]) <= limit - least:
            limit -= _size(turns[0])
            first.append(turns.pop(0))
        head = [*system, *(message for turn in first for message in turn)]
        kept = newest(_recent(turns, self.tail), limit, limit)
        old = [m for turn in turns for m in turn][: -len(kept)]
        if self.middle is not None and old:
            text = first_words(await self.middle.summary(old, window), self.middle.words)
            summary = fitting(text, limit - sum(message.size for message in kept), window)
            if summary is not None:
                return [*head, summary, *kept]
        return opened(head, kept)
