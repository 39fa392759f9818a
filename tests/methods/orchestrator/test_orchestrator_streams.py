"""Streams of a router and a composer: workers and front are servers on real sockets, the client is OpenAI's."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from waiting import until

from ramify.base.errors import InfrastructureError
from ramify.methods.orchestrator.composer import Composer
from ramify.methods.orchestrator.conversation import Orchestration
from ramify.methods.orchestrator.middleware import Composed, Routed
from ramify.methods.orchestrator.pool import ModelPool, PoolWorker, Spoken
from ramify.methods.orchestrator.router import TurnRouter
from ramify.methods.orchestrator.turns import route
from ramify.model.function import FunctionModel
from ramify.model.protocol import READ, REQUEST, Completion, Identity, Prefix, Sampling, TokenScores
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import Piece, Pieces, gathered
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.web.api import Api
from ramify.web.limits import Slots
from tests.methods.orchestrator.test_orchestrator_served import checkpoint, serving
from tests.methods.orchestrator.test_orchestrator_systems import Fixed
from tests.methods.orchestrator.workers import HERE, endpoints_file, planner, serve_words
from tests.model.faulty_server import FaultyServer, Plan, http
from tests.web.api_server import NAME, client, household, served

WORDS = ["\n", "one ", "two ", "three"]
ASKED: list[Any] = [{"role": "user", "content": "count"}]
LAST = "the worker that is left"


class Slowly:
    """Says one word after another, each when the test allows one more; breaks off after ``breaks`` words."""

    capabilities: frozenset[str] = frozenset()

    identity = Identity("slowly", "slowly")

    def __init__(self) -> None:
        self.rest()

    def rest(self, allowed: int = 99, breaks: int = 99, free: int = 0) -> None:
        """Begin to count, after what asked a new endpoint for its abilities. The first ``free`` replies need no leave."""
        self.allowed, self.breaks, self.free = allowed, breaks, free
        self.said = 0
        self.ended: list[str] = []
        self.shown: list[str] = []

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        self.shown.append(" ".join(message.text for message in prefix.messages))
        try:
            for at, word in enumerate(WORDS):
                while self.allowed <= at and len(self.shown) > self.free:
                    await asyncio.sleep(0.005)
                if at == self.breaks:
                    raise BrokenPipeError("the worker is gone")
                self.said += 1
                yield Piece(word)
            usage = {"prompt_tokens": 7, "completion_tokens": len(WORDS)}
            self.ended.append("whole")
            yield Piece("", completion=Completion("".join(WORDS), "eos", data={"usage": usage}))
        except (GeneratorExit, asyncio.CancelledError):
            self.ended.append("cancelled")
            raise

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return [await gathered(self.stream(prefix, settings, key)) for key in keys]

    async def logprobs(self, tokens: Sequence[Any], top_k: int = 0) -> list[TokenScores]:
        raise AssertionError


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.fixture(scope="module")
def backbone() -> TurnRouter:
    """A router that has learned nothing: the first worker that is left."""
    return TurnRouter.from_backbone("builtin", ["a"])


def chat_at(url: str, name: str = NAME) -> str:
    return f"chat:{name}@{url}?retries=0"


def pool_of(*models: Any, retries: int = 0) -> ModelPool:
    """A pool of these workers and one that always answers. Endpoints have been asked what they take,
    so what follows is a chat's."""
    names = [f"w{at}" for at in range(len(models))] + ["last"]
    pool = ModelPool([PoolWorker(name, one) for name, one in zip(names, (*models, lambda _: LAST), strict=True)], retries=retries)
    for one in pool.models:
        assert one.capabilities is not None
    return pool


def router_over(pool: ModelPool, backbone: TurnRouter) -> Routed:
    """A router that has learned nothing, over a pool."""
    return Routed(pool.models[-1]).over(pool, TurnRouter(backbone.module, backbone.tokenizer, pool.names))


def front(stack: ExitStack, backbone: TurnRouter, *models: Any) -> openai.OpenAI:
    """A client of a router over these workers and one that always answers."""
    return client(stack.enter_context(served(router_over(pool_of(*models), backbone))))


def read(stream: Any) -> tuple[list[str], dict[str, Any], Any]:
    """Texts of a stream's events, what the last event of the choice says of the worker, usage."""
    texts, note, usage = [], {}, None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            texts.append(choice.delta.content or "")
            note = (choice.model_extra or {}).get("ramify", {}).get("orchestrator", note)
    return [text for text in texts if text], note, usage


def streamed(api: openai.OpenAI, **more: Any) -> Any:
    return api.chat.completions.create(
        model=NAME, messages=ASKED, stream=True, stream_options={"include_usage": True}, seed=7, **more
    )


