"""Every closed form, and that the solve, the recursion, the recurrence and simulation agree.
Numbers: section 8 of the specification."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.maze_recovery.algorithm import (
    REGIMES,
    exit_steps,
    gradient,
    growth,
    search_steps,
    slope,
    train_exact,
)  # fmt: skip
from ramify.methods.maze_recovery.star import NAMED, Maze, TabularPolicy


def closed_form(maze: Maze, policy: str) -> Fraction:
    """The same expected steps of a named policy by its closed form or recurrence: an independent way to the number."""
    W, K, L = maze.W, maze.K, maze.L
    if policy == "optimal":
        return Fraction(4 * W * K + 2 * (W - K))
    if policy == "golden_sft":
        return (W - 1) * (2 * K + 1 + exit_steps(K, L)) + 2 * K + 2
    m = (W - 1) * (K * (L + 1) + 1)
    edges = sum(2 * (m + i * (L + 1)) + 1 for i in range(K + 1))
    parallel = sum(2 * (m + j * (L + 1) + 1) + L for j in range(K))
    return 1 + edges + Fraction(parallel, L)


sizes = st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 4))


@pytest.mark.parametrize(
    ("size", "base", "optimal", "golden"),
    [
        ((2, 1, 2), 31, 10, 21),
        ((3, 2, 2), 141, 26, 175),
        ((3, 3, 3), 326, 36, 1310.37037),
        ((4, 3, 3), 456, 50, 1961.55556),
        ((15, 15, 5), 50142, 900, 4.318448e14),
    ],
)
def test_expected_steps(size: tuple[int, int, int], base: float, optimal: float, golden: float) -> None:
    maze = Maze(*size)
    assert maze.exact_steps("base") == base
    assert maze.exact_steps("optimal") == optimal
    assert maze.expected_steps("golden_sft") == pytest.approx(golden, rel=2e-7)


@given(sizes)
@settings(max_examples=30, deadline=None)
def test_recursion_and_closed_forms_are_one_number(size: tuple[int, int, int]) -> None:
    maze = Maze(*size)
    for policy in NAMED:
        assert maze.exact_steps(policy) == closed_form(maze, policy)


def random_policy(maze: Maze, seed: int, per_branch: bool = False) -> TabularPolicy:
    shape = (maze.W, 4, maze.K) if per_branch else (4, maze.K)
    return TabularPolicy(generator(seed, "gaps").normal(0, 1, shape), maze.L)


@given(sizes, st.integers(0, 99), st.booleans())
@settings(max_examples=20, deadline=None)
def test_floats_keep_their_digits(size: tuple[int, int, int], seed: int, per_branch: bool) -> None:
    maze = Maze(*size)
    policy = random_policy(maze, seed, per_branch)
    assert maze.expected_steps(policy) == pytest.approx(float(maze.exact_steps(policy)), rel=1e-11)
    assert maze.log_steps(policy) == pytest.approx(math.log(maze.exact_steps(policy)), rel=1e-12)


@given(sizes, st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_solve_agrees_with_the_recursion(size: tuple[int, int, int], seed: int) -> None:
    maze = Maze(*size)
    policy = random_policy(maze, seed)
    h, occ, fork = maze.solve(policy)
    assert 1 + fork == pytest.approx(float(maze.exact_steps(policy)), rel=1e-9)
    assert h[0] == fork
    assert (occ >= -1e-9).all()
    if maze.W == 1:
        assert np.abs(occ[1]).max(initial=0) < 1e-9


def test_a_dense_solve_loses_the_golden_limit_and_the_recursion_does_not() -> None:
    """Trap: at 1e14 steps the matrix is singular to float64."""
    maze = Maze(15, 15, 5)
    gaps = np.zeros((4, 15))
    gaps[[0, 2]] = 60.0  # saturated: a = c = 1
    policy = TabularPolicy(gaps, 5)
    exact = float(maze.exact_steps("golden_sft"))
    assert maze.expected_steps(policy) == pytest.approx(exact, rel=1e-12)
    assert abs(maze.solve(policy)[2] / exact - 1) > 1e-4


def test_exit_times() -> None:
    assert [float(exit_steps(k, 2)) for k in (0, 1, 2)] == [1, 14, 79.5]
    assert [round(float(exit_steps(k, 5)), 3) for k in (3, 5)] == [1580.056, 82376.783]
    assert float(exit_steps(7, 5)) == pytest.approx(4271082.47, abs=0.005)
    for L, double in ((5, 51.85), (3, 28.46), (2, 20.28)):
        wide = float(exit_steps(9, L) / exit_steps(7, L))
        assert wide == pytest.approx(double, rel=0.01)
        assert float(exit_steps(42, L) / exit_steps(40, L)) == pytest.approx(((L + 1) ** 2 / L) ** 2, rel=1e-9)
    assert growth(Maze(2, 3, 1)) == 4


def test_growth_in_the_number_of_diamonds() -> None:
    mazes = [Maze(5, k, 3) for k in range(4, 9)]
    assert slope(range(4, 9), [m.log_steps("golden_sft") for m in mazes]) == pytest.approx(math.log(16 / 3), abs=0.01)
    assert slope(np.log(range(4, 9)), [m.log_steps("base") for m in mazes]) < 2
    assert Maze(3, 900, 5).expected_steps("golden_sft") == math.inf
    assert Maze(3, 900, 5).log_steps("golden_sft") == pytest.approx(900 * math.log(7.2), rel=0.01)


@given(st.integers(0, 999))
@settings(max_examples=8, deadline=None)
def test_gradient_is_the_derivative(seed: int) -> None:
    maze = Maze(3, 3, 3)
    policy = random_policy(maze, seed)
    found, steps = gradient(maze, policy)
    assert steps == pytest.approx(maze.expected_steps(policy), rel=1e-10)
    for f, j in np.ndindex(4, 3):
        nudge = np.zeros((4, 3))
        nudge[f, j] = 1e-4
        ends = [maze.expected_steps(TabularPolicy(policy.gaps + sign * nudge, 3)) for sign in (1, -1)]
        assert found[f, j] == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-5, abs=1e-5)


def test_at_the_base_the_gradient_is_largest_on_hard_decisions() -> None:
    maze = Maze(15, 15, 5)
    found, _ = gradient(maze, maze.base())
    assert (found > 0).all()
    assert np.round(found.max(axis=1), 1).tolist() == [2348.7, 368.7, 469.4, 2075.0]


def test_the_sign_run_has_a_closed_form() -> None:
    """While every sign is positive D = eta t; the signs are positive throughout, or the gaps would differ from it."""
    policy, curve = train_exact(Maze(15, 15, 5), "rlvr", steps=1200, lr=0.01)
    assert [round(curve[n], 2) for n in (0, 100, 300, 600, 1200)] == [50142, 20239.88, 4177.95, 1078.01, 900.44]
    assert policy.gaps == pytest.approx(np.full((4, 15), 12.0))
    found = policy.families()
    assert [round(float(found[f].min()), 7) for f in "abcd"] == [0.9999693, 0.9999988, 0.9999988, 0.9999693]
    early = TabularPolicy(np.full((4, 1), 1.0), 5).families()
    assert [round(float(early[f][0]), 5) for f in "abcd"] == [0.35219, 0.93147, 0.93147, 0.35219]


def test_golden_sft_freezes_the_ways_back() -> None:
    maze = Maze(3, 3, 3)
    start = random_policy(maze, 1)
    policy, _ = train_exact(maze, "sft", steps=500, lr=5.0, start=start)
    assert (policy.gaps[[1, 3]] == start.gaps[[1, 3]]).all()
    assert (policy.gaps[[0, 2]] > start.gaps[[0, 2]]).all()
    decayed, _ = train_exact(maze, "sft", steps=500, lr=5.0, start=start, weight_decay=1e-4)
    assert (decayed.gaps[[1, 3]] != start.gaps[[1, 3]]).all()
    _, fresh = train_exact(maze, "sft", steps=4000, lr=50.0)
    assert fresh[-1] == pytest.approx(1310.37, rel=0.01)
    assert fresh[0] == pytest.approx(326)


@pytest.mark.slow
def test_distillation_inherits_recoveries_unless_their_loops_are_cut() -> None:
    maze = Maze(3, 3, 3)
    teacher, _ = train_exact(maze, "rlvr", steps=400, lr=0.01)
    steps = maze.expected_steps(teacher)
    raw, _ = train_exact(maze, "distill", steps=4000, lr=20.0, teacher=teacher)
    assert maze.expected_steps(raw) == pytest.approx(steps, rel=0.02)
    cut, _ = train_exact(maze, "distill-erased", steps=4000, lr=20.0, teacher=teacher)
    assert maze.expected_steps(cut) > 3 * steps


def test_one_branch_leaves_nothing_to_recover_from() -> None:
    maze = Maze(1, 5, 4)
    assert maze.exact_steps("golden_sft") == maze.exact_steps("optimal") == 12
    assert Maze(1, 3, 2).exact_steps("base") == closed_form(Maze(1, 3, 2), "base")
    assert Maze(4, 0, 3).exact_steps("golden_sft") == Maze(4, 0, 3).exact_steps("optimal") == 8


def test_ordinary_edges() -> None:
    assert set(Maze(2, 2, 1).named("base")) == {Fraction(1, 2)}
    assert TabularPolicy(np.zeros((4, 2)), 1).probabilities == pytest.approx(0.5)


def test_search_wrapper() -> None:
    assert [search_steps(Maze(3, 3, 3), p) for p in ("golden_sft", "optimal")] == [33, 23]
    assert [search_steps(Maze(15, 15, 5), p) for p in ("golden_sft", "optimal")] == [1019, 473]


@pytest.mark.parametrize("row", [(0, 0.5, 0.5, 0.5), (0.5, 0.5, 0, 0.5), (0.5, 0, 0.5, 0.5), (0.5, 0.5, 0.5, 0), (0, 0, 0, 0)])
def test_a_policy_that_may_never_arrive_takes_forever(row: tuple[float, ...]) -> None:
    maze = Maze(3, 2, 2)
    fine = (0.5, 0.5, 0.5, 0.5)
    assert maze.expected_steps([row, fine]) == maze.log_steps([fine, row]) == math.inf
    assert math.isfinite(maze.expected_steps([fine, fine]))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Maze(0, 1, 1), "W of at least 1, not 0"),
        (lambda: Maze(1, -1, 1), "K of at least 0"),
        (lambda: Maze(1, 1, 0), "L of at least 1"),
        (lambda: Maze(2, 2, 2).expected_steps("golden"), "did you mean 'golden_sft'"),
        (lambda: Maze(2, 2, 2).exact_steps("bas"), "did you mean 'base'"),
        (lambda: search_steps(Maze(2, 2, 2), "base"), "not for 'base'"),
        (lambda: Maze(2, 2, 2).expected_steps([(1, 1, 1, 1)]), "2 rows of four probabilities"),
        (lambda: Maze(2, 1, 2).expected_steps([(1, 1, 1, 2)]), "1 rows of four probabilities"),
        (lambda: Maze(2, 2, 2).expected_steps(TabularPolicy(np.zeros((4, 3)), 2)), r"shape \(4, 2\) or \(2, 4, 2\), not \(4, "
                                                                                   r"3\)"),
        (lambda: train_exact(Maze(2, 2, 2), "ppo"), "unknown regime 'ppo'"),
        (lambda: train_exact(Maze(2, 2, 2), "distill"), "needs a teacher"),
        (lambda: train_exact(Maze(2, 2, 2), start=TabularPolicy(np.zeros((2, 4, 2)), 2)), r"shape \(4, 2\)"),
    ],
)  # fmt: skip
def test_bad_input(call, says: str) -> None:
    with pytest.raises(UserError, match=says):
        call()


@given(st.sampled_from(REGIMES[:2]), st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_rlvr_never_gets_worse_and_training_repeats(regime: str, seed: int) -> None:
    maze = Maze(2, 2, 3)
    start = random_policy(maze, seed)
    policy, curve = train_exact(maze, regime, steps=30, lr=0.01, start=start)
    assert (policy.gaps == train_exact(maze, regime, steps=30, lr=0.01, start=start)[0].gaps).all()
    if regime == "rlvr":
        assert (np.diff(curve) <= 1e-9).all()


@pytest.mark.parametrize(("family", "W"), [("a", 2), ("d", 2), ("b", 2), ("c", 1)])
def test_a_policy_that_never_gets_there(family: str, W: int):
    """A desired probability of 0: infinity where steps are asked for, one sentence where a gradient is."""
    maze = Maze(W, 2, 3)
    gaps = np.zeros((4, 2))
    gaps["abcd".index(family)] = -800.0  # its probability is below the least float
    policy = TabularPolicy(gaps, 3)
    assert math.isinf(maze.expected_steps(policy))
    with pytest.raises(UserError, match="may never reach the target"):
        train_exact(maze, "rlvr", steps=1, start=policy)
    assert math.isinf(train_exact(maze, "sft", steps=1, start=policy)[1][0])
