"""Self-imitation: closed forms of the advantage on a group that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.score.credit.protocol import CreditGroup, assigned, find_rule
from ramify.score.credit.self_imitate import SelfImitate
from ramify.testing import example_group


def per_step(rule: SelfImitate, group: CreditGroup) -> list[float]:
    found = assigned(rule, group)
    return [float(found[node].max()) for node in group.columns["node"]]


def group_of(anchors: list[list[str]], success: list[bool], values: list[float] | None = None) -> CreditGroup:
    """One task; attempt i goes through the states ``anchors[i]`` and ends with ``success[i]``."""
    made = example_group(["graded"])
    template = next(iter(made.nodes.values()))
    columns: dict[str, list[object]] = {name: [] for name in made.columns}
    nodes = {}
    for i, (states, won) in enumerate(zip(anchors, success, strict=True)):
        for step, state in enumerate(states):
            name, last = f"{i}.{step}", step == len(states) - 1
            nodes[name] = template
            row = {"task_id": "t", "attempt_id": str(i), "step": step, "reward": float(won and last), "anchor": {"key": state}}
            row |= {"action": "go", "done": last, "truncated": False, "valid": True, "node": name}
            for column, cells in columns.items():
                cells.append(row[column])
    won = np.array(success)
    return CreditGroup(columns, won.astype(float), won, nodes, None if values is None else np.array(values))


def test_with_lambda_one_it_is_the_outcome_minus_the_value() -> None:
    group = group_of([["a", "b"], ["c", "d"]], [True, False], [0.2, 0.6, 0.3, 0.1])
    assert per_step(SelfImitate(lam=1), group) == pytest.approx([0.8, 0.4, 0, 0])


def test_with_lambda_zero_it_is_one_step_of_progress() -> None:
    group = group_of([["a", "b"], ["c", "d"]], [True, True], [0.2, 0.6, 0.3, 0.4])
    assert per_step(SelfImitate(lam=0), group) == pytest.approx([0.4, 0.4, 0.1, 0.6], abs=1e-6)


def test_what_no_won_attempt_passed_is_not_imitated_however_the_critic_likes_it() -> None:
    group = group_of([["a", "b"], ["c", "d"]], [True, False], [0.2, 0.6, 0.1, 0.9])
    assert per_step(SelfImitate(lam=0), group) == pytest.approx([0.4, 0.4, 0, 0], abs=1e-6)
    assert per_step(SelfImitate(lam=0), group_of([["c", "d"]], [False], [0.1, 0.9])) == [0, 0]


def test_small_advantages_are_noise() -> None:
    group = group_of([["a", "b"]], [True], [0.91, 0.85])
    assert per_step(SelfImitate(lam=1), group) == pytest.approx([0, 0.15])
    assert per_step(SelfImitate(lam=1, least=0), group) == pytest.approx([0.09, 0.15])


def test_the_critic_is_corrected_by_other_attempts_through_an_equal_state() -> None:
    """Three attempts start in one state: the critic counts as four outcomes, each of the others as one."""
    group = group_of([["a", "x"], ["a", "y"], ["a", "z"]], [True, True, False], [0.5] * 6)
    rule = SelfImitate(lam=1, trust=4)
    found = per_step(rule, group)
    assert found[0] == pytest.approx(1 - (4 * 0.5 + 1) / 6)
    assert found[2] == pytest.approx(1 - (4 * 0.5 + 1) / 6)
    assert found[4] == 0
    assert rule.explain("2.0")["V"] == pytest.approx((4 * 0.5 + 2) / 6)


def test_a_state_passed_twice_by_one_attempt_counts_once() -> None:
    group = group_of([["a"], ["a", "a", "a"]], [True, False], [0.5] * 4)
    assert per_step(SelfImitate(lam=1, trust=1), group)[0] == pytest.approx(1 - 0.5 / 2)


def test_without_a_critic_the_tasks_other_attempts_stand_in() -> None:
    group = group_of([["a"], ["b"], ["c"]], [True, True, False])
    assert per_step(SelfImitate(lam=1), group) == pytest.approx([0.5, 0.5, 0])
    assert per_step(SelfImitate(lam=1), group_of([["a"]], [True])) == [1.0]


@pytest.mark.parametrize("settings", [{"lam": 1.5}, {"trust": 0}, {"least": 1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match="credit rule 'self-imitate'"):
        find_rule("self-imitate", settings)
