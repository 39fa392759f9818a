"""A turn that changes nothing gets no credit by a rule that claims so, and the declared amount by the others."""

from __future__ import annotations

import pytest

from ramify.base import registry
from ramify.score.credit.protocol import find_rule
from ramify_experiments.graph_credit.turns import CASES, turn_bonus, uneven_group

NEUTRAL = {"gamma": 1.0, "norm": "mean"}


@pytest.mark.parametrize("name", registry.names("credit"))
def test_another_turn_gets_what_the_rule_declares(name: str) -> None:
    """Counted over all outcomes: 0 is exact but for single precision."""
    found = max((turn_bonus(name, case) for case in CASES), key=abs)
    declared = find_rule(name).turn_bonus
    assert found == pytest.approx(declared, abs=0.005 if declared else 1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["g2po", "gigpo", "ep+nc", "ep+ec"])
def test_without_discount_and_deviation_graph_credit_is_neutral(name: str, case: str) -> None:
    assert turn_bonus(name, case, NEUTRAL) == pytest.approx(0, abs=1e-6)
    assert turn_bonus(name, case, NEUTRAL | {"gamma": 0.95}) < -0.01, "a discount alone is not"


@pytest.mark.parametrize("case", CASES)
def test_statistics_over_steps_are_neutral_without_a_deviation_only(case: str) -> None:
    assert turn_bonus("grpo", case, {"weight": "step", "norm": "mean"}) == pytest.approx(0, abs=1e-6)
    assert turn_bonus("grpo", case, {"weight": "step"}) < -0.01


@pytest.mark.parametrize("name", registry.names("credit"))
def test_a_rule_that_is_not_neutral_says_so_where_turns_differ(name: str) -> None:
    rule = find_rule(name)
    said = []
    for attempts in (((0, True), (1, False)), ((0, True), (0, False))):
        rule.assign(uneven_group(attempts, "apart"))
        said.append(any("differ in turns" in doubt for doubt in rule.doubts))
    assert said == [bool(rule.turn_bonus), False]


@pytest.mark.parametrize(("name", "settings"), [("g2po", NEUTRAL), ("grpo", {"weight": "step", "norm": "mean"})])
def test_neutral_settings_raise_no_doubt(name: str, settings: dict[str, object]) -> None:
    rule = find_rule(name, settings)
    rule.assign(uneven_group(((0, True), (1, False)), "apart"))
    assert not any("differ in turns" in doubt for doubt in rule.doubts)
