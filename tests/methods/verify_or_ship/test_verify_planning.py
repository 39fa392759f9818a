"""The exact planner against closed forms, golden numbers of two implementations, and what must hold of every value function."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.methods.verify_or_ship.algorithm import (
    FIRST,
    REJECTED,
    SHIP,
    STOP,
    VERIFY,
    ControlConfig,
    ControlState,
    Kernel,
    Likelihood,
    Plan,
    Tables,
    Tracker,
    bounded,
    computable_lines,
    fixed_rules,
    gate_interval,
    greedy,
    worth,
)

MIXED = {"S": (0.99, 0.90), "T": (0.90, 0.35), "L": (0.75, 0.35)}
COSTS = ("S=1", "T=2", "L=5")


def tables(prior: float, critics: dict[str, tuple[float, float]], fix: float, broken: float, **more: Any) -> Tables:
    made = {name: Likelihood.of(*own) for name, own in critics.items()}
    return Tables(prior=prior, critics=made, kernel=Kernel(fix=fix, broken=broken), **more)


def golden(prior: float, critics: dict[str, tuple[float, float]] = MIXED) -> Tables:
    return tables(prior, critics, 0.6 * prior, 0.08)


def test_updates_of_the_belief() -> None:
    strong, weak = Likelihood.of(0.9, 0.2), Likelihood.of(0.7, 0.4)
    assert strong.update(0.5, 1) == pytest.approx(9 / 11)
    assert strong.update(0.5, 0) == pytest.approx(1 / 9)
    assert weak.update(strong.update(0.37, 1), 1) == pytest.approx(37 / 45)
    assert strong.update(0.3, None) == 0.3  # could not run
    assert Likelihood.of(1.0, 1.0).update(0.3, 0) == 0.3  # impossible


def test_one_critic_and_one_candidate() -> None:
    known, config = tables(0.5, {"c": (0.9, 0.2)}, 0.5, 0.05), ControlConfig(horizon=1, costs=("c=2",))
    plan = Plan(known, config)
    found = plan.envelopes[0, FIRST, 1, False]
    assert np.allclose(found.right[:, 0], [0, 61, 70])
    assert np.allclose(found.wrong[:, 0], [0, -8, -30])
    assert np.allclose(found.breaks, [8 / 69, 22 / 31])
    assert gate_interval(known.critics["c"], 2, 100, 30) == pytest.approx((8 / 69, 22 / 31))
    for belief, value in {0.1: 0.0, 0.3: 12.7, 0.5: 26.5, 0.9: 60.0, 1.0: 70.0}.items():
        assert found.value(belief) == pytest.approx(value)
    assert [action for _, _, action in plan.intervals(ControlState(0.5, unused=frozenset("c")))] == [STOP, "c", VERIFY]
    assert computable_lines(known, config).verify_from == 0.3


@pytest.mark.parametrize(
    ("prior", "price", "value", "gate"),
    [(0.4, 30, 22.742552, 19.640228), (0.2, 30, 4.591200, -3.497037), (0.6, 60, 11.977439, None), (0.4, 60, 3.791200, -7.277179),
     (0.8, 5, 79.021500, None)],
)  # fmt: skip
def test_golden_values_of_three_critics(prior: float, price: float, value: float, gate: float | None) -> None:
    known, config = golden(prior), ControlConfig(c_ver=price, costs=COSTS)
    assert Plan(known, config).value == pytest.approx(value, abs=1e-6)
    if gate is not None:
        assert worth(fixed_rules(known, config)["gate(T)"], known, config) == pytest.approx(gate, abs=1e-6)


def test_a_near_oracle_is_all_that_is_needed() -> None:
    known, config = golden(0.4, {"S": (0.99, 0.95), "T": (0.99, 0.02), "L": (0.70, 0.40)}), ControlConfig(costs=COSTS)
    assert Plan(known, config).value == pytest.approx(35.085870, abs=1e-6)
    assert worth(fixed_rules(known, config)["gate(T)"], known, config) == pytest.approx(35.085870, abs=1e-6)
    assert worth(greedy(known, config, kernel=True), known, config) == pytest.approx(25.36, abs=1e-6)


shares = st.floats(0.02, 0.98)
likelihoods = st.tuples(shares, shares)


def amounts(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, 10 * most).map(lambda tenths: tenths / 10)


critic_sets = st.lists(likelihoods, min_size=1, max_size=3).map(lambda own: {f"c{i}": one for i, one in enumerate(own)})


def made_up(data: st.DataObject, most: int = 3) -> tuple[Tables, ControlConfig]:
    """Tables, with or without histories and unchanged rewrites, and prices."""
    pick = data.draw
    critics = {f"c{i}": pick(likelihoods) for i in range(pick(st.integers(1, most)))}

    def kernel() -> Kernel:
        same = pick(st.booleans())
        return Kernel(fix=pick(shares), broken=pick(shares), same_right=pick(shares) * same, same_wrong=pick(shares) * same)

    def again() -> dict[str, Likelihood] | None:
        return {name: Likelihood.of(*pick(likelihoods)) for name in critics} if pick(st.booleans()) else None

    made = {name: Likelihood.of(*own) for name, own in critics.items()}
    known = Tables(
        prior=pick(shares),
        critics=made,
        kernel=kernel(),
        rewritten=again(),
        rejected=again(),
        kernel_rejected=kernel(),
        gate="c0",
    )
    config = ControlConfig(
        c_ver=pick(amounts(120)),
        c_gen=pick(amounts(20)),
        costs=tuple(f"{name}={pick(amounts(10))}" for name in critics),
        horizon=pick(st.integers(1, 3)),
        stop=pick(st.sampled_from(["abandon", "ship"])),
        loss=pick(amounts(200)),
        after_verify=pick(st.sampled_from(["end", "continue"])),
    )
    return known, config


@given(st.data())
def test_the_plan_is_worth_what_it_says_and_no_rule_is_worth_more(data: st.DataObject) -> None:
    """Against an enumeration of every outcome that shares no code with the lines."""
    known, config = made_up(data, most=2)
    plan = Plan(known, config)
    assert worth(plan.decide, known, config) == pytest.approx(plan.value, abs=1e-7)
    for rule in (*fixed_rules(known, config).values(), greedy(known, config)):
        assert worth(rule, known, config) <= plan.value + 1e-7


@pytest.mark.slow
@given(st.data())
def test_value_functions_are_convex_and_end_where_they_must(data: st.DataObject) -> None:
    known, config = made_up(data)
    found = Plan(known, config).envelopes[0, FIRST, (1 << len(known.names)) - 1, False]
    grid = np.linspace(0, 1, 101)
    values = np.array([found.value(b) for b in grid])
    assert (values[1:-1] <= (values[:-2] + values[2:]) / 2 + 1e-7).all()
    every = [max(float(r * b + w * (1 - b)) for r, w in zip(found.right[:, 0], found.wrong[:, 0], strict=True)) for b in grid]
    assert np.allclose(values, every, atol=1e-7)
    certain = max(0.0, config.reward - config.c_ver, config.reward if config.stop == "ship" else 0.0)
    assert found.value(1.0) == pytest.approx(certain, abs=1e-7)


def test_every_value_of_a_large_plan_is_that_of_its_best_action() -> None:
    """Four critics, five candidates, the same text coming back:
    lines enough for all short cuts of the envelopes. Checked belief by belief."""
    critics = {"a": (0.99, 0.9), "b": (0.9, 0.35), "c": (0.75, 0.35), "d": (0.8, 0.5)}
    kernels = Kernel(fix=0.2, broken=0.1, same_right=0.2, same_wrong=0.3), Kernel(fix=0.3, broken=0.05, same_wrong=0.4)
    scaled = [{name: Likelihood.of(t, f * by) for name, (t, f) in critics.items()} for by in (1.0, 0.8, 0.6)]
    known = Tables(
        prior=0.4,
        critics=scaled[0],
        kernel=kernels[0],
        rewritten=scaled[1],
        rejected=scaled[2],
        kernel_rejected=kernels[1],
        gate="b",
    )
    config = ControlConfig(horizon=5, costs=("a=1", "b=2", "c=5", "d=2"))
    plan = Plan(known, config)

    def best(step: int, history: str, unused: int, rejected: bool, b: float) -> float:
        ways = [0.0, config.reward * b - config.c_ver]
        if step < config.horizon - 1:
            kernel = known.kernel_of(rejected)
            same = kernel.same_right * b + kernel.same_wrong * (1 - b)
            again = plan.envelopes[step + 1, history, unused, rejected].value(kernel.after(b, same=True))
            fresh = plan.envelopes[step + 1, known.after(rejected), 15, False].value(kernel.after(b))
            ways.append(-config.c_gen + same * again + (1 - same) * fresh)
        for j, name in enumerate(plan.names):
            if unused >> j & 1:
                own, worth_ = known.of(history)[name], -config.cost(name)
                for level in (0, 1):
                    flag = level == 0 if name == known.gate else rejected
                    then = plan.envelopes[step, history, unused & ~(1 << j), flag].value(own.update(b, level))
                    worth_ += (own.right[level] * b + own.wrong[level] * (1 - b)) * then
                ways.append(worth_)
        return max(ways)

    assert max(len(one.action) for one in plan.envelopes.values()) > 30
    for key, found in plan.envelopes.items():
        for b in (0.0, 0.013, 0.21, 0.4, 0.555, 0.87, 1.0):
            assert found.value(b) == pytest.approx(best(*key, b), abs=1e-8)


@given(critic_sets, shares, shares, shares)
def test_a_likelier_candidate_is_worth_more_where_rewrites_do_not_turn_the_order(
    critics: Any, prior: float, fix: float, broken: float
) -> None:
    """Only where ``fix <= 1 - broken``: else a wrong candidate's rewrite is the likelier one."""
    fix = min(fix, 1 - broken)
    found = Plan(tables(prior, critics, fix, broken), ControlConfig(horizon=3)).envelopes[
        0, FIRST, (1 << len(critics)) - 1, False
    ]
    values = [found.value(b) for b in np.linspace(0, 1, 51)]
    assert all(later >= before - 1e-7 for before, later in itertools.pairwise(values))


