"""Problems and sampled replies as token ids, with measured potentials.

The potential V_t of a reply is the chance that a continuation of its first t tokens ends right, t = 0..T; V_0 is the solve rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.words import plural
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Sampling
from ramify.model.rendered import laid_out
from ramify.stats.drops import Counts
from ramify.trace.lines import at_place, read_lines
from ramify.trace.lines import field as read_field

COLUMNS = tuple(f.name for f in fields(Counts))
"""What is counted at a position, as a trace's JSON form names it."""


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


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """One sampled reply, the stem that forks start from. Positions count its tokens:
    position t lies after ``response_ids[t - 1]``."""

    id: str
    problem_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    sampler: Sampling
    """Settings the reply was sampled with; forks are sampled with the same."""
    verifier: str = ""
    """Name of its judge."""
    correct: bool | None = None
    """Its score; None where there is none."""
    stop: str = "eos"
    """Why the reply ended: eos, stop or length, as in :class:`ramify.model.protocol.Completion`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the verifier needs, such as ``answer``."""
    logprobs: tuple[float, ...] | None = None
    """Of each token under the sampling distribution (T,), where they were recorded."""
    model: str = ""
    tokenizer: str = ""
    """Hash of the tokenizer the ids belong to."""
    seed: int | None = None
    potentials: tuple[Counts | None, ...] | None = None
    """Of positions 0..T (T + 1,); None where not measured. Never filled with what was not measured."""
    early_stopped_at: int | None = None
    """Position after which nothing was measured because the potential had stayed at 0."""

    def __post_init__(self) -> None:
        if not self.id:
            raise UserError("a trace has no id")
        for name in ("prompt_ids", "response_ids"):
            if not getattr(self, name):
                raise UserError(f"trace '{self.id}': '{name}' is empty")
        if self.logprobs is not None and len(self.logprobs) != self.length:
            raise UserError(
                f"trace '{self.id}': 'logprobs' has {plural(len(self.logprobs), 'entry')} for {plural(self.length, 'token')}"
            )
        if self.potentials is not None and len(self.potentials) != self.length + 1:
            raise UserError(
                f"trace '{self.id}': potentials have {len(self.potentials)} positions, and a reply of {self.length} tokens has "
                f"{self.length + 1}"
            )

    @property
    def length(self) -> int:
        """T: tokens of the reply."""
        return len(self.response_ids)

    def prefix(self, t: int, append: Sequence[int] = ()) -> np.ndarray:
        """Prompt, the reply's first ``t`` tokens, then ``append``; int32. Raises UserError where there is no such position."""
        if not 0 <= t <= self.length:
            raise UserError(f"trace '{self.id}' has positions 0 to {self.length}, not {t}")
        return np.array([*self.prompt_ids, *self.response_ids[:t], *append], np.int32)

    def with_potentials(self, measured: Mapping[int, Counts], early_stopped_at: int | None = None) -> TokenTrace:
        """This trace with the potentials of the positions measured."""
        potentials = tuple(measured.get(t) for t in range(self.length + 1))
        return replace(self, potentials=potentials, early_stopped_at=early_stopped_at)

    def to_json(self) -> dict[str, Any]:
        """JSON form; potentials as columns ``k``, ``n``, ``missing``, ``truncated`` with null where not measured."""
        record: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "potentials"}
        record |= {"sampler": self.sampler.to_json(), "data": dict(self.data)}
        for name in ("prompt_ids", "response_ids", "logprobs"):
            record[name] = None if record[name] is None else list(record[name])
        if self.potentials is not None:
            for name in COLUMNS:
                record[name] = [None if c is None else getattr(c, name) for c in self.potentials]
        return record
