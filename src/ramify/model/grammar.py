"""Grammars that constrain replies: JSON, a JSON schema, tool calls, a regular expression, one of several texts.

A schema is checked here, with the path of whatever is wrong in it: unsupported keywords are refused by name; only those that
constrain nothing (titles, descriptions) are ignored. Supported are the keywords of :data:`FOLLOWED`;
the order of properties is the schema's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.model.protocol import Grammar
from ramify.trace.message import CALL, CALL_END

MOST_BYTES, MOST_DEPTH, MOST_PARTS, MOST_PROPERTIES, MOST_CHOICES = 256 << 10, 64, 5000, 500, 5000
"""Bounds of a schema: its JSON text, nesting, subschemas in all, properties of one object, values of one enum."""
MOST_LETTERS = 100_000
"""Characters of a regular expression with its repetitions written out."""
MOST_MULTIPLE = 10_000
"""Least common multiple of all ``multipleOf`` of a schema, in units of their last decimal:
the cost of following them grows with it."""
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_ANNOTATIONS = frozenset(
    [
        "$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "example",
        "deprecated", "readOnly", "writeOnly", "discriminator", "contentMediaType", "contentEncoding",
    ]
)  # fmt: skip


def json_object() -> Grammar:
    """Any JSON object: what OpenAI calls JSON mode."""
    return Grammar("json", '{"type": "object"}')


def json_schema(schema: Any, where: str = "the schema") -> Grammar:
    """JSON that a schema allows. Raises UserError naming the path in the schema, which begins with ``where``."""
    return Grammar("json", json.dumps(checked(schema, where), ensure_ascii=False))


def regex(pattern: str, where: str = "the regular expression") -> Grammar:
    """A text that the whole of a regular expression matches (Rust's syntax, without look-around).
    Raises UserError where it is too long."""
    return Grammar("regex", _expression(pattern, where))


def one_of(choices: Sequence[str], where: str = "the choices") -> Grammar:
    """One of several texts. Raises UserError where there are none, or too many."""
    if not choices or len(choices) > MOST_CHOICES or "" in choices:
        raise UserError(f"{where} must be 1 to {MOST_CHOICES} texts, none of them empty")
    return Grammar("lark", _bounded("start: " + " | ".join(_quoted(choice) for choice in choices), where))


def tool_calls(
    tools: Sequence[Mapping[str, Any]],
    several: bool = True,
    reply: Grammar | None = None,
    *,
    free: bool = False,
    where: str = "",
) -> Grammar:
    """Calls of ``tools`` (OpenAI's form), as models write them (:func:`ramify.trace.message.write_call`), with arguments that
    fit.

    At least one, one alone without ``several``; with ``reply``, a JSON grammar, that instead of calls; where ``free``, any text
    before a call, or none but text. ``where`` is the path of a lone tool. Raises UserError as :func:`json_schema`.
    """
    rules = []
    for at, tool in enumerate(tools):
        function, spot = tool["function"], f"{where or f'tools[{at}]'}.function.parameters"
        schema = checked(function.get("parameters") or {}, spot)
        if schema is False or (isinstance(schema, dict) and schema.get("type", "object") != "object"):
            raise UserError(f"{spot} must describe an object, as the arguments of a function are one")
        schema = {"type": "object", **schema} if isinstance(schema, dict) else {"type": "object"}
        head = f'\n{{"name": {json.dumps(function["name"])}, "arguments": '
        end = "}\n" + CALL_END
        rules.append(f"call_{at}: {_quoted(head)} args_{at} {_quoted(end)}\nargs_{at}: %json {_embedded(schema)}")
    rules.append("made: " + " | ".join(f"call_{at}" for at in range(len(tools))))
    rules.append(
        f"call: {_quoted(CALL)} made"
        if not free
        else f"call: opening made\nopening[lazy]: TEXT {_quoted(CALL)}\nTEXT: /(.|\\n)*/"
    )
    starts = 'call ("\\n" call)*' if several else "call"
    if free:
        starts = ("call* " if several else "call | ") + "TEXT"
    if reply is not None:
        starts = f"{starts} | reply"
        rules.append(f"reply: %json {_embedded(json.loads(reply.text))}")
    return Grammar("lark", "\n".join([f"start: {starts}", *rules]))


WHITESPACE = r"( |\n[ \t]{0,20})?"
"""Between the parts of JSON: what is usual in replies; a model that may write any amount of it may write nothing else."""


def _embedded(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_PART = re.compile(r"\\.|\{(\d*)(?:,(\d*))?\}|.", re.S)


def _expression(pattern: str, where: str) -> str:
    """Raises UserError where a regular expression repeats more than can be followed;
    llguidance says what else is wrong with it."""
    groups, last, inside = [0], 0, False  # letters of each open group, and of what a repetition would repeat; inside a [class]
    for match in _PART.finditer(_bounded(pattern, where)):
        part = match[0]
        if inside:
            inside = part != "]"
        elif part == "(":
            groups.append(0)
        elif part == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif part.startswith("{") and part != "{":
            times = max([1, *(int(number[:9]) for number in match.groups() if number)])
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last, inside = 1, part == "["
            groups[-1] += 1
        if groups[-1] > MOST_LETTERS:
            raise UserError(f"{where} repeats too much: written out it has more than {MOST_LETTERS} characters")
    return pattern


def _bounded(text: str, where: str) -> str:
    if len(text) > MOST_BYTES:
        raise UserError(f"{where} has {len(text)} characters; at most {MOST_BYTES} are taken")
    return text


# -- schemas


def checked(schema: Any, where: str = "the schema") -> Any:
    """A copy of ``schema`` without keywords that constrain nothing.
    Raises UserError naming the path of an unsupported keyword."""
    _bound(schema, where)
    if not isinstance(schema, (dict, bool)):
        raise UserError(f"{where} must be an object")
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return _Checker(schema, where).schema(schema, where, 0)


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and text of every schema inside a checked one, the innermost first; each can stand by itself."""
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}

    def inside(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if not isinstance(part, dict):
            return
        for spot, inner in _parts(part, path):
            yield from inside(inner, spot)
        yield path, {**part, **definitions}

    yield from inside(schema, "")


def _bound(value: Any, where: str) -> None:
    """Raises UserError where ``value`` is larger or deeper than a schema may be; looks no further than that."""
    size, level = 0, [value]
    for _ in range(3 * MOST_DEPTH):
        below: list[Any] = []
        for item in level:
            size += len(item) + 2 if isinstance(item, str) else 4
            if isinstance(item, dict):
                size += sum(len(str(key)) + 4 for key in item)
                below += item.values()
            elif isinstance(item, list):
                below += item
            if size > MOST_BYTES or len(below) > MOST_BYTES:
                raise UserError(f"{where} is larger than {MOST_BYTES // 1024} KiB")
        level = below
        if not level:
            return
    raise UserError(f"{where} is nested more than {MOST_DEPTH} deep")


_DEFINITIONS = ("$defs", "definitions")


def _parts(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Path and text of the schemas directly inside one."""
    for name in ("properties", "patternProperties", *_DEFINITIONS):
        if isinstance(inner := schema.get(name), dict):
            yield from ((f"{path}.{name}.{key}".lstrip("."), part) for key, part in inner.items())
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(inner := schema.get(name), list):
            yield from ((f"{path}.{name}[{at}]".lstrip("."), part) for at, part in enumerate(inner))
    for name in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(name), dict):
            yield f"{path}.{name}".lstrip("."), inner


class _Checker:
    """Goes through one schema. ``root`` is what references point into."""

    def __init__(self, root: Mapping[str, Any], where: str) -> None:
        self.root, self.where, self.count = root, where, 0
        self.multiples: list[Fraction] = []

    def schema(self, schema: Any, path: str, depth: int) -> Any:
        """A copy of one schema. Raises UserError."""
        self.count += 1
        if depth > MOST_DEPTH:
            raise UserError(f"{self.where} is nested more than {MOST_DEPTH} deep")
        if self.count > MOST_PARTS:
            raise UserError(f"{self.where} has more than {MOST_PARTS} parts")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UserError(f"{path} must be an object, true or false")
        checked = {}
        for name, value in schema.items():
            if name in _ANNOTATIONS:
                continue
            if name == "nullable" and value is False:
                continue
            check = FOLLOWED.get(name)
            if check is None:
                known = f" ({nearest(name, FOLLOWED)})" if name not in _REFUSED else ""
                raise UserError(f"{path}: the keyword '{str(name)[:40]}' is not offered{known}")
            checked[name] = check(self, value, f"{path}.{name}", depth)
        return checked

    def schemas(self, value: Any, path: str, depth: int) -> Any:
        """Check a keyword whose value is a non-empty list of schemas."""
        if not isinstance(value, list) or not value:
            raise UserError(f"{path} must be a list of schemas, at least one")
        return [self.schema(part, f"{path}[{at}]", depth + 1) for at, part in enumerate(value)]

    def one(self, value: Any, path: str, depth: int) -> Any:
        """A schema inside another."""
        return self.schema(value, path, depth + 1)

    def items(self, value: Any, path: str, depth: int) -> Any:
        """A schema of every item."""
        if isinstance(value, list):
            raise UserError(f"{path} is a list; use 'prefixItems', as JSON Schema has it since 2020")
        return self.one(value, path, depth)

    def named(self, value: Any, path: str, depth: int) -> Any:
        """Check a keyword whose value is an object of schemas by name."""
        if not isinstance(value, dict):
            raise UserError(f"{path} must be an object of schemas")
        if len(value) > MOST_PROPERTIES and not path.endswith(_DEFINITIONS):
            raise UserError(f"{path} names {len(value)} properties; at most {MOST_PROPERTIES} are taken")
        if path.endswith("patternProperties"):
            for name in value:
                _expression(name, f"{path}.{name[:80]}")
        return {name: self.schema(part, f"{path}.{name[:80]}", depth + 1) for name, part in value.items()}

    def type(self, value: Any, path: str, depth: int) -> Any:
        """A type or several."""
        for name in value if isinstance(value, list) and value else [value]:
            if name not in TYPES:
                hint = nearest(name, TYPES) if isinstance(name, str) else f"known: {', '.join(TYPES)}"
                raise UserError(f"{path} is {json.dumps(name)[:40]}, which is not a type ({hint})")
        return value

    def enum(self, value: Any, path: str, depth: int) -> Any:
        """Values to choose from."""
        if not isinstance(value, list) or not 0 < len(value) <= MOST_CHOICES:
            raise UserError(f"{path} must be a list of 1 to {MOST_CHOICES} values")
        return value

    def value(self, value: Any, path: str, depth: int) -> Any:
        """Anything."""
        return value

    def names(self, value: Any, path: str, depth: int) -> Any:
        """Names of properties."""
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or len(value) > MOST_PROPERTIES:
            raise UserError(f"{path} must be a list of at most {MOST_PROPERTIES} names")
        return value

    def count_of(self, value: Any, path: str, depth: int) -> Any:
        """A number of things."""
        if type(value) is not int or not 0 <= value <= MOST_BYTES:
            raise UserError(f"{path} must be a whole number from 0 to {MOST_BYTES}")
        return value

    def number(self, value: Any, path: str, depth: int) -> Any:
        """A number."""
        if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e18:
            raise UserError(f"{path} must be a number of at most 18 digits")
        return value

    def multiple(self, value: Any, path: str, depth: int) -> Any:
        """A divisor."""
        if type(value) not in (int, float) or not 1e-9 <= value <= MOST_MULTIPLE:
            raise UserError(f"{path} must be a number above 0, and at most {MOST_MULTIPLE}")
        divisor = Fraction(str(value))
        self.multiples.append(divisor)
        units = math.lcm(*(part.denominator for part in self.multiples))
        scale = 10 ** next(k for k in range(32) if 10**k % units == 0)  # a decimal number has 2s and 5s only
        if math.lcm(*(int(part * scale) for part in self.multiples)) > MOST_MULTIPLE:
            raise UserError(
                f"{path}: what 'multipleOf' asks for in this schema takes more than {MOST_MULTIPLE} remainders to follow"
            )
        return value

    def pattern(self, value: Any, path: str, depth: int) -> Any:
        """A regular expression."""
        if not isinstance(value, str):
            raise UserError(f"{path} must be a text")
        return _expression(value, path)

    def format(self, value: Any, path: str, depth: int) -> Any:
        """The name of a format."""
        if value not in FORMATS:
            hint = nearest(value, FORMATS) if isinstance(value, str) else f"known: {', '.join(FORMATS)}"
            raise UserError(f"{path}: the format {json.dumps(value)[:40]} is not offered ({hint})")
        return value

    def reference(self, value: Any, path: str, depth: int) -> Any:
        """A reference into this schema."""
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise UserError(
                f"{path} is {json.dumps(value)[:60]}; only references into the schema itself (#/$defs/NAME) are offered"
            )
        target: Any = self.root
        for part in value.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            elif isinstance(target, dict) and part in target:
                target = target[part]
            else:
                raise UserError(f"{path} is '{value[:60]}', which is not there")
        return value


_Check = Callable[[_Checker, Any, str, int], Any]
FOLLOWED: dict[str, _Check] = {
    "type": _Checker.type,
    "enum": _Checker.enum,
    "const": _Checker.value,
    "anyOf": _Checker.schemas,
    "oneOf": _Checker.schemas,
    "allOf": _Checker.schemas,
    "$ref": _Checker.reference,
    "$defs": _Checker.named,
    "definitions": _Checker.named,
    "properties": _Checker.named,
    "patternProperties": _Checker.named,
    "additionalProperties": _Checker.one,
    "required": _Checker.names,
    "minProperties": _Checker.count_of,
    "maxProperties": _Checker.count_of,
    "items": _Checker.items,
    "prefixItems": _Checker.schemas,
    "minItems": _Checker.count_of,
    "maxItems": _Checker.count_of,
    "minLength": _Checker.count_of,
    "maxLength": _Checker.count_of,
    "pattern": _Checker.pattern,
    "format": _Checker.format,
    "minimum": _Checker.number,
    "maximum": _Checker.number,
    "exclusiveMinimum": _Checker.number,
    "exclusiveMaximum": _Checker.number,
    "multipleOf": _Checker.multiple,
}
"""Keywords of JSON Schema (2020-12) that are followed. ``oneOf`` only where no value fits two of its schemas."""
_REFUSED = frozenset(
    [
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
        "dependentRequired", "dependentSchemas", "dependencies", "additionalItems", "unevaluatedItems",
        "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary",
        "contentSchema", "nullable",
    ]
)  # fmt: skip