@given(shares, likelihoods)
def test_a_critic_moves_the_belief_just_where_it_tells_right_from_wrong(belief: float, own: tuple[float, float]) -> None:
    moved = [abs(Likelihood.of(*own).update(belief, level) - belief) > 1e-12 for level in (0, 1)]
    assert moved == [True, True] or abs(own[0] - own[1]) < 1e-8
    assert Likelihood.of(own[0], own[0]).update(belief, 1) == pytest.approx(belief)


@pytest.mark.slow
@given(st.data(), amounts(20))
def test_dearer_is_never_better(data: st.DataObject, more: float) -> None:
    known, config = made_up(data)
    value = Plan(known, config).value
    dear = tuple(f"{name}={config.cost(name) + more}" for name in known.names)
    for change in ({"c_ver": config.c_ver + more}, {"c_gen": config.c_gen + more}, {"costs": dear}):
        assert Plan(known, config.model_copy(update=change)).value <= value + 1e-7
    assert Plan(known, config.model_copy(update={"reward": config.reward + more})).value >= value - 1e-7


@given(critic_sets, shares, shares, shares, likelihoods)
def test_another_critic_never_hurts_and_order_does_not_matter(
    critics: Any, prior: float, fix: float, broken: float, one: Any
) -> None:
    config = ControlConfig(horizon=2)
    value = Plan(tables(prior, critics, fix, broken), config).value
    assert Plan(tables(prior, {**critics, "new": one}, fix, broken), config).value >= value - 1e-7
    turned = dict(reversed(critics.items()))
    assert Plan(tables(prior, turned, fix, broken), config).value == pytest.approx(value, abs=1e-7)


