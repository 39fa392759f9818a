"""Credit by how much likelier a step made the answer: closed forms on a group that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.score.credit.answer_td import AnswerTd, answer_changes
from ramify.score.credit.grpo import Grpo
from ramify.score.credit.protocol import CreditGroup, assigned, find_rule
from ramify.testing import example_group


def answered(values: list[float], task: str = "mixed") -> CreditGroup:
    """Attempts of 1, 2, 3 and 1 steps, with the log-probability of the answer before each."""
    group = example_group([task])
    return replace(group, answers=dict(zip(group.columns["node"], values, strict=True)))


def credits_of(found: dict[str, np.ndarray], group: CreditGroup) -> list[float]:
    return [float(found[node][group.nodes[node].sampled_mask].mean()) for node in group.columns["node"]]


def test_a_step_is_credited_the_change_to_the_next_and_the_last_by_its_end_alone() -> None:
    group = answered([-3, -3, -1, -3, -3, -4, -3])
    assert answer_changes(group).tolist() == [0, 2, 0, 0, -1, 0, 0]
    rms = np.sqrt((2**2 + 1**2) / 2)
    more = np.array(credits_of(assigned(AnswerTd(w=0.5), group), group)) - credits_of(assigned(Grpo(), group), group)
    assert more == pytest.approx([0, 0.5 * 2 / rms, 0, 0, 0.5 * -1 / rms, 0, 0], abs=1e-5)


def test_the_numbers_behind_a_credit_add_up_to_it() -> None:
    group, rule = answered([-3, -3, -1, -3, -3, -4, -3]), AnswerTd()
    found = credits_of(assigned(rule, group), group)
    for node, credit in zip(group.columns["node"], found, strict=True):
        told = rule.explain(node)
        assert told.keys() <= rule.numbers.keys()
        assert credit == pytest.approx(told["A_ep"] + told["change"] / (told["change_rms"] + 1e-6), abs=1e-5)


def test_without_an_answer_it_is_grpo_and_says_so() -> None:
    group, rule = example_group(), AnswerTd()
    ours, theirs = assigned(rule, group), assigned(Grpo(), group)
    assert all((ours[node] == theirs[node]).all() for node in theirs)
    assert "no task has an answer to be likely, so the credit is that of grpo" in rule.doubts


def test_a_step_whose_state_was_not_asked_about_gets_no_change() -> None:
    """As one that leaves no room for the answer in the context."""
    group = answered([-3, -3, -1, -3, -2, -4, -3])
    known = {node: value for node, value in (group.answers or {}).items() if node != group.columns["node"][4]}
    assert answer_changes(replace(group, answers=known)).tolist() == [0, 2, 0, 0, 0, 0, 0]


def test_a_turn_after_which_the_answer_is_as_likely_is_paid_nothing() -> None:
    group = answered([-3, -3, -3, -3, -3, -3, -3])
    assert credits_of(assigned(AnswerTd(), group), group) == credits_of(assigned(Grpo(), group), group)


@pytest.mark.parametrize("w", [-1.0, float("inf"), float("nan")])
def test_a_weight_out_of_range_is_refused(w: float) -> None:
    with pytest.raises(UserError, match="a number from 0 on"):
        find_rule("answer-td", {"w": w})
