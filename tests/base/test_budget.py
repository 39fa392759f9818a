"""Budgets stop cleanly and nest; the ledger adds up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.budget import UNITS, Budget
from ramify.base.errors import BudgetSpentError, UserError
from ramify.base.ledger import Ledger


def test_no_limit_is_never_spent() -> None:
    budget = Budget()
    budget.charge(tokens=10**12)
    assert budget.spent_out == ""
    assert budget.remaining("tokens") == math.inf
    budget.require()


def test_a_spent_unit_stops_and_what_was_spent_stays() -> None:
    budget = Budget({"tokens": 100, "calls": None})
    budget.charge(tokens=60, calls=1)
    assert (budget.remaining("tokens"), budget.spent_out) == (40, "")
    budget.charge(tokens=70)
    assert (budget.remaining("tokens"), budget.spent("tokens"), budget.spent_out) == (0, 130, "tokens")
    with pytest.raises(BudgetSpentError, match="the budget of tokens is spent"):
        budget.require()
    assert budget.to_json()["spent"]["tokens"] == 130
    assert Budget({"turns": 0}).spent_out == "turns"


def test_seconds_are_wall_time_plus_what_is_charged() -> None:
    now = [5.0]
    budget = Budget({"seconds": 10}, clock=lambda: now[0])
    budget.charge(seconds=4)
    now[0] = 8.0
    assert budget.remaining("seconds") == 3
    now[0] = 20.0
    assert budget.spent_out == "seconds"


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=20), st.integers(0, 300), st.integers(0, 300))
def test_a_child_never_has_more_left_than_its_parent(charges: list[tuple[bool, int]], outer: int, inner: int) -> None:
    parent = Budget({"tokens": outer})
    child = parent.child({"tokens": inner})
    for to_child, amount in charges:
        (child if to_child else parent).charge(tokens=amount)
    total = sum(amount for _, amount in charges)
    assert parent.spent("tokens") == total
    assert child.spent("tokens") == sum(amount for to_child, amount in charges if to_child)
    assert child.remaining("tokens") <= parent.remaining("tokens") == max(0, outer - total)


@pytest.mark.parametrize("limit", [-1, math.nan])
def test_impossible_limits_and_units(limit: float) -> None:
    with pytest.raises(UserError, match="budget of tokens must be"):
        Budget({"tokens": limit})
    with pytest.raises(UserError, match=r"unknown budget unit 'token' \(did you mean 'tokens'\?\)"):
        Budget({"token": 1})
    with pytest.raises(ValueError, match="cannot charge"):
        Budget().charge(calls=limit)
    assert set(Budget(dict.fromkeys(UNITS, 1)).to_json()["limits"]) == set(UNITS)


def test_the_ledger_adds_up_and_keeps_cache_hits_apart() -> None:
    ledger, other = Ledger(), Ledger()
    ledger.add("rollout", tokens=10, calls=1)
    ledger.add("rollout", tokens=5)
    ledger.add("evaluation", tokens=7)
    other.add("evaluation", cached=True, tokens=100)
    ledger.merge(other)
    assert (ledger.total("tokens"), ledger.total("tokens", cached=True), ledger.total("money")) == (22, 100, 0)
    assert Ledger.from_json(ledger.to_json()).to_json() == ledger.to_json()
    with pytest.raises(ValueError, match="cannot record"):
        ledger.add("rollout", tokens=-1)


@pytest.mark.parametrize("record", [{}, {"spent": 3, "cached": {}}, {"spent": {"a": {"tokens": "x"}}, "cached": {}}])
def test_a_foreign_ledger_record_is_refused(record: dict) -> None:
    with pytest.raises(UserError, match="not a ledger record"):
        Ledger.from_json(record)