@given(critic_sets, shares, shares, shares, shares, amounts(10).map(lambda cost: cost + 0.1))
def test_a_critic_without_signal_is_never_asked(
    critics: Any, prior: float, fix: float, broken: float, share: float, cost: float
) -> None:
    config = ControlConfig(horizon=2, costs=(f"coin={cost}",))
    plan = Plan(tables(prior, {**critics, "coin": (share, share)}, fix, broken), config)
    assert not any(4 + plan.names.index("coin") in one.action for one in plan.envelopes.values())
    assert gate_interval(Likelihood.of(share, share), cost, 100, 30) is None


@given(shares, st.lists(st.tuples(likelihoods, st.integers(0, 1)), min_size=2, max_size=4))
def test_evidence_has_no_order_and_is_a_martingale(belief: float, seen: list[Any]) -> None:
    ends = []
    for order in itertools.permutations(seen):
        b = belief
        for own, level in order:
            b = Likelihood.of(*own).update(b, level)
        ends.append(b)
    assert max(ends) - min(ends) < 1e-9
    own = Likelihood.of(*seen[0][0])
    expected = sum(
        (r * belief + w * (1 - belief)) * own.update(belief, i) for i, (r, w) in enumerate(zip(own.right, own.wrong, strict=True))
    )
    assert expected == pytest.approx(belief)


