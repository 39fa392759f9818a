"""Problems as token ids, read from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.model.chat import ChatTemplate
from ramify.model.rendered import laid_out
from ramify.trace.lines import at_place, read_lines
from ramify.trace.lines import field as read_field


@dataclass(frozen=True)
class TokenProblem:
    """A problem as token ids, and the data a verifier needs (``answer``)."""

    id: str
    prompt_ids: tuple[int, ...]
    data: Mapping[str, Any] = field(default_factory=dict)


def read_problems(path: Path, template: ChatTemplate | None, also: Sequence[str] = ()) -> list[TokenProblem]:
    """Problems of a file of JSON lines: ``id``, the question as ``prompt_ids`` or as the text ``prompt``, ``answer``, other
    ``data``.

    A text becomes one user message of ``template``, with the header of the reply after it. ``also`` are further fields that are
    texts and go into the data. Raises UserError naming file, line, field.
    """
    fields = ("id", "prompt", "prompt_ids", "answer", "data", *(name for name in also if name != "prompt"))
    found: dict[str, TokenProblem] = {}
    for number, record in read_lines(path):
        place = f"{path}:{number}"
        with at_place(place):
            name = read_field(record, "id", str, place, str(number))
            if name in found:
                raise UserError(f"problem '{name}' is there twice")
            unknown = [key for key in record if key not in fields]
            if unknown:
                raise UserError(f"unknown field '{unknown[0]}' ({nearest(unknown[0], fields)})")
            ids = record.get("prompt_ids")
            if ids is None:
                text = read_field(record, "prompt", str, place)
                if template is None:
                    raise UserError("a 'prompt' of text needs a model with a chat template; give 'prompt_ids'")
                ids = laid_out(template, [("user", text)])
            if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
                raise UserError("'prompt_ids' must be a list of token ids, at least one")
            data = dict(read_field(record, "data", dict, place, {}))
            data |= {key: read_field(record, key, str, place) for key in also if key in record}
            found[name] = TokenProblem(name, tuple(ids), data | ({"answer": record["answer"]} if "answer" in record else {}))
    if not found:
        raise UserError(f"{path} holds no problem")
    return list(found.values())
