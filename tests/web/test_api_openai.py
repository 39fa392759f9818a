from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from api_server import NAME, client, household, served
from waiting import until

from ramify.base.seeds import derive_key
from ramify.engine.local import LocalModel
from ramify.model.endpoint import HttpModel
from ramify.model.laid import Layout
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.testing import check_model
from ramify.trace.message import Message

ASK: list[Any] = [{"role": "user", "content": "go to the hall"}]
WILD: dict[str, Any] = {"model": NAME, "temperature": 2.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def engine() -> tuple[LocalModel, Layout]:
    return household()


@pytest.fixture(scope="module")
def url(engine: tuple[LocalModel, Layout]) -> Iterator[str]:
    local, model = engine
    with served(model, lambda: local.gauges) as found:
        yield found


@pytest.fixture(scope="module")
def ai(url: str) -> Iterator[openai.OpenAI]:
    with client(url) as found:
        yield found


@pytest.fixture(scope="module")
def own_model() -> Layout:
    """The same model without a server: the served one belongs to the server's loop."""
    return household()[1]


def own_completion(model: Layout, settings: Sampling, seed: int, choice: int = 0) -> Completion:
    prefix = Prefix(messages=(Message("user", "go to the hall"),))
    return asyncio.run(model.sample(prefix, 1, settings, [derive_key(seed, "serve", 0, choice)]))[0]


def spoken(completion: Completion) -> str:
    return completion.text.removesuffix("<|end|>")


def gauge(url: str, name: str) -> float:
    text = urllib.request.urlopen(url.removesuffix("/v1") + "/metrics").read().decode()
    return float(next(line.split()[-1] for line in text.splitlines() if line.split()[0] == name))


def test_the_models_and_the_health_of_the_server(ai: openai.OpenAI, url: str) -> None:
    assert [model.id for model in ai.models.list().data] == [NAME]
    assert ai.models.retrieve(NAME).owned_by == "ramify"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        ai.models.retrieve("other")
    with urllib.request.urlopen(url.removesuffix("/v1") + "/health") as answer:
        assert json.loads(answer.read()) == {"status": "ok"}  # it names nothing


def test_a_seeded_chat_is_the_engines_own_sample(ai: openai.OpenAI, own_model: Layout) -> None:
    reply = ai.chat.completions.create(messages=ASK, seed=7, logprobs=True, **WILD)
    completion = own_completion(own_model, Sampling(temperature=2.0, max_tokens=24), 7)
    choice = reply.choices[0]
    assert choice.message.content == spoken(completion)
    assert choice.finish_reason == {"eos": "stop"}.get(completion.stop, completion.stop)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert completion.tokens is not None
    assert completion.model_logprobs is not None
    assert [token.logprob for token in choice.logprobs.content] == completion.model_logprobs.tolist()
    assert "".join(token.token for token in choice.logprobs.content) == completion.text
    assert b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content) == completion.text.encode()
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(completion.tokens)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + len(completion.tokens)