@given(shares, shares, shares)
def test_rewriting_contracts(fix: float, broken: float, belief: float) -> None:
    kernel, target = Kernel(fix=fix, broken=broken), fix / (fix + broken)
    assert abs(kernel.after(belief) - target) <= abs(1 - fix - broken) * abs(belief - target) + 1e-12
    assert Kernel(fix=fix, broken=1 - fix).after(belief) == pytest.approx(fix)


def test_shipping_verifying_and_stopping_meet_where_the_lines_say() -> None:
    known = tables(0.5, {"coin": (0.5, 0.5)}, 0.5, 0.5)
    config = ControlConfig(horizon=1, stop="ship", loss=60.0, c_ver=15.0)
    found = [
        (low, high, action) for low, high, action in Plan(known, config).intervals(ControlState(0.5, unused=frozenset(["coin"])))
    ]
    assert [action for _, _, action in found] == [STOP, VERIFY, SHIP]
    lines = computable_lines(known, config)
    assert found[1][:2] == pytest.approx((lines.verify_from, lines.verify_up_to))
    assert (lines.verify_from, lines.verify_up_to, lines.ship_from) == pytest.approx((0.15, 0.75, 0.375))


def test_false_accepts_are_bounded_by_raising_the_loss() -> None:
    known = golden(0.4)
    config = ControlConfig(stop="ship", loss=10.0, costs=COSTS)
    before = Plan(known, config, functionals=True)
    chosen = bounded(known, config, 0.05)
    after = Plan(known, chosen, functionals=True)
    assert before.rates().false_accept > 0.05 >= after.rates().false_accept
    assert chosen.loss > config.loss
    never = Plan(known, ControlConfig(costs=COSTS), functionals=True)
    assert never.rates().wrong == 0
    assert never.value == pytest.approx(22.742552, abs=1e-6)  # carrying more along changes no value


def test_a_history_changes_what_a_critic_is_believed() -> None:
    apart = {"S": Likelihood.of(0.99, 0.9), "T": Likelihood.of(0.9, 0.05), "L": Likelihood.of(0.75, 0.35)}
    known = golden(0.4).model_copy(update={"rejected": apart, "gate": "T", "kernel_rejected": Kernel(fix=0.3, broken=0.1)})
    tracker = Tracker(known)
    tracker.observe("T", 0)
    assert tracker.state.rejected
    tracker.rewritten(same=False)
    assert tracker.state.history == REJECTED
    before = tracker.state.belief
    tracker.observe("T", 1)
    assert tracker.state.belief == pytest.approx(apart["T"].update(before, 1))
    assert tracker.state.rejected is False


