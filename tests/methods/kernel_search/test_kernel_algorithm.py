"""Closed forms of the search, of the roofline, and of what counts as a gain."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.kernel_search import algorithm
from ramify.methods.kernel_search.algorithm import (
    CandidateTree,
    Gain,
    attainable,
    classify,
    gain_of_rounds,
    hit_rate,
    paired_gain,
    reward,
)
from ramify.methods.kernel_search.asm import loops
from ramify.methods.kernel_search.kernelbench import is_problem
from ramify.methods.kernel_search.task import evaluate, from_c, from_python, turned, window_of
from ramify.methods.kernel_search.wall import INSIDE, disagreement


def test_the_reward_has_its_closed_forms() -> None:
    assert reward(None) == 0.0
    assert reward(1.0) == pytest.approx(0.43)
    assert reward(1 / 16) == pytest.approx(0.05)
    assert reward(64.0) == reward(1000.0) == pytest.approx(1.0)
    assert reward(4) - reward(2) == pytest.approx(reward(2) - reward(1)) == pytest.approx(0.95 * math.log(2) / math.log(1024))
    assert reward(1e-9) > reward(None)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_reward_is_monotone(a: float, b: float) -> None:
    assert (reward(a) <= reward(b)) or a > b


@pytest.mark.parametrize(("kappa", "allowed"), [(2.0, [2, 4, 6, 8]), (1.0, [1, 2, 3, 4])])
def test_widening_allows_the_square_root_of_the_visits(kappa: float, allowed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm, "WIDENING", kappa)
    tree = CandidateTree("k")
    found = []
    for visits in (1, 4, 9, 16):
        tree.nodes[0].visits = visits
        found.append(tree.allowed(0))
    assert found == allowed


def test_visits_of_a_node_are_one_and_those_of_its_children() -> None:
    rng = np.random.default_rng(0)
    tree = CandidateTree("0")
    for i in range(1, 60):
        at = tree.select()
        if at is None:
            break
        tree.add(at, str(i), None if rng.random() < 0.2 else float(rng.lognormal()), "edit")
    for node in tree.nodes:
        assert node.visits == 1 + sum(tree.nodes[child].visits for child in node.children)
    best = tree.nodes[tree.best]
    assert best.correct
    assert best.speedup == max(node.speedup or 0 for node in tree.nodes if node.correct)


def test_a_failing_candidate_is_never_best_and_three_in_a_row_end_a_branch() -> None:
    tree = CandidateTree("0")
    first = tree.add(0, "1", None, "a")
    second = tree.add(first, "2", None, "b")
    third = tree.add(second, "3", None, "c")
    assert tree.best == 0
    assert all(tree.nodes[n].pruned for n in (first, second, third))
    assert tree.select() == 0


def test_a_tree_where_all_is_spent_ends() -> None:
    tree = CandidateTree("0")
    child = tree.add(0, "1", 2.0, "a")
    tree.spent(0)
    assert tree.select() == child
    tree.spent(child)
    assert tree.select() is None
    greedy = CandidateTree("0", algo="greedy")
    assert greedy.add(0, "1", 2.0, "a") == greedy.select()


def test_the_roofline_is_the_lower_of_both_roofs() -> None:
    assert attainable(2 / 12, 100e9, 12e9) == pytest.approx(2e9)
    n = 600
    assert 2 * n**3 / (12 * n**2) == n / 6
    assert attainable(n / 6, 100e9, 12e9) == 100e9
    assert [classify(i, 100.0, 10.0) for i in (1.0, 10.0, 100.0)] == ["memory", "mixed", "compute"]
    assert classify(None, 1, 1) == "unknown"
    assert classify(1.0, 100.0, 10.0, overhead=0.3) == "launch"


def test_equal_kernels_are_no_gain_and_a_quarter_is() -> None:
    rng, gains = np.random.default_rng(1), []
    for _ in range(200):
        a, b = np.exp(rng.normal(0, 0.05, 10)), np.exp(rng.normal(0, 0.05, 10))
        gains.append(paired_gain(a, b, rng, 500).gains)
    assert np.mean(gains) <= 0.05
    a = np.exp(rng.normal(0, 0.05, 10))
    found = paired_gain(a, a / 1.25 * np.exp(rng.normal(0, 0.02, 10)), rng)
    assert found.gains
    assert found.speedup == pytest.approx(1.25, abs=0.05)
    loud = paired_gain(np.exp(rng.normal(0, 0.6, 30)), np.full(30, 0.2), rng)
    assert not loud.ranked
    assert not loud.gains
    with pytest.raises(ValueError, match="pairs"):
        paired_gain([1.0], [], rng)


def rounds(*speedups: float) -> list[Gain]:
    return [Gain(each, each, each, 0.01, 4, 2.0, 2.0 / each) for each in speedups]


def test_a_gain_of_rounds_is_over_that_of_the_original_in_its_place() -> None:
    found = gain_of_rounds(rounds(1.1, 1.3), rounds(1.0, 1.0))
    assert found.speedup == pytest.approx(math.sqrt(1.1 * 1.3))
    half = 12.7062 * (math.log(1.3) - math.log(1.1)) / 2  # Student's 0.975 quantile at one degree of freedom, times s / sqrt(2)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(
        (math.log(found.speedup) - half, math.log(found.speedup) + half), rel=1e-4
    )
    assert (found.rounds, found.pairs) == (2, 8)
    place = gain_of_rounds(rounds(1.2, 1.3, 1.25), rounds(1.2, 1.3, 1.25))
    assert (place.speedup, place.low, place.high) == pytest.approx((1, 1, 1))
    assert not place.gains
    with pytest.raises(ValueError, match="shorter"):
        gain_of_rounds(rounds(1, 1), rounds(1))
    with pytest.raises(ValueError, match="at least 2"):
        gain_of_rounds(rounds(1), rounds(1))


def test_rounds_that_differ_by_layout_are_no_gain() -> None:
    """A tenth by where memory came to lie, for as long as a process lives:
    one round with many pairs is sure of a gain, five are not."""
    rng, one, five = np.random.default_rng(2), 0, 0

    def measured() -> Gain:
        layout = float(np.exp(rng.normal(0, 0.1)))
        return paired_gain(np.exp(rng.normal(0, 0.01, 20)), np.exp(rng.normal(0, 0.01, 20)) / layout, rng, 200)

    for _ in range(100):
        one += measured().gains
        five += gain_of_rounds([measured() for _ in range(5)], [measured() for _ in range(5)]).gains
    assert one >= 20
    assert five <= 5


def test_a_tools_rate_begins_at_its_prior() -> None:
    assert hit_rate(0, 0) == pytest.approx(0.2)
    assert hit_rate(5, 5) == pytest.approx(0.6)


def test_a_result_is_compared_against_the_size_of_its_terms() -> None:
    want = np.array([1.0, 1e-3, -2.0])
    scale = np.array([10.0, 10.0, 10.0])
    assert disagreement(want.astype(np.float32), want, scale, 1e-5) == ""
    assert "x[1]" in disagreement(np.array([1, 2e-3, -2], np.float32), want, scale, 1e-5, "x")
    nan = np.array([np.nan, 1e-3, -2.0])
    assert disagreement(nan.astype(np.float32), nan, scale, 1e-5) == ""
    assert disagreement(nan.astype(np.float32), want, scale, 1e-5)
    assert disagreement(np.array([np.inf, 1e-3, -2], np.float32), want, scale, 1e-5)
    assert "2 of 3" in disagreement(np.array([1, 2, 3], np.int32), np.array([1.0, 3.0, 4.0]), np.ones(3), 1e-5)


SAXPY = """
// ramify: n = 100, 7; a = 2.5; inout y[n]; flops 2*n; bytes 12*n; knob T = 1, 2
void saxpy(int n, float a, const float *restrict x, float *y) { for (int i = 0; i < n; i++) y[i] += a * x[i]; }
"""


def test_a_kernel_is_read_from_its_signature_and_its_note() -> None:
    task = from_c(SAXPY)
    assert task.order == ("n", "a", "x", "y")
    assert [(one.name, one.type, one.role) for one in task.arrays] == [("x", "f", 1), ("y", "f", 3)]
    assert task.work() == (200.0, 1200.0)
    assert task.knobs == {"T": ("1", "2")}
    assert [name for name, _ in task.shapes()] == ["main", "shape 2"]
    draws = task.input_sets(3)
    assert {one.name for one in draws} >= {"main", "shape 2", "zeros", "denormals", "large", "equal"}
    assert len(draws[0].inputs["x"]) == 100 + 16 * 1023
    assert not np.array_equal(draws[0].inputs["x"], task.input_sets(4)[0].inputs["x"])
    other = from_c("float dot(long n, const float *x, const float *y)\n{ return 0; }\n// ramify: n = 1000")
    assert [one.name for one in other.arrays] == ["x", "y", "result"]
    assert [name for name, _ in other.shapes()] == ["main", "odd", "one"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("int x;", "no function"),
        ("void f(int n, struct s *x) {}", "kernel.c:1: the argument 'struct s"),
        ("void f(int n, float *x) {}", "lacks its values"),
        ("// ramify: n = 5; m = 3\nvoid f(int n, float *x) {}", "'m' is not an argument"),
        ("// ramify: n = 5; x[k]\nvoid f(int n, float *x) {}", "'k' is not a scalar"),
        ("// ramify: n = 5; hurry\nvoid f(int n, float *x) {}", "kernel.c:1: the clause 'hurry'"),
        ("// ramify: n = 5\nvoid f(int n, const float *x) {}", "has no output"),
        ("// ramify: n = 5; knob A = ;\nvoid f(int n, float *x) {}", "not a knob"),
        ("// ramify: n = __import__('os')\nvoid f(int n, float *x) {}", "is not a number"),
        ("void f(int n) {}\nvoid g(int n) {}", "name one"),
    ],
)
def test_what_does_not_fit_is_one_sentence(source: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        from_c(source)


def test_a_python_kernel_is_parsed_and_never_imported() -> None:
    task = from_python("import numba\nraise SystemExit\n# ramify: n = 10; x[n]; out y[n, 2]\ndef f(n, x, y):\n    pass\n")
    assert (task.kind, task.symbol) == ("numba", "f")
    assert task.counts(task.main) == {"x": 10, "y": 20}
    with pytest.raises(UserError, match="not Python"):
        from_python("def (")


def test_expressions_are_arithmetic_only() -> None:
    assert evaluate("2*n**2 // 3 - -1", {"n": 3}) == 7
    for text in ("n.real", "(1).__class__", "f(1)", "9**99**9", "1/0"):
        with pytest.raises(UserError):
            evaluate(text, {"n": 3})


@given(st.integers(0, 2**30), st.integers(0, 10**6), st.integers(1, 4096))
def test_windows_are_whole_cache_lines_inside_the_pool(seed: int, call: int, windows: int) -> None:
    assert window_of(seed, call, windows) in range(0, 64 * windows, 64)


@given(st.integers(0, 2**30), st.integers(0, 2**20))
def test_as_many_calls_as_there_are_windows_have_inputs_of_their_own(seed: int, first: int) -> None:
    assert len({window_of(seed, first + i, 256) for i in range(256)}) == 256


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([1, 4, 8]), st.integers(1, 2**60))
def test_a_turn_reorders_a_pool_as_the_supervisor_does(n: int, item: int, turn: int) -> None:
    tree = ast.parse((INSIDE / "supervisor.py").read_text(encoding="utf-8"))
    (function,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "turned")
    there: dict[str, Any] = {"hashlib": hashlib}
    exec(ast.unparse(function), there)
    pool = b"".join(i.to_bytes(2, "little") * (item // 2) if item > 1 else bytes([i % 256]) for i in range(n))
    made = turned(pool, item, turn)
    assert made == there["turned"](pool, item, turn)
    assert turned(pool, item, 0) == there["turned"](pool, item, 0) == pool
    pieces = lambda data: sorted(data[i : i + item] for i in range(0, len(data), item))  # noqa: E731
    assert pieces(made) == pieces(pool)
    if n >= 128 and item > 1:
        assert made != turned(pool, item, turn + 1)


@given(st.data())
def test_a_damaged_file_is_a_task_or_a_sentence(data: st.DataObject) -> None:
    """Bytes cut out of, and put into, a kernel's source: its readers return, or say in one sentence what is wrong."""
    at, size = data.draw(st.integers(0, len(SAXPY))), data.draw(st.integers(0, 40))
    text = SAXPY[:at] + data.draw(st.text(max_size=12)) + SAXPY[at + size :]
    for read in (from_c, from_python):
        with contextlib.suppress(UserError):
            read(text).shapes()
    assert not is_problem(text)
    assert isinstance(loops(text, "saxpy"), list)
