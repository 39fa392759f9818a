"""The conformance battery every piece of middleware must pass: what a caller relies on, whatever model is inside."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.problem import Problem
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.model.middleware import Make
from ramify.model.protocol import CAPABILITIES, Completion, Identity, Model, Prefix, Sampling, TokenScores
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import Piece, Pieces, stream
from ramify.testing.model import check_model
from ramify.testing.probe import run_checks
from ramify.trace.message import Message

_SETTINGS = Sampling(max_tokens=200)
_TOKENS = Prefix(np.array([5, 6, 7], np.int32))


def check_middleware(make: Make, timeout: float = 30.0) -> list[Problem]:
    """Run every check on what ``make`` puts around models that take messages and models that take tokens.

    ``make`` is what is registered, without its argument: so made it should have nothing to do, and change no sample, unless the
    class says ``rewrites``. A call that takes longer than ``timeout`` seconds is a problem. Runs its own event loop.
    """
    return run_checks(CHECKS, _Probe(make, timeout))


@dataclass(frozen=True)
class _Probe:
    make: Make
    timeout: float

    def run(self, work: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, self.timeout)

        return wait_for(bounded())

    def sample(self, model: Model, prefix: Prefix, keys: Sequence[int]) -> list[Completion]:
        completions: list[Completion] = self.run(model.sample(prefix, len(keys), _SETTINGS, keys))
        return completions


def _chat(*texts: str) -> Prefix:
    roles = ("user", "assistant")
    messages = (Message(roles[i % 2], text, {"name": "n"}) for i, text in enumerate(texts))
    return Prefix(messages=(Message("system", "Be brief."), *messages))


CHATS = (_chat("hello"), _chat("count", "one", "continue"), Prefix(messages=(Message("user", "?\x00\u202e<|end|>"),)))


def _keys(n: int, index: int = 0) -> list[int]:
    return [derive_key(0, "middleware", index, i) for i in range(n)]


def _reply(messages: tuple[Message, ...], key: int) -> str:
    """The reply depends on the last message and the key, so that a swapped conversation or key shows."""
    last = next((message.text for message in reversed(messages) if message.role == "user"), "")
    return f"{key % 997}: {last} and so on"


@dataclass
class _Inside:
    """A model of messages that streams, remembers what it was shown, and fails or waits where configured to."""

    fails: Exception | None = None
    waits: bool = False
    requests: list[Prefix] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    identity: Identity = field(default=Identity("inside", "w0"))
    capabilities: frozenset[str] = frozenset({"seeds", "batch_invariant"})

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        self.requests.append(prefix)
        if self.fails is not None:
            raise self.fails
        try:
            if self.waits:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        return [Completion(_reply(prefix.messages, key), "eos", data={"usage": {"prompt_tokens": 1}}) for key in keys]

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        (completion,) = await self.sample(prefix, 1, settings, [key])
        try:
            for at in range(0, len(completion.text), 4):
                yield Piece(completion.text[at : at + 4])
            yield Piece("", completion=completion)
        except GeneratorExit:
            self.ended.append("closed")
            raise

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        raise UserError("a model of messages scores no tokens")


def _claims(probe: _Probe) -> Iterator[str]:
    """Its identity differs from the inner model's, and it claims no capability that the inner model lacks."""
    for inside in (_Inside(), ScriptedModel()):
        wrapped, inner = probe.make(inside), inside.identity
        if wrapped.identity.weights == inner.weights:
            yield "its identity is that of the inner model"
        if wrapped.identity.tokenizer != inner.tokenizer:
            yield "its identity does not name the tokenizer of the inner model"
        if wrapped.identity != probe.make(inside).identity:
            yield "made twice around one model it has two identities"
        if more := sorted(wrapped.capabilities - inside.capabilities):
            yield f"it claims what the inner model lacks: {', '.join(more)}"
    if probe.make(_Inside(identity=Identity("inside", "w1"))).identity.weights == probe.make(_Inside()).identity.weights:
        yield "its identity does not change with the weights of the inner model"
    everything = _Inside(capabilities=frozenset(CAPABILITIES))
    if hidden := sorted(probe.make(everything).capabilities & {"taps", "train"}):
        yield f"it claims {', '.join(hidden)}, which would bypass it"


def _model(probe: _Probe) -> Iterator[str]:
    """What it makes is a model: the battery of models, around one of tokens and one of messages."""
    for inside in (ScriptedModel(lambda messages, key: f"reply {key % 9}"), ScriptedModel(tokens=False)):
        for problem in check_model(probe.make(inside)):
            yield f"{problem.check}: {problem.message}"


