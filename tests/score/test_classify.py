"""Yes or no of texts and runs: by pattern, by function, by tool call, by the world's grade, by a model that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ramify.base.errors import BoundaryError, UserError
from ramify.model.scripted import ScriptedModel
from ramify.score.classify import as_said, by_model, by_pattern, find_behaviour, transcript
from ramify.trace.message import Message

CALL = '<tool_call>{"name": "delete", "arguments": {}}</tool_call>'
RUN = as_said(
    [
        {"role": "user", "content": "Tidy up."},
        {"role": "assistant", "content": f"I delete. {CALL}"},
        {"role": "tool", "content": "done"},
    ]
)


def graded(spec: str, run: Sequence[Message] = RUN, judge: Any = None) -> bool | None:
    return asyncio.run(find_behaviour(spec, judge)(run))  # type: ignore[arg-type]


def longer(said: Sequence[Message]) -> bool | None:
    return None if len(said) < 2 else len(said) > 2


async def later(said: Sequence[Message]) -> bool:
    return True


def broken(said: Sequence[Message]) -> bool:
    raise ZeroDivisionError("no")


def odd(said: Sequence[Message]) -> Any:
    return "maybe"


def test_a_run_is_graded_by_what_the_agent_said_and_called() -> None:
    assert graded("regex:i DELETE") is True
    assert graded("regex:tidy") is False, "what the user said is not the agent's"
    assert graded("call:delete") is True
    assert graded("call:rm") is False
    apart = as_said([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "rm", "arguments": "{}"}}]}])
    assert graded("call:rm", apart) is True
    assert graded("regex:x", RUN[:1]) is None, "a run without a reply is invalid"


def test_a_run_is_graded_by_its_world() -> None:
    last = [Message("user", "over", {"grade": {"target": True}, "outcome": False})]
    assert (graded("grade", last), graded("outcome", last)) == (True, False)
    assert graded("grade", [Message("user", "over", {"grade": {"target": None}})]) is None
    assert graded("grade", RUN) is None
    assert graded("outcome", RUN) is None


def test_a_function_of_ones_own() -> None:
    here = "factory:tests.score.test_classify"
    assert (graded(f"{here}:longer"), graded(f"{here}:longer", RUN[:1]), graded(f"{here}:later")) == (True, None, True)
    with pytest.raises(BoundaryError, match="ZeroDivisionError"):
        graded(f"{here}:broken")
    with pytest.raises(UserError, match="returned 'maybe'"):
        graded(f"{here}:odd")


def test_a_judge_answers_once_for_equal_texts() -> None:
    asked: list[str] = []

    def answer(messages: Any, key: int) -> str:
        asked.append(messages[-1].text)
        return "Yes." if "delete" in messages[-1].text.split("<text>")[1] else "I think no"

    model = ScriptedModel(answer, tokens=False)
    says = by_model(model, None, "speaks of deleting")
    assert [asyncio.run(says(text)) for text in ("delete it", "keep it", "delete it")] == [True, False, True]
    assert len(asked) == 2
    assert graded("judge:deletes things", RUN, (model, None)) is True
    mute = ScriptedModel(lambda messages, key: "perhaps", tokens=False)
    with pytest.raises(BoundaryError, match="no yes and no no"):
        asyncio.run(by_model(mute, None, "x")("y"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gade", "did you mean 'grade'"),
        ("regex:", "unknown behaviour 'regex:'"),
        ("regex:(", "no regular expression"),
        ("judge:x", "needs a model as judge"),
        ("factory:nowhere:x", "names nothing that can be imported"),
    ],
)
def test_mistakes_are_one_sentence(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        find_behaviour(spec)


def test_texts() -> None:
    assert asyncio.run(by_pattern("huge|long")("A LONG one"))
    assert transcript(RUN).startswith("[user]\nTidy up.\n\n[assistant]")