def whole(api: openai.OpenAI, **more: Any) -> tuple[str, dict[str, Any], Any]:
    made = api.chat.completions.create(model=NAME, messages=ASKED, seed=7, **more)
    extra: dict[str, Any] = made.choices[0].model_extra or {}
    return made.choices[0].message.content or "", extra["ramify"]["orchestrator"], made.usage


def test_the_first_word_is_there_before_the_last_is_said(stack: ExitStack, backbone: TurnRouter) -> None:
    worker = Slowly()
    api = front(stack, backbone, chat_at(stack.enter_context(served(worker))))
    worker.rest(allowed=2)
    events = iter(streamed(api))
    first = next(text for event in events if event.choices and (text := event.choices[0].delta.content))
    assert (first, worker.said, worker.ended) == ("\none ", 2, [])  # blanks waited for a word: alone they would be a refusal
    worker.allowed = 3
    assert next(events).choices[0].delta.content == "two "
    assert not worker.ended
    worker.allowed = 99
    texts, note, usage = read(events)
    assert texts == ["three"]
    text, alone, counted = whole(api)
    assert "".join([first, "two ", *texts]) == text
    assert (note, usage) == (alone, counted)
    assert (note["worker"], usage.completion_tokens) == ("w0", len(WORDS))


@pytest.mark.slow
def test_what_fails_before_the_first_word_is_another_workers(stack: ExitStack, backbone: TurnRouter) -> None:
    """A hanging server, a refusal, blanks alone, a stream that breaks off at once: the next answers, as it does unstreamed."""

    def blanks(body: dict[str, Any]) -> bytes:
        said = [{"delta": {"content": " \n"}, "index": 0}, {"delta": {}, "index": 0, "finish_reason": "stop"}]
        return events_of(said) if body.get("stream") else http({"model": "m", "choices": [_message(" \n", "stop")]})

    def withheld(body: dict[str, Any]) -> bytes:
        return (
            events_of([{"delta": {}, "index": 0, "finish_reason": "content_filter"}])
            if body.get("stream")
            else http({"model": "m", "choices": [_message("", "content_filter")]})
        )

    servers = [stack.enter_context(FaultyServer()) for _ in range(5)]
    api = front(stack, backbone, *(chat_at(one.url, "m") + "&timeout=2" * (one is servers[0]) for one in servers))
    faults: list[Plan] = ["nothing", withheld, blanks, "429", "nothing"]
    for server, fault in zip(servers, faults, strict=True):
        server.plans = [fault]
    servers[0].hang = True
    texts, note, usage = read(streamed(api))
    text, alone, counted = whole(api)
    assert ("".join(texts), note["worker"]) == (text, "last") == (LAST, alone["worker"])
    kinds = [re.search(r"failed \((\w+)\)", one) for one in note["notes"]]
    assert [found[1] if found else "" for found in kinds] == ["timeout", "refusal", "refusal", "rate", "connection"]
    assert len(alone["notes"]) == len(note["notes"])
    assert usage == counted


def _message(text: str, finish: str) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}


def events_of(choices: list[dict[str, Any]]) -> bytes:
    body = "".join(f"data: {json.dumps({'model': 'm', 'choices': [one]})}\n\n" for one in choices) + "data: [DONE]\n\n"
    return http(body.encode(), kind="text/event-stream")


@pytest.mark.slow
def test_what_fails_amid_the_reply_ends_the_stream_and_unstreamed_is_another_workers(
    stack: ExitStack, backbone: TurnRouter, tmp_path: Path
) -> None:
    with Run.begin(tmp_path / "kept", "orchestrator serve", {}, {}, {}) as run:
        # the run belongs to the thread that opened it, so the front is asked in this one
        worker = Slowly()
        url = stack.enter_context(served(worker))
        made = router_over(pool_of(chat_at(url), retries=3), backbone)
        worker.rest(breaks=2)
        made.run = run

        async def asked(reads: bool) -> tuple[list[str], str]:
            READ.set(reads)
            texts: list[str] = []
            try:
                async for piece in made.stream(Prefix(messages=(Message("user", "count"),)), Sampling(), 1):
                    texts.append(piece.text)
            except Exception as error:
                return texts, str(error)
            return texts, ""

        texts, why = asyncio.run(asked(True))
        assert "".join(texts) == "\none "
        assert "'w0' failed amid its reply" in why
        assert asyncio.run(asked(False)) == ([LAST], "")
        assert [node.stop for node in run.failed()] == ["failed", "failed"]
    worker.rest()
    api = front(stack, backbone, chat_at(url))
    worker.rest(breaks=2)
    begun: list[str] = []
    events = streamed(api)
    with pytest.raises(openai.APIError, match="failed amid its reply") as ended:
        begun.extend(choice.delta.content or "" for event in events for choice in event.choices)
    assert "".join(begun) == "\none "
    assert ended.value.code in ("connection", "failed")
    text, note, _ = whole(api)
    assert (text, note["worker"]) == (LAST, "last")


