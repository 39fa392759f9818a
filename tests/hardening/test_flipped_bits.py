"""A flipped bit in a run's database: what a hash covers is never read, exported, forked from or trained on without a word."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from command import Verb

from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.node import Node, make_node


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with Run.create(folder, {"kind": "test"}) as run:
        for t in range(4):
            tree = f"task-{t}"
            run.add_tree(tree, {"id": t})
            node = make_node(tree, None, 0, "user", "find the key", tokens=range(12), ends=range(1, 13))
            run.add(node)
            for turn in range(4):
                said = f"go room-{turn} and look behind every picture"
                node = make_node(
                    tree, node.id, len(node), "assistant", said, tokens=range(t, t + 40), sampled=[True] * 40,
                    logprobs=[-0.5] * 40, ends=range(1, 41), index=0, stop="eos",
                )  # fmt: skip
                run.add(node)
    return folder


def damage(folder: Path, change: str) -> str:
    """Change one stored node behind ramify's back; returns its id."""
    with sqlite3.connect(folder / "run.sqlite") as db:
        ((name,),) = db.execute("SELECT id FROM nodes ORDER BY seq LIMIT 1 OFFSET 7")
        db.execute(f"UPDATE nodes SET {change} WHERE id = ?", (name,))
    db.close()
    return str(name)


CHANGES = (
    "text = 'go room-7 and look behind every picture'",
    "tokens = CAST(x'09' || substr(tokens, 2) AS BLOB)",
    "sampled = CAST(x'7f' || substr(sampled, 2) AS BLOB)",
    "offset = offset - 1",
    "role = 'system'",
    "sample = 3",
    "opens = 0",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_node_is_neither_exported_nor_forked(
    made: Path, change: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    name = damage(made, change)
    for words in (
        ["export", str(made), str(tmp_path / "out.jsonl")],
        ["fork", str(made), name, "--n", "1"],
        ["resume", str(made)],
        ["check", "run", str(made)],
    ):
        assert main(words) in (1, 2)
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        if words[0] in ("export", "check"):
            assert f"node {name} has another content than its id says" in told.out + told.err
    assert not (tmp_path / "out.jsonl").exists()


def test_an_undamaged_run_is_said_to_be_so(made: Path, verb: Verb) -> None:
    told = verb.json("check", "run", made)
    assert told["conforms"]
    assert [one["check"] for one in told["checks"]] == ["file", "records", "blobs"]


def test_a_blob_with_another_content_and_one_that_is_gone_are_named(made: Path, capsys: pytest.CaptureFixture) -> None:
    with Run.open(made, write=True) as run:
        run.add_tree("more", {"id": 9})
        kept, lost = run.put_blob(b"a state"), run.put_blob(b"another state")
        run.add(make_node("more", None, 0, "root", "", snapshot=f"blob:{kept}"))
        root = next(iter(run.tree("more").nodes))
        run.add(make_node("more", root, 0, "user", "x", snapshot=f"blob:{lost}"))
        run.blobs._path(kept).write_bytes(b"b state")
        run.drop_blob(lost)
    assert main(["check", "run", str(made)]) == 1
    told = capsys.readouterr().out
    assert f"blob '{kept}'" in told
    assert f"blob '{lost}', which is missing" in told


@pytest.mark.slow
def test_flipped_bits_that_change_a_node_are_found(made: Path, tmp_path: Path) -> None:
    """Of 60 flips, each in the file of a copy: wherever a node's hashed content changed,
    ``check run`` says so, and no reading is silent."""
    with Run.open(made) as run:
        whole = {node.id: node.text for node in run.each(Node)}
    content = (made / "run.sqlite").read_bytes()
    completion = random.Random(3)
    found = silent = 0
    for i in range(60):
        data = bytearray(content)
        data[completion.randrange(100, len(data))] ^= 1 << completion.randrange(8)
        folder = tmp_path / f"flip-{i}"
        folder.mkdir()
        (folder / "run.sqlite").write_bytes(data)
        code = main(["check", "run", str(folder)])
        assert code in (0, 1, 2)
        found += code != 0
        if code == 0:
            with Run.open(folder) as run:
                silent += {node.id: node.text for node in run.each(Node)} != whole
    assert silent == 0
    assert found > 0


def test_a_check_of_no_run_is_one_sentence(tmp_path: Path, verb: Verb) -> None:
    assert "is not a run" in verb.refused("check", "run", tmp_path)
