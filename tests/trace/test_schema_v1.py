"""A run written by schema version 1 opens forever. The fixture is never rewritten; a new schema gets a fixture of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trace_cases import fill, make_fixture, same_node

from ramify.trace import convert
from ramify.trace.db import Run
from ramify.trace.node import Context, Mark, Node, Producer, Verdict

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-v1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "old"))


def test_opens_and_means_the_same(old: Path, tmp_path: Path) -> None:
    make_fixture(tmp_path / "now")
    with Run.open(old) as before, Run.open(tmp_path / "now") as now:
        assert before.meta["schema"] == 1
        assert before.meta["config"] == {"seed": 1, "name": "fixture"}
        assert all(same_node(a, b) for a, b in zip(before.each(Node), now.each(Node), strict=True))
        for kind in (Mark, Verdict, Context, Producer):
            assert list(before.each(kind)) == list(now.each(kind))
        assert before.trees() == now.trees()
        assert before.journal() == now.journal()
        assert [s.values.tobytes() for s in before.streams()] == [s.values.tobytes() for s in now.streams()]
        assert list(before.blobs.names()) == list(now.blobs.names())
        assert before.tree("update-000/task-1").hash == now.tree("update-000/task-1").hash
        assert [t.hash for t in before.each(Producer)] == [t.hash for t in now.each(Producer)]


def test_takes_more(old: Path) -> None:
    with Run.open(old, write=True) as run:
        ids = fill(run)  # the same records again: nothing changes
        assert len(run) == 7
        assert run.path(ids["fork"]).tokens.tolist() == [1, 5, 6, 2, 1, 9, 4]


def test_exports_alike(old: Path, tmp_path: Path) -> None:
    with Run.open(old) as run:
        convert.write_lines(run, tmp_path / "old.jsonl")
    assert (tmp_path / "old.jsonl").read_bytes() == (FIXTURE.parent / "run-v1.jsonl").read_bytes()
