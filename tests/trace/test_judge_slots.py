"""Whether a score counts is computed when it is read: judges of slots are replaced, come back, and nothing else is touched."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from ramify.base.errors import RamifyError
from ramify.jobs.summary import summarise
from ramify.trace.db import JUDGE, Run
from ramify.trace.node import Score, make_node
from ramify.web.pages import node_html, tree_data
from ramify.web.way import Nav

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


def test_show_says_which_version_of_its_judge_gave_each_score(run: Run) -> None:
    run.replace_judge("a", "a1")
    told = {one.scorer: (dict(one.judges), one.n, one.unscored, one.counting) for one in summarise(run).scores}
    assert told == {f"s{i}": (dict(judges), 3, 0, i != 1) for i, judges in enumerate(JUDGES)}
    shown = str(summarise(run))
    for row in ("s0 +a a1", "s1 +a a2 +3 +0 +no", "s3 +a a1, b b1", "s4 +not recorded"):
        assert re.search(row, shown), shown
    node = run.nodes("t")[1]
    page = node_html(run, node.id, Nav("trees", "run"))
    assert "judge's version a a1, b b1." in page
    assert "version a a2" not in page, "what does not count is not shown there"
    assert "a a1, b b1" in tree_data(run, "t", Nav("trees", "run"))


def test_a_version_is_short_and_names_the_slot_where_it_is_not_the_scorer() -> None:
    assert Score("n", "exact", 1.0, judges={"exact": "0123456789abcdef"}).version == "0123456789ab"
    assert Score("n", "sum", 1.0, judges={"b": "22", "a": "1" * 20}).version == "a 111111111111, b 22"
    assert Score("n", "sum", 1.0).version == ""
