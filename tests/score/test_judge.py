"""Judges of every kind: what they say, what they refuse, what they cost, and the battery that all of them pass."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ramify.base import registry
from ramify.base.errors import BoundaryError, UserError
from ramify.env.protocol import Task
from ramify.score.battery import check_judge, said
from ramify.score.judge import Each, Item, Judgement, find_judge, judged_path
from ramify.score.match import ExactMatch, NumberMatch, last_number
from ramify.trace.node import Stream, Verdict

TASK = Task("t", {"answer": "42"})


def value(judge: Any, text: str, answer: object = "42") -> Any:
    (found,) = asyncio.run(judge.judge([Item.of(said(text), Task("t", {"answer": answer}))]))
    return found.value


@pytest.mark.parametrize("name", ["exact", "number", "boxed"])
def test_registered_judges_pass_the_battery(name: str) -> None:
    assert check_judge(registry.get("scorer", name)()) == []


@pytest.mark.parametrize("spec", ["regex:4.", "equals:42", "jury:exact,number,regex:nine", "factory:tests.score.test_judge:own"])
def test_judges_by_name_pass_the_battery(spec: str) -> None:
    assert check_judge(find_judge(spec)) == []


def own() -> Any:
    return lambda text, data: text == data.get("answer")


class Bad(Each):
    """Breaks what a judge promises, one promise at a time."""

    def __init__(self, fault: str) -> None:
        self.fault, self.name, self.looks, self.identity = fault, "bad", 0, "hash"

    async def judge(self, items: Any) -> Any:
        self.looks += 1
        if self.fault == "crash" and "Ignore" in items[0].text:
            raise KeyError("x")
        if self.fault == "answer":
            assert items[0].data["answer"]
        if self.fault == "few" and len(items) > 1:
            return [Judgement(1.0)]
        return {"number": 1.0, "list": [1.0]}.get(self.fault) or await super().judge(items)

    async def one(self, item: Item) -> Judgement:
        if self.fault == "edits":
            item.path.segments[0][0].data["seen"] = True  # type: ignore[union-attr]
        if self.fault == "refuses":
            raise UserError("not my task")
        place = {"stream": item.path.segments[-1][0].id, "place": "elsewhere"}.get(self.fault)  # type: ignore[union-attr]
        return Judgement(
            {"nan": float("nan"), "draws": float(self.looks)}.get(self.fault, 1.0),
            "no" if self.fault == "both" else "",
            confidence=2.0 if self.fault == "confidence" else None,
            streams=(Stream(place, "s", "bad", np.zeros(7)),) if place else (),
        )


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("place", "not on the path"),
        ("crash", "KeyError"),
        ("stream", "7 values on a node of length 1"),
        ("nan", "returned 'nan'"),
        ("draws", "different values"),
        ("confidence", "confidence 2.0"),
        ("answer", "an item without data raises KeyError"),
        ("edits", "changed the item"),
        ("refuses", "judges none of the items (not my task): give it a method examples()"),
        ("number", "returned float, not a list"),
        ("list", "returned a float, which is no Judgement"),
        ("few", "1 judgements of 2 items"),
        ("both", "failed (no) has the value 1.0"),
    ],
)
def test_battery_finds_broken_promises(fault: str, sentence: str) -> None:
    assert any(sentence in problem.message for problem in check_judge(Bad(fault)))
    assert check_judge(Bad("")) == []


def test_not_a_judge() -> None:
    found: Any = object()
    assert check_judge(found)[0].message == "it lacks a name, an identity or a method judge(items)"


def test_a_judge_brings_items_it_can_judge() -> None:
    class Picky(Bad):
        async def one(self, item: Item) -> Judgement:
            if "colour" not in item.data:
                raise UserError("no colour")
            return await super().one(item)

        def examples(self) -> list[Item]:
            return [Item.of(said("blue"), Task("t", {"colour": "blue"}))]

    assert check_judge(Picky("")) == []


def test_failures_become_unscored() -> None:
    class Down(Bad):
        async def one(self, item: Item) -> Judgement:
            raise BoundaryError("scorer", "no route")

    (verdict,) = asyncio.run(judged_path(Down(""), said("42"), TASK))
    assert isinstance(verdict, Verdict)
    assert verdict.value is None
    assert verdict.evidence == {"failure": "no route"}
    assert verdict.judges == {"bad": "hash"}
    with pytest.raises(UserError, match="'t' has no 'answer'"):
        asyncio.run(judged_path(ExactMatch(), said("42"), Task("t")))


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
def test_last_number(text: str, number: Any) -> None:
    assert last_number(text) == number


def test_graders() -> None:
    assert value(ExactMatch(), "  Forty \n TWO", "forty two") == 1.0
    assert value(ExactMatch(), "42!") == 0.0
    assert value(NumberMatch(), "so it is 42.0 apples") == 1.0
    assert value(NumberMatch(), "so it is 41.9") == 0.0
    assert value(NumberMatch(tolerance=0.1), "so it is 41.9") == 1.0
    assert value(NumberMatch(), "nothing") == 0.0
    assert NumberMatch(0.1).identity != NumberMatch().identity
    with pytest.raises(UserError, match="is not a number"):
        value(NumberMatch(), "42", "blue")
    with pytest.raises(UserError, match="tolerance"):
        NumberMatch(-1)
