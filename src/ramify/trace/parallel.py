"""Results of calls that a reply made together: they arrive in any order, and mean the same in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def by_call(results: Sequence[T], reply: Mapping[str, Any], data: Callable[[T], Mapping[str, Any]]) -> list[T]:
    """``results`` in the order of the calls of ``reply`` (a message's data) that they answer; ``data`` gives a result's own.

    They say it by the call's id, or by the tool's name. As they are where one does not say it, or two answer the same call.
    """
    calls = reply.get("tool_calls")
    readable = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    ids, tools = [call.get("id") for call in readable], [_tool(call) for call in readable]
    places = [_place(ids, tools, data(result)) for result in results]
    if -1 in places or len(set(places)) < len(places):
        return list(results)
    return [result for _, result in sorted(zip(places, results, strict=True), key=lambda pair: pair[0])]


def _tool(call: Mapping[str, Any]) -> Any:
    function = call.get("function", call)
    return function.get("name") if isinstance(function, Mapping) else None


def _place(ids: list[Any], tools: list[Any], result: Mapping[str, Any]) -> int:
    """The number of the call that a result answers, -1 where that is not clear."""
    for names, name in ((ids, result.get("tool_call_id")), (tools, result.get("name"))):
        if name is not None:
            return names.index(name) if names.count(name) == 1 else -1
    return -1


def results_in_order(messages: Sequence[T], data: Callable[[T], Mapping[str, Any]], role: Callable[[T], str]) -> list[T]:
    """A conversation in which the results between two replies stand in the order of their calls (:func:`by_call`)."""
    ordered: list[T] = []
    waiting: list[T] = []
    reply: Mapping[str, Any] = {}
    for message in messages:
        if role(message) == "tool":
            waiting.append(message)
            continue
        ordered += [*by_call(waiting, reply, data), message]
        waiting, reply = [], data(message) if role(message) == "assistant" else {}
    return [*ordered, *by_call(waiting, reply, data)]
