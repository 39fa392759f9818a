"""Pins for AutoGen:
``AssistantAgent(..., model_context=keep_rules(BufferedChatCompletionContext(20), ["Only mail acme.com."]))``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ramify.integrations.environments.spec import import_package
from ramify.integrations.harnesses.pinning import Rules, registry


def keep_rules(context: Any, rules: Rules, **options: Any) -> Any:
    """``context``, one of AutoGen's model contexts, with ``rules`` word for word before what it gives to the model.

    ``options`` are those of :class:`ramify.rollout.pins.Pins`; the registry is ``pins`` of what comes back. Raises NeedsError
    where AutoGen is not installed.
    """
    import_package("autogen_core.model_context", "harnesses", "a model context for AutoGen")
    from autogen_core.model_context import ChatCompletionContext
    from autogen_core.models import SystemMessage, UserMessage

    def made(value: dict[str, Any]) -> Any:
        if value["role"] == "system":
            return SystemMessage(content=value["content"])
        return UserMessage(content=value["content"], source="operator")

    class Kept(ChatCompletionContext):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.pins = registry(rules, options)

        async def add_message(self, message: Any) -> None:
            await context.add_message(message)

        async def get_messages(self) -> list[Any]:
            shown = await context.get_messages()
            self.pins.watch([_as_openai(message) for message in shown])
            return self.pins.insert(shown, _as_openai, made)

        async def clear(self) -> None:
            await context.clear()

        async def save_state(self) -> Any:
            return await context.save_state()

        async def load_state(self, state: Any) -> None:
            await context.load_state(state)

    return Kept()


def compactor(make: Callable[[], Any]) -> Callable[[Sequence[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]:
    """What the contexts that ``make`` gives leave of messages in OpenAI's form, for ``pin``,
    ``assert_survives`` and the benchmark."""
    import_package("autogen_core.model_context", "harnesses", "a model context for AutoGen")

    async def compact(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        context = make()
        given = [(_from_openai(value), value) for value in messages]
        for message, _ in given:
            await context.add_message(message)
        shown = await context.get_messages()
        known = {id(message): value for message, value in given}
        return [dict(known.get(id(message)) or _as_openai(message)) for message in shown]

    return compact


def _from_openai(value: Mapping[str, Any]) -> Any:
    from autogen_core import FunctionCall
    from autogen_core.models import (
        AssistantMessage,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        SystemMessage,
        UserMessage,
    )

    role, text = value.get("role"), value.get("content") or ""
    if role == "system":
        return SystemMessage(content=text)
    if role == "tool":
        result = FunctionExecutionResult(content=text, name=value.get("name", ""), call_id=value.get("tool_call_id", ""))
        return FunctionExecutionResultMessage(content=[result])
    if role == "assistant":
        made = [(call["id"], call["function"]) for call in value.get("tool_calls") or ()]
        calls = [FunctionCall(id=name, arguments=call["arguments"], name=call["name"]) for name, call in made]
        return AssistantMessage(content=calls or text, thought=text if calls else None, source="assistant")
    return UserMessage(content=text, source="user")


def _as_openai(message: Any) -> dict[str, Any]:
    role = {"SystemMessage": "system", "UserMessage": "user", "AssistantMessage": "assistant"}.get(message.type, "tool")
    parts = message.content if isinstance(message.content, list) else [message.content]
    text = "\n".join(part if isinstance(part, str) else str(getattr(part, "content", "")) for part in parts)
    calls = [
        {"type": "function", "id": part.id, "function": {"name": part.name, "arguments": part.arguments}}
        for part in parts
        if role == "assistant" and hasattr(part, "arguments")
    ]
    return {"role": role, "content": text} | ({"tool_calls": calls} if calls else {})
