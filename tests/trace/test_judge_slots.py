"""Whether a score counts is computed when it is read: judges of slots are replaced, come back, and nothing else is touched."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ramify.base.errors import RamifyError
from ramify.trace.db import JUDGE, Run
from ramify.trace.node import Score, make_node

JUDGES = ({"a": "a1"}, {"a": "a2"}, {"b": "b1"}, {"a": "a1", "b": "b1"}, {})


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as opened:
        opened.add_tree("t", {"id": "t"})
        root = make_node("t", None, 0, "root", "")
        opened.add(root, *(make_node("t", root.id, 0, "user", str(i), index=i) for i in range(3)))
        for node in opened.nodes("t")[1:]:
            opened.add(*(Score(node.id, f"s{i}", float(i), judges=judges) for i, judges in enumerate(JUDGES)))
        yield opened


def counting(run: Run) -> set[str]:
    return {one.scorer for one in run.scores()}


def test_a_replaced_judge_erases_its_slot_and_nothing_else(run: Run) -> None:
    assert run.replace_judge("a", "a1") == 3  # the scores of a2
    assert counting(run) == {"s0", "s2", "s3", "s4"}
    assert run.replace_judge("a", "a1") == 0  # the same judge: no entry
    assert len(run.journal(JUDGE)) == 1
    assert run.replace_judge("b", "b2") == 6  # alone, and together with a
    assert counting(run) == {"s0", "s4"}
    assert {one.scorer for one in run.scores(counting=False)} == {"s1", "s2", "s3"}
    assert len(run.scores(counting=None)) == 15
    assert run.replace_judge("b", "b1") == 0  # it comes back, and its scores with it
    assert counting(run) == {"s0", "s2", "s3", "s4"}
    assert run.replace_judge("a", "") == 6
    assert counting(run) == {"s2", "s4"}
    assert {scorer for scorer, _, _ in run.scorers()} == {"s2", "s4"}
    assert sum(n for *_, n, _, _ in run.tallies()) == 15


def test_the_order_of_slots_does_not_matter(tmp_path: Path, run: Run) -> None:
    left = []
    for order in itertools.permutations([("a", "a2"), ("b", "b2")]):
        for slot in ("a", "b"):
            run.replace_judge(slot, f"{slot}1")
        for slot, judge in order:
            run.replace_judge(slot, judge)
        left.append(counting(run))
    assert left[0] == left[1] == {"s1", "s4"}


def test_a_damaged_entry_is_one_sentence(run: Run) -> None:
    run.log(JUDGE, "a 1", ["a", "a1"])
    with pytest.raises(RamifyError, match="names no slot and judge"):
        run.scores()
