"""A trained router or a composer around a model that is served:
requests go to the pool's workers, the served model answers where all fail.

``--middleware route:POOL.toml,ROUTER`` and ``--middleware compose:POOL.toml,MODEL``;
``ramify orchestrator serve`` puts both on one server.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.registry import register
from ramify.methods.orchestrator.composer import Composer
from ramify.methods.orchestrator.conversation import Orchestrated, Orchestration, new_tree
from ramify.methods.orchestrator.pool import ModelPool, Spoken, open_model, read_pool, spoken
from ramify.methods.orchestrator.turns import answer_with
from ramify.model.middleware import Middleware
from ramify.model.protocol import READ, REQUEST, Completion, Model, Prefix, Sampling
from ramify.model.streaming import Pieces, gathered, stream, told, whole
from ramify.trace.db import Run


class _OverPool(Middleware, ABC):
    """What both are: without a pool it does nothing. ``data["orchestrator"]`` of a reply holds the trace's name, who answered,
    notes, tokens and USD. Token ids, which are one model's, are refused (NeedsError).

    A stream is that of the worker whose reply is the answer. It may be another's until its first text; what fails later ends it.
    """

    pool: ModelPool | None = None
    run: Run | None = None
    """Where conversations are kept."""
    exclude: tuple[str, ...] = ()
    context: int | None
    passes: bool
    forwards: frozenset[str]

    def _over(self, pool: ModelPool) -> None:
        self.pool = pool
        self.context, self.passes, self.forwards = None, False, frozenset()
        self.tokenizer = self.template = None
        self.eos: tuple[int, ...] = ()
        self.defaults: dict[str, Any] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        """Nothing but messages, since workers differ; those of the inner model where it does nothing."""
        return frozenset() if self.pool is not None else super().capabilities

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`Middleware`. Raises NeedsError on token ids."""
        if self.pool is None:
            return await super().sample(prefix, n, settings, keys)
        return list(await asyncio.gather(*(self._one(self.pool, prefix, settings, key) for key in keys)))

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        """The answer as it comes; in one piece where nobody reads it so (:data:`READ`),
        and a worker that fails amid its reply can be replaced."""
        pool = self.pool
        if pool is None:
            pieces = super().stream(prefix, settings, key)
        elif READ.get():
            pieces = told(lambda tell: self._one(pool, prefix, settings, key, tell))
        else:
            yield whole(await self._one(pool, prefix, settings, key))
            return
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def _one(
        self, pool: ModelPool, prefix: Prefix, settings: Sampling, key: int, tell: Callable[[str], None] | None = None
    ) -> Completion:
        if prefix.tokens is not None:
            raise NeedsError(f"middleware '{self.name}' takes the messages of a chat: use /v1/chat/completions")
        tree = self._tree()
        chat = Orchestration(pool, prefix.messages, str(key), settings=settings, exclude=self.exclude, run=self.run, tree=tree)
        chat.offered, chat.tell = prefix.tools, tell
        try:
            made = await chat.concluded(self._answer(chat))
        except InfrastructureError as error:
            if chat.begun or any(one is self.inner for one in pool.models):  # which has failed by now, or is excluded
                raise
            if tell is None:
                (completion,) = await self.inner.sample(prefix, 1, settings, [key])
            else:
                completion = await gathered(stream(self.inner, prefix, settings, key), Spoken(self.inner, tell))
            completion = spoken(self.inner, completion)
            note = {"trace": tree if self.run else "", "worker": self.inner.identity.name, "notes": [*chat.notes, error.message]}
            return replace(_text_only(completion), data={**(completion.data or {}), "orchestrator": note})
        return _with_note(made)

    def _tree(self) -> str:
        """A name for the conversation: that of the request, and for its further samples a number more."""
        name = REQUEST.get() or secrets.token_hex(8)
        return name if self.run is None else new_tree(self.run, name)

    @abstractmethod
    async def _answer(self, chat: Orchestration) -> Orchestrated:
        """The answer, and which worker gave it."""


def _text_only(completion: Completion) -> Completion:
    """Without tokens, which are those of one worker."""
    return Completion(completion.text, completion.stop if completion.stop in ("eos", "length") else "eos", data=completion.data)


def _with_note(made: Orchestrated) -> Completion:
    assert made.completion is not None
    answered = next((one.worker for one in reversed(made.calls) if one.result.completion is made.completion), "")
    data = dict(made.completion.data or {})
    if made.completion.tokens is not None:
        data["usage"] = {**data.get("usage", {}), "completion_tokens": len(made.completion.tokens)}
    note = {
        "trace": made.trace,
        "worker": answered,
        "calls": len(made.calls),
        "usd": made.usd,
        "tokens": made.tokens,
        "notes": made.notes,
    }
    return replace(_text_only(made.completion), data={**data, "orchestrator": note})


def _parts(name: str, argument: str) -> tuple[Path, str]:
    pool, comma, rest = argument.partition(",")
    if not comma or not rest:
        what = "ROUTER" if name == "route" else "MODEL"
        raise UserError(f"middleware '{name}' is named {name}:POOL.toml,{what}, not '{name}:{argument}'")
    return Path(pool), rest


@register("middleware", "route")
class Routed(_OverPool):
    """``route:POOL.toml,ROUTER``: each turn of a chat is answered by the worker that the router chooses; tools pass through to
    it. A router with roles answers in several turns of them, but for a request with tools."""

    name = "route"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.router: Any = None
        if argument:
            from ramify.methods.orchestrator.router import TurnRouter

            pool, folder = _parts(self.name, argument)
            self.over(read_pool(pool), TurnRouter.load(Path(folder)))

    def over(self, pool: ModelPool, router: Any) -> Routed:
        """Put it over a pool. Raises UserError where the router was trained for other workers."""
        pool.check_router(router.workers)
        self._over(pool)
        self.router = router
        return self

    @property
    def settings(self) -> Any:
        """Pool and router."""
        return None if self.pool is None else [self.pool.identity, self.router.identity]

    async def _answer(self, chat: Orchestration) -> Orchestrated:
        return await answer_with(chat, self.router)


@register("middleware", "compose")
class Composed(_OverPool):
    """``compose:POOL.toml,MODEL``: a model writes a workflow over the pool for each request. Tools are refused (NeedsError)."""

    name = "compose"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.composer: Composer | None = None
        if argument:
            path, spec = _parts(self.name, argument)
            pool = read_pool(path)
            policy, template = open_model(spec)
            self.over(Composer(policy, pool, template))

    def over(self, composer: Composer) -> Composed:
        """Put it over a composer and its pool."""
        self._over(composer.pool)
        self.composer = composer
        return self

    @property
    def settings(self) -> Any:
        """Pool, policy and limits."""
        if self.composer is None:
            return None
        one = self.composer
        return [one.pool.identity, one.policy.identity.weights, one.max_steps, one.rounds, one.depth, one.shots]

    async def _answer(self, chat: Orchestration) -> Orchestrated:
        assert self.composer is not None
        if chat.offered:
            raise NeedsError(
                "a composer's workers share no client: send tools to the model 'router', or run the composer in your own program"
            )
        return await self.composer.converse(chat)
