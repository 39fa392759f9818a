"""One answered request, as passed to a recorder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ramify.model.protocol import CLIENT, Completion, Identity, Prefix, Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """A request and what was sampled for it. P prompts (a chat is one), ``n`` samples each."""

    id: str
    """As the reply gives it: ``chatcmpl-...`` or ``cmpl-...``."""
    route: str
    """chat or completions."""
    identity: Identity
    """Of the model that answered, middleware included."""
    prompts: tuple[Prefix, ...]
    """What the client sent: messages and tools of a chat, token ids of each other prompt.
    What the model was shown is ``Completion.shown``."""
    settings: Sampling
    keys: tuple[tuple[int, ...], ...]
    """The sample key of each sample: P tuples of n."""
    outcomes: tuple[tuple[Completion | Exception, ...], ...]
    """P tuples of n: a sample, or what went wrong with it."""
    client: str = field(default_factory=CLIENT.get)
    """The client of the current request, as counted for fairness."""


Recorder: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Awaited before the end of an answer is sent, so an answered request is a recorded one. An exception becomes the answer."""
