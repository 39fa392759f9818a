"""What judges said while a verb ran, how replies ended, and what servers counted, so that a judge that never varies is named and
replies that a limit cut and prompts that a server had computed before are counted, whichever verb it was for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ramify.base.words import plural

LEAST = 8
"""Texts that a judge must have judged before its sameness is said: fewer are often alike."""


ACTS = frozenset({"act", "rollout", "eval", "judge"})
"""Purposes of replies that are judged, or judge, as they are. What continues a text to a limit on purpose has others."""
SHARE = 0.1
"""Of replies that were cut, from which on it is said."""


@dataclass
class ServedTokens:
    """What a server counted: replies, the tokens of their prompts, those of them that it had in its cache, tokens sampled."""

    replies: int = 0
    prompt: int = 0
    cached: int = 0
    silent: int = 0
    """Replies of which it did not say how much of the prompt was cached."""
    sampled: int = 0
    caution: str = ""
    """What is known of how it draws."""

    def sentence(self, host: str) -> str:
        """In one sentence."""
        share = f"{self.cached:,} of them cached ({self.cached / max(self.prompt, 1):.0%})"
        if self.silent:
            share = "how many were cached it does not say" if self.silent == self.replies else f"at least {share}"
        return f"{host}: {plural(self.replies, 'reply')}, {self.prompt:,} tokens of prompts, {share}, {self.sampled:,} sampled"


@dataclass
class Verdicts:
    """The values that each judge gave, and how often it gave one; replies, and those of them that a limit cut."""

    values: dict[str, set[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    replies: int = 0
    cut: int = 0
    servers: dict[str, ServedTokens] = field(default_factory=dict)
    """By host."""
    open: set[str] = field(default_factory=set)
    """Stored replies (nodes) that were to be judged and that a limit had cut."""

    def caveats(self) -> Iterator[str]:
        """What a reader of any result must know of them."""
        yield from self.constant()
        yield from dict.fromkeys(server.caution for server in self.servers.values() if server.caution)
        if self.replies >= LEAST and self.cut >= SHARE * self.replies:
            against = "" if self.open else ", and what they lack counts against them"
            yield (
                f"{self.cut} of {self.replies} replies were cut by their limit of tokens before they ended{against}: "
                "raise --max-reply or --max-tokens"
            )
        if self.open:
            yield (
                f"{len(self.open)} of the replies that were to be judged had been cut by their limit of tokens: such replies "
                "count neither as right nor as wrong"
            )

    def constant(self) -> Iterator[str]:
        """A sentence on each judge that gave all texts one value."""
        for name, values in self.values.items():
            alone = name.removeprefix("jury:")  # a jury of one says what its member says
            if len(values) == 1 and self.counts[name] >= LEAST and (alone == name or alone not in self.values):
                (value,) = values
                yield (
                    f"the judge '{name}' gave all {self.counts[name]} texts that it judged here the same value, {value:g}: what "
                    "rests on it tells nothing apart"
                )


_collected: ContextVar[Verdicts | None] = ContextVar("verdicts", default=None)


@contextmanager
def collected() -> Iterator[Verdicts]:
    """What is judged inside."""
    token = _collected.set(made := Verdicts())
    try:
        yield made
    finally:
        _collected.reset(token)


def judged(name: str, value: bool | float | None) -> None:
    """A judge gave a value; None is none."""
    verdicts = _collected.get()
    if verdicts is not None and value is not None:
        verdicts.values.setdefault(name, set()).add(float(value))
        verdicts.counts[name] = verdicts.counts.get(name, 0) + 1


def left_open(node: str) -> None:
    """A stored reply was to be judged, and a limit had cut it: it counts neither as right nor as wrong."""
    verdicts = _collected.get()
    if verdicts is not None:
        verdicts.open.add(node)


def ended(purpose: str, stops: Iterable[str]) -> None:
    """Replies were sampled, and ended so (:class:`ramify.model.protocol.Completion`)."""
    verdicts = _collected.get()
    if verdicts is not None and purpose in ACTS:
        each = list(stops)
        verdicts.replies += len(each)
        verdicts.cut += each.count("length")


def served(host: str, usage: Mapping[str, int], caution: str = "") -> None:
    """A server answered and counted ``prompt_tokens``, ``completion_tokens`` and perhaps ``cached_tokens``."""
    verdicts = _collected.get()
    if verdicts is not None and (usage or caution):
        server = verdicts.servers.setdefault(host, ServedTokens())
        server.replies, server.caution = server.replies + 1, caution or server.caution
        server.prompt += usage.get("prompt_tokens", 0)
        server.cached += usage.get("cached_tokens", 0)
        server.silent += "cached_tokens" not in usage
        server.sampled += usage.get("completion_tokens", 0)
