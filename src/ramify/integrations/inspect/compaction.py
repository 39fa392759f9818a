"""Pins for compaction in inspect (``inspect_ai``):
``react(..., compaction=keep_rules(CompactionSummary(), ["Only mail acme.com."]))``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ramify.integrations.harnesses.pinning import Rules, recorded, registry
from ramify.integrations.inspect.logs import as_openai
from ramify.integrations.inspect.writer import require_inspect
from ramify.rollout.compact import Compaction
from ramify.rollout.pins import without_blocks
from ramify.trace.message import compacted


def keep_rules(strategy: Any, rules: Rules, **options: Any) -> Any:
    """``strategy``, one of inspect's, with ``rules`` put back word for word after each compaction.

    The rules are those of :class:`ramify.rollout.pins.Pins` or one itself; ``options`` are that class's. The strategy that comes
    back has the registry as ``pins``, and one :class:`ramify.rollout.compact.Compaction` a compaction in ``records``. Raises
    NeedsError where inspect is not installed.
    """
    require_inspect()
    from inspect_ai.model import CompactionStrategy

    class Kept(CompactionStrategy):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(type=strategy.type, threshold=strategy.threshold, memory=strategy.memory)
            self.pins = registry(rules, options)
            self.records: list[Compaction] = []

        @property
        def preserve_prefix(self) -> bool:
            return bool(strategy.preserve_prefix)

        async def compact(self, model: Any, messages: list[Any], tools: list[Any]) -> tuple[list[Any], Any]:
            outcome = await self.compact_outcome(model, messages, tools)
            return outcome.input, outcome.message

        async def compact_outcome(self, model: Any, messages: list[Any], tools: list[Any]) -> Any:
            before = _stripped(messages)
            outcome = await strategy.compact_outcome(model, before, tools)
            after = _stripped(outcome.input)
            self.pins.watch([as_openai(message) for message in before])
            first, then = ([as_openai(message) for message in part] for part in (before, after))
            self.records.append(await recorded(self.pins, first, then, outcome.applied, 1 + len(self.records)))
            return outcome._replace(input=self.pins.insert(after, as_openai, _made))

    return Kept()


def compactor(
    strategy: Any, model: Any = "mockllm/model"
) -> Callable[[Sequence[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]:
    """A strategy of inspect as a function over messages in OpenAI's form, for ``pin``, ``assert_survives`` and the benchmark.

    It compacts at every call. ``model`` is the one that the strategy calls, as inspect names it, or an inspect model.
    """
    require_inspect()
    from inspect_ai.model import ChatMessage, get_model, messages_from_openai, messages_to_openai
    from pydantic import TypeAdapter

    form: TypeAdapter[Any] = TypeAdapter(ChatMessage)

    async def compact(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        given: list[Any] = []
        for native, some in groupby(
            messages, _native
        ):  # a provider's own compaction is not part of OpenAI's chat format: it passes unchanged
            values = [dict(value) for value in some]
            given += map(form.validate_python, values) if native else await messages_from_openai(values)
        shown, _ = await strategy.compact(get_model(model), given, [])
        out: list[dict[str, Any]] = []
        for native, some in groupby(shown, lambda message: _native(as_openai(message))):
            found = list(some)
            out += map(as_openai, found) if native else [dict(value) for value in await messages_to_openai(found)]
        return out

    compact.__qualname__ = type(strategy).__name__
    return compact


def _native(value: Mapping[str, Any]) -> bool:
    parts = value.get("content")
    return isinstance(parts, list) and any(isinstance(part, Mapping) and compacted(part) is not None for part in parts)


def _stripped(messages: Sequence[Any]) -> list[Any]:
    """Messages without blocks, also where a provider's rule made inspect join a block with the message before it."""
    out = []
    for message in messages:
        content = message.content
        if message.role in ("system", "user") and without_blocks(message.text) != message.text:
            if isinstance(content, str):
                content = without_blocks(content).strip()
            else:
                texts = [(part, without_blocks(part.text).strip() if part.type == "text" else None) for part in content]
                content = [p if text is None else p.model_copy(update={"text": text}) for p, text in texts if text != ""]
            if not content:
                continue
            message = message.model_copy(update={"content": content})
        out.append(message)
    return out


def _made(value: dict[str, Any]) -> Any:
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser

    return (ChatMessageSystem if value["role"] == "system" else ChatMessageUser)(content=value["content"])