@pytest.mark.slow
def test_a_client_that_leaves_ends_the_workers_generation(stack: ExitStack, backbone: TurnRouter) -> None:
    worker = Slowly()
    api = front(stack, backbone, chat_at(stack.enter_context(served(worker))))
    worker.rest(allowed=2)
    for times in (1, 2):
        with streamed(api) as events:
            next(event for event in events if event.choices and event.choices[0].delta.content)
        assert until(lambda times=times: len(worker.ended) == times)
    assert worker.ended == ["cancelled"] * 2
    assert worker.said == 4  # nothing was said to nobody


@pytest.mark.slow
def test_a_composer_streams_its_last_step_alone(stack: ExitStack) -> None:
    """The first two steps are in no event; the prompts of the steps,
    the answer and what it cost are those of an answer in one piece."""
    worker = Slowly()
    url = stack.enter_context(served(worker))
    pool = pool_of(chat_at(url))
    worker.rest(allowed=2, free=1)
    made = Composed(pool.models[1]).over(Composer(FunctionModel(planner), pool))
    api = client(stack.enter_context(served(made)))
    events = iter(streamed(api))
    first = next(text for event in events if event.choices and (text := event.choices[0].delta.content))
    assert (first, worker.ended) == ("\none ", ["whole"])  # the first step's reply is whole, and in no event
    worker.allowed = 99
    texts, note, usage = read(events)
    text, alone, counted = whole(api)
    assert "".join([first, *texts]) == text == "".join(WORDS)
    assert (note, usage) == (alone, counted)
    assert note["calls"] == 3
    assert worker.shown[:2] == worker.shown[2:]


@pytest.mark.slow
def test_a_server_that_is_down_or_silent_is_asked_when_its_turn_comes(stack: ExitStack, backbone: TurnRouter) -> None:
    """A pool opens, and a router's front serves, whoever is down; nobody waits for who is silent;
    who comes back is asked again."""
    sound, silent = stack.enter_context(FaultyServer()), stack.enter_context(FaultyServer(hang=True))
    names = ["down", "silent", "sound"]
    urls = ["http://127.0.0.1:9/v1", silent.url, sound.url]
    workers = [PoolWorker(name, f"{chat_at(url, 'm')}&timeout=60") for name, url in zip(names, urls, strict=True)]
    pool = ModelPool(workers, retries=0, seconds=3.0)
    made = router_over(pool, backbone)
    Api(made, "router", Slots(1, 1, 0), more={"down": pool.models[0]})
    assert not silent.requests + sound.requests
    chat = Orchestration(pool, [Message("user", "count")], "a")

    async def both() -> tuple[str, int]:
        turns, waiting = 0, asyncio.create_task(route(chat, made.router))
        while not waiting.done():
            await asyncio.sleep(0.01)
            turns += 1
        return (await waiting).answer, turns

    answer, turns = asyncio.run(both())
    assert (answer, len(chat.calls)) == ("fine", 3)
    assert turns > 3, "the event loop went on while a server was silent"
    assert [one.result.failure for one in chat.calls] == ["connection", "timeout", ""]
    silent.hang = False
    again = asyncio.run(pool.call(1, [Message("user", "count")], Sampling(), ("again",)))
    assert (again.text, again.failure) == ("fine", "")


@pytest.mark.parametrize("reads", [False, True])
def test_where_every_worker_fails_the_error_names_all_and_none_is_asked_again(reads: bool) -> None:
    asked: list[str] = []

    def down(name: str) -> Any:
        def worker(messages: Any) -> str:
            asked.append(name)
            raise InfrastructureError("provider", f"{name} is down")

        return worker

    pool = ModelPool([PoolWorker(name, down(name)) for name in ("a", "b", "c")], retries=0)
    made = Routed(pool.models[0])
    made._over(pool)
    made.router, made.exclude = Fixed([3.0, 2.0, 1.0]), ("a",)

    async def answer() -> Completion:
        READ.set(reads)
        return await gathered(made.stream(Prefix(messages=(Message("user", "hi"),)), Sampling(), 1))

    with pytest.raises(InfrastructureError, match=r"every worker failed: 'b' \(failed\), 'c' \(failed\); the last: c is down"):
        asyncio.run(answer())
    assert asked == ["b", "c"]  # neither the first again, which is excluded, nor the others


