"""Runs as JSON lines and back exactly, Parquet and Graphviz out, foreign traces in; faults name file and line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import write
from trace_cases import PROVENANCE, fill, findings, same_node, trees

from ramify.base.errors import RamifyError, UserError
from ramify.trace import convert
from ramify.trace.db import Run
from ramify.trace.dot import tree_dot
from ramify.trace.node import Node


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with Run.create(tmp_path / "run", {"seed": 1}, kind="rollout", parts={"weights": "w1"}) as run:
        run.add(*findings(fill(run)))
        convert.write_lines(run, tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


def test_round_trip_of_every_record(exported: Path, tmp_path: Path) -> None:
    assert convert.read_run(exported, tmp_path / "back") == "run"
    with Run.open(tmp_path / "run") as before, Run.open(tmp_path / "back") as after:
        assert after.meta == before.meta
        assert [n.id for n in after.each(Node)] == [n.id for n in before.each(Node)]
        assert all(same_node(a, b) for a, b in zip(before.each(Node), after.each(Node), strict=True))
        assert after.journal() == before.journal()
        assert after.trees() == before.trees()
        assert after.annotations() == before.annotations()
        assert after.scores() == before.scores()
        assert after.findings() == before.findings()
        assert len(after.findings()) == 2
        assert (after.kind, after.parts) == ("rollout", {"weights": "w1"})
        convert.write_lines(after, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == exported.read_bytes()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_round_trip_of_any_tree(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Run.create(folder / "a", {}) as run:
            run.add_tree("t", {})
            run.add(PROVENANCE, *data.draw(trees(PROVENANCE.hash)))
            convert.write_lines(run, folder / "a.jsonl")
            convert.write_parquet(run, folder / "a.parquet")
        convert.read_run(folder / "a.jsonl", folder / "b")
        with Run.open(folder / "b") as back, Run.open(folder / "a") as run:
            assert all(same_node(a, b) for a, b in zip(run.each(Node), back.each(Node), strict=True))
            convert.write_lines(back, folder / "b.jsonl")
            assert pyarrow.parquet.read_table(folder / "a.parquet").num_rows == len(run)
        assert (folder / "a.jsonl").read_bytes() == (folder / "b.jsonl").read_bytes()


def test_parquet_and_dot(exported: Path, tmp_path: Path) -> None:
    with Run.open(tmp_path / "run") as run:
        for kind in ("nodes", "token_values", "annotations", "scores", "trees", "provenances", "contexts", "journal"):
            convert.write_parquet(run, tmp_path / f"{kind}.parquet", kind)
        rows = pyarrow.parquet.read_table(tmp_path / "nodes.parquet").to_pylist()
        assert [row["id"] for row in rows] == [node.id for node in run.each(Node)]
        assert rows[2]["tokens"] == [1, 9, 9, 2]
        assert rows[2]["sampled"] == [False, True, True, True]
        assert json.loads(rows[2]["data"]) == {"calls": [{"span": [1, 3]}]}
        assert json.loads(pyarrow.parquet.read_table(tmp_path / "scores.parquet").to_pylist()[1]["judges"]) == {
            "a": "j1",
            "b": "j2",
        }
        with pytest.raises(UserError, match="did you mean 'nodes'"):
            convert.write_parquet(run, tmp_path / "x", "node")
        with pytest.raises(UserError, match="cannot write"):
            convert.write_parquet(run, tmp_path / "no" / "x")
        with pytest.raises(UserError, match="cannot write"):
            convert.write_lines(run, tmp_path / "no" / "x")
        tree = run.tree("update-000/task-1")
        dot = tree_dot(tree)
        assert dot.count("->") == len(tree) - 1
        assert '[label="at 2"]' in dot


def test_chats(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
    file = write(
        tmp_path / "c.jsonl",
        {"messages": [*chat, {"role": "assistant", "content": "a"}], "task": "t", "reward": 1},
        {"messages": [*chat, {"role": "assistant", "content": "a"}], "task": "t", "reward": 0.5, "model": "m"},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
    )
    assert convert.read_run(file, tmp_path / "run") == "chats"
    with Run.open(tmp_path / "run") as run:
        tree = run.tree("t")
        assert len(tree) == 5  # one root, one shared opening, two equal replies that were two samples
        assert [v.value for v in run.scores()] == [1.0, 0.5]
        leaf = tree.leaves()[1]
        assert [(m.role, m.text) for m in tree.path(leaf.id).messages()] == [("system", "s"), ("user", "q"), ("assistant", "a")]
        assert leaf.data == {"record": {"model": "m"}}
        assert leaf.tokens is None
        assert run.tree("chat-000003").leaves()[0].data == {
            "tool_calls": [{"id": "1"}],
            "unanswered": [{"id": "1", "name": ""}],
        }


def step(attempt: str, number: int, **fields: object) -> dict:
    return {"task_id": "t", "attempt_id": attempt, "step": number, "anchor": f"s{number}", "action": "go", "reward": 0, **fields}


def test_steps(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s.jsonl",
        step("a", 0),
        step("b", 0),
        step("a", 1, reward=1.0, done=True),
        step("b", 1, obs={"seen": 1}, truncated=True, state_hash="h", valid=False),
    )
    assert convert.read_run(file, tmp_path / "run") == "steps"
    with Run.open(tmp_path / "run") as run:
        tree = run.tree("t")
        first, second = (tree.path(leaf.id) for leaf in tree.leaves())
        assert [(m.role, m.text) for m in first.messages()] == [
            ("user", "s0"), ("assistant", "go"), ("user", "s1"), ("assistant", "go"), ("user", "")]  # fmt: skip
        assert [n.reward for n, _ in first.segments] == [None, None, None, 0.0, None, 1.0]
        assert [leaf.stop for leaf in tree.leaves()] == ["terminated", "truncated"]
        assert [n.state_key for n, _ in second.segments if n.role == "user"] == ["s0", "h", None]
        assert second.segments[3][0].text == '{"seen":1}'
        assert second.segments[4][0].data["valid"] is False
        assert first.segments[1][0].id == second.segments[1][0].id  # one shared first observation
        assert first.segments[2][0].id != second.segments[2][0].id  # equal actions stay two samples


CHAT = {"messages": [{"role": "user", "content": "q"}]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([CHAT, {"messages": []}], ":2: 'messages' is empty"),
        ([CHAT, {"messages": [{"role": "bot", "content": ""}]}], ":2: message 0 has the role 'bot'"),
        ([CHAT, {"messages": [{"role": "user", "content": 3}]}], ":2: message 0 has a 'content'"),
        ([CHAT, {"messages": ["x"]}], ":2: message 0 is not an object"),
        ([CHAT, {"messages": "x"}], ":2: 'messages' must be a list"),
        ([CHAT, {}], ":2: 'messages' must be a list, and it is missing"),
        ([CHAT, {**CHAT, "reward": "1"}], ":2: 'reward' must be a number"),
        ([{**CHAT, "reward": float("nan")}], ":1: the value of the score"),
        ([CHAT, 3], ":2: a line must hold one JSON object"),
        ([{"x": 1}], ":1: an object with the keys 'x', which is of no format known here"),
        ([step("a", 0), step("a", 0)], ":2: attempt 'a' of task 't' has step 0 twice"),
        ([step("a", 0), step("a", 2)], ":2: attempt 'a' of task 't' misses a step before 2"),
        ([step("a", 3)], ":1: attempt 'a' of task 't' starts at step 3"),
        ([step("a", 0, done=True), step("a", 1)], ":2: attempt 'a' of task 't' continues after its last step"),
        ([{"task_id": "t"}], ":1: 'attempt_id' must be text or an integer, and it is missing"),
        ([step("a", 0, reward="x")], ":1: 'reward' must be a number"),
        ([{"kind": "run", "schema": 2, "config": {}}], ":1: it has schema 2, and this ramify reads schema 1"),
        ([{"kind": "run", "schema": 1, "config": {}}, {"kind": "nod"}], ":2: unknown kind 'nod': did you mean 'node'"),
        ([{"kind": "run", "schema": 1, "config": {}}, {"kind": "annotation"}], ":2: .*missing"),
        (
            [{"kind": "run", "schema": 1, "config": {}}, {"kind": "node", "txt": 1}],
            ":2: a node has no field 'txt': did you mean 'text'",
        ),
    ],
)
def test_bad_records(tmp_path: Path, records: list, message: str) -> None:
    file = write(tmp_path / "bad.jsonl", *records)
    with pytest.raises(UserError, match=message) as caught:
        convert.read_run(file, tmp_path / "run")
    assert str(file) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


def test_bad_files(tmp_path: Path) -> None:
    for content, message in (
        (b"", "holds no record"),
        (b"\n \n", "holds no record"),
        (b"{", ":1: not JSON"),
        (b'{"messages": \xff}', ":1: not UTF-8"),
        (b"[" * 100_000, ":1: item 1 of the list is not an object"),
        (b'[{"a":' * 100_000, ":1: item 1 of the list: nested too deeply"),
        (b'{"a":' * 100_000, ":1: nested too deeply"),
        (b" " * (1 << 24) + b"{}", ":1: the line is longer"),
    ):
        (tmp_path / "x.jsonl").write_bytes(content)
        with pytest.raises(UserError, match=message):
            convert.read_run(tmp_path / "x.jsonl", tmp_path / "run")
    with pytest.raises(UserError, match="cannot read"):
        convert.read_run(tmp_path / "none.jsonl", tmp_path / "run")
    with pytest.raises(UserError, match="cannot read"):
        convert.read_run(tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match="exists already"):
        convert.read_run(write(tmp_path / "x.jsonl", CHAT), tmp_path)


def test_changed_content_is_noticed(exported: Path, tmp_path: Path) -> None:
    for old, new in (("[1,9,9,2]", "[1,9,8,2]"), ('"go"', '"gO"'), ("AHN0YXRl/w==", "AHN0YXRm/w==")):
        text = exported.read_text()
        assert old in text
        (tmp_path / "changed.jsonl").write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match="of another content"):
            convert.read_run(tmp_path / "changed.jsonl", tmp_path / "b")


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_mutated_exports(exported: Path, tmp_path: Path, count: int) -> None:
    """Any damage gives one typed error or a run; never anything else, never something half-written."""
    whole = exported.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content))
            match rng.randrange(4):
                case 0:
                    content[at] = rng.randrange(256)
                case 1:
                    del content[at : at + rng.randrange(1, 30)]
                case 2:
                    content[at:at] = rng.choice([b"null", b"-1", b'"', b"[]", b"1e999", b"{}", b"\n", b"true"])
                case _:
                    content = content[: max(1, at)]
        (tmp_path / "m.jsonl").write_bytes(content)
        try:
            convert.read_run(tmp_path / "m.jsonl", tmp_path / "m")
        except RamifyError:
            refused += 1
            assert not (tmp_path / "m").exists()
        else:
            with Run.open(tmp_path / "m") as run:
                assert sum(1 for _ in run.each(Node)) == len(run)
            for path in sorted((tmp_path / "m").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            (tmp_path / "m").rmdir()
    assert refused > count / 2


@pytest.mark.slow
def test_import_streams(tmp_path: Path) -> None:
    """A file of 100 MB is imported in less than its size of memory."""
    chat = json.dumps({"messages": [{"role": "user", "content": "x" * 5000}, {"role": "assistant", "content": "y" * 5000}]})
    with (tmp_path / "big.jsonl").open("w") as file:
        file.writelines(chat + "\n" for _ in range(10_000))
    code = (
        "import sys; from pathlib import Path; from ramify.trace import convert; "
        "convert.read_run(Path(sys.argv[1]), Path(sys.argv[2])); print(Path('/proc/self/status').read_text())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "big.jsonl"), str(tmp_path / "run")]
    status = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 100_000  # KiB
