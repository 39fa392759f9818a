"""A panel of judges: majority, agreement, constant judges, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramify.base.errors import BoundaryError, UserError
from ramify.model.scripted import ScriptedModel
from ramify.score.panel import Judge, judged

ITEMS = [("keep a", "a"), ("keep b", "nothing"), ("keep c", "c"), ("keep d", "nothing")]


def judge(name: str, answer: Any) -> Judge:
    return Judge(name, ScriptedModel(lambda messages, key: answer(messages[-1].text), tokens=False, name=name))


def honest(text: str) -> str:
    return "No." if "nothing" in text else "Yes, it does."


def contrary(text: str) -> str:
    return "yes" if "keep d" in text else honest(text)


def down(text: str) -> str:
    raise BoundaryError("provider", "503")


def test_majority_agreement_and_a_constant_judge() -> None:
    panel = asyncio.run(
        judged([judge("h", honest), judge("g", honest), judge("c", contrary), judge("never", lambda text: "no")], ITEMS)
    )
    assert panel.constant == ("never",)
    assert panel.majority == [True, False, True, False]
    agreement = panel.agreement([True, False, False, False])
    assert agreement["h, g"]["value"] == 1.0
    assert agreement["h, c"]["k"] == 3
    assert agreement["majority, keywords"]["k"] == 3


def test_silent_and_failing_judges_are_no_votes() -> None:
    panel = asyncio.run(judged([judge("h", honest), judge("down", down), judge("mumbles", lambda text: "perhaps")], ITEMS))
    assert panel.votes["down"] == [None] * 4
    assert panel.votes["mumbles"] == [None] * 4
    assert panel.constant == ()
    assert panel.majority == [True, False, True, False]
    assert panel.agreement([None] * 4)["h, down"] is None


def test_a_tie_and_no_judge() -> None:
    panel = asyncio.run(judged([judge("h", honest), judge("c", contrary)], ITEMS))
    assert panel.majority == [True, False, True, None]
    with pytest.raises(UserError, match="at least one judge"):
        asyncio.run(judged([], ITEMS))
