"""Results of calls that a reply made together: they arrive in any order, and mean the same in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def by_call(results: Sequence[T], reply: Mapping[str, Any], data: Callable[[T], Mapping[str, Any]]) -> list[T]:
    """``results`` in the order of the calls of ``reply`` (a message's data) that they answer; ``data`` gives a result's own.

    As they are where one does not say which call it answers, or two answer the same.
    """
    calls = reply.get("tool_calls")
    made = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    answered = [data(one).get("tool_call_id") for one in results]
    if len(set(map(str, answered))) < len(answered) or not all(id is not None and made.count(id) == 1 for id in answered):
        return list(results)
    return sorted(results, key=lambda one: made.index(data(one)["tool_call_id"]))


def results_in_order(messages: Sequence[T], data: Callable[[T], Mapping[str, Any]], role: Callable[[T], str]) -> list[T]:
    """A conversation in which the results between two replies stand in the order of their calls (:func:`by_call`)."""
    found: list[T] = []
    waiting: list[T] = []
    reply: Mapping[str, Any] = {}
    for one in messages:
        if role(one) == "tool":
            waiting.append(one)
            continue
        found += [*by_call(waiting, reply, data), one]
        waiting, reply = [], data(one) if role(one) == "assistant" else {}
    return [*found, *by_call(waiting, reply, data)]
