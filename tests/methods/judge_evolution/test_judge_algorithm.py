"""Closed forms and invariants: best belief, clades, the gate, checkpoints, what counts, and when a challenger takes over."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.methods.judge_evolution.algorithm import (
    Archive,
    PromotionConfig,
    SearchConfig,
    UtilityRecord,
    best_belief,
    cell,
    checkpoints,
    decide,
    gate_open,
)

BELIEFS = {
    (0, 0): 0.05, (1, 0): 0.22361, (2, 0): 0.36840, (3, 0): 0.47287, (10, 0): 0.76160, (0, 1): 0.02532, (9, 1): 0.63564,
    (18, 2): 0.72945, (3, 7): 0.13508, (60, 40): 0.51744, (600, 400): 0.57424,
}  # fmt: skip


def test_best_belief_has_its_closed_forms() -> None:
    for (s, f), value in BELIEFS.items():
        assert best_belief(s, f) == pytest.approx(value, abs=5e-6)
    n = np.arange(30)
    assert best_belief(n, 0) == pytest.approx(0.05 ** (1 / (n + 1)))
    assert best_belief(0, n) == pytest.approx(1 - 0.95 ** (1 / (n + 1)))


def test_the_weaker_node_may_have_the_better_clade() -> None:
    archive = Archive()
    a, b = archive.grow(0), archive.grow(0)
    children = {a: [archive.grow(a), archive.grow(a)], b: [archive.grow(b), archive.grow(b)]}

    def play(node: int, s: int, n: int) -> None:
        for i in range(n):
            assert archive.add(UtilityRecord(node, "r", f"t{i}", i < s))

    play(a, 3, 5), play(b, 4, 5)
    for node, s in zip((*children[a], *children[b]), (8, 9, 1, 2), strict=True):
        play(node, s, 10)
    assert (archive.productivity(a), archive.productivity(b)) == (0.8, 0.28)
    assert archive.own[a] == [3, 2], "reading a clade leaves the node's own counts alone"


def test_the_gate_lets_the_archive_grow_as_stated() -> None:
    size, found = 1, {}
    for n in range(12_289):
        if n in (16, 64, 256, 1024, 12_288):
            found[n] = size
        size += gate_open(n, size, 0.6)
    assert found == {16: 6, 64: 13, 256: 28, 1024: 64, 12_288: 285}


def test_checkpoints_expose_a_linear_number_of_outcomes() -> None:
    assert checkpoints(8, 2, 1024) == [8, 16, 32, 64, 128, 256, 512]
    assert sum(checkpoints(8, 2, 1024)) == 1016
    assert sum(range(1, 1024)) == 523_776
    assert checkpoints(1, 1.2, 9) == [1, 2, 3, 4, 5, 6, 7, 8]  # a slow growth never counts one twice
    with pytest.raises(ValueError, match="factor above 1"):
        checkpoints(8, 1.0, 100)


TAGS = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["1", "2", "3"]), max_size=2)
OUTCOMES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("rs"), st.integers(0, 9), st.booleans(), TAGS), max_size=40)


@settings(max_examples=60, deadline=None)
@given(OUTCOMES, st.lists(TAGS, max_size=6))
def test_counts_are_those_of_the_ledger_filtered_by_validity(rows: list, changes: list[dict[str, str]]) -> None:
    archive = Archive()
    for parent in (0, 0, 1, 3):
        archive.grow(parent)
    for i, (node, role, task, success, judges) in enumerate(rows):
        if changes and i % 5 == 4:
            archive.replace(changes.pop())
        archive.add(UtilityRecord(node, role, str(task), success, judges))
    free = sum(not one.judges for one in archive.outcomes)
    for change in changes:
        archive.replace(change)
        assert archive.replace(change) == 0, "erasing again erases nothing"
    own, clade = [[0, 0] for _ in archive.parents], [[0, 0] for _ in archive.parents]
    for one in archive.counting():
        assert all(archive.incumbents.get(slot, judge) == judge for slot, judge in one.judges.items())
        own[one.node][0 if one.success else 1] += 1
        for node in archive.lineage(one.node):
            clade[node][0 if one.success else 1] += 1
    assert (archive.own, archive.clade) == (own, clade)
    assert sum(not one.judges for one in archive.counting()) == free


def test_slots_commute_and_a_record_of_two_dies_with_either() -> None:
    def made() -> Archive:
        archive = Archive(incumbents={"a": "1", "b": "1"})
        for i, judges in enumerate(({"a": "1"}, {"b": "1"}, {"a": "1", "b": "1"}, {})):
            archive.add(UtilityRecord(0, "r", str(i), True, judges))
        return archive

    ends = []
    for order in itertools.permutations([{"a": "2"}, {"b": "2"}]):
        archive = made()
        assert [archive.replace(one) for one in order] == [2, 1]
        ends.append((archive.own, archive.clade))
    together = made()
    assert together.replace({"a": "2", "b": "2"}) == 3
    assert ends == [([[1, 0]], [[1, 0]])] * 2 == [(together.own, together.clade)] * 2
    assert together.replace({"a": "1", "b": "1"}) == 0  # rolled back: a judge is its content, so its outcomes count again
    assert together.own == [[4, 0]]


def test_an_outcome_scored_again_is_no_second_one_and_a_late_one_keeps_its_judge() -> None:
    archive = Archive(incumbents={"s": "old"})
    late = UtilityRecord(0, "r", "t", True, {"s": "old"})
    archive.replace({"s": "new"})
    assert archive.add(late)
    assert archive.own == [[0, 0]], "it was scored by a judge that is gone"
    assert not archive.add(UtilityRecord(0, "r", "t", False, {"s": "old"}))
    assert archive.add(UtilityRecord(0, "r", "t", False, {"s": "new"}))
    assert archive.own == [[0, 1]]


def test_the_endpoint_uses_what_counts_and_else_the_fallback() -> None:
    archive = Archive(incumbents={"s": "1"})
    child = archive.grow(0)
    for i in range(9):
        archive.add(UtilityRecord(0, "r", str(i), True, {"s": "1"}))
    archive.add(UtilityRecord(child, "r", "0", True))
    assert archive.best() == (0, "best belief")
    assert archive.best(role="r") == (0, "best belief")
    archive.replace({"s": "2"})
    assert archive.best() == (child, "best belief")
    assert archive.best(role="other") == (child, "balanced utility")
    assert archive.balanced(0) == 0.5
    assert archive.balanced(child, {"r": ["0", "1"]}) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_thompson_and_cells_are_keyed_by_position_alone() -> None:
    archive, config = Archive(), SearchConfig(seed=3)
    archive.grow(0), archive.grow(1)
    first = [archive.thompson(config, n, "evaluate") for n in range(20)]
    assert first == [archive.thompson(config, n, "evaluate") for n in range(20)]
    assert set(first) == {0, 1, 2}
    assert all(archive.thompson(config, n, "x", nodes=[2]) == 2 for n in range(5))
    archive.add(UtilityRecord(0, "a", "1", True))
    cells = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert {cell(archive, 0, cells, n)[0] for n in range(20)} == {"b"}, "the role with the fewest outcomes"
    archive.add(UtilityRecord(0, "b", "1", True))
    assert {cell(archive, 0, cells, n) for n in range(40)} == {("a", "2"), ("b", "2")}


LABEL = np.arange(40) % 2 == 0


def says(right: range | list[int], wrong: bool = False) -> np.ndarray:
    """Answers that are right on ``right`` and wrong elsewhere."""
    mask = np.isin(np.arange(40), list(right))
    return np.where(mask, LABEL, ~LABEL).astype(float)


def test_one_item_more_promotes_by_best_belief_and_not_by_the_paired_test() -> None:
    one_more = decide(LABEL, says(range(24)), says(range(25))[None], PromotionConfig(rule="best_belief"))
    assert one_more.winner == 0
    assert decide(LABEL, says(range(24)), says(range(25))[None], PromotionConfig()).winner is None
    assert decide(LABEL, says(range(24)), says(range(24))[None], PromotionConfig(rule="best_belief")).winner is None, (
        "a tie stays"
    )
    assert decide(LABEL, says(range(24)), says(range(30))[None], PromotionConfig()).winner == 0
    assert decide(LABEL, says(range(24)), np.zeros((0, 40)), PromotionConfig()).why == "there is no challenger"


def test_challengers_share_the_level_and_looks_may() -> None:
    better, same = says(range(30)), says(range(24))
    assert decide(LABEL, says(range(24)), np.array([better, *[same] * 9]), PromotionConfig()).winner is None  # 2 ** -6 > .05 / 10
    assert decide(LABEL, says(range(24)), np.array([same] * 9 + [says(range(36))]), PromotionConfig()).winner == 9
    assert decide(LABEL, says(range(24)), better[None], PromotionConfig(spend=True), look=1).winner == 0
    assert decide(LABEL, says(range(24)), better[None], PromotionConfig(spend=True), look=4).winner is None


def test_what_is_missing_is_neither_right_nor_wrong() -> None:
    silent = says(range(40))
    silent[:1] = np.nan
    found = decide(LABEL, says(range(24)), silent[None], PromotionConfig())
    assert (found.winner, found.rows[0].n, found.rows[0].missing) == (0, 39, 1)
    silent[:3] = np.nan
    found = decide(LABEL, says(range(24)), silent[None], PromotionConfig())
    assert (found.winner, found.rows[0].eligible) == (None, False)
    assert "answered enough" in found.why


def test_the_majority_class_does_not_take_over() -> None:
    label = np.arange(100) < 90
    incumbent = np.where(np.arange(100) % 4 == 0, ~label, label).astype(float)  # 75 right, in both classes alike
    found = decide(label, incumbent, np.ones((1, 100)), PromotionConfig())
    assert (found.winner, found.rows[0].difference) == (None, pytest.approx(0.15))
    assert "balanced accuracy falls" in found.why
    assert decide(label, incumbent, np.ones((1, 100)), PromotionConfig(rule="accuracy")).winner == 0


def test_an_incumbent_that_hardly_errs_cannot_be_beaten() -> None:
    found = decide(LABEL, says(range(37)), says(range(40))[None], PromotionConfig())
    assert found.winner is None
    assert "too small to tell: the incumbent errs on 3 of 40 items, and the test needs 5" in found.why


@pytest.mark.slow
@pytest.mark.parametrize(("challengers", "expected"), [(1, 0.47), (16, 0.93), (64, 0.98)])
def test_equal_judges_take_over_at_most_as_often_as_stated(challengers: int, expected: float) -> None:
    rng, hits = np.random.default_rng(0), {"mcnemar": 0, "confirm": 0, "best_belief": 0}
    for _ in range(150):
        label = rng.random(100) < 0.5
        said = np.where(rng.random((challengers + 1, 100)) < 0.6, label, ~label).astype(float)
        for rule in hits:
            hits[rule] += decide(label, said[0], said[1:], PromotionConfig(rule=rule)).winner is not None
    assert hits["mcnemar"] <= 15  # of 150 at .05: above it with a chance of .004
    assert hits["confirm"] <= 15
    assert hits["best_belief"] / 150 == pytest.approx(expected, abs=0.12)
