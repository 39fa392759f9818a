"""JSON schemas of tools: whether a call fits them, as far as they are read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramify.base.errors import nearest


def check_call(name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """Why a call of the tool ``name`` is refused, one clause: ``tools`` (OpenAI's form, their schemas without a
    :func:`schema_fault`) do not have it, or it lacks an argument or has another; "" where it may be run."""
    schemas = {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools}
    if not schemas:
        return ""
    if name not in schemas:
        return f"there is no tool '{name}' ({nearest(name, schemas)})"
    schema = schemas[name]
    missing = [needed for needed in schema.get("required", ()) if needed not in arguments]
    if missing:
        return f"'{name}' needs {', '.join(missing)}"
    known = schema.get("properties") or {}
    for given, value in arguments.items():
        if given not in known and schema.get("additionalProperties") is False:
            return f"'{name}' has no argument '{given}' ({nearest(given, known)})"
        own = known.get(given)
        if isinstance(own, Mapping) and not fits(value, own):
            return f"'{given}' {_unfit(value, own)}"
    return ""


def _unfit(value: Any, schema: Mapping[str, Any]) -> str:
    """What is wrong with an argument that does not fit, one clause."""
    kind = schema.get("type")
    if not fits(value, {"type": kind}):
        return f"must be {kind if isinstance(kind, str) else ' or '.join(kind or ())}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(map(str, schema['enum']))}"
    return "does not fit its schema"


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether ``value`` has the shape a JSON schema gives: type, enum, required, properties, ``additionalProperties = false`` and
    items; other words are not checked."""
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if names and not any(
        isinstance(value, _TYPES.get(name, (object,))) and (name == "boolean" or not isinstance(value, bool)) for name in names
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, Mapping):
        own = schema.get("properties") or {}
        if schema.get("additionalProperties") is False and not set(value) <= set(own):
            return False
        return all(name in value for name in schema.get("required", ())) and all(
            fits(value[name], one) for name, one in own.items() if name in value and isinstance(one, Mapping)
        )
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return all(fits(one, schema["items"]) for one in value)
    return True


def schema_fault(schema: Any, where: str = "") -> str:
    """What keeps :func:`fits` from reading a JSON schema, one clause that names the word and where it stands; "" where nothing
    does."""
    if not isinstance(schema, Mapping):
        return f"{where or 'it'} is not an object"
    kind, enum, needs = schema.get("type"), schema.get("enum", []), schema.get("required", [])
    own, at = schema.get("properties") or {}, where or "its"
    if kind is not None and not isinstance(kind, str) and not _words(kind):
        return f"{at} 'type' is not a name of a type"
    if not isinstance(enum, list):
        return f"{at} 'enum' is not a list"
    if not _words(needs):
        return f"{at} 'required' is not a list of names"
    if not isinstance(own, Mapping):
        return f"{at} 'properties' is not an object"
    inner = [(name, one) for name, one in own.items() if isinstance(one, Mapping)]
    inner += [("items", schema["items"])] if isinstance(schema.get("items"), Mapping) else []
    return next((found for name, one in inner if (found := schema_fault(one, f"{where}.{name}".lstrip(".")))), "")


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
