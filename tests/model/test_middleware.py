"""Middleware passes the battery; middleware broken on purpose is caught; composition is in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ramify.base import registry
from ramify.base.errors import InfrastructureError, UserError
from ramify.model.middleware import Middleware, wrap
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import Pieces, stream, whole
from ramify.testing import check_middleware
from ramify.trace.message import Message


def found(make: Any) -> set[str]:
    return {problem.check for problem in check_middleware(make)}


def test_the_base_class_conforms() -> None:
    assert check_middleware(Middleware) == []


class Shouts(Middleware):
    name, rewrites = "shouts", True

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        return replace(completion, text=completion.text.upper())


def test_middleware_that_rewrites_conforms_where_it_says_so() -> None:
    assert found(Shouts) <= {"mixing"}  # the marks are lower case: a rewriting part may not echo them


class SameIdentity(Middleware):
    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner)
        self.identity = inner.identity


class Claims(Middleware):
    @property
    def capabilities(self) -> frozenset[str]:
        return self.inner.capabilities | {"taps"}


class Whispers(Shouts):
    name, rewrites = "whispers", False


class Drops(Middleware):
    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return (await super().sample(prefix, n, settings, keys))[:1]


class OneKey(Middleware):
    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return await super().sample(prefix, n, settings, [keys[0]] * n)


class Hides(Middleware):
    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        try:
            return await super().sample(prefix, n, settings, keys)
        except InfrastructureError:
            return [Completion("sorry", "eos")] * n


class Shields(Middleware):
    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return await asyncio.shield(super().sample(prefix, n, settings, keys))


class HoldsBack(Middleware):
    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        (completion,) = await self.sample(prefix, 1, settings, [key])
        yield whole(completion)


class Remembers(Middleware):
    last: Prefix | None = None

    async def before(self, given: Prefix) -> Prefix:
        self.last, before = given, self.last
        await asyncio.sleep(0)
        return given if before is None or given.tokens is not None else replace(given, messages=before.messages + given.messages)


class Mutates(Middleware):
    async def before(self, given: Prefix) -> Prefix:
        for message in given.messages:
            if message.data:
                message.data["seen"] = True
        return given


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (SameIdentity, "claims"),
        (Claims, "claims"),
        (Whispers, "transparent"),
        (Drops, "samples"),
        (OneKey, "samples"),
        (Hides, "failures"),
        (Shields, "cancelled"),
        (HoldsBack, "streams"),
        (Remembers, "mixing"),
        (Mutates, "transparent"),
    ],
)
def test_what_is_broken_on_purpose_is_caught(broken: Any, check: str) -> None:
    assert check in found(broken)


class Says(Middleware):
    """Puts its argument in front of the conversation."""

    name = "says"

    async def before(self, given: Prefix) -> Prefix:
        return replace(given, messages=(Message("system", self.argument), *given.messages))


def test_composition_is_in_order_and_told_in_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    monkeypatch.setattr(registry, "_origins", dict(registry._origins))
    registry.register("middleware", "says")(Says)
    inside = ScriptedModel(lambda messages, key: " ".join(m.text for m in messages), tokens=False)
    model = wrap(inside, ["says:first: with a colon", "says:second"])
    assert isinstance(model, Says)
    assert (model.identity.name, model.argument) == ("scripted+says+says", "first: with a colon")
    (completion,) = asyncio.run(model.sample(Prefix(messages=(Message("user", "hi"),)), 1, Sampling(), [1]))
    assert completion.text == "second first: with a colon hi"  # the outermost changes first, the innermost ends in front
    assert [layer.message.text for layer in completion.shown] == ["second", "first: with a colon", "hi"]
    assert wrap(inside, ["says:a"]).identity.weights != wrap(inside, ["says:b"]).identity.weights
    assert wrap(inside, []) is inside
    with pytest.raises(UserError, match="did you mean 'says'"):
        wrap(inside, ["say"])


def test_a_stream_carries_what_after_made_of_the_sample() -> None:
    class Marks(Middleware):
        async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
            return replace(completion, data={**(completion.data or {}), "key": key})

    async def last() -> Completion | None:
        pieces = [p async for p in stream(Marks(ScriptedModel(["ok"])), Prefix(np.array([5], np.int32)), Sampling(), 9)]
        return pieces[-1].completion

    completion = asyncio.run(last())
    assert completion is not None
    assert completion.data == {"key": 9}


def test_what_the_model_inside_offers_is_found_and_nothing_else() -> None:
    inside = ScriptedModel()
    made = Middleware(inside)
    assert made.tokenizer is inside.tokenizer
    assert not hasattr(made, "sample_tapped")
    assert not hasattr(Middleware(ScriptedModel(tokens=False)), "template")
    assert made.identity == Identity("scripted+middleware", made.identity.weights, inside.identity.tokenizer)
