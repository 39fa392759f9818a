"""Whether a server draws the same after other requests: servers on loopback that do, and some that do not, each its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from starlette.responses import JSONResponse

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.jobs.server_null import ARMS, ServerDraws, compared, server_draws
from ramify.model.endpoint import HttpModel
from ramify.model.scripted import ScriptedModel
from tests.model.model_server import NAME, ModelServer, serving

COLOURS, TOWNS = ("red", "blue", "green", "gold"), ("Rome", "Oslo", "Bonn", "Kyiv", "Lyon")


def spoken(context: str, key: int) -> str:
    """A draw that depends on all of the context and on the seed; greedy ones have one key."""
    draw = generator(key, stable_hash(context))
    return f"{draw.choice(COLOURS)} {draw.choice(TOWNS)} {draw.integers(1, 9)} {'dog ' * int(draw.integers(1, 4))}".strip()


class Kept:
    """What a server of the tests remembers between requests."""

    def __init__(self) -> None:
        self.last = ""
        self.replies: dict[str, str] = {}

    def honest(self, context: str, key: int) -> str:
        return spoken(context, key)

    def remembering(self, context: str, key: int) -> str:
        """It goes on with what it was asked before, half of the time."""
        before, self.last = self.last, context
        return f"{before.split()[0]} {spoken(context, key)}" if before and key % 2 else spoken(context, key)

    def caching(self, context: str, key: int) -> str:
        return self.replies.setdefault(context, spoken(context, key))

    def forgetting(self, context: str, key: int) -> str:
        """It reads the last 100 words."""
        return spoken(" ".join(context.split()[-100:]), key)


def measured(answer: Callable[[str, int], str], samples: int = 16, **how: Any) -> ServerDraws:
    def reply(messages: Any, key: int) -> str:
        return answer("\n".join(message.text for message in messages), key)

    server = ModelServer(chat=ScriptedModel(reply, tokens=False))
    vars(server).update(how)
    with serving(server.app) as url:
        return asyncio.run(server_draws(HttpModel(url, NAME), samples))


def test_a_server_that_draws_the_same_is_called_the_same() -> None:
    found = measured(Kept().honest)
    assert (found.caution, found.cut, found.one_reply, found.greedy) == ("", "", False, 1)
    assert "draws the same" in found.sentence
    assert len(found.tests) == 10


def test_one_that_goes_on_with_the_request_before_is_found() -> None:
    found = measured(Kept().remembering)
    assert {test.compared for test in found.differ} >= {"right after another request and right after itself"}
    assert "draws otherwise" in found.caution


def test_one_that_keeps_whole_replies_is_found() -> None:
    found = measured(Kept().caching)
    assert found.one_reply
    assert "one reply to every seed" in found.caution


def test_one_that_cuts_long_contexts_is_found() -> None:
    found = measured(Kept().forgetting)
    assert found.differ == ()
    assert "whatever a context of 300 words begins with" in found.cut
    counting = measured(Kept().honest, count=lambda words: min(words + 4, 220))
    assert "of 150 and of 300 words more it counts 172 and 220 tokens" in counting.cut


def test_one_that_refuses_long_contexts_is_not_at_fault() -> None:
    def refuse(body: dict[str, Any]) -> JSONResponse | None:
        long = sum(len(message["content"].split()) for message in body["messages"]) > 100
        return JSONResponse({"error": {"message": "the request exceeds the available context size"}}, 400) if long else None

    found = measured(Kept().honest, before=refuse)
    assert (found.caution, found.refused) == ("", True)
    assert "it refuses contexts of 300 words or fewer" in found.sentence


def test_replies_that_come_in_runs_are_found() -> None:
    rng = np.random.default_rng(0)
    drawn = {arm: [f"{rng.choice(COLOURS)} {rng.choice(TOWNS)}" for _ in range(24)] for arm in ARMS}
    drawn["alone"] = [text for text in drawn["alone"][:8] for _ in range(3)]
    assert [test.about for test in compared(drawn) if test.p_corrected <= 0.05] == ["order"]


@pytest.mark.slow
def test_a_server_without_a_fault_is_called_different_at_most_at_the_level() -> None:
    """400 servers, each with a distribution of its own over few texts, where ties abound."""
    texts, rng, called = (
        [f"{c} {t} {'x ' * i}" for i, (c, t) in enumerate(zip(COLOURS, TOWNS, strict=False))],
        np.random.default_rng(1),
        0,
    )
    for number in range(400):
        shares = rng.dirichlet(np.ones(len(texts)))
        drawn = {arm: [texts[i] for i in rng.choice(len(texts), 24, p=shares)] for arm in ARMS}
        called += any(test.p_corrected <= 0.05 for test in compared(drawn, number))
    assert called <= 30, "of 400 at a level of 5 %: 20 are expected at most, 30 are two standard errors more"


def test_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match="at least 8"):
        asyncio.run(server_draws(ScriptedModel(["a"], tokens=False), 4))
