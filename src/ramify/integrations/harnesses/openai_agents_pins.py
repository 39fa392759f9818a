"""Pins for the OpenAI Agents SDK: ``RunConfig(call_model_input_filter=keep_rules(["Only mail acme.com."]))``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ramify.integrations.environments.spec import import_package
from ramify.integrations.harnesses.pinning import Rules, registry
from ramify.rollout.pins import Pins


class InputFilter:
    """Called by the SDK before each model call: the user's filter first, then the rules. ``pins`` is the registry."""

    def __init__(self, pins: Pins, first: Callable[[Any], Any] | None = None) -> None:
        self.pins, self.first = pins, first

    async def __call__(self, data: Any) -> Any:
        """A ``CallModelData`` of the SDK in, a ``ModelInputData`` out; the session's items stay as they are."""
        from agents.run import ModelInputData

        found = data.model_data
        if self.first is not None:
            found = self.first(data)
            found = await found if inspect.isawaitable(found) else found
        self.pins.watch([_as_openai(item) for item in found.input])
        return ModelInputData(input=self.pins.insert(found.input, _as_openai), instructions=found.instructions)


def keep_rules(rules: Rules, first: Callable[[Any], Any] | None = None, **options: Any) -> InputFilter:
    """A filter that puts ``rules`` word for word before every call of the model,
    whatever the session or ``first`` left of the items.

    ``first`` is a filter of your own, such as one that shortens. ``options`` are those of :class:`ramify.rollout.pins.Pins`.
    Raises NeedsError where the SDK is not installed.
    """
    import_package("agents", "harnesses", "a filter for the OpenAI Agents SDK")
    return InputFilter(registry(rules, options), first)


def compactor(first: Callable[[Any], Any]) -> Callable[[Sequence[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]:
    """A filter that shortens as a function over messages, for ``pin``, ``assert_survives`` and the benchmark."""
    import_package("agents", "harnesses", "a filter for the OpenAI Agents SDK")
    from agents.run import CallModelData, ModelInputData

    async def compact(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        data: Any = CallModelData(ModelInputData([dict(value) for value in messages], None), None, None)
        found = first(data)
        return list((await found if inspect.isawaitable(found) else found).input)

    compact.__qualname__ = getattr(first, "__qualname__", type(first).__name__)
    return compact


def _as_openai(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item of the Responses interface as a message: a call's result is a tool's."""
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return item
