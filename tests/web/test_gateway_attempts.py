"""Conversations through the gateway over real sockets are attempts on record: each is there once, with how it began and ended."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from faulty_server import FAULTS, MODEL, FaultyServer, chat, http
from model_server import serving

from ramify.model.endpoint import HttpModel
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord
from ramify.trace.view import views
from ramify.web.api import Api
from ramify.web.limits import Guard, Slots
from ramify.web.recording import Recorder


def says(body: dict[str, Any]) -> bytes:
    """Answers with the last message, so every history has its own reply."""
    return http(chat({"role": "assistant", "content": f"re: {body['messages'][-1]['content']}"}))


class Talk:
    """A client of a gateway in front of an upstream whose ``plan`` a test sets."""

    def __init__(self, upstream: FaultyServer, client: openai.OpenAI) -> None:
        self.upstream, self._client = upstream, client

    def ask(self, *texts: str, **more: Any) -> str | None:
        """One request with user and assistant in turn; the reply, None where it failed."""
        messages: Any = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        try:
            answer = self._client.chat.completions.create(model=MODEL, messages=messages, **more)
        except openai.APIError:
            return None
        if more.get("stream"):
            return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        return str(answer.choices[0].message.content)


@contextlib.contextmanager
def talk(folder: Path) -> Iterator[tuple[Talk, list[Callable[[dict[str, Any]], Any]]]]:
    """A client, and the answers that are given first, in order; then the upstream is sound."""
    plans: list[Callable[[dict[str, Any]], Any]] = []
    with FaultyServer(lambda body: (plans.pop(0) if plans else says)(body)) as upstream:
        recorder = Recorder(folder, {})
        api = Api(HttpModel(upstream.url + "?retries=0", MODEL), MODEL, Slots(8, 0), recorder)
        try:
            with serving(Guard(api.app(), "127.0.0.1", seconds=60.0, count=api.count)) as url:
                yield Talk(upstream, openai.OpenAI(base_url=url, api_key="any", max_retries=0)), plans
        finally:
            recorder.close()


def broken(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: FAULTS[name][0]


def read(folder: Path) -> list[tuple[tuple[str, ...], AttemptRecord]]:
    """What was said on the way to the end of each attempt, and its record, in order of their numbers."""
    with Run.open(folder) as run:
        records = sorted(run.attempts(), key=lambda one: one.index)
        seen = {view.leaf for view in views(run)}
        assert seen == {one.leaf for one in records}, "every attempt on record is read, and nothing else"
        return [(tuple(m.text for m in run.path(one.leaf).messages()), one) for one in records]


def plain(record: AttemptRecord) -> tuple[Any, ...]:
    return record.start, record.purpose, record.outcome, record.reward, record.truncated, record.failure


OPEN = (None, "recorded", None, None, False, None)


def test_a_conversation_is_one_attempt_that_ends_with_its_last_reply(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as (client, _):
        assert client.ask("a") == "re: a"
        assert client.ask("a", "re: a", "b") == "re: b"
        assert client.ask("a", "re: a", "b", "re: b", "c") == "re: c"
    (said, record), = read(tmp_path / "run")  # fmt: skip
    assert said == ("a", "re: a", "b", "re: b", "c", "re: c")
    assert plain(record) == OPEN
    assert record.provenance is not None


def test_a_conversation_that_branches_is_two_attempts(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as (client, _):
        client.ask("a")
        client.ask("a", "re: a", "b")
        client.ask("a", "re: a", "other")
        client.ask("a", "re: a", "b", "re: b", "c")
    found = read(tmp_path / "run")
    assert [said[2:] for said, _ in found] == [("b", "re: b", "c", "re: c"), ("other", "re: other")]
    assert [plain(record) for _, record in found] == [OPEN, OPEN]
    assert len({record.tree for _, record in found}) == 1


def test_an_identical_call_again_is_another_sample_of_the_same_place(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as (client, _):
        client.ask("a")
        client.ask("a")
        client.ask("a", "re: a", "b")
    found = read(tmp_path / "run")
    assert [said for said, _ in found] == [("a", "re: a", "b", "re: b"), ("a", "re: a")], "the history is that of the first"
    assert [plain(record) for _, record in found] == [OPEN, OPEN]


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_that_fails_and_is_made_again_is_no_failed_attempt(tmp_path: Path, streams: bool) -> None:
    with talk(tmp_path / "run") as (client, plans):
        client.ask("a")
        plans.append(broken("500"))
        assert client.ask("a", "re: a", "b", stream=streams) is None
        assert client.ask("a", "re: a", "b") == "re: b"
    found = read(tmp_path / "run")
    assert [said for said, _ in found] == [("a", "re: a", "b", "re: b")]
    assert [plain(record) for _, record in found] == [OPEN]


def test_an_upstream_that_stays_dead_is_one_failed_attempt(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as (client, plans):
        client.ask("a")
        plans += [broken("500")] * 3
        assert [client.ask("a", "re: a", "b") for _ in range(3)] == [None] * 3
    (said, record), = read(tmp_path / "run")  # fmt: skip
    assert said[:3] == ("a", "re: a", "b")
    assert record.failure
    assert plain(record) == (None, "recorded", None, None, False, record.failure)
    with Run.open(tmp_path / "run") as run:
        assert [view.failure for view in views(run)] == [record.failure]
        assert run.node(record.leaf).stop == "failed"


def test_a_reply_that_was_cut_is_an_end_of_its_own_kind(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as (client, plans):
        plans.append(lambda body: http(chat({"role": "assistant", "content": "long"}, "length")))
        client.ask("a")
    (said, record), = read(tmp_path / "run")  # fmt: skip
    assert said == ("a", "long")
    with Run.open(tmp_path / "run") as run:
        assert run.node(record.leaf).stop == "length"
    assert json.dumps(plain(record)) == json.dumps(OPEN)
