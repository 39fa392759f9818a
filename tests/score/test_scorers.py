"""Graders, the scorers' battery, normalisation, returns."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import registry
from ramify.base.errors import BoundaryError, UserError
from ramify.env.protocol import Task
from ramify.score.battery import check_scorer, said
from ramify.score.group import moments, normalise
from ramify.score.match import ExactMatch, NumberMatch, last_number
from ramify.score.protocol import score_path
from ramify.score.returns import remaining, terminal_returns
from ramify.trace.node import Stream, Verdict

TASK = Task("t", {"answer": "42"})


def value(scorer, text: str, answer: object = "42") -> float:
    (verdict,) = asyncio.run(scorer.score(said(text), Task("t", {"answer": answer})))
    return verdict.value


@pytest.mark.parametrize("name", ["exact", "number"])
def test_builtin_graders_pass_the_battery(name):
    scorer = registry.get("scorer", name)()
    assert check_scorer(scorer) == []


class Bad:
    """Breaks what a scorer promises, one promise at a time."""

    def __init__(self, fault: str) -> None:
        self.fault, self.name, self.looks = fault, "bad", 0

    @property
    def judge(self) -> str:
        return "hash"

    async def score(self, path, task):
        self.looks += 1
        node = "elsewhere" if self.fault == "place" else path.segments[-1][0].id
        if self.fault == "answer":
            assert task.data["answer"]
        if self.fault == "edits":
            path.segments[0][0].data["seen"] = True
        if self.fault == "refuses":
            raise UserError("not my task")
        if self.fault == "number":
            return [1.0]
        if self.fault == "crash" and "Ignore" in path.text:
            raise KeyError("x")
        if self.fault == "stream":
            return [Stream(node, "s", "bad", np.zeros(7))]
        return [
            Verdict(
                node,
                "other" if self.fault == "sign" else "bad",
                {"nan": float("nan"), "draws": float(self.looks)}.get(self.fault, 1.0),
                confidence=2.0 if self.fault == "confidence" else None,
                judges={} if self.fault == "judge" else {"bad": "hash"},
            )
        ]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("place", "not on the path"),
        ("crash", "KeyError"),
        ("stream", "7 values on a node of length 1"),
        ("sign", "signed 'other'"),
        ("nan", "value nan"),
        ("draws", "different values"),
        ("confidence", "confidence 2.0"),
        ("judge", "does not name the judge"),
        ("answer", "a task without data raises KeyError"),
        ("edits", "changed the path"),
        ("refuses", "judges none of the attempts (not my task): give it a method examples()"),
        ("number", "returned a float"),
    ],
)
def test_battery_finds_broken_promises(fault, sentence):
    assert any(sentence in problem.message for problem in check_scorer(Bad(fault)))
    assert check_scorer(Bad("")) == []


def test_not_a_scorer():
    assert check_scorer(object())[0].message == "it lacks a name, a judge identity or a score method"


def test_a_scorer_brings_attempts_it_can_judge():
    class Picky(Bad):
        async def score(self, path, task):
            if "colour" not in task.data:
                raise UserError("no colour")
            return await super().score(path, task)

        def examples(self):
            return [(said("blue"), Task("t", {"colour": "blue"}))]

    assert check_scorer(Picky("")) == []


def test_failures_become_unscored():
    class Down(Bad):
        async def score(self, path, task):
            raise BoundaryError("scorer", "no route")

    (verdict,) = asyncio.run(score_path(Down(""), said("42"), TASK))
    assert verdict.value is None
    assert verdict.evidence == {"failure": "no route"}
    with pytest.raises(UserError, match="no 'answer'"):
        asyncio.run(score_path(ExactMatch(), said("42"), Task("t")))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", 42),
        ("-1,234.5", Fraction("-1234.5")),
        ("6.02e23", Fraction("6.02e23")),
        ("7 then 3/4", Fraction(3, 4)),
        ("1/0", None),
        (".5", Fraction(1, 2)),
        ("v3 is not one", None),
        ("10-4", 4),
        ("", None),
        ("1" * 1000, None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_graders():
    assert value(ExactMatch(), "  Forty \n TWO", "forty two") == 1.0
    assert value(ExactMatch(), "42!") == 0.0
    assert value(NumberMatch(), "so it is 42.0 apples") == 1.0
    assert value(NumberMatch(), "so it is 41.9") == 0.0
    assert value(NumberMatch(tolerance=0.1), "so it is 41.9") == 1.0
    assert value(NumberMatch(), "nothing") == 0.0
    assert NumberMatch(0.1).judge != NumberMatch().judge
    with pytest.raises(UserError, match="is not a number"):
        value(NumberMatch(), "42", "blue")
    with pytest.raises(UserError, match="tolerance"):
        NumberMatch(-1)


numbers = st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100)), min_size=1, max_size=20)


@given(numbers)
@settings(max_examples=60, deadline=None)
def test_normalise_matches_numpy(pairs):
    groups, values = np.array([g for g, _ in pairs]), np.array([v for _, v in pairs])
    got = normalise(values, groups)
    for g in set(groups.tolist()):
        own = values[groups == g]
        if len(own) < 2 or np.ptp(own) == 0:
            assert not got[groups == g].any()
        else:
            np.testing.assert_allclose(got[groups == g], (own - own.mean()) / (own.std(ddof=1) + 1e-6), atol=1e-6)


def test_uniform_group_is_exactly_zero():
    assert normalise(np.full(3, 0.1)).tolist() == [0.0] * 3
    assert normalise(np.full(3, 0.1), std=False).tolist() == [0.0] * 3
    assert normalise(np.array([1e-3])).tolist() == [0.0]
    assert normalise(np.array([])).tolist() == []


def test_weights_count_visits():
    mean, std, total = moments(np.array([1.0, 1.0, 5.0]), weights=np.array([0.5, 0.5, 1.0]))
    plain = moments(np.array([1.0, 5.0]))
    assert (mean[0], std[0], total[0]) == pytest.approx((plain[0][0], plain[1][0], plain[2][0]))
    assert normalise(np.array([1.0, 5.0]), weights=np.array([0.5, 0.5])).tolist() == [0.0, 0.0]


def test_terminal_returns():
    left = remaining(np.array([0, 0, 0, 5, 5]))
    assert left.tolist() == [2, 1, 0, 1, 0]
    assert terminal_returns(np.full(5, 10.0), left, 0.5).tolist() == [1.25, 2.5, 5.0, 2.5, 5.0]
    assert remaining(np.array([], dtype=np.int64)).tolist() == []