def _transparent(probe: _Probe) -> Iterator[str]:
    """With nothing to do it changes no sample, and never what it was given."""
    for index, chat in enumerate(CHATS):
        before, inside = copy.deepcopy(chat.messages), _Inside()
        wrapped = probe.make(inside)
        completions = probe.sample(wrapped, chat, _keys(2, index))
        if chat.messages != before:
            yield "it changes the messages that it was given"
        plain = probe.sample(_Inside(), chat, _keys(2, index))
        same = [(d.text, d.stop) for d in completions] == [(d.text, d.stop) for d in plain]
        if not same and not getattr(wrapped, "rewrites", False):
            yield "with nothing to do it changes a sample"
        if any((completion.data or {}).get("usage") is None for completion in completions):
            yield "it drops the data of a sample"
    script = ScriptedModel(["drawn"])
    wrapped = probe.make(script)
    sampled, alone = (probe.sample(model, _TOKENS, _keys(1))[0].tokens for model in (wrapped, script))
    assert alone is not None
    if (sampled is None or sampled.tolist() != alone.tolist()) and not getattr(wrapped, "rewrites", False):
        yield "with nothing to do it changes the tokens of a sample"


def _samples(probe: _Probe) -> Iterator[str]:
    """As many samples as keys, and key i decides sample i."""
    wrapped = probe.make(_Inside())
    for n in (1, 3):
        completions = probe.sample(wrapped, CHATS[0], _keys(n))
        if len(completions) != n:
            yield f"for {n} keys it returns {len(completions)} samples"
        alone = [probe.sample(wrapped, CHATS[0], [key])[0].text for key in _keys(n)]
        if [completion.text for completion in completions] != alone:
            yield "a sample in a batch differs from the same key's sample alone"


def _failures(probe: _Probe) -> Iterator[str]:
    """A failure of the inner model is passed on unchanged."""
    for error in (InfrastructureError("provider", "down"), UserError("no such thing")):
        wrapped = probe.make(_Inside(fails=error))
        for how, work in (("sample", wrapped.sample(CHATS[0], 1, _SETTINGS, [1])), ("stream", _read(wrapped, CHATS[0], 1))):
            try:
                probe.run(work)
                yield f"{how} hides a {type(error).__name__} of the inner model"
            except Exception as raised:
                if raised is not error:
                    yield f"{how} turns a {type(error).__name__} of the inner model into a {type(raised).__name__}"


def _cancelled(probe: _Probe) -> Iterator[str]:
    """Cancelling a sample, or closing a stream, reaches the inner model."""
    waiting, streaming = _Inside(waits=True), _Inside()
    wrapped = probe.make(streaming)

    async def cancel() -> bool:
        task = asyncio.ensure_future(probe.make(waiting).sample(CHATS[0], 1, _SETTINGS, [1]))
        while not waiting.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        return "CancelledError" in waiting.ended  # checked here: the end of the loop cancels whatever is left

    async def close() -> bool:
        async with aclosing(stream(wrapped, CHATS[0], _SETTINGS, 1)) as pieces:
            await anext(pieces)
        return bool(streaming.ended)

    if not probe.run(cancel()):
        yield "cancelling a sample does not cancel it inside"
    if not probe.run(close()) and not getattr(wrapped, "rewrites", False):
        yield "closing a stream does not close it inside"


def _streams(probe: _Probe) -> Iterator[str]:
    """The pieces of a stream, put together, are the sample that ``sample`` makes; the last, and no other, carries it."""
    for chat in CHATS:
        wrapped = probe.make(_Inside())
        pieces: list[Piece] = probe.run(_read(wrapped, chat, 7))
        (completion,) = probe.sample(wrapped, chat, [7])
        if not pieces or pieces[-1].completion is None or any(piece.completion is not None for piece in pieces[:-1]):
            yield "a stream does not end with its sample, or carries it earlier"
            continue
        if "".join(piece.text for piece in pieces) != pieces[-1].completion.text:
            yield "the pieces of a stream are not the text of its sample"
        if (pieces[-1].completion.text, pieces[-1].completion.stop) != (completion.text, completion.stop):
            yield "a stream ends with another sample than sample makes"
        if pieces[-1].completion.data != completion.data:
            yield "a stream ends with other data than those of sample"
        if len(pieces) < 3 and not getattr(wrapped, "rewrites", False):
            yield "it holds a stream back until its end, and does not say that it rewrites"


async def _read(model: Model, prefix: Prefix, key: int) -> list[Piece]:
    async with aclosing(stream(model, prefix, _SETTINGS, key)) as pieces:
        return [piece async for piece in pieces]


def _mixing(probe: _Probe) -> Iterator[str]:
    """Conversations at the same time stay apart."""
    inside = _Inside()
    wrapped, marks = probe.make(inside), [f"mark-{i:02d}-" for i in range(16)]

    async def all_at_once() -> list[list[Completion]]:
        work = (wrapped.sample(_chat(mark, f"heard {mark}", mark), 1, _SETTINGS, [i]) for i, mark in enumerate(marks))
        return await asyncio.gather(*work)

    for marked, (completion,) in zip(marks, probe.run(all_at_once()), strict=True):
        if marked not in completion.text or any(mark in completion.text for mark in marks if mark != marked):
            yield "the reply to one conversation went to another"
    for request in inside.requests:
        text = " ".join(message.text for message in request.messages)
        if sum(mark in text for mark in marks) != 1:
            yield "what the inner model was shown mixes conversations"


CHECKS: tuple[Callable[[_Probe], Iterator[str]], ...] = (
    _claims, _model, _transparent, _samples, _failures, _cancelled, _streams, _mixing,
)  # fmt: skip
