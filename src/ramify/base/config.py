"""Typed configuration: defaults < TOML files left to right < dotted flags. Every mistake is one sentence that names its source.

A configuration is a :class:`Config` subclass that lives in the file it configures; the docstring under a field is its help text.
This module imports pydantic, so modules that must start fast import it inside a function.
"""

from __future__ import annotations

import json
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from ramify.base.errors import UserError, nearest
from ramify.base.files import read_small
from ramify.base.secrets import redact


class ConfigError(UserError, ValueError):
    """A configuration made in Python has an invalid value; the message is one sentence."""


LARGEST, SMALLEST = 2**63 - 1, 1e-300
"""Range of a setting's numbers: larger ones cannot be counted or stored, smaller ones are lost in arithmetic."""


class Config(BaseModel):
    """Base of every typed configuration record: frozen; unknown keys and unusable numbers or texts are refused.

    Calling it raises ConfigError with the first mistake, where pydantic's own error would be several lines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    BASIC: ClassVar[str] = ""
    """Dotted names, with spaces, of the settings that help shows first; the others are advanced. Empty: all are basic."""

    ITSELF: ClassVar[str] = ""
    """The field that a table of settings may be named for: ``--credit NAME`` says ``--credit.name NAME``, and help shows the
    short form."""

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(_sentence(type(self), error.errors()[0], type(self).__name__)) from None

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and (abs(value) > LARGEST if isinstance(value, int) else 0 < abs(value) < SMALLEST):
            raise ValueError(f"must be between {SMALLEST:g} and {LARGEST} in size, or 0")
        if isinstance(value, str) and not _is_text(value):
            raise ValueError("must be text, and is not valid UTF-8")
        return value

    @model_validator(mode="before")
    @classmethod
    def _itself(cls, value: Any) -> Any:
        return {cls.ITSELF: value} if cls.ITSELF and isinstance(value, str) else value

    # as pydantic marks its own: data is validated past it (:func:`check` names other sources), nested records too
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, Any]:
        """The resolved configuration as JSON, secrets redacted: what a run stores first."""
        record: dict[str, Any] = redact(self.model_dump(mode="json"))
        return record


def _is_text(value: str) -> bool:
    """Whether UTF-8 can express it; a shell may pass bytes that are not text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


C = TypeVar("C", bound=Config)


class Setting(NamedTuple):
    """One line of help: dotted name, type, default as shown ("" when required), help text, whether it must be given."""

    name: str
    type: str
    default: str
    help: str
    required: bool = False


def load(
    cls: type[C],
    files: Sequence[str | Path] = (),
    options: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> C:
    """Resolve a configuration: defaults, then what is ``given`` in Python, then each TOML file, then options of the command line.

    ``options`` are dotted names with texts (lists as ``1,2,3`` or JSON, ``none``) or truth values. Raises UserError naming the
    file or option, the key and the nearest right name.
    """
    defaults = ((name, info.get_default(call_default_factory=True)) for name, info in cls.model_fields.items())
    merged = {name: _preset(default) for name, default in defaults if isinstance(default, Config)}
    sources: dict[str, str] = {}
    for key, value in _flatten(cls, dict(given or {}), "the settings"):
        _put(merged, key, value)
        sources[key] = "the settings"
    for file in files:
        for key, value in _flatten(cls, read_toml(Path(file)), str(file)):
            _put(merged, key, value)
            sources[key] = str(file)
    for short, value in (options or {}).items():
        flag, key = "--" + short.replace("_", "-"), _full(cls, short)
        _put(merged, key, _value(_annotation(cls, key, flag), value) if isinstance(value, str) else value)
        sources[key] = flag
    return check(cls, merged, sources)


def check(cls: type[C], data: Mapping[str, Any], sources: Mapping[str, str] | str = "") -> C:
    """Validate plain data. ``sources`` names where each dotted key came from, or the one source of all.

    Raises UserError with the first mistake as one sentence.
    """
    try:
        return cls.model_validate(dict(data))
    except ValidationError as error:
        raise UserError(_sentence(cls, error.errors()[0], sources)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file. Raises UserError naming the file, and the line of a syntax error."""
    try:
        return tomllib.loads(read_small(path, "the configuration").decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"cannot read the configuration {path}: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep, an invalid path
        raise UserError(f"{path} is not readable as TOML: {error}") from None


def describe(cls: type[Config]) -> list[Setting]:
    """Every settable key of ``cls`` in order, nested ones dotted."""
    return list(_walk(cls))


def _preset(config: Config) -> dict[str, Any]:
    """What a default of nested settings sets beyond its own class's defaults: naming one of its keys must not undo the others."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    return {
        name: _preset(value) if isinstance(value, Config) else value
        for name, value in values.items()
        if isinstance(value, Config) or name in config.model_fields_set
    }


def _walk(cls: type[Config], prefix: str = "", given: Config | None = None) -> Iterator[Setting]:
    for name, info in sorted(cls.model_fields.items(), key=lambda field: field[0] != (cls.ITSELF or field[0])):
        value = getattr(given, name) if given is not None else info.get_default(call_default_factory=True)
        inner = _nested(info.annotation)
        if inner is not None:
            yield from _walk(inner, f"{prefix}{name}.", value if isinstance(value, Config) else None)
            continue
        required = given is None and info.is_required()
        called = prefix.removesuffix(".") if name == cls.ITSELF else prefix + name
        text = " ".join((info.description or "").split())
        yield Setting(
            called,
            _type_name(info.annotation),
            "" if required else _show(value),
            text,
            required,
        )


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (tuple, list)):
        return ",".join(_show(v) for v in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _nested(annotation: Any) -> type[Config] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Config):
            return member
    return None


