"""Middleware: a model that wraps a model, so that a method works in front of any model, in library code and on the server alike.

A piece of middleware is a class whose constructor takes the model inside and one text of settings (``--middleware NAME:ARGUMENT``), with
``register("middleware", NAME)`` on it. It sees what the caller sent: messages for a chat, token ids for a completion. Laying messages out as
tokens is the innermost model's business, so that a layer can change them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ramify.base import conformance
from ramify.base.ids import json_hash, stable_hash
from ramify.model.protocol import Draw, Identity, Model, Prefix, Sampling, TokenScores
from ramify.model.streaming import Pieces, stream, whole
from ramify.trace.view import TokenMessage

Make: TypeAlias = Callable[[Model], Model]
"""What is registered: a model in, the model around it out."""

_OFFERED = ("tokenizer", "template", "eos", "context", "defaults", "forwards", "passes")


class Middleware:
    """Passes everything on. Subclasses override :meth:`before`, which may change what is shown, and :meth:`after`, which sees each draw.

    ``settings``, JSON, is all that may change a draw: it is hashed into the identity. ``rewrites`` says that ``after`` may change a reply's
    text: streams then come in one piece, at their end. Failures and cancellation of the model inside pass through.
    """

    name = "middleware"
    rewrites = False

    def __init__(self, inner: Model, argument: str = "") -> None:
        self.inner, self.argument = inner, argument

    @property
    def settings(self) -> Any:
        """What may change a draw, as JSON."""
        return self.argument

    @cached_property
    def identity(self) -> Identity:
        """The name inside and one's own; a hash of the weights inside, one's own name and settings."""
        inner = self.inner.identity
        own = stable_hash("middleware", self.name, json_hash(self.settings), inner.weights)
        return Identity(f"{inner.name}+{self.name}", own, inner.tokenizer)

    @property
    def capabilities(self) -> frozenset[str]:
        """Those inside, without taps and training, which would go past the middleware."""
        return self.inner.capabilities - {"taps", "train"}

    def __getattr__(self, name: str) -> Any:
        """``tokenizer``, ``template``, ``eos``, ``context``, ``defaults``, ``forwards`` and ``passes`` of the model inside."""
        if name in _OFFERED:
            return getattr(self.inner, name)
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    async def before(self, given: Prefix) -> Prefix:
        """What the model inside is shown in the place of ``given``."""
        return given

    async def after(self, given: Prefix, shown: Prefix, draw: Draw, key: int) -> Draw:
        """What becomes of a draw. Extras go into its ``data``; ``key`` decides whatever is drawn here."""
        return draw

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Draw]:
        """See :class:`ramify.model.protocol.Model`."""
        shown = await self.before(prefix)
        draws = await self.inner.sample(shown, n, settings, keys)
        return list(await asyncio.gather(*(self._after(prefix, shown, *one) for one in zip(draws, keys, strict=True))))

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :func:`ramify.model.streaming.stream`; the last piece carries the draw as :meth:`after` left it."""
        if self.rewrites:
            (draw,) = await self.sample(prefix, 1, settings, [key])
            yield whole(draw)
            return
        shown = await self.before(prefix)
        async with aclosing(stream(self.inner, shown, settings, key)) as pieces:
            async for piece in pieces:
                yield piece if piece.draw is None else replace(piece, draw=await self._after(prefix, shown, piece.draw, key))

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Those of the model inside."""
        return await self.inner.logprobs(tokens, top_k)

    async def _after(self, given: Prefix, shown: Prefix, draw: Draw, key: int) -> Draw:
        if shown is not given and not draw.shown:
            draw = replace(draw, shown=tuple(TokenMessage(message) for message in shown.messages))
        return await self.after(given, shown, draw, key)


def unwrapped(model: Model) -> tuple[tuple[Middleware, ...], Model]:
    """The middleware around ``model`` that only edits what is shown and reads replies, outermost first, and the model inside it."""
    layers: list[Middleware] = []
    while isinstance(model, Middleware) and type(model).sample is Middleware.sample and type(model).stream is Middleware.stream:
        layers.append(model)
        model = model.inner
    return tuple(layers), model


async def shown_by(layers: Sequence[Middleware], given: Prefix) -> list[Prefix]:
    """What each of ``layers`` is given, outermost first, and at the end what the model inside them is shown."""
    seen = [given]
    for layer in layers:
        seen.append(await layer.before(seen[-1]))
    return seen


async def told_by(layers: Sequence[Middleware], seen: Sequence[Prefix], draw: Draw, key: int) -> Draw:
    """What ``layers`` make of a draw. ``seen`` is what :func:`shown_by` found."""
    for layer, given, shown in reversed(list(zip(layers, seen, seen[1:], strict=False))):
        draw = await layer._after(given, shown, draw, key)
    return draw


def wrap(model: Model, names: Sequence[str]) -> Model:
    """``model`` inside the middleware of these names (NAME or NAME:ARGUMENT), the first outermost. Raises UserError with the nearest name."""
    for name in reversed(names):
        make: Make = conformance.named("middleware", name)
        model = make(model)
    return model
