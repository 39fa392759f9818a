"""Shared by the integrations of several harnesses: a registry made of rules,
and the record of a compaction that a harness did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramify.rollout.compact import Compaction, compact_chat
from ramify.rollout.pins import Pin, Pins

Rules = Pins | str | Pin | Iterable[str | Pin]


def registry(rules: Rules, options: Mapping[str, Any]) -> Pins:
    """``rules`` if it is a registry, else one of them with ``options`` of :class:`ramify.rollout.pins.Pins`."""
    return rules if isinstance(rules, Pins) else Pins(rules, **options)


async def recorded(
    pins: Pins, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], operator: str, round: int
) -> Compaction:
    """What a harness's compaction made of ``before``, in OpenAI's form both, and what ``after`` still says of each rule."""
    _, record = await compact_chat(lambda _: after, before, round=round)
    return replace(record, operator=operator, rules=pins.survival(after))
