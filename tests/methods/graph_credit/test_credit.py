"""Section 8 of the method: the worked case to the printed digits, invariants, traps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.graph_credit.algorithm import RULES, CreditConfig, credit

WORKED = [(1, "AB", 10.0), (2, "AB", 0.0), (3, "ADB", 10.0), (4, "AD", 0.0)]


def rows(attempts: list[tuple[int, str, float]], task: str = "t") -> dict[str, list]:
    table: dict[str, list] = {"task": [], "attempt": [], "step": [], "key": [], "reward": []}
    for name, path, reward in attempts:
        for j, key in enumerate(path):
            for column, value in zip(table, (task, name, j, key, reward if j == len(path) - 1 else 0.0), strict=True):
                table[column].append(value)
    return table


def run(table: dict[str, list], nodes=None, truncated=None, valid=None, **options) -> dict[str, np.ndarray]:
    config = CreditConfig(**{"success_reward": 10.0} | options)
    return credit(*table.values(), config=config, nodes=nodes, truncated=truncated, valid=valid)


@st.composite
def graphs(draw: st.SampleFn) -> list[tuple[int, str, float]]:
    """A few attempts over few states that all start in A; the start is visited once."""
    n = draw(st.integers(2, 6))
    paths = [draw(st.text("BCDE", min_size=0, max_size=7)) for _ in range(n)]
    rewards = [draw(st.sampled_from([0.0, 1.0, 4.0, 10.0])) for _ in range(n)]
    return [(i, "A" + path, reward) for i, (path, reward) in enumerate(zip(paths, rewards, strict=True))]


def test_worked_case():
    got = run(rows(WORKED))
    at = dict(zip("ABD", got["V"][[0, 1, 5]], strict=True))
    assert at == pytest.approx({"A": 4.3996875, "B": 6.3333333, "D": 4.5125}, abs=1e-7)
    printed = {
        "A_ep": [0.866025, 0.866025, -0.866025, -0.866025, 0.866025, 0.866025, 0.866025, -0.866025, -0.866025],
        "delta": [1.933646, 3.666667, 1.933646, -6.333333, 0.112813, 1.820833, 3.666667, 0.112813, -4.5125],
    }
    for name, values in printed.items():
        assert got[name] == pytest.approx(values, abs=1e-6)
    four = {
        "A_nc": [0.8660, 0.5774, 0.8660, -1.1547, -0.8660, 0.7071, 0.5774, -0.8660, -0.7071],
        "A_ec": [0.4774, 0.9737, 0.4774, -1.8902, -0.0441, 0.4451, 0.9737, -0.0441, -1.3687],
        "A": [2.2094, 2.4170, 0.4774, -3.9109, -0.0441, 2.0182, 2.4170, -1.7762, -2.9419],
    }
    for name, values in four.items():
        assert got[name] == pytest.approx(values, abs=5.1e-5)
    assert got["next_group_id"].tolist() == [1, -1, 1, -1, 2, 1, -1, 2, -1]
    assert got["group_size"].tolist() == [4, 3, 4, 3, 4, 2, 3, 4, 2]


def test_step_weighted_episode_statistics():
    got = run(rows(WORKED), weight="step")
    assert got["A_ep"][0] == pytest.approx((10 - 5.5556) / 5.2705, abs=1e-4)
    assert run(rows(WORKED), weight="step", norm="mean")["A_ep"][2] == pytest.approx(-5.5556, abs=1e-4)


def test_norm_without_deviation_and_population_deviation():
    assert run(rows(WORKED), norm="mean")["A_ep"][0] == 5.0
    assert run(rows(WORKED), ddof=0)["A_ep"][0] == pytest.approx(1.0, abs=1e-6)


def test_zero_weight_is_grpo_bit_for_bit():
    grpo = run(rows(WORKED), rule="grpo")["A"]
    for options in ({"w": 0.0}, {"w": 0.0, "rule": "gigpo"}):
        assert run(rows(WORKED), **options)["A"].tobytes() == grpo.tobytes()


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_delta_redistributes_the_unnormalised_advantage(attempts):
    got = run(rows(attempts), gamma=1.0)
    rewards = np.array([reward for _, _, reward in attempts])
    sums = np.bincount(got["attempt_id"], got["delta"])
    np.testing.assert_allclose(sums, rewards - rewards.mean(), atol=1e-9)


@given(graphs(), st.sampled_from(["mean", "bellman", "distance", "max_decay", "single", "loo"]), st.sampled_from([0.9, 1.0]))
@settings(max_examples=40, deadline=None)
def test_deltas_telescope_for_every_value(attempts, value, gamma):
    got = run(rows(attempts), value=value, gamma=gamma)
    last = got["next_group_id"] == -1
    first = np.append(True, last[:-1])
    sums = np.bincount(got["attempt_id"], got["delta"])
    np.testing.assert_allclose(sums, got["V_next"][last] - got["V"][first], atol=1e-9)
    assert np.isfinite(got["A"]).all()


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_parts_are_centred(attempts):
    got = run(rows(attempts))
    assert got["A_ec"].mean() == pytest.approx(0, abs=1e-6)
    if np.ptp(got["delta"]) > 1e-3 and got["A"].any():
        assert got["A_ec"].std(ddof=1) == pytest.approx(1, abs=1e-2)
    sums = np.bincount(got["group_id"], got["A_nc"])
    np.testing.assert_allclose(sums, 0, atol=1e-6)
    assert not got["A_nc"][got["group_size"] == 1].any()


def test_singletons_and_constant_rewards():
    alone = [(1, "AB", 10.0), (2, "CD", 0.0), (3, "EF", 10.0)]
    got = run(rows(alone), gamma=1.0)
    assert not any(got[name].any() for name in ("delta", "A_nc", "A_ec"))
    assert (got["A"] == got["A_ep"]).all()
    same = [(i, path, 10.0) for i, path, _ in WORKED]
    assert not run(rows(same), gamma=1.0)["A"].any()
    assert not run(rows(same))["A"].any()
    late = run(rows(same), zero_if_constant=False)
    assert not late["A_ep"].any()
    assert late["A_ec"][6] > late["A_ec"][4]  # a preference for late steps, whatever was done
    recency = run(rows(alone))
    assert recency["A_ec"].any()  # recency weighting of gamma < 1, not graph credit


def test_invariances():
    table = rows(WORKED)
    base = run(table)["A"]
    order = np.random.default_rng(0).permutation(len(base))
    shuffled = {name: [column[i] for i in order] for name, column in table.items()}
    np.testing.assert_allclose(run(shuffled)["A"], base[order], atol=1e-12)
    renamed = table | {
        "key": [{"state": [key, None]} for key in table["key"]],
        "attempt": [f"x{9 - a}" for a in table["attempt"]],
    }
    np.testing.assert_allclose(run(renamed)["A"], base, atol=1e-12)
    scaled = table | {"reward": [3.0 * r for r in table["reward"]]}
    np.testing.assert_allclose(run(scaled, invalid_penalty=0.0)["A"], base, atol=1e-5)
    shifted = rows([(i, path, r + 7) for i, path, r in WORKED])
    np.testing.assert_allclose(run(shifted, gamma=1.0)["A"], run(table, gamma=1.0)["A"], atol=1e-9)
    twice = rows(WORKED + [(i + 10, path, r) for i, path, r in WORKED])
    np.testing.assert_allclose(run(twice)["V"][: len(base)], run(table)["V"], atol=1e-12)


def test_tasks_do_not_mix():
    one, other = rows(WORKED), rows([(1, "AB", 3.0), (2, "AD", 0.0)], task="u")
    both = {name: one[name] + other[name] for name in one}
    np.testing.assert_allclose(run(both)["A"][: len(one["key"])], run(one)["A"], atol=1e-12)
    assert len(set(run(both)["group_id"])) == 6


def test_self_loop_and_cycle():
    got = run(rows([(1, "AAB", 10.0), (2, "ABA", 0.0)]))
    assert got["delta"][0] == 0.0
    assert np.isfinite(got["A"]).all()


def test_uniform_next_values_and_single_visits_are_exactly_zero():
    got = run(rows([(1, "AB", 10.0), (2, "AB", 10.0), (3, "AC", 0.0)]))
    assert got["A_nc"][1] == 0.0 == got["A_nc"][3]  # both end in the same success
    assert got["A_nc"][5] == 0.0  # a single visit


def test_gigpo_is_the_node_term_on_own_returns():
    own = run(rows(WORKED), rule="ep+nc", value="single")
    assert (run(rows(WORKED), rule="gigpo")["A"] == own["A"]).all()
    returns = np.array([9.5, 0.0, 9.025, 0.0])  # gamma^(T-j) R at the first step, all in A
    expected = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(own["A_nc"][[0, 2, 4, 7]], expected)


def test_rules_add_the_terms_they_name():
    for rule, terms in RULES.items():
        got = run(rows(WORKED), rule=rule, w=0.7)
        np.testing.assert_allclose(got["A"], got["A_ep"] + 0.7 * sum((got[f"A_{term}"] for term in terms), np.zeros(9)))


def test_value_options():
    table = rows(WORKED)
    a, b, d = 0, 1, 5
    bellman = run(table, value="bellman")["V"]
    at_b = 0.95 * 20 / 3
    at_d = 0.95 * at_b / 2
    assert bellman[[b, d, a]] == pytest.approx([at_b, at_d, 0.95 * (at_b + at_d) / 2])
    distance = run(table, value="distance")
    assert distance["V"][[a, b, d]].tolist() == [-2, -1, -2]
    assert distance["V_next"][[1, 3, 8]].tolist() == [0, -3, -3]
    assert run(table, value="max_decay")["V"][[a, b, d]] == pytest.approx([9.025, 9.5, 9.025])
    loo = run(table, value="loo")["V"]
    assert loo[b] == pytest.approx((0 + 9.5) / 2)  # attempts 2 and 3
    assert loo[d] == 0.0  # attempt 4 only
    lost = run(rows([(1, "AB", 0.0), (2, "AC", 0.0)]), value="distance", zero_if_constant=False)
    assert not lost["A"].any()


def test_graded_rewards_are_values_of_terminals():
    got = run(rows([(1, "AB", 6.0), (2, "AB", 0.0)]))
    assert got["V_next"].tolist()[1::2] == [6.0, 0.0]


def test_invalid_actions_lower_the_node_term_only():
    valid = [True] * 9
    valid[0] = False
    fine, bad = run(rows(WORKED)), run(rows(WORKED), valid=valid)
    assert (bad["delta"] == fine["delta"]).all()
    following = np.array([6.333333 - 0.1, 6.333333, 4.5125, 4.5125])
    assert bad["A_nc"][0] == pytest.approx((following[0] - following.mean()) / following.std(ddof=1), abs=1e-5)
    assert (run(rows(WORKED), valid=valid, invalid_penalty=0.0)["A"] == fine["A"]).all()
    assert (run(rows(WORKED), valid=valid, rule="gigpo")["A"] == run(rows(WORKED), rule="gigpo")["A"]).all()


def test_truncation_policies():
    cut = [False] * 8 + [True]
    fail, boot, drop = (run(rows(WORKED), truncated=cut, truncation=how) for how in ("fail", "bootstrap", "drop"))
    assert (fail["A"] == run(rows(WORKED))["A"]).all()
    assert boot["V_next"][8] == boot["V"][8] == pytest.approx(0.95**2 * 10)  # D is valued by attempt 3 alone
    assert boot["delta"][8] == 0.0
    assert boot["reward"][8] == pytest.approx(9.025)
    assert not drop["A"][7:].any()
    assert np.isnan(drop["V"][7:]).all()
    assert (drop["group_id"][7:] == -1).all()
    np.testing.assert_allclose(drop["A"][:7], run(rows(WORKED[:3]))["A"], atol=1e-12)
    unknown = run(rows([(1, "AB", 10.0), (2, "AC", 0.0)]), truncated=[False, False, False, True], truncation="bootstrap")
    assert unknown["reward"].tolist() == [10.0, 10.0, 0.0, 0.0]  # nobody else was in C: the recorded reward stays
    everything = run(rows(WORKED), truncated=[True] * 9, truncation="drop")
    assert not everything["A"].any()


def test_shared_steps_count_once_or_once_per_leaf():
    tree = rows([(1, "AB", 10.0), (2, "AB", 10.0), (3, "AB", 10.0), (4, "AC", 0.0)])
    nodes = ["a", "b1", "a", "b2", "a", "b3", "d", "c"]  # attempts 1 to 3 branch after one first step
    leaf, edge = (run(tree, nodes=nodes, gamma=1.0, visits=visits) for visits in ("leaf", "edge"))
    assert leaf["V"][0] == 7.5
    assert edge["V"][0] == pytest.approx(5.0)
    assert edge["group_size"].tolist() == [2, 3, 2, 3, 2, 3, 2, 1]
    assert edge["A_nc"][[0, 6]] == pytest.approx([0.707107, -0.707107], abs=1e-6)
    flat = run(tree, gamma=1.0)
    assert (run(tree, nodes=[None] * 8, gamma=1.0)["A"] == flat["A"]).all()
    assert (leaf["A"] == flat["A"]).all()


@given(st.integers(1, 5), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_unequal_expansion_does_not_move_edge_values(copies, more):
    """However often one branch is expanded again to the same end, the value of the fork stays."""
    attempts, nodes = [(0, "AC", 0.0)], ["other", "c"]
    for i in range(copies + more):
        attempts.append((i + 1, "AB", 10.0))
        nodes += ["one", f"b{i}"]
    assert run(rows(attempts), nodes=nodes, gamma=1.0, visits="edge")["V"][0] == pytest.approx(5.0)


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_integer_arrays_take_the_short_cut_to_the_same_credit(attempts, random):
    table = rows(attempts) | {"task": [0] * sum(len(path) for _, path, _ in attempts)}
    order = list(range(len(table["step"])))
    random.shuffle(order)
    table = {name: [column[i] for i in order] for name, column in table.items()}
    numbers = {name: np.array([ord(k) for k in c] if name == "key" else c) for name, c in table.items()}
    np.testing.assert_allclose(run(numbers)["A"], run(table)["A"], atol=1e-9)


def test_integer_arrays_are_checked_alike():
    zero = np.zeros(2, dtype=int)
    with pytest.raises(UserError, match="attempt 7 of task 0 has step 0 twice"):
        credit(zero, zero + 7, zero, zero, np.zeros(2))
    with pytest.raises(UserError, match="misses step"):
        credit(zero, zero, np.array([0, 2]), zero, np.zeros(2))
    with pytest.raises(UserError, match="has 1 entry for 2"):
        credit(zero, zero, zero, zero[:1], np.zeros(2))


def test_one_attempt_and_keys_of_any_kind():
    assert not run(rows([(1, "ABA", 10.0)]))["A"].any()
    table = rows([(1, "ABC", 10.0), (2, "ABC", 0.0)])
    table["key"] = [None, {"b": 1, "a": [2]}, np.array([1, 2]), None, {"a": [2], "b": 1}, [1, 2]]
    assert run(table)["group_size"].tolist() == [2] * 6
    table["key"] = [1, True, "1", 1.5, "true", None]
    assert run(table)["group_size"].tolist() == [1] * 6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"reward": [0.0, float("nan"), 0.0, 0.0]}, "attempt 1, step 1: the reward is nan"),
        ({"reward": [0.0, "much", 0.0, 0.0]}, "row 1: the reward 'much' is not a number"),
        ({"step": [0, 0, 0, 1]}, "attempt 1 of task 't' has step 0 twice"),
        ({"step": [0, 2, 0, 1]}, "attempt 1 of task 't' misses step 1"),
        ({"reward": [0.0]}, "rewards has 1 entry for 4 steps"),
        ({"key": ["A", {1, 2, object()}, "A", "B"]}, "has no canonical key"),
    ],
)
def test_bad_input(change, sentence):
    with pytest.raises(UserError, match=sentence):
        run(rows([(1, "AB", 1.0), (2, "AB", 0.0)]) | change)


def test_no_steps_and_bad_options():
    with pytest.raises(UserError, match="no steps"):
        credit([], [], [], [], [])
    with pytest.raises(ValueError, match="has no meaning"):
        CreditConfig(rule="gigpo", value="bellman")
    with pytest.raises(ValueError, match="gamma"):
        CreditConfig(gamma=0.0)