def test_further_samples_of_one_request_are_trees_of_their_own(tmp_path: Path) -> None:
    pool = ModelPool([PoolWorker("w", ScriptedModel(lambda messages, key: str(key), tokens=False))])
    made = Routed(pool.models[0])
    made._over(pool)
    made.router = Fixed([1.0])
    with Run.begin(tmp_path / "kept", "orchestrator serve", {}, {}, {}) as run:
        made.run = run

        async def both() -> list[Completion]:
            REQUEST.set("chatcmpl-1")
            given = Prefix(messages=(Message("user", "hi"),))
            return await asyncio.gather(*(gathered(made.stream(given, Sampling(), key)) for key in (1, 2)))

        found = asyncio.run(both())
        assert len({one.text for one in found}) == 2
        assert {info.name for info in run.trees()} == {"chatcmpl-1", "chatcmpl-1/1"}


def test_a_local_workers_stream_is_its_reply_without_the_token_that_ends_it() -> None:
    _, model = household()
    pool = ModelPool([PoolWorker("local", model)])

    async def both(key: int) -> tuple[str, str]:
        said: list[str] = []
        answers = []
        for tell in (None, said.append):
            chat = Orchestration(pool, [Message("user", "hi")], str(key), settings=Sampling(max_tokens=40))
            chat.tell = tell
            answers.append((await route(chat, Fixed([1.0]))).answer)  # type: ignore[arg-type]
        assert answers[0] == answers[1]
        return answers[0], "".join(said)

    for text, told in [asyncio.run(both(key)) for key in range(6)]:
        assert text.startswith(told)
        assert "<|end|>" not in text
    for cut in ([1, 1, 1], [1, 2], [2, 1], [3]):  # however a reply comes
        said: list[str] = []
        spoken, at, length = Spoken(model, said.append), 0, 0
        ids = [*model.tokenizer.encode("go library")[:2], *model.tokenizer.encode("<|end|>")]
        text, ends = model.tokenizer.decode(ids), model.tokenizer.ends(ids)
        for count in cut:
            end = int(ends[at + count - 1])
            spoken(Piece(text[length:end], np.array(ids[at : at + count], np.int32), ends=ends[at : at + count]))
            at, length = at + count, end
        assert "".join(said) == text.removesuffix("<|end|>")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_servers_stream_the_same_and_stop_when_the_client_leaves(tmp_path: Path) -> None:
    """Two `ramify serve` and one `ramify orchestrator serve`, each a process:
    text and usage equal those in one piece, token for token."""

    def counted(url: str, name: str) -> float:
        with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving("serve", f"hf:{checkpoint(tmp_path / name, at)}"))[0]
            for at, name in enumerate(["m0", "m1"])
        }
        pool = endpoints_file(tmp_path, **urls)
        TurnRouter.from_backbone("builtin", ["m0", "m1"]).save(tmp_path / "router")
        url, _ = stack.enter_context(serving(*serve_words(tmp_path, pool)))
        api = client(url)
        for name in ("router", "composer"):
            given: dict[str, Any] = {"model": name, "messages": ASKED, "max_tokens": 48, "seed": 3, "temperature": 1.0}
            alone = api.chat.completions.create(**given)
            response = api.chat.completions.with_raw_response.create(**given, stream=True, stream_options={"include_usage": True})
            texts, note, usage = read(response.parse())
            assert "".join(texts) == alone.choices[0].message.content
            cached = {"prompt_tokens_details"}  # the second time its worker knows the prompt
            assert usage.model_dump(exclude=cached) == alone.usage.model_dump(exclude=cached)
            assert usage.completion_tokens > 0
            before = (alone.choices[0].model_extra or {})["ramify"]["orchestrator"]
            assert note["trace"] == response.headers["x-request-id"]
            assert {**note, "trace": ""} == {**before, "trace": ""}
        endless, _ = stack.enter_context(serving("serve", f"{HERE}:endless"))
        pool.write_text(pool.read_text().replace(urls["m0"], endless).replace("chat:m0", "chat:endless"))
        api = client(stack.enter_context(serving("orchestrator", "serve", pool, "--router", tmp_path / "router"))[0])
        with api.chat.completions.create(model="router", messages=ASKED, stream=True) as events:
            said = (event.choices[0].delta.content for event in events if event.choices and event.choices[0].delta.content)
            assert [next(said).startswith("on ") for _ in range(3)] == [True] * 3
            assert counted(endless, "ramify_requests_gone_total") == 0
        assert until(lambda: counted(endless, "ramify_requests_gone_total") == 1)
    with Run.open(tmp_path / "kept") as run:
        # Steps that wait for nothing end in any order.
        trees = [sorted((node.role, node.text) for node in run.tree(info.name).nodes.values()) for info in run.trees()]
        assert trees[0] == trees[1]
        assert trees[2] == trees[3]
