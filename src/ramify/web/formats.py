"""Constraints of a request on its replies: a format, a tool that must be called, or calls whose arguments fit their schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.model.grammar import json_object, json_schema, one_of, regex, tool_calls
from ramify.model.protocol import Grammar
from ramify.web.fields import ChatRequest, RequestFields
from ramify.web.limits import RefusedRequestError

_SCHEMA = ("name", "description", "schema", "strict")


def grammar_of(request: RequestFields, strict: bool = True) -> Grammar | None:
    """What the reply's text has to match. Raises RefusedError (400) with the path of what cannot be kept to.

    Without ``strict``, for a model that may not be able to, calls that a reply is free to make are not held to their schemas.
    """
    field = ""
    try:
        reply = None
        if request.structured_outputs is not None:
            field = "structured_outputs"
            reply = _structured(request.structured_outputs)
        if (request.response_format or {"type": "text"}) != {"type": "text"}:
            if reply is not None:
                raise UserError("'structured_outputs' and 'response_format' are two ways to set the format; send one of them")
            field = "response_format"
            reply = _format(request.response_format or {})
        if not isinstance(request, ChatRequest):
            return reply
        field = "tool_choice" if request.tool_choice not in (None, "auto", "none") else "tools"
        return _calls(request, reply, strict)
    except UserError as error:
        raise RefusedRequestError(400, f"{error}.", field, "invalid_value") from None


def _format(spec: Mapping[str, Any]) -> Grammar:
    kind = spec.get("type")
    if kind == "json_object":
        _only(spec, ("type",), "response_format")
        return json_object()
    if kind != "json_schema":
        hint = nearest(str(kind), ("text", "json_object", "json_schema"))
        raise UserError(f"response_format.type is {json.dumps(kind)[:40]}, which is not offered ({hint})")
    _only(spec, ("type", "json_schema"), "response_format")
    inner = spec.get("json_schema")
    if not isinstance(inner, dict) or "schema" not in inner:
        raise UserError("response_format.json_schema must be an object with a 'schema'")
    _only(inner, _SCHEMA, "response_format.json_schema")
    return json_schema(inner["schema"], "response_format.json_schema.schema")


def _structured(spec: Mapping[str, Any]) -> Grammar:
    """vLLM's field."""
    known: dict[str, Callable[[Any, str], Grammar]] = {
        "json": lambda value, spot: json_schema(_parsed(value, spot), spot),
        "regex": lambda value, spot: regex(_text(value, spot), spot),
        "choice": lambda value, spot: one_of([_text(one, spot) for one in (value if isinstance(value, list) else [])], spot),
        "json_object": lambda value, spot: json_object(),
    }
    given = {name: value for name, value in spec.items() if value is not None and value is not False}
    _only(given, known, "structured_outputs")
    if len(given) != 1:
        raise UserError(f"structured_outputs must have one of {', '.join(known)}")
    ((name, value),) = given.items()
    return known[name](value, f"structured_outputs.{name}")


def _calls(request: ChatRequest, reply: Grammar | None, strict: bool) -> Grammar | None:
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    choice, several = request.tool_choice, request.parallel_tool_calls is not False
    if choice == "none" or (choice in (None, "auto") and not tools):
        return reply
    if not tools:
        raise UserError("'tool_choice' needs 'tools' to choose from")
    if choice in (None, "auto"):
        held = reply is not None or (strict and any(tool["function"].get("strict") for tool in tools))
        return tool_calls(tools, several, reply, free=reply is None) if held else None
    if choice == "required":
        return tool_calls(tools, several)
    name = choice.get("function", {}).get("name") if choice.get("type") == "function" else None
    if name is None:
        raise UserError('tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": NAME}}')
    at = next((at for at, tool in enumerate(tools) if tool["function"]["name"] == name), None)
    if at is None:
        known = nearest(str(name), [tool["function"]["name"] for tool in tools])
        raise UserError(f"tool_choice.function.name is '{str(name)[:64]}', which is no tool of the request ({known})")
    return tool_calls(tools[at : at + 1], several=False, where=f"tools[{at}]")


def _only(fields: Mapping[str, Any], known: Any, where: str) -> None:
    for name in fields:
        if name not in known:
            raise UserError(f"{where} has the unknown field '{str(name)[:40]}' ({nearest(str(name), known)})")


def _parsed(value: Any, spot: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise UserError(f"{spot} is a text that is not JSON") from None


def _text(value: Any, spot: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{spot} must be text")
    return value
