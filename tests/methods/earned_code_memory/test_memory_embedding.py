"""Entries near a request by the vectors of an endpoint: a small server that answers as OpenAI's /embeddings does, and that may
fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.earned_code_memory.embedding import VectorIndex, read_vectors
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.report import replay
from ramify.model.http import ProviderError

SENSES = (("delete", "remove", "erase", "drop"), ("pay", "invoice", "bill", "money"), ("song", "music", "play"))
"""Words of one meaning: the dimensions of the server's vectors."""


def vector(text: str) -> list[float]:
    """Counts of each sense, and a little of a fourth."""
    words = text.lower().split()
    return [float(sum(word.strip(".,`") in sense for word in words)) for sense in SENSES] + [0.1]


class Embeddings(BaseHTTPRequestHandler):
    """POST /v1/embeddings; every request is kept in ``server.seen``."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body))  # type: ignore[attr-defined]
        failing = self.server.failing  # type: ignore[attr-defined]
        rows = [{"index": i, "embedding": vector(text)} for i, text in enumerate(body["input"])]
        answer = {"data": rows[::-1], "model": body["model"], "usage": {"prompt_tokens": 7 * len(rows)}}
        data = json.dumps({"error": "no"} if failing else answer).encode()
        self.send_response(400 if failing else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
    made.seen, made.failing = [], False
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def address(server: Any) -> str:
    return f"small@http://127.0.0.1:{server.server_address[1]}/v1"


def filled(path: Path, **settings: Any) -> Memory:
    memory = Memory(path, **settings)
    memory.add("plan", "erase notes", "Call `notes.list`, then `notes.delete`.")
    memory.add("fact", "bills", "Money is paid on Monday.")
    memory.add("pitfall", "play", "A song that is gone stops the music.")
    return memory


@pytest.mark.slow
def test_another_word_for_the_same_thing_is_found(server: Any, tmp_path: Path) -> None:
    with filled(tmp_path / "words.sqlite") as memory:
        assert asyncio.run(memory.select("remove what is old")).ids == ()
    with filled(tmp_path / "vectors.sqlite", embed=address(server)) as memory:
        given = asyncio.run(memory.select("remove what is old"))
        assert [memory.state.entries[name].title for name in given.ids] == ["erase notes"]
        first = len(server.seen[0][1]["input"])
        assert (server.seen[0][0], first) == ("/v1/embeddings", 4)  # three entries and the request
        assert memory.state.tokens["embedding"] == {"input": 28}
        asyncio.run(memory.select("drop the rest"))
        assert [len(body["input"]) for _, body in server.seen] == [4, 1]
        assert replay(memory.store).equal
    with Memory(tmp_path / "vectors.sqlite") as again:  # vectors are kept in the file
        asyncio.run(again.select("play"))
        assert len(server.seen[-1][1]["input"]) == 1
        again.add("fact", "invoice", "The bill comes late.")
        found = asyncio.run(again.near("pay"))
        assert [entry.title for entry, _ in found.texts][:2] in (["bills", "invoice"], ["invoice", "bills"])
        assert found.texts[0][1] == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_an_endpoint_that_fails_stops_no_task(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with filled(tmp_path / "m.sqlite", embed=address(server)) as memory:
        server.failing = True
        given = asyncio.run(memory.select("erase the notes"))
        assert [memory.state.entries[name].title for name in given.ids] == ["erase notes"]  # by words
        assert memory.state.dropped == {"no vectors: the endpoint failed": 1}
    assert main(["earned-code-memory", "recall", str(tmp_path / "m.sqlite"), "erase the notes"]) == 0
    out, err = capsys.readouterr()
    assert "near by words, since the embedding endpoint failed" in err
    assert "erase notes" in out


@pytest.mark.slow
def test_an_empty_memory_and_one_without_the_setting_ask_no_endpoint(server: Any, tmp_path: Path) -> None:
    with Memory(tmp_path / "empty.sqlite", embed=address(server)) as memory:
        assert asyncio.run(memory.select("erase the notes")).ids == ()
    with filled(tmp_path / "plain.sqlite") as memory:
        asyncio.run(memory.select("erase the notes"))
    assert server.seen == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("bge-m3", "MODEL@URL"), ("@http://127.0.0.1/v1", "MODEL@URL"), ("m@http://127.0.0.1/v1?key=1", "the field 'key'"),
     ("m@httpx://a", "must look like")],
)  # fmt: skip
def test_an_address_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    assert main(["earned-code-memory", "learn", str(tmp_path / "m.sqlite"), "--embed", text]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), says in err) == (1, True), err
    assert not (tmp_path / "m.sqlite").exists()
    with pytest.raises(UserError, match="MODEL@URL"):
        Memory(tmp_path / "other.sqlite", embed="nobody")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": ["a"]}]},
        {"data": [{"embedding": [True]}]},
        {"data": [{"embedding": [0.0, 0.0]}]},
        {"data": [{"embedding": [float("inf")]}]},
        {"data": [{"embedding": [1.0], "index": 3}]},
        {"data": ["x"]},
    ],
)
def test_answers_that_hold_no_vectors_are_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ProviderError, match="vector"):
        read_vectors(answer, 1)


def test_vectors_are_ranked_by_cosine_and_replaced_by_name() -> None:
    index = VectorIndex()
    index.add(["a", "b"], np.eye(2, 3, dtype=np.float32))
    index.add(["b", "c"], np.array([[0, 0, 1], [0, 1, 0]], np.float32))
    assert index.nearest(np.array([0.1, 0.5, 0.9], np.float32), 2, lambda name: True) == [
        ("b", pytest.approx(0.9)),
        ("c", pytest.approx(0.5)),
    ]
    assert index.nearest(np.ones(2, np.float32), 3, lambda name: True) == []  # another model's
    index.add(["d"], np.ones((1, 2), np.float32))
    assert index.names == ["d"]
