"""Results of calls that were made together: the state is one, whatever the order in which they came."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from ramify.jobs.why.attempts import walked
from ramify.score.steps import run_columns
from ramify.trace.db import Run
from ramify.trace.foreign import Thread
from ramify.trace.message import Message
from ramify.trace.node import Score
from ramify.trace.parallel import by_call, results_in_order
from ramify.trace.view import views
from ramify.web.steps import merged, read_tree

RESULTS = {"a": "ticket 7", "b": "two files", "c": "ticket 7"}


def calls(ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "type": "function", "function": {"name": f"get_{id}", "arguments": "{}"}} for id in ids]


def attempt(run: Run, number: int, order: str, won: bool, ids: str = "abc", ends: bool = False) -> None:
    """Asks for three things at once, whose results come in ``order``, and answers; ``ends``: it is cut off before it does.
    The ids of its calls are its own, as those of a server are."""
    thread = Thread(run, "t", number)
    own = {id: f"{id}-{number}" for id in ids}
    asked = [{**call, "id": own[call["id"]]} for call in calls(ids)]
    thread.hang(Message("user", "how many?"), False)
    thread.hang(Message("assistant", "", {"tool_calls": asked}), True)
    for place, id in enumerate(order):
        last = ends and place == len(order) - 1
        thread.hang(Message("tool", RESULTS[id], {"tool_call_id": own[id]}), False, last)
    if not ends:
        thread.hang(Message("assistant", "two" if won else "three"), True, True)
    run.add(Score(thread.node.id, "test", float(won), judges={}))


@pytest.mark.parametrize("ends", [False, True])
def test_a_state_does_not_depend_on_the_order_of_arrival(tmp_path: Path, ends: bool) -> None:
    orders = ["".join(order) for order in itertools.permutations("abc")]
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "t"})
        for number, order in enumerate(orders):
            attempt(run, number, order, number % 2 == 0, ends=ends)
        keys = [walked(view)[2] for view in views(run)]
        columns = run_columns(run)
        states, _, _ = merged(read_tree(run, "t"))
    assert len(keys) == len(orders)
    assert len({tuple(one[:2]) for one in keys}) == 1
    if ends:
        return
    anchors = {anchor for anchor, step in zip(columns["anchor"], columns["step"], strict=True) if step == 1}
    assert anchors == {"ticket 7\ntwo files\nticket 7"}
    assert [state.visits for state in states if "two files" in state.text and "ticket" in state.text] == [len(orders)]


def test_other_results_are_another_state_also_where_the_last_is_the_same(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "t"})
        attempt(run, 0, "ba", True, "ab")
        attempt(run, 1, "ca", True, "ac")
        ends = {walked(view)[2][1] for view in views(run)}
    assert len(ends) == 2


def test_results_that_do_not_say_what_they_answer_stay_as_they_came() -> None:
    reply = {"tool_calls": calls("ab")}

    def order(*ids: Any) -> list[Any]:
        return [one["tool_call_id"] for one in by_call([{"tool_call_id": id} for id in ids], reply, lambda one: one)]

    assert order("b", "a") == ["a", "b"]
    assert order("a", "b") == ["a", "b"]
    for as_it_came in (("b", None), ("b", "z"), ("b", "b"), ("z", "a"), ("b", 7), ()):
        assert order(*as_it_came) == list(as_it_came)
    named = [{"name": "get_b"}, {"name": "get_a"}]
    assert by_call(named, reply, lambda one: one) == named[::-1]
    assert by_call(named, {"tool_calls": calls("aab")}, lambda one: one) == named
    assert by_call([{"tool_call_id": "b"}, {"tool_call_id": "a"}], {}, lambda one: one)[0] == {"tool_call_id": "b"}
    assert by_call([{"tool_call_id": "b"}], {"tool_calls": json.loads("[1, null]")}, lambda one: one) == [{"tool_call_id": "b"}]


def test_a_conversation_is_put_in_order_reply_by_reply() -> None:
    def said(role: str, **data: Any) -> dict[str, Any]:
        return {"role": role, **data}

    first, second = (said("assistant", tool_calls=calls(ids)) for ids in ("ab", "ac"))
    results = {id: said("tool", tool_call_id=id) for id in "abc"}
    messages = [said("user"), first, results["b"], results["a"], second, results["c"], results["a"]]
    made = results_in_order(messages, lambda one: one, lambda one: str(one["role"]))
    assert made == [said("user"), first, results["a"], results["b"], second, results["a"], results["c"]]
