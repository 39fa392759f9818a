"""Sampling settings as a request of the chat protocol names them, for models that are not asked over such a protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ramify.base.errors import UserError
from ramify.model.protocol import Prefix, Sampling

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Names of the longest reply, by protocol."""
_BESIDES = {"logit_bias": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_p": 0}
"""Further settings -> the value that changes nothing."""


def asked_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature, top-p, top-k, limit and stop texts among a request's fields, by their names in
    :class:`~ramify.model.protocol.Sampling`; what is not such a number or text is left out."""
    named: dict[str, Any] = {}
    for name, kind in (("temperature", float), ("top_p", float), ("top_k", int), ("max_tokens", int)):
        value = fields.get(name)
        if name == "max_tokens":
            value = next((fields[limit] for limit in _LIMITS if fields.get(limit) is not None), None)
        if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1 << 53:
            named[name] = kind(value)
    if stops := stop_texts(fields):
        named["stop_texts"] = stops
    return named


def stop_texts(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts before which a reply is to end."""
    stops = fields.get("stop", fields.get("stop_sequences"))
    stops = [stops] if isinstance(stops, str) else stops if isinstance(stops, list) else []
    return tuple(stop for stop in stops if isinstance(stop, str) and stop)


def as_asked(settings: Sampling, prefix: Prefix, distribution: bool = True) -> Sampling:
    """``settings`` with what ``prefix.asked`` says instead, for a model that is given tokens and no request: stop texts, a
    limit below that of ``settings`` and, with ``distribution``, temperature, top-p and top-k.

    With ``distribution``, raises UserError on what is out of range, and on a format and penalties, which only a server follows.
    """
    named = asked_settings(prefix.asked)
    named["max_tokens"] = min(max(1, named.get("max_tokens", settings.max_tokens)), settings.max_tokens)
    named["stop_texts"] = (*settings.stop_texts, *named.get("stop_texts", ()))
    if not distribution:
        return replace(settings, max_tokens=named["max_tokens"], stop_texts=named["stop_texts"])
    changed = replace(settings, **named)
    if changed.temperature < 0 or not 0 < changed.top_p <= 1:
        raise UserError(f"the agent asks for temperature {changed.temperature:g} and top_p {changed.top_p:g}: out of range")
    form = prefix.asked.get("response_format")
    wanted = ["response_format"] if isinstance(form, Mapping) and form.get("type") != "text" else []
    wanted += [name for name, neutral in _BESIDES.items() if prefix.asked.get(name) not in (None, {}, neutral)]
    if wanted:
        raise UserError(
            f"the agent asks for {' and '.join(wanted)}, which a model in this process does not follow: `ramify serve` it, "
            "and name it by its address, chat:NAME@URL"
        )
    return replace(changed, top_k=max(0, changed.top_k))


def shape_of(settings: Sampling) -> tuple[float, float, int]:
    """What of ``settings`` a request changes about the distribution of a token."""
    return settings.temperature, settings.top_p, settings.top_k
