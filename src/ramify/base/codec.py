"""Records as JSON and back: the one codec. Dataclasses and named tuples become objects of their fields, settings their dump."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ramify.base.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_LONGEST = 60
"""Characters of a refused value that its sentence quotes."""


def to_json(value: Any, lean: bool = False) -> Any:
    """``value`` as JSON: records, mappings, sequences, sets (sorted), paths, enumerations, numpy's numbers and arrays.

    A float that is not finite becomes None. A field whose metadata has ``json`` False is left out, and with ``lean`` one of a
    record that has its default. Raises TypeError naming the type of what has no JSON form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        kept = ((part, getattr(value, part.name)) for part in fields(value) if part.metadata.get("json", True))
        return {part.name: to_json(member, lean) for part, member in kept if not (lean and member == part.default)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: to_json(item, lean) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {_key(name): to_json(item, lean) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, lean) for item in value]
    if isinstance(value, Set):
        return sorted(to_json(item) for item in value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return to_json(value.value)
    if hasattr(value, "model_dump"):  # settings, whose own form hides secrets
        return value.to_json() if hasattr(value, "to_json") else value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # numpy's, which is not imported for it
        return to_json(value.tolist())
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _key(name: Any) -> str:
    if isinstance(name, (str, int, float)):  # numbers as JSON's own writer spells them
        return name if isinstance(name, str) else str(name)
    raise TypeError(f"a {type(name).__name__} is not a key of a JSON object")


def from_json(of: type[T], data: Any, where: str = "") -> T:
    """The record of type ``of`` that ``data`` is the JSON form of. Fields that ``of`` does not have are ignored.

    Raises UserError in one sentence that names ``where`` (a file and line, a run), the field and what is wrong with it."""
    from pydantic import ValidationError

    try:
        record: T = _adapter(cast("Any", of)).validate_python(data)
    except ValidationError as error:
        raise UserError(_sentence(error.errors()[0], where)) from None
    return record


@lru_cache(maxsize=512)
def _adapter(of: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(of)


def _sentence(error: Any, where: str) -> str:
    """pydantic's first complaint as one sentence."""
    from ramify.base.config import lowered

    field = ".".join(str(part) for part in error["loc"])
    prefix = f"{where}: " if where else ""
    if error["type"] == "missing":
        return f"{prefix}'{field}' is missing"
    reason = str(error["ctx"]["error"]) if error["type"] == "value_error" else lowered(error["msg"])
    given = repr(error["input"])
    shown = given if len(given) <= _LONGEST else given[: _LONGEST - 3] + "..."
    return f"{prefix}'{field}' {reason}, not {shown}" if field else f"{prefix}{reason}, not {shown}"
