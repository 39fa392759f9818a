"""A run written by an older schema opens forever. A fixture is never rewritten; a new schema gets one of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from trace_cases import fill, findings, same_node

from ramify.base.errors import UserError
from ramify.trace import convert
from ramify.trace.db import Run
from ramify.trace.integrity import check_run
from ramify.trace.jsonl import EARLIER
from ramify.trace.node import Annotation, Context, Finding, Node, Provenance, Score
from ramify.trace.schema import SCHEMA

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-v1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "old"))


def test_opens_and_means_the_same(old: Path, tmp_path: Path) -> None:
    with Run.create(tmp_path / "now", {}) as made:
        fill(made)
    with Run.open(old) as before, Run.open(tmp_path / "now") as now:
        assert before.meta["schema"] == 1
        assert (before.findings(), list(before.each(Finding)), before.kind, before.faults()) == ([], [], "", [])
        assert before.meta["config"] == {"seed": 1, "name": "fixture"}
        assert all(same_node(a, b) for a, b in zip(before.each(Node), now.each(Node), strict=True))
        for kind in (Annotation, Score, Context, Provenance):
            assert list(before.each(kind)) == list(now.each(kind))
        assert before.trees() == now.trees()
        assert before.journal() == now.journal()
        assert [s.values.tobytes() for s in before.token_values()] == [s.values.tobytes() for s in now.token_values()]
        assert list(before.blobs.names()) == list(now.blobs.names())
        assert before.tree("update-000/task-1").hash == now.tree("update-000/task-1").hash
        assert [t.hash for t in before.each(Provenance)] == [t.hash for t in now.each(Provenance)]


def test_takes_more(old: Path) -> None:
    with Run.open(old, write=True) as run:
        ids = fill(run)  # the same records again: nothing changes
        assert len(run) == 7
        assert run.path(ids["fork"]).tokens.tolist() == [1, 5, 6, 2, 1, 9, 4]


def test_writing_makes_it_one_of_the_newest_schema(old: Path) -> None:
    with Run.open(old, write=True) as run:
        assert run.meta["schema"] == SCHEMA
        run.add(*findings(fill(run)))
    with Run.open(old) as run:
        assert len(run.findings()) == 2
    assert check_run(old) == []


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model": "builtin", "env": "maze", "updates": 3, "seed": 0}, "improve"),
        ({"model": "builtin", "env": "maze", "attempts": 1, "budget": {}, "sampling": {}}, "rollout"),
        ({"model": "builtin", "env": "maze", "attempts": 1, "budget": {}, "tree_budget": 9}, "rollout --tree"),
        ({"model": "builtin", "env": "maze", "seed": 0, "sampling": {}}, "play"),
        ({"serve": {}, "redact": False}, "serve --record"),
        ({"imported": {"form": "chats"}}, "import"),
        ({"env": "x", "model": "y", "forensics": True, "sampling": {}}, "forensics"),
        ({"a": 1}, ""),
    ],
)
def test_the_verb_that_made_it_and_its_parts_are_taken_over(old: Path, config: dict[str, Any], kind: str) -> None:
    with contextlib.closing(sqlite3.connect(old / "run.sqlite")) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(config),))
        db.execute("INSERT INTO journal VALUES (NULL, 'start', 'parts', '{\"weights\": \"abc\"}')")
        db.execute("INSERT INTO journal VALUES (NULL, 'template', 'agent', '{\"hash\": \"def\"}')")
    with Run.open(old) as run:
        assert run.kind == kind
    with Run.open(old, write=True) as run:
        assert (run.kind, run.parts) == (kind, {"weights": "abc", "chat template": "def"})
    if kind:
        with pytest.raises(UserError, match="weights was 'abc', is 'other'"):
            Run.begin(old, kind, {}, parts={"weights": "other"})
        Run.begin(old, kind, config, parts={"weights": "abc"}).close()


def test_the_newest_schema_has_a_fixture(tmp_path: Path) -> None:
    now = Path(shutil.copytree(FIXTURE.parent / f"run-v{SCHEMA}", tmp_path / "now"))
    assert check_run(now) == []
    with Run.open(now) as run:
        assert run.meta["schema"] == SCHEMA
        assert (run.kind, run.config, run.parts) == ("rollout", {"seed": 1, "name": "fixture"}, {"weights": "w1"})
        ids = {"fork": next(node.id for node in run.each(Node) if node.stop == "terminated")}
        assert run.findings() == findings(ids)
        assert run.findings(node=ids["fork"]) == run.findings(tree="update-000/task-1") == findings(ids)[:1]
        convert.write_lines(run, tmp_path / "now.jsonl")
    assert _lines(tmp_path / "now.jsonl") == _lines(FIXTURE.parent / f"run-v{SCHEMA}.jsonl")
    assert convert.read_exported(tmp_path / "now.jsonl", tmp_path / "again")
    with Run.open(tmp_path / "again") as again:
        assert (again.kind, again.parts, again.findings()) == ("rollout", {"weights": "w1"}, findings(ids))


def test_exports_alike(old: Path, tmp_path: Path) -> None:
    with Run.open(old) as run:
        convert.write_lines(run, tmp_path / "old.jsonl")
    assert _lines(tmp_path / "old.jsonl") == _lines(FIXTURE.parent / "run-v1.jsonl")
    assert convert.read_exported(FIXTURE.parent / "run-v1.jsonl", tmp_path / "again")  # its records have the names of then
    with Run.open(tmp_path / "again") as again, Run.open(old) as run:
        for kind in (Annotation, Score, Context, Provenance):
            assert list(again.each(kind)) == list(run.each(kind))
        assert [node.id for node in again.each(Node)] == [node.id for node in run.each(Node)]


def _lines(path: Path) -> list[dict[str, Any]]:
    """The records of an export, by their present names."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{EARLIER.get(k, k): EARLIER.get(v, v) if k == "kind" else v for k, v in line.items()} for line in lines]
