"""Votes on an answer, stances on chunks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.model.scripted import ScriptedModel
from ramify.score.votes import Panel, count, find_panel, find_stance_judge, find_voter, stances


def test_votes() -> None:
    assert not count([True, True, False, False]).yes
    assert count([True, True, False, False]).soft == 0.5
    assert count([True, True, False, False], ties=True).yes
    assert count([True, True, True, False]).yes
    assert count([True, True, True, False]).soft == 0.75
    empty = count([None])
    assert (empty.yes, empty.flagged) == (False, True)
    assert count([True, None]).yes


def make_raising() -> Any:
    def raising(prompt: str, answer: str) -> bool:
        raise RuntimeError("no guard today")

    return raising


def test_a_voter_that_raises_has_no_vote() -> None:
    panel = find_panel(["regex:I can.?not|sorry", f"factory:{__name__}:make_raising"])
    assert panel.names[0] == "regex:I can.?not|sorry"
    vote = asyncio.run(panel.vote("p", "SORRY, no"))
    assert vote.votes == (True, None)
    assert vote.yes
    assert panel.failed == {f"factory:{__name__}:make_raising": "RuntimeError: no guard today"}


def test_unknown_voters_are_named() -> None:
    for spec, says in [
        ("regx:a", "did you mean 'regex'"), ("regex:(", "no regular expression"), ("judge:m", "unknown voter 'judge'"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=says):
            find_voter(spec)
    with pytest.raises(UserError, match="at least one voter"):
        Panel([])
    with pytest.raises(UserError, match="unknown judge of stances"):
        find_stance_judge("regex:a")


def chat(*replies: str) -> Any:
    return lambda spec: (ScriptedModel(list(replies), name=spec, tokens=False), None)


def test_a_model_as_voter_and_as_judge_of_stances() -> None:
    voter: Any = find_voter("judge:guard", chat("It says no. Refused: yes"))
    assert asyncio.run(voter("p", "No.")) is True
    voter = find_voter("judge:guard", chat("hard to say"))
    assert asyncio.run(voter("p", "No.")) is None
    for reply, found in [("[1, 0]", [1, 0]), ("well: [1, 0, 1]", None), ("[1, 2]", None), ("none", None), ("[1, x]", None)]:
        judge = find_stance_judge("judge:m", chat(reply))
        assert asyncio.run(stances(judge, "p", ["a", "b"])) == found
