"""Records of attempts: what an import writes, merges, and what replaces what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import write

import ramify
from ramify.base.errors import UserError
from ramify.trace.convert import read_run, write_lines
from ramify.trace.db import Run
from ramify.trace.intake import take
from ramify.trace.integrity import check_run
from ramify.trace.node import AttemptRecord, Score, make_node
from ramify.trace.outcome import decider, successes
from ramify.trace.view import views


def chat(task: str, said: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task, "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}], **fields}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Run, str, str]:
    run = Run.create(tmp_path / "run", {})
    run.add_tree("t", {"id": "t"})
    root = make_node("t", None, 0, "root", "")
    ends = [make_node("t", root.id, 0, "assistant", "x", index=0, purpose=purpose) for purpose in ("rollout", "why 1")]
    run.add(root, *ends)
    return run, ends[0].id, ends[1].id


def test_equal_samples_of_two_purposes_are_two_nodes(two: tuple[Run, str, str]) -> None:
    run, one, other = two
    assert one != other
    assert [node.purpose for node in run.nodes("t")] == ["", "rollout", "why 1"]
    assert run.columns(["purpose"])["purpose"].tolist() == ["", "rollout", "why 1"]


def test_a_later_try_replaces_the_record_of_an_earlier_one(two: tuple[Run, str, str]) -> None:
    run, one, other = two
    root = run.tree("t").root.id
    failed = AttemptRecord(root, "t", failure="env: the lights went out")
    run.add(failed, AttemptRecord(root, "t", index=1, failure="env: again"))
    done = AttemptRecord(one, "t", outcome=True, reward=1.0)
    run.add(done)
    assert {record.leaf for record in run.attempts()} == {one, root}
    assert run.attempts(leaf=one) == [done]
    run.add(replace(done, leaf=other, purpose="why 1"), replace(done, leaf=other, start=root))
    assert len(run.attempts(tree="t")) == 4, "another purpose or start is another attempt"
    run.take_back(replace(done, leaf=""))
    assert run.attempts(leaf=one) == []
    with pytest.raises(UserError, match="points at node nowhere"):
        run.add(AttemptRecord("nowhere", "t"))
    with pytest.raises(UserError, match="starts at offset 7"):
        run.add(AttemptRecord(one, "t", root, 7))


def test_a_fork_is_in_no_rate_of_success(two: tuple[Run, str, str]) -> None:
    run, one, other = two
    run.add(Score(one, "env", 0.0), AttemptRecord(one, "t", outcome=False, reward=0.0))
    run.add(Score(other, "env", 1.0), AttemptRecord(other, "t", purpose="why 1", outcome=True, reward=1.0))
    deciding = decider(run)
    assert deciding is not None
    assert set(successes(run, deciding)) == {(False, False), (True, True)}


def test_another_scorer_decides_of_success_and_of_nothing_else(two: tuple[Run, str, str]) -> None:
    run, one, _ = two
    run.add(Score(one, "env", 0.5), AttemptRecord(one, "t", outcome=False, reward=0.5, truncated=True))
    run.add(Score(one, "judge", 1.0, "score"))
    found = {name: next(view for view in views(run, scorer=name) if view.leaf == one) for name in ("env", "judge")}
    assert [(view.success, view.reward, view.cut) for view in found.values()] == [(False, 0.5, True), (True, 1.0, True)]


def test_an_import_writes_the_record_and_a_merge_keeps_it(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", chat("t", "one", reward=1.0), chat("t", "two", error="gone"), chat("t", "three"))
    second = write(tmp_path / "b.jsonl", chat("t", "one", reward=0.0), chat("u", "x", reward=2.0, success=False))
    take([first], tmp_path / "run")
    take([second], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        ended = {(r.tree, run.node(r.leaf).text, r.outcome, r.reward, r.failure) for r in run.attempts(purpose="import")}
        assert ended == {
            ("t", "one", None, 1.0, None),
            ("t", "two", None, None, "gone"),
            ("t", "three", None, None, None),
            ("t", "one", None, 0.0, None),
            ("u", "x", False, 2.0, None),
        }
        assert len(run.attempts(tree="t")) == 4
        assert [view.success for view in views(run) if view.task == "u"] == [False]
        write_lines(run, tmp_path / "out.jsonl")
        before = run.attempts()
    read_run(tmp_path / "out.jsonl", tmp_path / "back")
    with Run.open(tmp_path / "back") as run:
        assert run.attempts() == before
    assert check_run(tmp_path / "back") == []


def test_success_is_the_records_outcome_where_the_environment_judged(tmp_path: Path) -> None:
    actions = ["go hall", "go kitchen", "take red-key", "go garden"]
    ramify.play(lambda messages, key: actions[key % 4], "household", attempts=3, out=tmp_path / "run", seed=2)
    with Run.open(tmp_path / "run") as run:
        found = list(views(run))
        assert len(found) == len(run.attempts()) == 24
        assert all(view.record is not None and view.success == view.record.outcome for view in found)
        assert all(view.reward == view.record.reward for view in found if view.record)