def test_the_same_text_is_no_new_evidence() -> None:
    tracker = Tracker(golden(0.4))
    tracker.observe("T", 1)
    before = tracker.state
    tracker.rewritten(same=True)
    assert (tracker.state.belief, tracker.state.unused, tracker.state.step) == (before.belief, before.unused, 1)
    plan = Plan(golden(0.4), ControlConfig(costs=COSTS))
    assert plan.decide(tracker.state) != "T"


def test_levels_are_as_many_outcomes() -> None:
    """Three levels of which two say the same are worth what the two-level critic is."""
    two = Tables(prior=0.4, critics={"c": Likelihood.of(0.8, 0.3)}, kernel=Kernel(fix=0.3, broken=0.1))
    three = Likelihood(right=(0.2, 0.5, 0.3), wrong=(0.7, 0.1875, 0.1125), edges=(0.3, 0.6))
    config = ControlConfig(costs=("c=2",))
    assert Plan(two.model_copy(update={"critics": {"c": three}}), config).value == pytest.approx(Plan(two, config).value)
    assert [three.level(value) for value in (0.1, 0.3, 0.59, 0.9, None)] == [0, 1, 1, 2, None]


def test_greedy_prefers_the_cheaper_of_equals() -> None:
    known = tables(0.5, {"a": (0.9, 0.2), "b": (0.9, 0.2)}, 0.1, 0.5)
    config = ControlConfig(horizon=1, costs=("a=2", "b=2"))
    assert greedy(known, config)(ControlState(0.4, unused=frozenset("ab"))) == "a"
    assert greedy(known, config)(ControlState(0.0, unused=frozenset("ab"))) == STOP


def test_what_the_verifier_refused_is_rewritten_or_left_even_where_verifying_is_free() -> None:
    config = ControlConfig(c_ver=0, c_gen=1, after_verify="continue", costs=COSTS)
    for decide in (Plan(golden(0.4), config).decide, greedy(golden(0.4), config)):
        assert decide(ControlState(0.0, 0, frozenset("STL"), refused=True)) == "rewrite"
        assert decide(ControlState(0.0, 2, frozenset("STL"), refused=True)) == STOP


def test_a_margin_stops_what_hardly_pays() -> None:
    known = golden(0.2)
    assert Plan(known, ControlConfig(costs=COSTS)).decide(ControlState(0.2, unused=frozenset(known.names))) == "T"
    assert Plan(known, ControlConfig(costs=COSTS, margin=6)).decide(ControlState(0.2, unused=frozenset(known.names))) == STOP


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: ControlConfig(c_ver=math.inf), "finite"),
        (lambda: ControlConfig(costs=("tests",)), "NAME=COST"),
        (lambda: ControlConfig(costs=("tests=-1",)), "NAME=COST"),
        (lambda: ControlConfig(costs=("tests=nan",)), "NAME=COST"),
        (lambda: ControlConfig(horizon=9), "less than or equal to 8"),
        (lambda: Likelihood(right=(0.5, 0.6), wrong=(0.5, 0.5)), "sum to 1"),
        (lambda: Likelihood(right=(1.0,), wrong=(1.0,)), "two or more levels"),
        (lambda: Tables(prior=0.5, critics={}), "1 to 8"),
        (lambda: Tables(prior=0.5, critics={f"c{i}": Likelihood.of(0.9, 0.1) for i in range(9)}), "1 to 8"),
        (lambda: Tables(prior=1.0, critics={"c": Likelihood.of(0.9, 0.1)}), "less than 1"),
        (lambda: golden(0.4).critics["S"].level(0.5), "true or false"),
    ],
)
def test_what_cannot_be_planned_with_is_one_sentence(made: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        made()
