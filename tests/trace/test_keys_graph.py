"""State keys and the state-merged graph."""

from __future__ import annotations

import re
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.trace import keys
from ramify.trace.graph import MergedGraph, factorize


def test_canonical_tells_values_apart() -> None:
    values = [None, "None", 1, "1", True, 1.5, [1], {"a": 1}, b"ab", {1, 2}, np.array([1.5, 2.5]), float("nan")]
    assert len({keys.canonical(value) for value in values}) == len(values)
    assert keys.canonical({"b": 1, "a": (1, 2)}) == keys.canonical({"a": [1, 2], "b": 1})
    assert keys.canonical({2, 10, 1}) == keys.canonical({1, 10, 2})
    assert keys.canonical(np.int64(3)) == keys.canonical(3)
    with pytest.raises(UserError, match="type object has no canonical key"):
        keys.canonical(object())
    endless: list = []
    endless.append(endless)
    with pytest.raises(UserError, match="no canonical key"):
        keys.canonical(endless)


def test_scrub() -> None:
    seen = [
        "Step 7 of 50:  you see\nx2 at 12:30:05 on 2026-06-22T10:00:00Z, cost -3.5e2",
        "Step 8 of 50: you see x2 at 1:02 pm on 2025-01-01, cost 4",
    ]
    both = keys.scrub()(seen)
    assert both[0] == both[1] == keys.canonical("Step <n> of <n>: you see x2 at <time> on <time>, cost <n>")
    assert keys.scrub("whitespace")(["a  b\n"]) == keys.exact(["a b"])
    assert keys.scrub("numbers")([["at 3", {"n": "4"}]]) == keys.exact([["at <n>", {"n": "<n>"}]])
    assert len(set(keys.scrub("numbers")([None, "None"]))) == 2
    with pytest.raises(UserError, match="did you mean 'numbers'"):
        keys.scrub("number")


def test_history_and_informative() -> None:
    assert keys.with_history(0)(["a", "b"]) == keys.exact(["a", "b"])
    a, b, c = keys.with_history(1)(["a", "b", "b"])
    assert len({a, b, c}) == 3
    assert keys.with_history(1)(["x", "b", "b"])[2] == c
    with pytest.raises(UserError, match="history of -1"):
        keys.with_history(-1)


def worked_case() -> MergedGraph:
    """The worked case of graph-credit, section 8.1: four attempts over states A, B, D."""
    attempts = {1: "AB", 2: "AB", 3: "ADB", 4: "AD"}
    rows = [("t", a, j, s, f"to{s}{j}") for a, states in attempts.items() for j, s in enumerate(states)]
    ends = ["success" if a in (1, 3) else "failure" for _, a, *_ in rows]
    return MergedGraph.of(*zip(*rows, strict=True), ends=ends)


def test_worked_case() -> None:
    graph = worked_case()
    assert graph.keys == ["A", "B", "D", "success", "failure"]
    assert graph.group_visits.tolist() == [4, 3, 2, 2, 2]
    assert graph.group_terminal.tolist() == [False] * 3 + [True] * 2
    assert graph.visit_group.tolist() == [0, 1, 0, 1, 0, 2, 1, 0, 2]
    assert graph.visit_target.tolist() == [1, 3, 1, 4, 2, 1, 3, 2, 4]
    assert graph.visit_next.tolist() == [1, -1, 3, -1, 5, 6, -1, 8, -1]
    assert graph.edge_count.sum() == 9
    for row in range(9):  # every visit lies on its edge
        edge = graph.visit_edge[row]
        assert graph.edge_source[edge] == graph.visit_group[row]
        assert graph.edge_target[edge] == graph.visit_target[row]
    # the value of every state by plain counting (gamma .95, success 10): the printed digits of the worked case
    returns = np.array([10.0, 0, 10, 0])[graph.visit_attempt]
    lengths = np.bincount(graph.visit_attempt)[graph.visit_attempt]
    values = 0.95 ** (lengths - graph.visit_step) * returns
    mean = np.bincount(graph.visit_group, values) / graph.group_visits[:3]
    assert np.allclose(mean, [4.3996875, 6.3333333, 4.5125])


