"""The answer to one request: its samples, the events sent, metrics and recording."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ramify.base.errors import BusyError, InfrastructureError, NeedsError, RamifyError, UserError
from ramify.base.seeds import derive_key
from ramify.model.http import ProviderError
from ramify.model.laid import TooLongError
from ramify.model.protocol import CLIENT, Completion, Identity
from ramify.model.streaming import Piece, Pieces, stream, whole
from ramify.web.exchange import Exchange, Recorder
from ramify.web.forms import Form, Served, Top
from ramify.web.limits import RefusedRequestError, Slots
from ramify.web.metrics import Metrics
from ramify.web.replies import Reply, ReplyPart
from ramify.web.sampling import merged, why_cut


class Answer:
    """``start`` is when the request came, on the monotonic clock. Use it once."""

    def __init__(
        self, form: Form, identity: Identity, slots: Slots, metrics: Metrics, record: Recorder | None, start: float
    ) -> None:
        self.form, self.identity, self.slots = form, identity, slots
        self.metrics, self.record, self.start = metrics, record, start
        self.id = form.id_head + uuid.uuid4().hex
        self.created = int(time.time())
        seed, count = form.request.seed, len(form.prompts) * form.n
        self.keys = [
            secrets.randbits(62) if seed is None else derive_key(seed, "serve", *divmod(choice, form.n))
            for choice in range(count)
        ]
        self.replies: list[Reply] = [form.reply() for _ in range(count)]
        self._begun = [0.0] * count
        self._sampled = [0] * count  # tokens seen of each choice

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        parts = [ReplyPart() for _ in self.replies]
        tops: list[list[Top]] = [[] for _ in self.replies]
        async with aclosing(self._parts()) as found:
            async for choice, part, top in found:
                parts[choice].text += part.text
                parts[choice].tokens += part.tokens
                parts[choice].calls += part.calls
                tops[choice] += top
        made = enumerate(zip(self.replies, parts, tops, strict=True))
        choices = [self.form.whole(choice, *one) for choice, one in made]
        return self._head(self.form.whole_object) | {"choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncGenerator[str, None]:
        """The answer as server-sent events. What fails before the first of them is raised; later it is the last of them."""
        form, begun, called = self.form, False, [False] * len(self.replies)
        options = form.request.stream_options
        usage = {"usage": None} if options and options.include_usage else {}

        def event(choice: dict[str, Any]) -> str:
            return _event(self._head(form.chunk_object) | {"choices": [choice]} | usage)

        def openings() -> list[str]:
            opened = [form.opening(choice) for choice in range(len(self.replies))]
            return [event(choice) for choice in opened if choice is not None]

        try:
            async with aclosing(self._parts()) as found:
                async for choice, part, top in found:
                    if not begun:
                        begun = True
                        for opening in openings():
                            yield opening
                    called[choice] |= bool(part.calls)
                    if part.text or part.calls or (part.tokens and form.tells_tokens):
                        yield event(form.delta(choice, self.replies[choice], part, top))
        except RamifyError as error:
            if not begun:
                raise
            yield _event(refusal(error, form.served).to_json())
            return
        for opening in [] if begun else openings():
            yield opening
        for choice, reply in enumerate(self.replies):
            yield event(form.closing(choice, reply, called[choice]))
        if usage:
            yield _event(self._head(form.chunk_object) | {"choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    async def _parts(self) -> AsyncGenerator[tuple[int, ReplyPart, list[Top]], None]:
        """The final parts of each choice; at the end all is counted and recorded."""
        form = self.form
        with self.slots.take(CLIENT.get(), len(self.replies)):
            await form.prepare()
            try:
                async with aclosing(merged(self._streams())) as pieces:
                    async for choice, piece in pieces:
                        self._note(choice, piece)
                        if form.top and piece.completion is None:
                            continue  # runners-up are known when the sample is whole
                        top = await self._tops(choice, piece.completion) if form.top and piece.completion is not None else []
                        yield (
                            choice,
                            self.replies[choice].push(whole(piece.completion) if form.top and piece.completion else piece),
                            top,
                        )
            except Exception as error:
                await self._report([reply.completion or error for reply in self.replies])
                raise
            except (asyncio.CancelledError, GeneratorExit) as error:
                self._leave(why_cut(error))
                raise
            finally:
                self.metrics.count(*self._sums())
            if form.samples:  # A client that disconnects meanwhile is still recorded, once.
                await self._report([reply.completion for reply in self.replies if reply.completion is not None])

    def _streams(self) -> list[Pieces]:
        """The samples to be made, each begun when it is first read."""
        form = self.form
        choices = enumerate(self.keys) if form.samples else ()
        return [stream(form.served.model, form.prompts[at // form.n], form.settings, key) for at, key in choices]

    async def _report(self, outcomes: Sequence[Completion | Exception]) -> None:
        if self.record is None:
            return
        n, rows = self.form.n, range(0, len(outcomes), self.form.n)
        keys = tuple(tuple(self.keys[at : at + n]) for at in rows)
        grouped = tuple(tuple(outcomes[at : at + n]) for at in rows)
        await self.record(Exchange(self.id, self.form.route, self.identity, self.form.prompts, self.form.settings, keys, grouped))

    def _leave(self, why: str) -> None:
        """The client disconnected or its time ran out: nothing may be awaited here for long,
        so the recorder stores it on its own."""
        self.metrics.gone.inc()
        gone = InfrastructureError("provider", why)
        kept = asyncio.ensure_future(self._report([reply.completion or gone for reply in self.replies]))
        kept.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _tops(self, choice: int, completion: Completion) -> list[Top]:
        prompt = self.form.prompt_tokens(choice, completion)
        if prompt is None or completion.tokens is None:
            raise RefusedRequestError(
                400, "This model does not report the tokens of its prompt, which 'top_logprobs' needs.", "top_logprobs"
            )
        return await self.form.served.alternatives(prompt, completion.tokens, self.form.top)

    def _note(self, choice: int, piece: Piece) -> None:
        """Count the tokens; note when the first came, and at the end how long each further one took."""
        now = time.monotonic()
        self._sampled[choice] += 0 if piece.tokens is None else len(piece.tokens)
        if not self._begun[choice] and (piece.text or piece.tokens is not None):
            self._begun[choice] = now
            self.metrics.first.observe(now - self.start)
        if piece.completion is not None and piece.completion.tokens is not None and len(piece.completion.tokens) > 1:
            self.metrics.each.observe((now - self._begun[choice]) / (len(piece.completion.tokens) - 1))

    # -- the response around the choices

    def _head(self, kind: str) -> dict[str, Any]:
        mark = self.identity.weights[:16]
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.form.served.name,
            "system_fingerprint": mark,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, cached, sampled = self._sums()
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _sums(self) -> tuple[int, int, int]:
        """Tokens of the prompts, each once; of them found in the cache by every one of its samples;
        of all replies, as far as they came.

        0 where unknown.
        """
        n, sampled = self.form.n, list(self._sampled)
        prompt = cached = 0
        for at, given in enumerate(self.form.prompts):
            completions = {c: self.replies[c].completion for c in range(at * n, at * n + n)}
            usages = {
                c: (completion.data or {}).get("usage", {}) for c, completion in completions.items() if completion is not None
            }
            counts = [len(given.tokens)] if given.tokens is not None else [use.get("prompt_tokens", 0) for use in usages.values()]
            prompt += max(counts, default=0)
            cached += min((use.get("cached_tokens", 0) for use in usages.values()), default=0)
            for c, use in usages.items():
                sampled[c] = sampled[c] or use.get("completion_tokens", 0)  # of a model without tokens
        return prompt, cached, sum(sampled)


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


_STATUS = {"rate": 429, "timeout": 504}
"""Kinds of failures of an upstream endpoint; any other is 502."""


def refusal(error: RamifyError, served: Served | None = None, clients_key: bool = False) -> RefusedRequestError:
    """The error response for a client; the model is called as in ``served``.

    An upstream's refusal of a request is passed on to the client; that of the key only with ``clients_key``: it is the client's.
    """
    refused = _refusal(error, clients_key)
    if served is not None:
        refused.message = served.named(refused.message)
    return refused


def _refusal(error: RamifyError, clients_key: bool) -> RefusedRequestError:
    if isinstance(error, RefusedRequestError):
        return error
    message = f"Upstream: {error.message.rstrip('.')}." if isinstance(error, InfrastructureError) else ""
    if isinstance(error, ProviderError):
        retry = {} if error.wait is None else {"retry-after": str(math.ceil(error.wait))}
        own = 400 <= error.status < 500 and error.kind in ("request", "model", "rate", *(["auth"] if clients_key else []))
        if own or retry:
            return RefusedRequestError(error.status, message, code=error.kind, headers=retry)
    if isinstance(error, TooLongError):
        return RefusedRequestError(400, f"{error}.", code="context_length_exceeded")
    if isinstance(error, BusyError):
        return RefusedRequestError(429, f"{error}.", code="rate_limit_exceeded", headers={"retry-after": "1"})
    if isinstance(error, UserError | NeedsError):
        return RefusedRequestError(400, f"{error}.", code="unsupported" if isinstance(error, NeedsError) else None)
    if isinstance(error, InfrastructureError) and error.boundary == "provider":
        return RefusedRequestError(_STATUS.get(error.kind, 502), message, code=error.kind or None)
    return RefusedRequestError(500, f"{error}.", code=error.kind or None if isinstance(error, InfrastructureError) else None)
