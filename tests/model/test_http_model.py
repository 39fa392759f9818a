"""Models behind a real HTTP server on loopback: what they claim and keep, chats with tools, rollouts,
failures as data, no secret anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halls import Stateless
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ramify
from ramify.base.errors import NeedsError, UserError
from ramify.cli.main import main
from ramify.engine.checkpoints import load_model, model_folder
from ramify.engine.named import find_model
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.jobs.play import fork_run
from ramify.model import wire
from ramify.model.endpoint import HttpModel
from ramify.model.grammar import json_object
from ramify.model.http import _OPEN, ProviderError
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel, scripted_completion
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.testing import check_model
from ramify.trace.db import Run
from ramify.trace.message import Message

sys.path.insert(0, str(Path(__file__).parent))
from faulty_server import FaultyServer, completion, good, http
from faulty_server import chat as faulty_chat
from model_server import NAME, ModelServer, serving

BUILTIN = model_folder("builtin")
PREFIX = Prefix(np.array([3, 5, 9], np.int32))
ASKED = {"penalties", "grammar"}
"""What every server is asked for by name; :meth:`HttpModel.check` refuses what it does not know."""


def varied(messages: Any, key: int) -> str:
    return f"reply {key % 1000} to {messages[-1].text}"


def wander(messages: Any, key: int) -> str:
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else f"wait {key % 7}"


def chat_server(script: Any = wander, **options: Any) -> ModelServer:
    return ModelServer(chat=ScriptedModel(script, tokens=False), **options)


def token_server(**options: Any) -> ModelServer:
    return ModelServer(tokens=load_model(BUILTIN)[0], **options)


def completions(url: str, **options: Any) -> HttpModel:
    return HttpModel(url, NAME, "completions", tokenizer=BUILTIN, **options)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    """A server that does not know a field."""

    def before(body: dict[str, Any]) -> None:
        body.pop(name, None)

    return before


def sample(model: HttpModel, prefix: Prefix, keys: tuple[int, ...] = (1,), **fields: Any) -> list[Completion]:
    return asyncio.run(model.sample(prefix, len(keys), Sampling(**{"max_tokens": 12, **fields}), keys))


# -- the battery, and what is claimed


@pytest.mark.slow
def test_completions_pass_the_battery() -> None:
    with serving(token_server().app) as url:
        model = completions(url)
        assert model.capabilities == {"tokens", "continue", "logprobs", "prompt_logprobs", "seeds", *ASKED}
        assert check_model(model) == []


@pytest.mark.slow
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_connections_of_a_model_that_is_gone_before_its_loop_are_closed(turns: int) -> None:
    """Until the loop ends, or until another model asks; what is left open would be told by the garbage collector, as an error."""

    before = set(_OPEN)

    async def ask(url: str) -> None:
        model, hello = HttpModel(url, NAME), Prefix(messages=(Message("user", "hello"),))
        await asyncio.gather(*(model.sample(hello, 1, Sampling(max_tokens=4), [key]) for key in range(4)))

    async def once(url: str) -> None:
        await ask(url)
        for _ in range(turns):
            await asyncio.sleep(0)

    async def twice(url: str) -> int:
        await ask(url)
        await ask(url)
        return len(_OPEN.keys() - before)

    with serving(chat_server().app) as url, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(once(url))
        left = asyncio.run(twice(url))
        gc.collect()
    assert [str(one.message) for one in told if issubclass(one.category, ResourceWarning)] == []
    assert left == 1
    assert _OPEN.keys() <= before


@pytest.mark.slow
def test_ids_inside_the_log_probs_do_as_well() -> None:
    server = token_server()
    with serving(server.app) as url:
        one = sample(completions(url), PREFIX)[0]
        server.style = "token_id"
        model = completions(url)
        other = sample(model, PREFIX)[0]
        assert "tokens" in model.capabilities
    assert one.tokens is not None
    assert other.tokens is not None
    assert one.tokens.tolist() == other.tokens.tolist()


def test_a_chat_passes_the_battery() -> None:
    with serving(chat_server(varied).app) as url:
        model = HttpModel(url, NAME)
        assert model.capabilities == {"seeds", *ASKED}
        assert check_model(model) == []


def test_samples_and_scores_are_those_of_the_model_behind_the_server() -> None:
    local, _ = load_model(BUILTIN)
    with serving(ModelServer(tokens=local).app) as url:
        far = sample(completions(url), PREFIX, (7,))[0]
        scores = asyncio.run(completions(url).logprobs([PREFIX.tokens, np.zeros(0, np.int32)]))  # type: ignore[list-item]
    near = load_model(BUILTIN)[0]
    (score,) = asyncio.run(near.logprobs([np.concatenate([PREFIX.tokens, far.tokens])]))  # type: ignore[list-item]
    assert far.tokens is not None
    np.testing.assert_allclose(score.logprobs[3:], far.logprobs, atol=1e-4)
    assert far.text == near.tokenizer.decode(far.tokens.tolist())  # type: ignore[union-attr]
    assert far.ends is not None
    assert far.ends[-1] == len(far.text)
    (given_score,) = asyncio.run(near.logprobs([PREFIX.tokens]))  # type: ignore[list-item]
    np.testing.assert_allclose(scores[0].logprobs, given_score.logprobs, atol=1e-4)
    assert scores[1].logprobs.shape == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["texts", "none"])
def test_without_ids_there_is_no_tokens_capability_and_it_is_refused_before_anything_runs(style: str) -> None:
    server = token_server(style=style)
    with serving(server.app) as url:
        model = completions(url)
        assert model.capabilities == frozenset()  # the built-in tokenizer has tokens that no text tells apart
        with pytest.raises(NeedsError, match=f"takes and returns no token ids.*use it as chat:{NAME}@"):
            model.check(Sampling())
        with pytest.raises(NeedsError):
            ramify.play(f"completions:{NAME}@{url}?tokenizer={BUILTIN}", "household")


@pytest.mark.slow
def test_texts_are_ids_where_no_two_tokens_have_the_same_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    names = [f"<{i}>" for i in range(load_model(BUILTIN)[0].forward.vocab)]
    Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<0>")).save(str(tmp_path / "tokenizer.json"))
    from ramify.model.tokenizer import HfTokenizer

    own = HfTokenizer.load(tmp_path)
    server = token_server(style="texts")
    server.tokens.tokenizer = own  # type: ignore[union-attr]
    with serving(server.app) as url:
        model = HttpModel(url, NAME, "completions", tokenizer=tmp_path)
        assert "tokens" in model.capabilities
        first = sample(model, PREFIX, (3,))[0]
    assert first.tokens is not None
    assert first.text == own.decode(first.tokens.tolist())


def test_a_strict_server_is_asked_plainly() -> None:
    server = chat_server(varied, strict=True)
    with serving(server.app) as url:
        model = HttpModel(url, NAME)
        assert model.capabilities == {"seeds", *ASKED}
        sample(model, Prefix(messages=(Message("user", "x"),)))
        assert "top_k" not in server.log[-1]
        assert server.log[-1]["seed"] == 1
        with pytest.raises(NeedsError, match="'top_k' is not followed"):
            model.check(Sampling(top_k=4))


def test_new_hosted_models_take_max_completion_tokens_and_some_no_seed() -> None:
    def picky(body: dict[str, Any]) -> bytes:
        for name in ("max_tokens", "top_k", "seed"):
            if name in body:
                return http({"error": {"message": f"Unsupported parameter: '{name}'"}}, 400)
        return good(body)

    with FaultyServer(picky) as server:
        model = HttpModel(server.url, "m")
        assert model.capabilities == ASKED
        sample(model, Prefix(messages=(Message("user", "x"),)), max_tokens=5)
        assert server.requests[-1][2]["max_completion_tokens"] == 5


@pytest.mark.slow
def test_seeds_are_claimed_only_where_they_are_followed() -> None:
    for script, seeded, claimed in ((varied, True, True), (varied, False, False), (["same"] * 9, True, False)):
        server = chat_server(script)
        server.seeded = seeded
        with serving(server.app) as url:
            assert ("seeds" in HttpModel(url, NAME).capabilities) == claimed


def test_a_server_that_scores_given_tokens_otherwise_does_not_claim_to() -> None:
    def answer(body: dict[str, Any]) -> bytes:
        count = len(body["prompt"])
        entries = [None, *({str(t): {"logprob": -9.0}} for t in body["prompt"][1:])]
        made = completion(prompt_logprobs=entries) if "prompt_logprobs" in body else completion()
        if body.get("echo"):
            made = completion(logprobs={"token_logprobs": [None, *[-9.0] * (count - 1)]})
        return http(made)

    with FaultyServer(answer) as server:
        model = HttpModel(server.url, "m", "completions", tokenizer=BUILTIN)
        assert model.capabilities == {"tokens", "continue", "logprobs", *ASKED}
        with pytest.raises(NeedsError, match="does not give log-probs of given tokens"):
            asyncio.run(model.logprobs([np.array([1, 2], np.int32)]))


def test_an_echo_scores_given_tokens_where_nothing_better_is_offered() -> None:
    server = token_server()
    server.before = without("prompt_logprobs")
    with serving(server.app) as url:
        model = completions(url)
        assert "prompt_logprobs" in model.capabilities
        first = sample(model, PREFIX)[0]
        assert first.tokens is not None
        (scores,) = asyncio.run(model.logprobs([np.concatenate([[3, 5, 9], first.tokens])]))
        np.testing.assert_allclose(scores.logprobs[3:], first.logprobs, atol=1e-4)
        assert any(body.get("echo") for body in server.log)


@pytest.mark.parametrize("streamed", [False, True])
def test_sampled_tokens_that_spell_the_key_are_a_failed_sample(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    key = "sk-canary-51f2c7d0"
    monkeypatch.setenv("RAMIFY_API_KEY", key)
    plain = completions("http://127.0.0.1:1/v1").tokenizer
    ids = [int(token) for token in plain.encode(f"it is {key}")]
    assert len(ids) > 4

    def answer(body: dict[str, Any]) -> bytes:
        if not body.get("stream"):
            sampled = ids if body["max_tokens"] > 16 else [7, 9]
            return http(completion(token_ids=sampled, logprobs={"token_logprobs": [-1.0] * len(sampled)}))
        parts = [{"index": 0, "text": "", "token_ids": [token], "finish_reason": None} for token in ids]
        parts[-1]["finish_reason"] = "length"
        made = b"".join(f"data: {json.dumps({'model': 'm', 'choices': [part]})}\n\n".encode() for part in parts)
        return http(made + b"data: [DONE]\n\n", kind="text/event-stream")

    texts = []

    async def read(model: HttpModel) -> None:
        async for piece in model.stream(PREFIX, Sampling(max_tokens=64), 5):
            texts.append(piece.text)

    with FaultyServer(answer) as server:
        model = HttpModel(server.url, "m", "completions", tokenizer=BUILTIN)
        with pytest.raises(ProviderError, match="returned the API key"):
            asyncio.run(read(model)) if streamed else sample(model, PREFIX, max_tokens=64)
    assert key[:8] not in "".join(texts)


# -- sampling


@pytest.mark.slow
def test_settings_reach_the_server_and_cut_what_it_sampled_too_much() -> None:
    server = token_server()
    with serving(server.app) as url:
        model = completions(url)
        whole = sample(model, PREFIX, (5,))[0]
        assert whole.tokens is not None
        ids = whole.tokens.tolist()
        third = next(i for i in range(1, len(ids)) if ids[i] not in ids[:i])
        server.before = without("stop_token_ids")  # a server that knows no stop tokens
        cut = sample(model, PREFIX, (5,), stop_tokens=(ids[third],))[0]
        assert cut.tokens is not None
        assert (cut.tokens.tolist(), cut.stop) == (ids[: third + 1], "stop")
        assert cut.logprobs is not None
        assert len(cut.logprobs) == third + 1
        word = whole.text[1:3]
        stopped = sample(model, PREFIX, (5,), stop_texts=(word,))[0]
        assert word in stopped.text
        assert whole.text.startswith(stopped.text)
        assert stopped.tokens is not None
        until = sample(model, PREFIX, (5,), until=lambda tokens: len(tokens) == 2)[0]
        assert until.tokens is not None
        assert until.tokens.tolist() == ids[:2]
        sample(model, PREFIX, (9,), temperature=0.5, top_p=0.9, top_k=3, ban=(7,), max_tokens=3)
        sent = server.log[-1]
        assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["max_tokens"]) == (0.5, 0.9, 3, 3)
        assert sent["logit_bias"] == {"7": -100}
        assert 0 <= sent["seed"] < 2**31


@pytest.mark.slow
def test_penalties_go_by_their_names_and_a_grammar_only_where_it_is_kept_to() -> None:
    server = token_server()
    with serving(server.app) as url:
        model = completions(url)
        made = sample(
            model, PREFIX, (9,), min_p=0.1, repetition_penalty=1.2, frequency_penalty=0.5, logit_bias=((3, 2.5),), ban=(7,)
        )
        sent = server.log[-1]
        assert (sent["min_p"], sent["repetition_penalty"], sent["frequency_penalty"]) == (0.1, 1.2, 0.5)
        assert sent["logit_bias"] == {"3": 2.5, "7": -100}
        assert "presence_penalty" not in sent
        assert made[0].logprobs is None
        with pytest.raises(NeedsError, match="does not hold replies to a grammar"):
            model.check(Sampling(grammar=json_object()))
        assert server.log[-1]["response_format"]["json_schema"]["schema"] == {"enum": ["quux-7 quux-7"]}
    strict = chat_server(varied, strict=True)
    with serving(strict.app) as url:
        with pytest.raises(NeedsError, match="'min_p' is not a field"):
            HttpModel(url, NAME).check(Sampling(min_p=0.1))
        with pytest.raises(NeedsError, match="'logit_bias' needs a model that takes token ids"):
            HttpModel(url, NAME).check(Sampling(logit_bias=((1, 1.0),)))


@pytest.mark.slow
def test_a_first_token_with_bans_of_its_own() -> None:
    server = token_server()
    with serving(server.app) as url:
        model = completions(url)
        first = sample(model, PREFIX, (5,), temperature=0.0)[0]
        assert first.tokens is not None
        ban = int(first.tokens[0])
        for key in range(4):
            other = sample(model, PREFIX, (key,), ban_first=(ban,))[0]
            assert other.tokens is not None
            assert int(other.tokens[0]) != ban
            assert other.logprobs is None  # the server's are the model's own, not those of what is left
            assert other.model_logprobs is not None
            assert len(other.model_logprobs) == len(other.tokens) <= 12
            three = sample(model, PREFIX, (key,), ban_first=(ban,), until=lambda tokens: len(tokens) > 1 and tokens[0] != ban)[0]
            assert three.tokens is not None
            assert three.tokens.tolist() == other.tokens.tolist()[:2], "until is asked about the whole reply"
            never = sample(
                model,
                PREFIX,
                (key,),
                ban_first=(ban,),
                until=lambda tokens, second=int(other.tokens[1]): int(tokens[0]) == second,
            )[0]
            assert never.tokens is not None
            assert never.tokens.tolist() == other.tokens.tolist()
    with FaultyServer(lambda _: http(completion(token_ids=[7, 7]))) as deaf:
        model = HttpModel(deaf.url, "m", "completions", tokenizer=BUILTIN)
        with pytest.raises(ProviderError, match="a token that the request bans") as caught:
            sample(model, PREFIX, ban=(7,))
        assert caught.value.kind == "tokens"


@pytest.mark.slow
def test_log_probs_under_the_sampling_distribution_are_there_only_where_they_are_known() -> None:
    with serving(token_server().app) as url:
        model = completions(url)
        assert sample(model, PREFIX)[0].logprobs is not None
        for change in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 2}, {"ban": (3,)}):
            changed = sample(model, PREFIX, **change)[0]
            assert changed.logprobs is None
            assert changed.model_logprobs is not None


def test_what_a_chat_cannot_follow_is_refused_before_a_request() -> None:
    server = chat_server(varied)
    with serving(server.app) as url:
        model = HttpModel(url, NAME)
        assert model.capabilities
        before = len(server.log)
        hello = Prefix(messages=(Message("user", "hi"),))
        for change in ({"stop_tokens": (1,)}, {"ban": (1,)}, {"ban_first": (1,)}, {"until": len}):
            with pytest.raises(NeedsError, match="needs a model that takes token ids"):
                sample(model, hello, **change)
        for change in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"max_tokens": 0}, {"top_k": -2}):
            with pytest.raises(UserError, match="out of range"):
                sample(model, hello, **change)
        with pytest.raises(UserError, match="a stop text is empty"):
            sample(model, hello, stop_texts=("",))
        for prefix in (Prefix(), PREFIX, Prefix(messages=(Message("user", "a"), Message("assistant", "b")))):
            with pytest.raises(NeedsError):
                sample(model, prefix)
        with pytest.raises(UserError, match="as many keys"):
            asyncio.run(model.sample(hello, 2, Sampling(), [1]))
        assert len(server.log) == before


def test_bad_names_are_one_sentence() -> None:
    for spec, words in (
        ("chat:m", "is named chat:MODEL@URL"), ("chat", "is named chat:MODEL@URL"), ("chat:@http://h/v1", "is named"),
        ("completions:m@http://127.0.0.1:1/v1", "needs the model's tokenizer"),
        ("chta:m@http://u:canary@h/v1", "did you mean 'chat'"),
        ("completions:m@http://127.0.0.1:1/v1?tokenizer=/nowhere", "no tokenizer at"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words) as caught:
            find_model(spec)
        assert "canary" not in str(caught.value)
    with pytest.raises(UserError, match="chat, completions, anthropic, responses, not 'talk'"):
        HttpModel("http://127.0.0.1:1/v1", "m", "talk")


def test_names_with_an_at_sign_and_the_answering_name() -> None:
    model = HttpModel.named("chat", "org/model@v2@http://127.0.0.1:1/v1")
    assert (model.model, model.endpoint.url) == ("org/model@v2", "http://127.0.0.1:1/v1")
    for first, later, same in (
        ("gpt-9", "gpt-9-2027-01-01", False), ("org/m", "m", True), ("/data/m/", "/data/m", True), ("M", "m", True),
        ("m", "m2", False),
    ):  # fmt: skip
        assert wire.same_name(first, later) == same


# -- tools

CALL = {"id": "call_7", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def test_messages_with_tools_as_the_protocol_wants_them() -> None:
    chat = (
        Message("system", "s"),
        Message("user", "1+2?"),
        Message("assistant", "well", {"tool_calls": [CALL, {**CALL, "id": "call_8"}], "entropy": 1.0}),
        Message("tool", "3"),
        Message("assistant", 'so <tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'),
        Message("tool", "error"),
        Message("assistant", "no call"),
        Message("tool", "stray"),
        Message("assistant", "", {"tool_calls": [CALL]}),
        Message("user", "continue"),
    )
    sent = wire.request_messages(chat)
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user",
                                         "assistant", "user"]  # fmt: skip
    assert sent[2] == {"role": "assistant", "content": "well", "tool_calls": [CALL, {**CALL, "id": "call_8"}]}
    assert [m.get("tool_call_id") for m in sent[3:5]] == ["call_7", "call_8"]
    assert sent[5]["content"] == "so "
    assert json.loads(sent[5]["tool_calls"][0]["function"]["arguments"]) == {"a": 3}
    assert sent[6]["tool_call_id"] == sent[5]["tool_calls"][0]["id"]
    assert "tool_calls" not in sent[9]


class Adder(Stateless):
    """An environment of one tool: the agent must call it and then say the sum."""

    name = "adder"
    max_turns = 4
    system = "Use the tool."
    tools = ({"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}}},)

    def make(self) -> Adder:
        return Adder()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([Task("1")])

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation("1 + 2 = ?")

    def step(self, action: str) -> Observation:
        from ramify.trace.message import parse_tool_calls

        calls = parse_tool_calls(action)
        if calls:
            return Observation(str(sum(calls[0].arguments.values())), role="tool")
        return Observation("over", reward=float("3" in action), terminated=True, outcome="3" in action)


def use_the_tool(messages: Any, key: int) -> Completion:
    last = messages[-1]
    if last.role == "tool":
        assert last.data["tool_call_id"] == "call_7"
        return scripted_completion(f"it is {last.text}")
    return scripted_completion("", data={"tool_calls": [CALL]})


@pytest.mark.slow
def test_a_environment_with_tools_over_chat(tmp_path: Path) -> None:
    server = chat_server(use_the_tool)
    with serving(server.app) as url:
        (attempt,) = ramify.play(HttpModel(url, NAME), Adder(), out=tmp_path / "r")
    assert attempt.outcome
    first, second = attempt.turns
    assert first.node.tokens is None
    assert first.node.data["tool_calls"] == [CALL]
    assert second.node.text == "it is 3"
    assert server.log[-1]["tools"] == list(Adder.tools)
    assert [m["role"] for m in server.log[-1]["messages"]] == ["system", "user", "assistant", "tool"]
    with Run.open(tmp_path / "r") as run:
        stored = run.node(first.node.id)
    assert stored.data["tool_calls"] == [CALL]
    assert stored.data["usage"]["completion_tokens"] == 0


def test_usage_keeps_what_the_server_found_in_its_cache() -> None:
    counts = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    assert wire.usage_of({"usage": counts | {"prompt_tokens_details": {"cached_tokens": 32}}}) == {
        "usage": {"prompt_tokens": 40, "completion_tokens": 2, "cached_tokens": 32}
    }
    for details in (None, [], {}, {"cached_tokens": None}, {"cached_tokens": -1}, {"cached_tokens": True}):
        assert "cached_tokens" not in wire.usage_of({"usage": counts | {"prompt_tokens_details": details}})["usage"]


def test_tools_in_other_forms() -> None:
    (mcp,) = wire.request_tools([{"name": "f", "inputSchema": {"type": "object"}, "annotations": 1}])
    assert (
        wire.request_messages([Message("user", "a\ud800b")])[0]["content"] == "a\ufffdb"
    )  # JSON readers refuse half a character
    assert mcp == {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}


# -- rollouts


@pytest.mark.slow
def test_a_rollout_over_chat_grows_text_only_nodes_and_can_be_forked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = list(HouseholdEnvironment().task_set("eval", 2))
    with serving(chat_server().app) as url:
        name = f"chat:{NAME}@{url}"
        first = ramify.play(name, "household", tasks, attempts=2, out=tmp_path / "a", seed=4)
        again = ramify.play(name, "household", tasks, attempts=2, out=tmp_path / "b", seed=4)
        assert [a.leaf for a in first] == [a.leaf for a in again]
        assert all(turn.node.tokens is None and turn.node.stop == "eos" for a in first for turn in a.turns)
        node = first[0].turns[1].node.id
        assert fork_run(tmp_path / "a", node, n=3).arm.scored == 3
        assert main(["fork", str(tmp_path / "a"), node, "--n", "2"]) == 0
        capsys.readouterr()
        assert main(["fork", str(tmp_path / "a"), node + ":1", "--n", "2"]) == 4
        assert "tokens (takes and returns token ids)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rollout_over_completions_has_tokens_and_log_probs(tmp_path: Path) -> None:
    with serving(token_server().app) as url:
        name = f"completions:{NAME}@{url}?tokenizer={BUILTIN}"
        (attempt,) = ramify.play(name, "household", list(HouseholdEnvironment().task_set("eval", 1)), out=tmp_path / "a")
        node = attempt.turns[0].node
        assert node.tokens is not None
        assert node.sampled is not None
        assert node.sampled_tokens > 0
        assert fork_run(tmp_path / "a", node.id, 2, n=2).arm.scored == 2


@pytest.mark.slow
def test_token_methods_refuse_a_chat_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(chat_server().app) as url:
        name = f"chat:{NAME}@{url}"
        assert main(["improve", "--model", name, "--out", str(tmp_path / "i")]) == 4
        trees = ["rollout", "--tree", "--model", name, "--out", str(tmp_path / "t"), "--count", "1"]
        assert main([*trees, "--tree.unit", "tokens"]) == 4
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert "needs weights in this process" in lines[0]
        assert "needs a model with tokens" in lines[1]
        assert list(tmp_path.iterdir()) == []
        assert main([*trees, "--tree-budget", "40"]) == 0  # turns can be counted without tokens


@pytest.mark.slow
def test_a_server_that_fails_midway_leaves_failures_as_data_and_siblings_continue(tmp_path: Path) -> None:
    from starlette.responses import JSONResponse

    server = chat_server()

    def sometimes(body: dict[str, Any]) -> Any:
        bad = len(body["messages"]) > 4 and body["seed"] % 2
        return JSONResponse({"error": {"message": "out of memory"}}, 500) if bad else None

    server.before = sometimes
    with serving(server.app) as url:
        model = HttpModel(url + "?retries=0", NAME)
        attempts = ramify.play(
            model, "household", list(HouseholdEnvironment().task_set("eval", 3)), attempts=4, out=tmp_path / "r"
        )
    failed = [a for a in attempts if a.failure]
    whole = [a for a in attempts if not a.failure]
    assert failed
    assert all(a.outcome is None and "provider (server)" in str(a.failure) and "out of memory" in str(a.failure) for a in failed)
    with Run.open(tmp_path / "r") as run:
        scores, records = list(run.scores()), run.attempts()
    assert len(attempts) == 12
    assert sum("out of memory" in str(one.failure) for one in records) == len(failed)
    assert (len(whole), len(attempts)) == (len(scores), len(records))


@pytest.mark.slow
def test_a_token_budget_counts_what_a_chat_server_reports(tmp_path: Path) -> None:
    from ramify.base.budget import Budget

    with serving(chat_server().app) as url, Run.create(tmp_path / "r", {}) as run:
        budget = Budget({"tokens": 30})
        episodes = Episodes(Agent(HttpModel(url, NAME)), HouseholdEnvironment(), run, budget=budget)
        (task,) = HouseholdEnvironment().task_set("eval", 1)
        attempt = asyncio.run(episodes.attempt("t", task, 0))
    assert 1 < len(attempt.turns) < 30
    assert attempt.truncated


# -- hostile bodies and secrets

json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
message = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("role", "content", "refusal", "reasoning", "tool_calls"), json_values)
)
calls = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": json_values, "arguments": json_values})}), max_size=2
)
choice = st.fixed_dictionaries(
    {"finish_reason": st.sampled_from(["stop", "length", "content_filter", None, 3])},
    optional={
        "message": message | st.fixed_dictionaries({"content": st.text() | st.none(), "tool_calls": calls}) | json_values,
        "token_ids": json_values | st.lists(st.integers(-2, 40), max_size=5),
        "logprobs": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "token_logprobs": st.lists(st.floats() | st.none(), max_size=5) | json_values,
                "tokens": st.lists(
                    st.sampled_from(["token_id:3", "token_id:x", "a", "token_id:99999999999999999999"]), max_size=5
                )
                | json_values,
                "content": st.lists(st.fixed_dictionaries({"id": json_values, "logprob": json_values}), max_size=3) | json_values,
            },
        ),
        "prompt_logprobs": json_values,
        "stop_reason": json_values,
    },
)


def nearly_right(length: int) -> Any:
    """A choice in which at most a little is wrong."""
    value = st.floats(-20, 0) | st.sampled_from([-0.0, 1e-5, 0.5, float("nan"), float("-inf"), None, -(10**400)])
    ids = st.lists(st.integers(0, 40), min_size=length, max_size=length)
    values = st.lists(value, min_size=length, max_size=length + length // 4)
    return st.fixed_dictionaries(
        {
            "finish_reason": st.sampled_from(["stop", "length"]),
            "token_ids": ids | st.just([1, 2**40]),
            "message": st.fixed_dictionaries({"content": st.text() | json_values, "tool_calls": calls | json_values}),
            "logprobs": st.fixed_dictionaries({"token_logprobs": values | json_values}) | st.none(),
        },
        optional={
            "prompt_logprobs": st.tuples(st.none(), *[st.dictionaries(st.just("2") | st.just("3"), value)] * 2),
            "stop_reason": json_values,
        },
    )


one_choice = st.integers(1, 4).flatmap(nearly_right).map(lambda found: [found])
bodies = json_values | st.fixed_dictionaries(
    {"choices": one_choice | st.lists(choice | json_values, max_size=2) | json_values},
    optional={"model": st.just("m") | json_values, "usage": json_values, "error": json_values},
)


class Fixed:
    """A transport that answers with one body, in process."""

    def __init__(self) -> None:
        import httpx2

        self.raw = b""
        self.transport = httpx2.MockTransport(
            lambda request: httpx2.Response(200, content=self.raw, headers={"content-type": "application/json"})
        )


FIXED = Fixed()


def fixed(mode: str) -> HttpModel:
    model = HttpModel("http://127.0.0.1:1/v1?retries=0", "m", mode, tokenizer=BUILTIN, transport=FIXED.transport)
    model._offers = frozenset({"tokens", "logprobs", "prompt_logprobs"} if mode == "completions" else ())
    return model


MODELS = {mode: fixed(mode) for mode in ("chat", "completions")}


def test_sound_answers_of_the_transport_below_are_samples() -> None:
    FIXED.raw = json.dumps(faulty_chat({"content": "a", "tool_calls": [CALL]})).encode()
    assert sample(MODELS["chat"], Prefix(messages=(Message("user", "x"),)))[0].text == "a"
    FIXED.raw = json.dumps(completion(prompt_logprobs=[None, {"2": {"logprob": -1}}, {"3": -2}])).encode()
    assert sample(MODELS["completions"], PREFIX)[0].stop == "length"
    (scores,) = asyncio.run(MODELS["completions"].logprobs([np.array([1, 2, 3], np.int32)]))
    assert scores.logprobs.tolist() == [0, -1, -2]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies, mode=st.sampled_from(["chat", "completions"]))
def test_any_json_a_server_may_answer_gives_a_sample_or_a_provider_error(body: Any, mode: str) -> None:
    FIXED.raw = json.dumps(body).encode()
    prefix = PREFIX if mode == "completions" else Prefix(messages=(Message("user", "x"),))
    with contextlib.suppress(ProviderError):
        (got,) = sample(MODELS[mode], prefix)
        assert got.stop in ("eos", "stop", "length")
        got.text.encode()
        json.dumps(got.data, allow_nan=False)
        for array in (got.logprobs, got.model_logprobs):
            assert array is None or (got.tokens is not None and array.shape == got.tokens.shape and np.isfinite(array).all())
    if mode == "completions":
        with contextlib.suppress(ProviderError):
            (scores,) = asyncio.run(MODELS[mode].logprobs([np.array([1, 2, 3], np.int32)]))
            assert scores.logprobs.shape == (3,)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=200))
def test_any_bytes_a_server_may_answer(raw: bytes) -> None:
    FIXED.raw = raw
    with contextlib.suppress(ProviderError):
        (got,) = sample(MODELS["chat"], Prefix(messages=(Message("user", "x"),)))
        assert got.stop in ("eos", "stop", "length")


def test_of_a_web_page_its_title_is_told() -> None:
    import httpx2

    page = b"<!DOCTYPE HTML>\n<html><head><title>502 Bad Gateway</title></head><body><h1>Sorry</h1></body></html>"
    transport = httpx2.MockTransport(lambda request: httpx2.Response(502, content=page, headers={"content-type": "text/html"}))
    model = HttpModel("http://127.0.0.1:1/v1?retries=0", "m", transport=transport)
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1:1 answers 502: 502 Bad Gateway$"):
        sample(model, Prefix(messages=(Message("user", "x"),)))


CANARY = "sk-canary-7f3a91c2e5d84b60"


@pytest.mark.slow
def test_a_key_shows_up_nowhere_but_in_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from starlette.responses import JSONResponse

    monkeypatch.setenv("RAMIFY_API_KEY", CANARY + "\n")
    caplog.set_level(logging.DEBUG)
    server = chat_server(lambda messages, key: f"Bearer {CANARY} {key % 5}")  # a server that says the key back

    def echo(body: dict[str, Any]) -> Any:
        bad = len(body["messages"]) > 6
        return JSONResponse({"error": {"message": f"Incorrect API key provided: {CANARY}"}}, 401) if bad else None

    server.before = echo
    with serving(server.app) as url:
        name = f"chat:{NAME}@{url}"
        model, _ = find_model(name)
        attempts = ramify.play(
            name, "household", list(HouseholdEnvironment().task_set("eval", 1)), attempts=2, out=tmp_path / "r"
        )
        assert all("Incorrect API key provided: ***" in str(a.failure) for a in attempts)
        assert server.headers[-1]["authorization"] == f"Bearer {CANARY}"
        assert main(["fork", str(tmp_path / "r"), attempts[0].turns[0].node.id, "--n", "1"]) == 1  # which fails, too
        assert main(["show", str(tmp_path / "r")]) == 0
        shown = [repr(model), str(vars(model)), repr(model.transport), str(vars(model.transport)), str(attempts), caplog.text]  # type: ignore[attr-defined]
    out, err = capsys.readouterr()
    assert CANARY not in "".join([out, err, *shown])
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert files
    assert not any(CANARY.encode() in path.read_bytes() for path in files)


def test_where_a_key_comes_from_and_where_it_does_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(good) as server:

        def sent() -> str | None:
            model = HttpModel(server.url, "m")
            model._offers = frozenset()
            sample(model, Prefix(messages=(Message("user", "x"),)))
            return server.requests[-1][1].get("authorization")

        monkeypatch.delenv("RAMIFY_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        assert sent() is None
        monkeypatch.setenv("OPENAI_API_KEY", "one")
        assert sent() == "Bearer one"
        monkeypatch.setenv("RAMIFY_API_KEY", "two")
        assert sent() == "Bearer two"
        monkeypatch.setenv("RAMIFY_API_KEY", "")
        assert sent() is None
        monkeypatch.setenv("RAMIFY_API_KEY", CANARY)
        with pytest.raises(UserError, match=r"would go to example\.com unencrypted") as caught:
            HttpModel("http://example.com/v1", "m")
        assert CANARY not in str(caught.value)
        HttpModel("https://example.com/v1", "m")
        monkeypatch.setenv("RAMIFY_ALLOW_PLAIN_HTTP", "1")
        HttpModel("http://example.com/v1", "m")
        monkeypatch.setenv("RAMIFY_API_KEY", CANARY + "\u00e9")
        with pytest.raises(UserError, match="characters that no HTTP header") as caught:
            HttpModel("https://example.com/v1", "m")
        assert CANARY not in str(caught.value)


def test_identity_holds_endpoint_and_name_and_no_secret() -> None:
    one, two = (HttpModel(f"https://{host}/v1", "m").identity for host in ("a.example", "b.example"))
    assert one.name == two.name == "m"
    assert one.weights != two.weights
    assert one == HttpModel("https://A.example/v1/?rate=3", "m").identity
    assert one != HttpModel("https://a.example/v1", "m2").identity
    assert replace(one, weights="") == replace(two, weights="")


@pytest.mark.slow
def test_the_likeliest_tokens_of_given_ones() -> None:
    server = token_server()
    with serving(server.app) as url:
        model = completions(url)
        row = np.array([5, 6, 7, 9, 8], np.int32)
        (scores,) = asyncio.run(model.logprobs([row], top_k=3))
        local = asyncio.run(load_model(BUILTIN)[0].logprobs([row], top_k=3))[0]
        assert scores.top_tokens is not None
        assert scores.top_logprobs is not None
        assert local.top_tokens is not None
        assert local.top_logprobs is not None
        assert scores.top_tokens[1:].tolist() == local.top_tokens[1:].tolist()
        assert np.allclose(scores.top_logprobs, local.top_logprobs, atol=1e-4)
        server.before = lambda body: body.update(prompt_logprobs=1) if "prompt_logprobs" in body else None
        with pytest.raises(NeedsError, match="does not give the 3 likeliest tokens at each position"):
            asyncio.run(model.logprobs([row], top_k=3))