def test_never_across_tasks_and_any_order() -> None:
    graph = MergedGraph.of(["t", "u", "t", "u"], ["a", "a", "a", "a"], [1, 0, 0, 1], ["s", "s", "s", None], ["x"] * 4)
    assert len(graph.attempts) == 2
    assert graph.group_visits.tolist() == [2, 1, 1, 1, 1]
    assert graph.keys == ["s", "s", None, "end", "end"]
    assert graph.visit_next.tolist() == [-1, 3, 0, -1]
    assert len(graph.to_json("u")["nodes"]) == 3
    with pytest.raises(UserError, match="no task 'v'"):
        graph.to_dot("v")
    empty = MergedGraph.of([], [], [], [], [])
    assert len(empty.keys) == len(empty.edge_count) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.sampled_from([None, 1, "1", True]), min_size=1, max_size=5)), max_size=6),
    st.randoms(),
)
def test_merging_does_not_depend_on_row_order(attempts: list, random) -> None:
    rows = [(task, i, j, key, j) for i, (task, path) in enumerate(attempts) for j, key in enumerate(path)]
    shuffled = random.sample(rows, len(rows))
    for order in (rows, shuffled):
        graph = MergedGraph.of(*(zip(*order, strict=True) if order else ([],) * 5))
        assert graph.group_visits[~graph.group_terminal].sum() == len(rows)
        assert graph.group_visits[graph.group_terminal].sum() == len(attempts)
        assert graph.edge_count.sum() == len(rows)
        states = {(graph.visit_task[r], type(row[3]), row[3]): graph.visit_group[r] for r, row in enumerate(order)}
        assert len(set(states.values())) == len(states) == (~graph.group_terminal).sum()
        following = {(row[1], row[2]): r for r, row in enumerate(order)}
        assert all(graph.visit_next[r] == following.get((row[1], row[2] + 1), -1) for r, row in enumerate(order))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0, 1, 1], "attempt 'a' of task 't' has step 1 twice"),
        ([0, 1, 3], "attempt 'a' of task 't' misses step 2"),
        ([0, 1, 0.5], "integers"),
    ],
)
def test_faults(steps: list, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        MergedGraph.of(["t"] * 3, ["a"] * 3, steps, ["k"] * 3, ["x"] * 3)


def test_more_faults() -> None:
    with pytest.raises(UserError, match="misses step 0, where the others start"):
        MergedGraph.of(["t"] * 3, ["a", "a", "b"], [0, 1, 1], ["k"] * 3, ["x"] * 3)
    with pytest.raises(UserError, match="keys has 2 entries for 3"):
        MergedGraph.of(["t"] * 3, ["a"] * 3, [0, 1, 2], ["k"] * 2, ["x"] * 3)


def test_exports(tmp_path: Path) -> None:
    graph = worked_case()
    values = [4.4, 6.33, 4.51, 10.0, 0.0]
    form = networkx.node_link_graph(graph.to_json(extra={"value": values}), edges="edges")
    assert form.number_of_nodes() == 5
    assert sum(count for *_, count in form.edges(data="count")) == 9
    assert form.nodes[1]["value"] == 6.33
    graph.write_graphml(tmp_path / "g.graphml", extra={"value": values})
    read = networkx.read_graphml(tmp_path / "g.graphml", force_multigraph=True)
    assert sorted(count for *_, count in read.edges(data="count")) == sorted(graph.edge_count.tolist())
    nasty = MergedGraph.of(["t"], ["a"], [0], ['say "hi"\\'], ["l1\nl2"])
    dot = nasty.to_dot()
    assert '[label="say \\"hi\\"\\\\\\n1 visit"]' in dot
    assert all(line.count('"') % 2 == 0 for line in dot.replace('\\"', "").splitlines())
    with pytest.raises(UserError, match="cannot write"):
        graph.write_graphml(tmp_path / "no" / "g.graphml")


def test_factorize() -> None:
    codes, distinct = factorize(["a", 1, True, "1", 1.0, None, [1], [1], np.int64(1)])
    assert codes.tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 1]
    assert distinct[:3] == ["a", 1, True]
