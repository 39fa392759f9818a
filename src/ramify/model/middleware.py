"""Middleware: a model that wraps a model, so that a method works on any model, in library code and on the server alike.

A piece of middleware is a class whose constructor takes the inner model and one text of settings
(``--middleware NAME:ARGUMENT``), with ``register("middleware", NAME)`` on it. It sees what the caller sent: messages for a chat,
token ids for a completion. Laying messages out as tokens is the innermost model's business, so that a layer can change them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling, TokenScores
from ramify.model.streaming import Pieces, stream, whole
from ramify.trace.view import TokenMessage

Make: TypeAlias = Callable[[Model], Model]
"""What is registered: a callable that wraps a model."""

_OFFERED = ("tokenizer", "template", "eos", "context", "defaults", "forwards", "passes")


class Middleware:
    """Passes everything on. Subclasses override :meth:`before`, which may change the prompt,
    and :meth:`after`, which sees each sample.

    ``settings``, JSON, is all that may change a sample: it is hashed into the identity. ``rewrites`` says that ``after`` may
    change a reply's text: streams then come in one piece, at their end.
    Failures and cancellation of the inner model pass through.
    """

    name = "middleware"
    argued = ""
    """How it is named, where its bare name is a mistake that :func:`wrap` refuses."""
    rewrites = False

    def __init__(self, inner: Model, argument: str = "") -> None:
        self.inner, self.argument = inner, argument

    @property
    def settings(self) -> Any:
        """What may change a sample, as JSON."""
        return self.argument

    @cached_property
    def identity(self) -> Identity:
        """The names of the inner model and of this middleware; a hash of the inner weights, this name and its settings."""
        inner = self.inner.identity
        weights = stable_hash("middleware", self.name, json_hash(self.settings), inner.weights)
        return Identity(f"{inner.name}+{self.name}", weights, inner.tokenizer)

    @property
    def capabilities(self) -> frozenset[str]:
        """Those of the inner model, without taps and training, which would bypass the middleware."""
        return self.inner.capabilities - {"taps", "train"}

    def __getattr__(self, name: str) -> Any:
        """``tokenizer``, ``template``, ``eos``, ``context``, ``defaults``, ``forwards`` and ``passes`` of the inner model."""
        if name in _OFFERED:
            return getattr(self.inner, name)
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    async def before(self, given: Prefix) -> Prefix:
        """The prompt that the inner model gets instead of ``given``."""
        return given

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        """The sample to return instead. Extras go into its ``data``; ``key`` is the sample key of anything sampled here."""
        return completion

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`."""
        shown = await self.before(prefix)
        completions = await self.inner.sample(shown, n, settings, keys)
        return list(await asyncio.gather(*(self._after(prefix, shown, *pair) for pair in zip(completions, keys, strict=True))))

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """See :func:`ramify.model.streaming.stream`; the last piece carries the sample as :meth:`after` left it."""
        if self.rewrites:
            (completion,) = await self.sample(prefix, 1, settings, [key])
            yield whole(completion)
            return
        shown = await self.before(prefix)
        async with aclosing(stream(self.inner, shown, settings, key)) as pieces:
            async for piece in pieces:
                yield (
                    piece
                    if piece.completion is None
                    else replace(piece, completion=await self._after(prefix, shown, piece.completion, key))
                )

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Those of the inner model."""
        return await self.inner.logprobs(tokens, top_k)

    async def _after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        if shown is not given and not completion.shown:
            completion = replace(completion, shown=tuple(TokenMessage(message) for message in shown.messages))
        return await self.after(given, shown, completion, key)


def unwrapped(model: Model) -> tuple[tuple[Middleware, ...], Model]:
    """The middleware around ``model`` that only edits prompts and reads replies, outermost first, and the inner model."""
    layers: list[Middleware] = []
    while isinstance(model, Middleware) and type(model).sample is Middleware.sample and type(model).stream is Middleware.stream:
        layers.append(model)
        model = model.inner
    return tuple(layers), model


async def shown_by(layers: Sequence[Middleware], given: Prefix) -> list[Prefix]:
    """The prompt that each of ``layers`` gets, outermost first, and at the end the inner model's."""
    seen = [given]
    for layer in layers:
        seen.append(await layer.before(seen[-1]))
    return seen


async def told_by(layers: Sequence[Middleware], seen: Sequence[Prefix], completion: Completion, key: int) -> Completion:
    """The sample after all ``layers``. ``seen`` is the result of :func:`shown_by`."""
    for layer, given, shown in reversed(list(zip(layers, seen, seen[1:], strict=False))):
        completion = await layer._after(given, shown, completion, key)
    return completion


def wrap(model: Model, names: Sequence[str]) -> Model:
    """``model`` inside the middleware of these names (NAME or NAME:ARGUMENT), the first outermost.
    Raises UserError with the nearest name, and on a bare name where an argument is needed."""
    for name in reversed(names):
        make: Make = registry.named("middleware", name)
        if ":" not in name and (argued := getattr(make, "argued", "")):
            raise UserError(f"middleware '{name}' is named {argued}")
        model = make(model)
    return model
