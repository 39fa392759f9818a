"""Pins for agents of LangChain and LangGraph, and for nodes that summarise (LangMem).

``create_agent(..., middleware=[SummarizationMiddleware(...), keep_rules(["Only mail acme.com."])])``
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramify.base.errors import UserError
from ramify.integrations.environments.spec import import_package
from ramify.integrations.harnesses.pinning import Rules, recorded, registry
from ramify.rollout.compact import Compaction
from ramify.rollout.pins import Pins, RuleBrokenError, is_block


def keep_rules(rules: Rules, **options: Any) -> Any:
    """A middleware that puts ``rules`` word for word before every call of the model, whatever compacted the messages before.

    Put it behind those that compact. The agent's state stays as it is. A tool call that a rule's ``allows`` forbids is answered
    with the reason and not made. ``options`` are those of :class:`ramify.rollout.pins.Pins`; the registry is the middleware's
    ``pins``. Raises NeedsError where LangChain is not installed.
    """
    import_package("langchain.agents", "harnesses", "a middleware for LangChain")
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import ToolMessage

    class KeepRules(AgentMiddleware):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.pins = registry(rules, options)

        def _kept(self, request: Any) -> Any:
            self.pins.watch([_as_openai(message) for message in request.messages])
            return request.override(messages=_insert(self.pins, request.messages))

        def _refused(self, call: Mapping[str, Any]) -> Any:
            try:
                self.pins.gate(call["name"], call["args"])
            except RuleBrokenError as error:
                return ToolMessage(str(error), tool_call_id=call["id"], name=call["name"], status="error")
            return None

        def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return handler(self._kept(request))

        async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return await handler(self._kept(request))

        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return self._refused(request.tool_call) or handler(request)

        async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            return self._refused(request.tool_call) or await handler(request)

    return KeepRules()


def keep_rules_node(node: Any, rules: Rules, **options: Any) -> Any:
    """A node that summarises, such as LangMem's ``SummarizationNode``, with ``rules`` put back word for word into what it gives.

    What comes back is a node as well; it has the registry as ``pins`` and one :class:`ramify.rollout.compact.Compaction` a call
    in ``records``. Raises NeedsError where LangChain is not installed.
    """
    import_package("langchain_core", "harnesses", "a node for LangGraph")
    from langchain_core.runnables import RunnableLambda

    from ramify.base.waiting import wait_for

    pins, records = registry(rules, options), list[Compaction]()
    read, write = node.input_messages_key, node.output_messages_key

    def given(state: Mapping[str, Any]) -> dict[str, Any]:
        return {**state, read: [message for message in state[read] if not is_block(_as_openai(message))]}

    async def put(before: Sequence[Any], found: Mapping[str, Any]) -> dict[str, Any]:
        first, then = ([_as_openai(m) for m in part if m.type != "remove"] for part in (before, found[write]))
        pins.watch(first)
        records.append(await recorded(pins, first, then, type(node).__name__, 1 + len(records)))
        return {**found, write: _insert(pins, found[write])}

    def kept(state: Mapping[str, Any]) -> dict[str, Any]:
        plain = given(state)
        return wait_for(put(plain[read], node.invoke(plain)))

    async def akept(state: Mapping[str, Any]) -> dict[str, Any]:
        plain = given(state)
        return await put(plain[read], await node.ainvoke(plain))

    made: Any = RunnableLambda(kept, afunc=akept, name=f"{node.get_name()}+pins")
    object.__setattr__(made, "pins", pins)
    object.__setattr__(made, "records", records)
    return made


def compactor(step: Any) -> Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]:
    """A middleware's or a node's compaction as a function over messages in OpenAI's form, for ``pin``,
    ``assert_survives``, the benchmark.

    One function is for one conversation: a node's running summary goes from call to call. The system's first messages are kept
    from a middleware, as in an agent. Raises NeedsError where LangChain is not installed, UserError on what is neither.
    """
    import_package("langgraph.graph", "harnesses", "compaction of LangChain's messages")
    from langchain_core.messages import convert_to_messages, convert_to_openai_messages
    from langgraph.graph.message import add_messages

    middle = hasattr(step, "before_model")
    if not middle and not hasattr(step, "output_messages_key"):
        raise UserError(f"{type(step).__name__} is neither a middleware nor a node that summarises messages")
    kept: dict[str, Any] = {}
    calls = itertools.count()

    def compact(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        given, number = convert_to_messages([dict(value) for value in messages]), next(calls)
        for at, message in enumerate(given):
            message.id = f"{number}-{at}"  # a running summary remembers ids
        head = next((at for at, message in enumerate(given) if message.type != "system"), len(given)) if middle else 0
        given, system = given[head:], given[:head]
        if middle:
            found = step.before_model({"messages": given}, None)
            shown = given if not found else add_messages(given, found["messages"])
        else:
            found = step.invoke({step.input_messages_key: given, **kept})
            kept.update({"context": found["context"]} if "context" in found else {})
            shown = [message for message in found[step.output_messages_key] if message.type != "remove"]
        return list(convert_to_openai_messages([*system, *shown]))

    compact.__qualname__ = type(step).__name__
    return compact


def _insert(pins: Pins, messages: Sequence[Any]) -> list[Any]:
    from langchain_core.messages import convert_to_messages

    return pins.insert(messages, _as_openai, lambda value: convert_to_messages([value])[0])


def _as_openai(message: Any) -> dict[str, Any]:
    from langchain_core.messages import convert_to_openai_messages

    if message.type == "remove":
        return {"role": "system", "content": ""}
    found: dict[str, Any] = convert_to_openai_messages([message])[0]
    return found
