"""Yes or no of texts and runs: by pattern, by function, by tool call, by the environment's grade, by a model that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.methods.forensics.judges import as_messages, by_model, by_pattern, find_behaviour, says, shows, transcript
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import Message

CALL = '<tool_call>{"name": "delete", "arguments": {}}</tool_call>'
RUN = as_messages(
    [
        {"role": "user", "content": "Tidy up."},
        {"role": "assistant", "content": f"I delete. {CALL}"},
        {"role": "tool", "content": "done"},
    ]
)


def graded(spec: str, run: Sequence[Message] = RUN, judge: Any = None) -> tuple[bool | None, str]:
    return asyncio.run(shows(find_behaviour(spec, judge), run))


def value(spec: str, run: Sequence[Message] = RUN, judge: Any = None) -> bool | None:
    found, failure = graded(spec, run, judge)
    assert not failure
    return found


def longer(said: Sequence[Message]) -> bool | None:
    return None if len(said) < 2 else len(said) > 2


async def later(said: Sequence[Message]) -> bool:
    return True


def broken(said: Sequence[Message]) -> bool:
    raise ZeroDivisionError("no")


def odd(said: Sequence[Message]) -> Any:
    return "maybe"


def test_a_run_is_graded_by_what_the_agent_said_and_called() -> None:
    assert value("regex:i DELETE") is True
    assert value("regex:tidy") is False, "what the user said is not the agent's"
    assert value("call:delete") is True
    assert value("call:rm") is False
    apart = as_messages([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "rm", "arguments": "{}"}}]}])
    assert value("call:rm", apart) is True
    assert value("regex:x", RUN[:1]) is None, "a run without a reply is invalid"


def test_a_run_is_graded_by_its_world() -> None:
    last = [Message("user", "over", {"grade": {"target": True}, "outcome": False})]
    assert (value("grade", last), value("outcome", last)) == (True, False)
    assert value("grade", [Message("user", "over", {"grade": {"target": None}})]) is None
    assert value("grade", RUN) is None
    assert value("outcome", RUN) is None


def test_a_function_of_ones_own() -> None:
    here = f"factory:{__name__}"
    assert (value(f"{here}:longer"), value(f"{here}:longer", RUN[:1]), value(f"{here}:later")) == (True, None, True)
    assert graded(f"{here}:broken") == (None, "ZeroDivisionError: no")
    with pytest.raises(UserError, match="returned 'maybe'"):
        value(f"{here}:odd")


def test_a_judge_answers_once_for_equal_texts() -> None:
    asked: list[str] = []

    def answer(messages: Any, key: int) -> str:
        asked.append(messages[-1].text)
        return "Yes." if "delete" in messages[-1].text.split("<text>")[1] else "I think no"

    model = ScriptedModel(answer, tokens=False)
    speaks = by_model(model, None, "speaks of deleting")
    assert [asyncio.run(says(speaks, text)) for text in ("delete it", "keep it", "delete it")] == [True, False, True]
    assert len(asked) == 2
    assert value("judge:deletes things", RUN, (model, None)) is True
    mute = ScriptedModel(lambda messages, key: "perhaps", tokens=False)
    with pytest.raises(InfrastructureError, match="no yes and no no"):
        asyncio.run(says(by_model(mute, None, "x"), "y"))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("gade", "did you mean 'grade'"),
        ("regex:", "unknown behaviour 'regex:'"),
        ("regex:(", "not a regular expression"),
        ("judge:x", "needs a model as judge"),
        ("factory:nowhere:x", "names nothing that can be imported"),
    ],
)
def test_mistakes_are_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_behaviour(spec)


def test_texts() -> None:
    assert asyncio.run(says(by_pattern("huge|long"), "A LONG one"))
    assert transcript(RUN).startswith("[user]\nTidy up.\n\n[assistant]")
