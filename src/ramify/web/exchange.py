"""One request that was answered: what a recorder is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ramify.model.protocol import CLIENT, Draw, Identity, Prefix, Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """A request and what was drawn for it. P prompts (a chat is one), ``n`` draws each."""

    id: str
    """As the reply gives it: ``chatcmpl-...`` or ``cmpl-...``."""
    route: str
    """chat or completions."""
    identity: Identity
    """Of the model that answered, middleware included."""
    prompts: tuple[Prefix, ...]
    """What the client sent: messages and tools of a chat, token ids of each other prompt. What the model was shown is ``Draw.shown``."""
    settings: Sampling
    keys: tuple[tuple[int, ...], ...]
    """The place key of each draw: P tuples of n."""
    outcomes: tuple[tuple[Draw | Exception, ...], ...]
    """P tuples of n: a draw, or what went wrong with it."""
    client: str = field(default_factory=CLIENT.get)
    """Who asked, as fairness counts clients; of the request under way."""


Recorder: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Awaited before the end of an answer is sent, so an answered request is a recorded one. It may raise; that is then the answer."""
