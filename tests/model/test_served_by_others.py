"""Answers that real servers gave on the same checkpoint (tests/fixtures/served_*.json: llama.cpp and vLLM, recorded by hand),
sent again over a socket; and, where RAMIFY_TEST_ENDPOINT names a server, the verbs on it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_server import FaultyServer, http

from benchmarks.served import Trial
from ramify.base.errors import NeedsError
from ramify.base.verdicts import collected
from ramify.model.address import EndpointLimits
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import CharTokenizer
from ramify.model.streaming import gathered
from ramify.rollout.sampler import Sampler
from ramify.trace.message import Message

SERVERS = ("llamacpp", "vllm")
ASKED = Prefix(messages=(Message("user", "What is the capital of France? Answer in one word."),))
CACHED = {("llamacpp", "chat"): 41, ("llamacpp", "completion"): 39, ("vllm", "chat"): 32, ("vllm", "completion"): 32}


def recorded(server: str) -> dict[str, Any]:
    path = Path(__file__).parents[1] / "fixtures" / f"served_{server}.json"
    answers: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return answers


def raw(answer: dict[str, Any]) -> bytes:
    return http(answer["body"].encode(), answer["status"], kind=answer["type"].partition(";")[0])


def model(server: FaultyServer, mode: str) -> HttpModel:
    """Past its look at the server."""
    made = HttpModel(server.url, "smollm2", mode, tokenizer=CharTokenizer(), limits=EndpointLimits(retries=2, base=0.0))
    made._offers = frozenset({"tokens", "continue", "logprobs"} if mode == "completions" else ())
    return made


def sample(answer: dict[str, Any], mode: str, streams: bool = False) -> Completion:
    prefix = ASKED if mode == "chat" else Prefix(np.array(answer["request"]["prompt"], np.int32))
    settings = Sampling(max_tokens=answer["request"]["max_tokens"])
    with FaultyServer(lambda body: raw(answer)) as server:
        made = model(server, mode)
        if streams:
            return asyncio.run(gathered(made.stream(prefix, settings, 1)))
        return asyncio.run(made.sample(prefix, 1, settings, [1]))[0]


@pytest.mark.parametrize("server", SERVERS)
def test_what_a_server_had_cached_is_counted(server: str) -> None:
    answers = recorded(server)
    for kind, mode in (("chat", "chat"), ("completion", "completions")):
        done = sample(answers[kind], mode)
        assert done.cached == CACHED[server, kind]
        assert done.stop == "length"
    assert sample(answers["chat, streamed"], "chat", streams=True).text == sample(answers["chat"], "chat").text
    assert done.tokens is not None
    assert done.model_logprobs is not None
    assert (done.tokens.shape, done.model_logprobs.shape) == ((4,), (4,))


def test_a_verb_says_what_its_servers_counted() -> None:
    answer = recorded("llamacpp")["chat"]
    with FaultyServer(lambda body: raw(answer)) as server, collected() as verdicts:
        sampler = Sampler(model(server, "chat"))
        asyncio.run(sampler.sample(ASKED, 3, Sampling(max_tokens=6), ("a",)))
    spent = sampler.spent()
    assert (spent.given, spent.cached, spent.sampled, spent.run) == (126, 123, 18, 21)
    ((host, counts),) = verdicts.servers.items()
    assert counts.sentence(host) == f"{host}: 3 replies, 126 tokens of prompts, 123 of them cached (98%), 18 sampled"


def test_a_server_that_does_not_say_what_it_cached_is_not_taken_to_have_cached_nothing() -> None:
    answer = recorded("vllm")["chat"]
    body = json.loads(answer["body"])
    del body["usage"]["prompt_tokens_details"]
    with FaultyServer(lambda _: http(body)) as server, collected() as verdicts:
        sampler = Sampler(model(server, "chat"))
        asyncio.run(sampler.sample(ASKED, 2, Sampling(max_tokens=6), ("a",)))
    assert not sampler.spent().reported
    (counts,) = verdicts.servers.values()
    assert "how many were cached it does not say" in counts.sentence("host")


def test_a_reply_that_its_server_cannot_read_is_not_asked_for_again() -> None:
    answers = recorded("llamacpp")
    with FaultyServer(lambda body: raw(answers["unread"])) as server:
        with pytest.raises(ProviderError) as caught:
            asyncio.run(model(server, "chat").sample(ASKED, 1, Sampling(max_tokens=6), [1]))
        assert (caught.value.kind, caught.value.final, len(server.requests)) == ("unread", True, 1)
    with pytest.raises(ProviderError, match="broke the stream off: The model produced output") as caught:
        sample(answers["unread, streamed"] | {"request": answers["unread"]["request"]}, "completions", streams=True)
    assert caught.value.kind == "unread"


def test_a_reply_that_a_server_cannot_read_does_not_end_the_look_at_it() -> None:
    """At temperature 2, at which seeds are tried: that seed gives it each time, another seed a reply."""
    answers = recorded("llamacpp")

    def answer(body: dict[str, Any]) -> bytes:
        wild = body["temperature"] == 2.0 and body["seed"] == 1
        return raw(answers["unread" if wild else "chat"])

    with FaultyServer(answer) as server:
        made = HttpModel(server.url, "smollm2", limits=EndpointLimits(retries=0))
        assert "seeds" in made.capabilities


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("RAMIFY_TEST_ENDPOINT"),
    reason="RAMIFY_TEST_ENDPOINT (URL MODEL TOKENIZER) is not set: NO SERVER IS TESTED",
)
def test_the_verbs_on_a_real_server(tmp_path: Path) -> None:
    url, name, *tokenizer = os.environ["RAMIFY_TEST_ENDPOINT"].split()
    tried = list(Trial(url, name, tokenizer[0] if tokenizer else None, tmp_path).all())
    refused = {one.verb: one.code for one in tried if one.code > 1}  # 1 is what a verb says of a poor agent
    assert refused == {"`fork NODE:OFFSET`, chat": 4}, tried
    silent = {one.verb for one in tried if one.code <= 1 and not (one.prompt and one.sampled)}
    assert silent <= {"`why`, chat", "`why`, completions"}, "which may find all that they need in the run"


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_names_the_tokens_that_could_come_next(server: str) -> None:
    answer = recorded(server)["completion"]
    with FaultyServer(lambda body: raw(answer)) as alone, pytest.raises(NeedsError, match="does not name the likeliest other"):
        asyncio.run(model(alone, "completions").next_tokens([504], 2))  # it was asked for one
    body = json.loads(answer["body"])
    logs = body["choices"][0]["logprobs"]
    if server == "llamacpp":
        logs["content"][0]["top_logprobs"].append({"id": 1348, "token": "This", "bytes": [], "logprob": -5.8})
    else:
        logs["top_logprobs"][0]["token_id:1348"] = -5.8
    asked: list[Any] = []
    more = answer | {"body": json.dumps(body)}

    def reply(body: Any) -> bytes:
        asked.append(body)
        return raw(more)

    with FaultyServer(reply) as two:
        named = asyncio.run(model(two, "completions").next_tokens([504, 3575], 2))
    assert list(named) == [504, 1348]
    assert 0.9 < named[504] < 0.92
    assert (asked[-1]["logprobs"], asked[-1]["prompt"]) == (2, [504, 3575])
