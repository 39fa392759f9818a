"""The families of readers and writers, chat logs of every form, and exports read by the tools they are for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from records import write
from trace_cases import fill

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.trace import convert, dot, formats
from ramify.trace.db import Run
from ramify.trace.formats import readers
from ramify.trace.intake import take
from ramify.trace.node import Node, Provenance, make_node
from ramify.trace.notes import BadRecordError, noting

EVIL = '</script><script>alert(1)</script>\x1b]0;title\x07\u202e " \\ \n'
USER = {"role": "user", "content": "q"}


def said(run: Run, tree: str) -> list[list[tuple[str, str]]]:
    found = run.tree(tree)
    return [[(m.role, m.text) for m in found.path(leaf.id).messages()] for leaf in found.leaves()]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with Run.create(tmp_path / "stored", {"seed": 1}) as stored:
        fill(stored)
        yield stored


def test_the_families_hold_what_they_say() -> None:
    assert {"run", "chats", "steps", "inspect", "verifiers"} <= formats.readers().keys()
    assert {"jsonl", "parquet", "dot", "inspect"} <= formats.writers().keys()
    for name, part in {**formats.readers(), **formats.writers()}.items():
        assert part.name == name
        assert part.help
        assert "\n" not in part.help
    for reader in formats.readers().values():  # cheap, and never raises: on nothing, on a folder, on a record of nothing
        assert reader.matches(Path("/nosuch"), None) is False
        assert reader.matches(Path("/"), {}) is False


def test_a_format_is_named_or_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = write(tmp_path / "c.jsonl", {"messages": [USER]})
    assert formats.pick_reader(chat).name == "chats"
    assert formats.pick_reader(chat, "steps").name == "steps"
    with pytest.raises(UserError, match=r"unknown format 'chat' \(did you mean 'chats'\?\)"):
        formats.pick_reader(chat, "chat")
    with pytest.raises(UserError, match=r"c.jsonl:1: 'task_id' must be"):
        convert.read_run(chat, tmp_path / "run", "steps")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    also = formats.Reader("also-chats", "x", lambda path, first: bool(first), lambda path, folder: 0, general=True)
    registry.register("reader", "also-chats")(also)
    with pytest.raises(UserError, match=r"fits several formats: name one with --from \(also-chats, chats\)"):
        formats.pick_reader(chat)
    broken = formats.Reader("broken", "x", lambda path, first: bool(first and first["nosuch"]), lambda path, folder: 0)
    registry.register("reader", "broken")(broken)
    with pytest.raises(
        UserError, match=r"the reader 'broken' failed on .*c.jsonl \(KeyError: 'nosuch'\): name a format with --from"
    ):
        formats.pick_reader(chat)
    assert formats.pick_reader(chat, "chats").name == "chats"


def test_tool_calls_are_kept_in_one_form(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    flat = {"id": "2", "name": "add", "arguments": {"x": 1}}
    answers = [{"role": "tool", "tool_call_id": str(i), "content": "2"} for i in (1, 2, 3)]
    calls = [call, flat, json.dumps({"id": "3", "name": "add", "arguments": "{}"})]
    convert.read_run(
        write(tmp_path / "c.jsonl", {"messages": [USER, {"role": "assistant", "tool_calls": calls}, *answers]}), tmp_path / "r"
    )
    with Run.open(tmp_path / "r") as run:
        _, _, sampled, first, *_, last = run.nodes("chat-000001")
        assert sampled.data["tool_calls"] == [
            call,
            {"id": "2", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}},
            {"id": "3", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ]
        assert (first.role, first.data, last.data) == ("tool", {"tool_call_id": "1"}, {"tool_call_id": "3"})


def test_parts_that_are_no_text_are_noted_and_never_merged(tmp_path: Path) -> None:
    def chat(url: str) -> dict:
        parts = [
            {"type": "text", "text": "what is "},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "it?"},
        ]
        return {"task": "t", "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "a cat"}]}

    convert.read_run(write(tmp_path / "c.jsonl", chat("data:1"), chat("data:2")), tmp_path / "r")
    with Run.open(tmp_path / "r") as run:
        assert said(run, "t") == [[("user", "what is it?"), ("assistant", "a cat")]] * 2
        urls = [node.data["content"][1]["image_url"]["url"] for node in run.nodes("t") if node.role == "user"]
        assert urls == ["data:1", "data:2"]


def test_attempts_that_end_alike_keep_their_own_ends(tmp_path: Path) -> None:
    records = [{"task": "t", "messages": [USER], "reward": reward, "n": reward} for reward in (0.0, 1.0)]
    convert.read_run(write(tmp_path / "c.jsonl", *records), tmp_path / "r")
    with Run.open(tmp_path / "r") as run:
        assert [leaf.data["record"]["n"] for leaf in run.tree("t").leaves()] == [0.0, 1.0]
        assert [v.value for v in run.scores()] == [0.0, 1.0]


def log(messages: list, *replies: dict, **fields: Any) -> dict:
    request = {"model": "m", "temperature": 0.5, "messages": messages, "api_key": "sk-canary-canary"}
    choices = [{"index": i, "message": reply, "finish_reason": "stop"} for i, reply in enumerate(replies)]
    return {
        "request": request,
        "response": {"id": "x", "model": "m-1", "choices": choices, "usage": {"total_tokens": 3}},
        **fields,
    }


def test_logs_of_single_calls_grow_one_tree(tmp_path: Path) -> None:
    a, b = ({"role": "assistant", "content": text} for text in ("a", "b"))
    more = {"role": "user", "content": "and?"}
    file = write(
        tmp_path / "calls.jsonl",
        log([USER], a, b, task="t"),
        log(
            [USER, a, more],
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
            task="t",
        ),
        log([USER, a, more], task="t", reward=0)
        | {"response": {"error": {"message": "429", "authorization": "Bearer canary-canary"}}},
        log([USER], a, task="t"),
        log([USER, {"role": "assistant", "content": "given"}], a),
    )
    assert convert.read_run(file, tmp_path / "r") == "chats"
    with Run.open(tmp_path / "r") as run:
        assert said(run, "t") == [
            [("user", "q"), ("assistant", "b")],
            [("user", "q"), ("assistant", "a"), ("user", "and?"), ("assistant", "")],
            [("user", "q"), ("assistant", "a"), ("user", "and?"), ("assistant", "")],
            [("user", "q"), ("assistant", "a")],  # the same call made again is another sample
        ]
        assert [leaf.stop for leaf in run.tree("t").leaves()] == ["stop", "stop", "failed", "stop"]
        assert run.tree("t").leaves()[2].data["response"]["error"]["message"] == "429"
        (provenance,) = {p.model: p for p in run.each(Provenance) if p.model == "m-1"}.values()
        assert provenance.settings == {"temperature": 0.5, "api_key": "[redacted]"}
        assert [n.index for n in run.nodes("chat-000005") if n.text == "given"] != [-1]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert b"canary" not in stored


@pytest.mark.usefixtures("tidy")
def test_a_file_that_is_one_json_document(tmp_path: Path) -> None:
    chat = [USER, {"role": "assistant", "content": "a"}]
    for number, document in enumerate((chat, {"messages": chat}, [{"messages": chat}, {"messages": chat}])):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document, indent=1))
        assert convert.read_run(file, tmp_path / str(number)) == "chats"
        with Run.open(tmp_path / str(number)) as run:
            assert said(run, "chat-000001") == [[("user", "q"), ("assistant", "a")]]
            assert len(run.trees()) == (2 if number == 2 else 1)
    for content, message in (
        ("[]", "holds no record"),
        ('[{"messages": []},\n 3]', ":1: 'messages' is empty"),
        ('[{"messages": [{"role": "user"}]},\n 3]', ":2: item 2 of the list is not an object"),
        ('{"messages":\n [', "it ends in the middle, in line 2: the file is cut off"),
        ("{\n" + '"a": ' * 3, "line 2 is not JSON "),
        ("[\n" * 100_000, ":1: "),
    ):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UserError, match=message):
            convert.read_run(tmp_path / "bad.json", tmp_path / "bad")
        assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (log([USER]) | {"request": {}}, "'request': 'messages' must be a list, and it is missing"),
        (log([USER]) | {"request": 3}, "'request' must be an object"),
        (log([USER], 3), "choice 0 of the response: 'message' must be an object"),
        (log([USER]) | {"response": {"choices": [3]}}, "choice 0 of the response is not an object"),
        (log([USER]) | {"response": {"choices": 3}}, "'response': 'choices' must be a list"),
        ({"messages": [{"role": "assistant", "tool_calls": ["{"]}]}, "message 0: tool call 0 is text that is not JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "message 0: tool call 0 is not an object"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "message 0: 'tool_calls' must be a list"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "message 0 has a 'content'"),
        ({"messages": [{"content": "x"}]}, "message 0: 'role' must be text, and it is missing"),
    ],
)
def test_bad_chats(tmp_path: Path, record: dict, message: str) -> None:
    file = write(tmp_path / "bad.jsonl", {"messages": [USER]}, record)
    with pytest.raises(UserError) as caught:
        convert.read_run(file, tmp_path / "run")
    assert str(caught.value).startswith(f"{file}:2: ")
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


def test_hostile_text_goes_through_as_text(tmp_path: Path) -> None:
    record = {"task": EVIL, "messages": [{"role": "user", "content": EVIL, EVIL: EVIL}], EVIL: float("inf")}
    convert.read_run(write(tmp_path / "c.jsonl", record), tmp_path / "r")
    with Run.open(tmp_path / "r") as run:
        (leaf,) = run.tree(EVIL).leaves()
        assert (leaf.text, leaf.data[EVIL], leaf.data["record"][EVIL]) == (EVIL, EVIL, "inf")


def test_parquet_in_duckdb_and_pandas(run: Run, tmp_path: Path) -> None:
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    for kind in ("nodes", "token_values", "annotations", "scores", "trees", "provenances", "contexts", "journal"):
        rows = convert.write_parquet(run, tmp_path / f"{kind}.parquet", kind)
        assert len(pandas.read_parquet(tmp_path / f"{kind}.parquet")) == rows > 0
    db = duckdb.connect()

    def rows_of(query: str) -> list[tuple]:
        return db.execute(query).fetchall()

    nodes = f"'{tmp_path / 'nodes.parquet'}'"
    types = dict(rows_of(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {nodes})"))
    assert types["tokens"] == "INTEGER[]"
    assert types["logprobs"] == "FLOAT[]"
    assert types["sampled"] == "BOOLEAN[]"
    assert (types["offset"], types["opens"], types["reward"], types["text"]) == ("BIGINT", "BOOLEAN", "DOUBLE", "VARCHAR")
    stored = list(run.each(Node))
    # one query over every token, and one that follows parents
    sampled = rows_of(f"SELECT count(*) FROM (SELECT unnest(sampled) AS one FROM {nodes}) WHERE one")[0][0]
    assert sampled == sum(node.sampled_tokens for node in stored)
    deep = rows_of(
        f"WITH RECURSIVE up AS (SELECT id, 0 AS depth FROM {nodes} WHERE parent IS NULL UNION ALL "
        f"SELECT n.id, depth + 1 FROM {nodes} n JOIN up ON n.parent = up.id) SELECT count(*), max(depth) FROM up"
    )[0]
    assert deep == (len(stored), 3)
    assert rows_of(f"SELECT count(*) FROM {nodes} WHERE tokens IS NULL")[0][0] == sum(n.tokens is None for n in stored)
    assert rows_of(f"SELECT json_extract_string(data, '$.calls[0].span[1]') FROM {nodes} WHERE data LIKE '%calls%'")[0][0] == "3"
    joined = rows_of(
        f"SELECT n.text, v.value FROM '{tmp_path}/scores.parquet' v JOIN {nodes} n ON v.node = n.id WHERE scorer = 'env'"
    )
    assert joined == [("oo", 1.0)]
    frame = pandas.read_parquet(tmp_path / "nodes.parquet")
    assert [None if t is None else list(t) for t in frame["tokens"]] == [
        None if n.tokens is None else n.tokens.tolist() for n in stored
    ]
    assert frame["reward"].isna().tolist() == [n.reward is None for n in stored]
    assert str(frame["offset"].dtype) == "int64"
    assert pandas.read_parquet(tmp_path / "scores.parquet")["value"].isna().sum() == 1


def test_dot_of_hostile_trees(tmp_path: Path) -> None:
    """Whatever a text holds, the file has one statement a node and one an edge, and its quotes close."""
    with Run.create(tmp_path / "r", {}) as run:
        run.add_tree(EVIL, {})
        node = make_node(EVIL, None, 0, "root", "")
        run.add(node)
        for index, text in enumerate([EVIL, '"];\n} digraph x { "a" -> "b"', "\\", '\\"', "lone \ud800", "\x00"]):
            node = make_node(EVIL, node.id, len(node), "user", text, index=index)
            run.add(node)
        assert dot.write_dot(run, tmp_path / "t.dot") == 7
        text = (tmp_path / "t.dot").read_text(encoding="utf-8")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "Q", text, flags=re.DOTALL)
    assert '"' not in bare
    assert re.findall(r"^  Q -> Q;$", bare, re.MULTILINE) == ["  Q -> Q;"] * 6
    assert len(re.findall(r"^  Q \[label=Q\];$", bare, re.MULTILINE)) == 7
    assert bare.count("{") == bare.count("}") == 1


def test_what_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="2 trees: choose one with --tree"):
        dot.write_dot(run, tmp_path / "x.dot")
    with pytest.raises(UserError, match="has no tree 'chatt': did you mean 'chat'"):
        dot.write_dot(run, tmp_path / "x.dot", tree="chatt")
    with pytest.raises(UserError, match="cannot write"):
        dot.write_dot(run, tmp_path / "no" / "x.dot", tree="chat")
    with pytest.raises(UserError, match="has no 'nodez' to export"):
        convert.write_parquet(run, tmp_path / "x", "nodez")
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_with_an_empty_file_and_documents_that_were_cut_off(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": "3"}], "reward": 1.0}
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.json").write_text(json.dumps(chat, indent=1))
    (logs / "empty.jsonl").write_text("")  # a session that crashed at once
    assert take([logs], tmp_path / "run").unknown == ["empty.jsonl"]
    cut = logs / "cut.json"
    for text, fault in (
        (json.dumps(chat, indent=1)[:60], "it ends in the middle, in line 5: the file is cut off"),
        (json.dumps(chat, indent=1).replace('"3"', "three"), "line 9 is not JSON (Expecting value)"),
    ):
        cut.write_text(text)
        sentence = re.escape(f"cut.json is one JSON document over several lines, and {fault}") + "$"
        with pytest.raises(UserError, match=sentence):
            take([cut], tmp_path / "alone")
        with pytest.raises(BadRecordError, match=sentence):  # one file of several: it can be left out
            take([logs], tmp_path / "all")
    with noting(skip_bad=True) as notes:
        take([logs], tmp_path / "rest")
    assert len(notes.bad) == 1
    cut.write_text('{"messages"\n' + json.dumps(chat))  # lines, the first of which is broken
    with pytest.raises(BadRecordError, match=r"cut\.json:1: not JSON"):
        take([cut], tmp_path / "lines")


def test_a_file_read_under_another_formats_name_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(readers()["codex"].example)
    with pytest.raises(UserError, match=r"; by its content it is codex: leave out --from$"):
        take([file], tmp_path / "run", "claude-code")