def test_a_stream_says_what_the_whole_answer_says(ai: openai.OpenAI) -> None:
    whole = ai.chat.completions.create(messages=ASK, seed=3, logprobs=True, n=2, **WILD)
    events = list(
        ai.chat.completions.create(
            messages=ASK, seed=3, logprobs=True, n=2, stream=True, stream_options={"include_usage": True}, **WILD
        )
    )
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert whole.usage is not None
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        mine = [event.choices[0] for event in events[:-1] if event.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(event.delta.content or "" for event in mine) == choice.message.content
        assert [event.finish_reason for event in mine][-1] == choice.finish_reason
        logprobs = [token.logprob for event in mine if event.logprobs for token in event.logprobs.content or ()]
        assert choice.logprobs is not None
        assert logprobs == [token.logprob for token in choice.logprobs.content or ()]


def test_choices_are_samples_of_their_own_and_the_prompt_counts_once(ai: openai.OpenAI, own_model: Layout) -> None:
    alone = ai.chat.completions.create(messages=ASK, seed=11, **WILD)
    several = ai.chat.completions.create(messages=ASK, seed=11, n=4, **WILD)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.choices[0].message.content
    assert texts[3] == spoken(own_completion(own_model, Sampling(temperature=2.0, max_tokens=24), 11, 3))
    assert len(set(texts)) > 1
    assert several.usage is not None
    assert alone.usage is not None
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens


def test_the_same_seed_gives_the_same_reply_under_load(url: str, ai: openai.OpenAI) -> None:
    alone = ai.chat.completions.create(messages=ASK, seed=5, **WILD).choices[0].message.content

    async def load() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as many:

            async def one(at: int) -> str | None:
                seed = 5 if at % 3 == 0 else at + 100
                messages: list[Any] = ASK if at % 3 == 0 else [{"role": "user", "content": f"take the key {at}"}]
                reply = await many.chat.completions.create(messages=messages, seed=seed, **WILD)
                return str(reply.choices[0].message.content)

            return await asyncio.gather(*(one(at) for at in range(12)))

    assert set(asyncio.run(load())[::3]) == {alone}


def test_cached_tokens_are_told(ai: openai.OpenAI) -> None:
    long: list[Any] = [
        {"role": "user", "content": "go to the hall and take the red key, then continue to the kitchen and open the drawer"}
    ]
    first, again = (ai.chat.completions.create(messages=long, model=NAME, max_tokens=2).to_dict()["usage"] for _ in range(2))
    usages: Any = (first, again)
    found = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert found[0] < found[1] == usages[1]["prompt_tokens"] - 1


def test_a_stop_text_ends_a_reply_and_is_not_in_it(ai: openai.OpenAI) -> None:
    text = str(ai.chat.completions.create(messages=ASK, seed=3, **WILD).choices[0].message.content)
    stop = text[len(text) // 2 :][:2]
    begin = text[: text.index(stop)]
    whole = ai.chat.completions.create(messages=ASK, seed=3, stop=[stop, "nowhere"], **WILD).choices[0]
    assert (whole.message.content, whole.finish_reason) == (begin, "stop")
    assert whole.model_extra is not None
    assert whole.model_extra["stop_reason"] == stop
    events = ai.chat.completions.create(messages=ASK, seed=3, stop=stop, stream=True, **WILD)
    assert "".join(event.choices[0].delta.content or "" for event in events) == begin
    kept = ai.chat.completions.create(messages=ASK, seed=3, stop=stop, extra_body={"include_stop_str_in_output": True}, **WILD)
    assert kept.choices[0].message.content == begin + stop


def test_length_and_a_banned_token(ai: openai.OpenAI) -> None:
    endless = ai.chat.completions.create(messages=ASK, model=NAME, seed=1, max_completion_tokens=9, logit_bias={"4": -100})
    assert endless.choices[0].finish_reason == "length"
    assert endless.usage is not None
    assert endless.usage.completion_tokens == 9


def test_runners_up_are_the_models_likeliest_tokens(ai: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "messages": ASK,
        "logprobs": True,
        "top_logprobs": 3,
        "temperature": 0,
        "model": NAME,
        "max_tokens": 6,
    }
    logs = ai.chat.completions.create(**request).choices[0].logprobs
    assert logs is not None
    for token in logs.content or ():
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-4)
        assert len(token.top_logprobs) == 3
    streamed = [event.choices[0].logprobs for event in ai.chat.completions.create(stream=True, **request)]
    assert [token for log in streamed if log for token in log.content or ()] == logs.content


def test_completions_of_texts_and_of_token_ids_are_the_same(ai: openai.OpenAI, engine: tuple[LocalModel, Layout]) -> None:
    tokenizer = engine[0].tokenizer
    assert tokenizer is not None
    texts = ["go to the", "take the red"]
    ids = [tokenizer.encode(text) for text in texts]
    by_text = ai.completions.create(prompt=texts, n=2, seed=4, **WILD)
    by_ids = ai.completions.create(prompt=ids, n=2, seed=4, **WILD)
    assert [choice.text for choice in by_text.choices] == [choice.text for choice in by_ids.choices]
    assert [choice.index for choice in by_ids.choices] == [0, 1, 2, 3]
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == sum(map(len, ids))
    single = ai.completions.create(prompt=ids[0], seed=4, **WILD)
    assert single.choices[0].text == by_ids.choices[0].text


def test_echo_scores_the_prompt_as_the_engine_does(ai: openai.OpenAI, own_model: Layout) -> None:
    text = "go to the hall and take the red key"
    row = np.array(own_model.tokenizer.encode(text), np.int32)
    (scores,) = asyncio.run(own_model.logprobs([row], 2))
    choice = ai.completions.create(model=NAME, prompt=text, echo=True, logprobs=2, max_tokens=0).choices[0]
    assert (choice.text, choice.finish_reason) == (text, "length")
    logs = choice.logprobs
    assert logs is not None
    assert logs.token_logprobs is not None
    assert logs.token_logprobs[0] is None
    assert np.allclose(np.array(logs.token_logprobs[1:], float), scores.logprobs[1:], atol=1e-6)
    assert "".join(logs.tokens or ()) == text
    assert [text[at:].startswith(token) for at, token in zip(logs.text_offset or (), logs.tokens or (), strict=True)]
    assert len((logs.top_logprobs or [{}])[1]) == 2
    sampled = ai.completions.create(prompt=text, echo=True, logprobs=0, seed=2, **WILD).choices[0]
    assert sampled.text.startswith(text)
    assert sampled.logprobs is not None
    assert len(sampled.logprobs.tokens or ()) > len(row)
    events = ai.completions.create(prompt=text, echo=True, logprobs=0, seed=2, stream=True, **WILD)
    streamed = [(event.choices[0].text, event.choices[0].logprobs) for event in events]
    assert "".join(part for part, _ in streamed) == sampled.text
    assert [t for _, logs in streamed if logs for t in logs.text_offset or ()] == sampled.logprobs.text_offset


def test_a_client_that_stops_reading_frees_its_row(ai: openai.OpenAI, url: str) -> None:
    def leave() -> bool:
        """Whether the row was seen, and the client seen to have left: on a busy machine the reply may be whole before."""
        events = ai.chat.completions.create(
            messages=ASK, model=NAME, stream=True, logit_bias={"4": -100}, max_tokens=480, temperature=1.5
        )
        next(iter(events))
        next(iter(events))
        seen = gauge(url, "ramify_rows")
        events.close()
        assert until(lambda: (gauge(url, "ramify_rows"), gauge(url, "ramify_places_taken")) == (0, 0))
        return seen == 1 and gauge(url, "ramify_requests_gone_total") >= 1

    assert until(leave)


def test_what_is_counted(ai: openai.OpenAI, url: str) -> None:
    name = 'ramify_requests_total{route="/v1/completions",status="200"}'
    ai.completions.create(prompt="go", **WILD)
    before = gauge(url, name), gauge(url, 'ramify_tokens_total{kind="completion"}')
    used = ai.completions.create(prompt="go", **WILD).usage
    assert used is not None
    assert gauge(url, name) == before[0] + 1
    assert gauge(url, 'ramify_tokens_total{kind="completion"}') == before[1] + used.completion_tokens
    assert gauge(url, "ramify_first_token_seconds_count") >= 2


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "tinny"}, 404, "did you mean 'tiny'"),
        ({"max_tokens": 10**9}, 400, "holds 512 tokens"),
        ({"messages": [{"role": "user", "content": "hall " * 600}]}, 400, "the reply included"),
        ({"messages": [{"role": "owner", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": []}, 400, "messages"),
        ({"tool_choice": "sometimes"}, 400, "an object with"),
        ({"logit_bias": {"999": -100}}, 400, "token 999"),
        ({"extra_body": {"tempratur": 1}}, 400, "did you mean 'temperature'"),
        ({"top_logprobs": 3}, 400, "needs 'logprobs'"),
        ({"stop": [""]}, 400, "stop[0]"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_one_sentence(
    ai: openai.OpenAI, changes: dict[str, Any], status: int, words: str, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ai.chat.completions.create(**{"model": NAME, "messages": ASK, "stream": stream, **changes})
    assert caught.value.status_code == status
    body = caught.value.body
    assert isinstance(body, dict)
    assert words in body["message"]
    assert set(body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [5, 5000]}, "token 5000"),
        ({"suffix": "x"}, "only continued"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "needs 'echo'"),
        ({"prompt": [1] * 512}, "512"),
    ],
)
def test_what_cannot_be_completed_is_one_sentence(ai: openai.OpenAI, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ai.completions.create(**{"model": NAME, "prompt": "x", **changes})
    assert words in str(caught.value)


@pytest.mark.slow
def test_ramifys_own_endpoint_model_finds_everything_it_can_use(url: str, engine: tuple[LocalModel, Layout]) -> None:
    tokens = HttpModel(url, NAME, "completions", tokenizer=engine[0].tokenizer)
    assert tokens.capabilities == {"tokens", "continue", "seeds", "logprobs", "prompt_logprobs", "grammar", "penalties"}
    assert check_model(tokens) == []
    chat = HttpModel(url, NAME)
    assert chat.capabilities == {"seeds", "grammar", "penalties"}
    assert check_model(chat) == []


def test_a_full_server_says_when_to_come_again() -> None:
    local, model = household(max_sequences=1)
    with served(model, lambda: local.gauges, running=1, waiting=1, each=2) as url, client(url) as ai:

        def full() -> int:
            """What is said of when to come; 0 where a busy machine asked after the reply was whole."""
            with ai.completions.create(prompt="go", model=NAME, max_tokens=400, logit_bias={"4": -100}, stream=True):
                try:
                    ai.completions.create(prompt="go", model=NAME, max_tokens=1, n=2)
                except openai.RateLimitError as error:
                    return int(error.response.headers["retry-after"])
            return 0

        assert until(full)
        with pytest.raises(openai.BadRequestError, match="2 samples at once from a client"):
            ai.completions.create(prompt="go", model=NAME, max_tokens=1, n=3)
        assert until(lambda: gauge(url, "ramify_places_taken") == 0)
        assert len(ai.completions.create(prompt="go", model=NAME, max_tokens=1, n=2).choices) == 2
