"""Plain step returns: closed forms on a group that can be counted by hand, and what they are without a discount."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.score.credit.grpo import Grpo
from ramify.score.credit.protocol import assigned, find_rule
from ramify.score.credit.step_returns import StepReturns, returns_to_go
from ramify.testing import example_group


def test_returns_are_counted_from_the_end_of_each_attempt() -> None:
    reward, attempt = np.array([1.0, 0.0, 4.0, 2.0, 8.0]), np.array([0, 0, 0, 1, 1])
    assert returns_to_go(reward, attempt, 0.5).tolist() == [2, 2, 4, 6, 8]
    assert returns_to_go(reward, attempt, 1.0).tolist() == [5, 4, 4, 10, 8]
    assert returns_to_go(np.zeros(0), np.zeros(0, int), 1.0).tolist() == []


def test_a_step_is_compared_with_those_still_running_at_its_number() -> None:
    group = example_group(["mixed"])  # rewards 1, 0, 1, 0 after 1, 2, 3 and 1 steps
    rule = StepReturns(gamma=0.5, norm="mean")
    found = assigned(rule, group)
    credit = [float(found[node].max() + found[node].min()) for node in group.columns["node"]]
    mean = (1 + 0 + 0.25 + 0) / 4
    assert credit == pytest.approx([1 - mean, -mean, -0.25, 0.25 - mean, 0.25, 0, -mean])
    told = rule.explain(group.columns["node"][3])
    assert told == pytest.approx(
        {"return": 0.25, "return_mean": mean, "return_std": np.std([1, 0, 0.25, 0], ddof=1), "running": 4, "attempts": 1}
    )


def test_without_discount_first_steps_are_credited_as_by_grpo() -> None:
    group = example_group(["mixed", "lost", "graded"])
    ours, theirs = assigned(StepReturns(gamma=1), group), assigned(Grpo(), group)
    first = [node for node, step in zip(group.columns["node"], group.columns["step"], strict=True) if step == 0]
    assert first
    for node in first:
        np.testing.assert_allclose(ours[node], theirs[node], rtol=1e-6)


def test_what_was_paid_before_a_step_is_no_credit_of_it() -> None:
    """The one thing in which step returns differ from the reward of the attempt: rewards of earlier steps."""
    group = example_group(["mixed"])
    paid = dict(group.columns) | {"reward": [5.0 if step == 0 else 0.0 for step in group.columns["step"]]}
    early = type(group)(paid, np.full(4, 5.0), group.success, group.nodes)
    found = assigned(StepReturns(), early)
    assert all(not values.any() for values in found.values())


@pytest.mark.parametrize("gamma", [0.0, -1.0, 1.5])
def test_a_discount_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(UserError, match="above 0 and at most 1"):
        find_rule("step-returns", {"gamma": gamma})
