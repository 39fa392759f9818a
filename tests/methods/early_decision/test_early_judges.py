"""Who judges answers, and who reads stances."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.methods.early_decision.judges import find_jury, find_stance_judge, stances
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import Item, judged


def make_raising() -> Any:
    def raising(prompt: str, answer: str) -> bool:
        raise RuntimeError("no guard today")

    return raising


def vote(jury: Any, answer: str = "SORRY, no") -> Any:
    (found,) = asyncio.run(judged(jury, [Item(answer, prompt="p")]))
    return found


def test_a_judge_that_raises_has_no_vote() -> None:
    specs = ["regex:I can.?not|sorry", f"factory:{__name__}:make_raising"]
    jury = find_jury(specs)
    assert jury.names == specs
    found = vote(jury)
    assert (found.value, found.evidence["votes"], found.evidence["share"]) == (True, [True, None], 1.0)
    assert jury.failed == {specs[1]: "RuntimeError: no guard today"}
    alone = vote(find_jury(specs[1:]))
    assert (alone.value, alone.failure) == (None, "RuntimeError: no guard today")


def test_an_even_split_is_no_unless_ties_count() -> None:
    half = ["regex:sorry", "regex:never"]
    assert [vote(find_jury(half, ties=ties)).value for ties in (False, True)] == [False, True]
    assert vote(find_jury([*half, "regex:no"])).value is True


def test_mistakes_are_one_sentence() -> None:
    for spec, says in [
        ("regx:a", "did you mean 'regex'"),
        ("regex:(", "not a regular expression"),
        ("judge:", "needs an argument"),
    ]:
        with pytest.raises(UserError, match=says):
            find_jury([spec])
    with pytest.raises(UserError, match="at least one judge"):
        find_jury([])
    with pytest.raises(UserError, match="unknown judge of stances 'regx:a'"):
        find_stance_judge("regx:a")


def test_every_family_of_judges_reads_stances_where_yes_is_a_refusal() -> None:
    pieces = ["I should refuse.", "Sure, gladly.", "I must REFUSE"]
    for spec in ("regex:refuse", 'jury:["regex:refuse", "regex:must|should"]'):
        assert asyncio.run(stances(find_stance_judge(spec), "p", pieces)) == [-1, 1, -1], spec


def chat(*replies: str) -> Any:
    return lambda spec: (ScriptedModel(list(replies), name=spec, tokens=False), None)


def test_a_model_as_voter_and_as_judge_of_stances() -> None:
    assert vote(find_jury(["judge:guard"], chat("It says no. Refused: yes"))).value is True
    silent = vote(find_jury(["judge:guard"], chat("hard to say")))
    assert (silent.value, silent.failure) == (None, "")
    for reply, found in [("[1, 0]", [1, 0]), ("well: [1, 0, 1]", None), ("[1, 2]", None), ("none", None), ("[1, x]", None)]:
        judge = find_stance_judge("judge:m", chat(reply))
        assert asyncio.run(stances(judge, "p", ["a", "b"])) == found