def _type_name(annotation: Any) -> str:
    names = []
    for member in _members(annotation):
        if member is type(None):
            names.append("none")
        elif member.__class__.__name__ == "_LiteralGenericAlias":
            names += [str(choice) for choice in get_args(member)]
        elif get_origin(member) is not None:
            names.append("list" if get_origin(member) in (tuple, list) else get_origin(member).__name__)
        else:
            names.append({"str": "text", "float": "number", "bool": "true|false"}.get(member.__name__, member.__name__.lower()))
    return "|".join(names)


def _annotation(cls: type[Config], key: str, where: str) -> Any:
    """The annotation of dotted ``key``. Raises UserError for an unknown key."""
    level, annotation = cls, None
    parts = key.split(".")
    for i, part in enumerate(parts):
        if part not in level.model_fields:
            raise UserError(_unknown(cls, key, where))
        annotation = level.model_fields[part].annotation
        inner = _nested(annotation)
        if i < len(parts) - 1:
            if inner is None:
                raise UserError(_unknown(cls, key, where))
            level = inner
    return annotation


def _full(cls: type[Config], key: str) -> str:
    """The field that dotted ``key`` sets: of a table, the one it may be named for (``Config.ITSELF``)."""
    inner = _nested(_annotation(cls, key, "the settings"))
    return f"{key}.{inner.ITSELF}" if inner is not None and inner.ITSELF else key


def _unknown(cls: type[Config], key: str, where: str) -> str:
    known = [field.name for field in describe(cls)]
    same_leaf = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    if not where.startswith("--"):
        return f"unknown key '{key}' in {where} ({nearest(same_leaf[0] if same_leaf else key, known)})"
    flags = ["--" + name.replace("_", "-") for name in known]
    return f"unknown option {where} ({nearest('--' + (same_leaf[0] if same_leaf else key).replace('_', '-'), flags)})"


def _flatten(cls: type[Config], table: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        annotation = _annotation(cls, key, where)
        if _nested(annotation) is not None and isinstance(value, Mapping):
            yield from _flatten(cls, value, where, key + ".")
        else:
            yield _full(cls, key), value


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for part in parents:
        inner = data.get(part)
        if not isinstance(inner, dict):
            inner = data[part] = {}
        data = inner
    data[leaf] = value


def _value(annotation: Any, text: str) -> Any:
    """Read an option's text as far as pydantic does not: "none", lists (``1,2,3`` or JSON) and JSON objects."""
    members = _members(annotation)
    if type(None) in members and text.lower() == "none":
        return None
    origins = {get_origin(member) or member for member in members}
    if origins & {tuple, list, dict} and text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    if origins & {tuple, list}:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _sentence(cls: type[Config], error: ErrorDetails, sources: Mapping[str, str] | str) -> str:
    parts = [str(part) for part in error["loc"]]
    key = ".".join(parts)
    where = sources if isinstance(sources, str) else next((s for k, s in reversed(list(sources.items())) if _within(key, k)), "")
    if error["type"] == "extra_forbidden":
        return _unknown(cls, key, where or "the configuration")
    if error["type"] == "missing":
        if isinstance(sources, str):
            return f"the configuration{f' {where}' if where else ''} lacks '{key}'"
        help_text = next((option.help for option in describe(cls) if option.name == key), "")
        return f"--{key.replace('_', '-')} is missing{inline(help_text)}; set it here or in a --config file"
    reason = str(error["ctx"]["error"]) if error["type"] == "value_error" else lowered(error["msg"])
    if not key:
        return reason if not isinstance(sources, str) or not sources else f"{sources}: {reason}"
    given = repr(error["input"])
    shown = given if len(given) <= 60 else given[:57] + "..."
    name = where if where.startswith("--") else f"'{key}'" + (f" in {where}" if where else "")
    return f"{name}: {reason}, not {shown}"


def inline(text: str) -> str:
    """Help as the end of a sentence: after a colon, lower-case unless it begins with an abbreviation, without a full stop."""
    text = text.rstrip(".")
    return f": {text if text[1:2].isupper() else text[:1].lower() + text[1:]}" if text else ""


def _within(key: str, source: str) -> bool:
    return key == source or key.startswith(source + ".") or source.startswith(key + ".")


def lowered(message: str) -> str:
    """pydantic's message as the end of a sentence."""
    message = message.removeprefix("Input ").removesuffix(".").split(", unable to parse")[0].replace("should", "must", 1)
    return re.sub(r"a valid dictionary.*", "a table", message.replace("a valid string", "text"))
