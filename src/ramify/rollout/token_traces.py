"""Problems and sampled replies as token ids, with measured potentials: records and JSON lines.

The potential V_t of a reply is the chance that a continuation of its first t tokens ends right, t = 0..T; V_0 is the solve rate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.base.words import plural
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Sampling, Tokenizer
from ramify.model.rendered import laid_out
from ramify.rollout.components import read_sampling
from ramify.rollout.potential import counts_annotation
from ramify.stats.drops import Counts
from ramify.trace.lines import at_place, read_lines
from ramify.trace.lines import field as read_field
from ramify.trace.node import IMPORT, AttemptRecord, Provenance, Score, make_node

if TYPE_CHECKING:
    from ramify.trace.db import Run


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
            for name in _COLUMNS:
                record[name] = [None if c is None else getattr(c, name) for c in self.potentials]
        return record


def store_trace(run: Run, trace: TokenTrace, tokenizer: Tokenizer) -> str:
    """Store a trace in a run as a tree of its own, measured potentials as ``potential`` annotations at the positions of the
    reply.

    Returns the id of the reply's node. Raises UserError where the run has a tree of that name.
    """
    if run.has_tree(trace.id):
        raise UserError(f"the run {run.folder} has a tree '{trace.id}' already")
    provenance = Provenance(trace.model, "", trace.sampler.to_json(), trace.seed or 0)
    run.add_tree(trace.id, {"id": trace.problem_id, "data": dict(trace.data)})
    prompt, reply = list(trace.prompt_ids), list(trace.response_ids)
    root = make_node(trace.id, None, 0, "root", "", tokens=[])
    prompt_node = make_node(trace.id, root.id, 0, "user", tokenizer.decode(prompt), tokens=prompt, ends=tokenizer.ends(prompt))
    reply_node = make_node(
        trace.id, prompt_node.id, len(prompt), "assistant", tokenizer.decode(reply), tokens=reply, sampled=[True] * len(reply),
        logprobs=trace.logprobs, ends=tokenizer.ends(reply), provenance=provenance.hash, index=0, stop=trace.stop,
    )  # fmt: skip
    run.add(provenance, root, prompt_node, reply_node)
    record = AttemptRecord(reply_node.id, trace.id, purpose=IMPORT, truncated=trace.stop == "length", provenance=provenance.hash)
    if trace.correct is not None:
        record = replace(record, outcome=trace.correct, reward=float(trace.correct))
        run.add(Score(reply_node.id, "env", float(trace.correct), judges={"env": trace.verifier}))
    run.add(record)
    for t, counts in enumerate(trace.potentials or ()):
        if counts is not None:
            run.add(counts_annotation(reply_node.id, t, counts))
    return reply_node.id


_COLUMNS = tuple(f.name for f in fields(Counts))
_KNOWN = {f.name for f in fields(TokenTrace)} - {"potentials"} | {*_COLUMNS, "prompt", "response"}


def read_traces(path: Path, retokenise: Tokenizer | None = None, template: ChatTemplate | None = None) -> list[TokenTrace]:
    """Traces of a file of JSON lines, in its order.

    A record with the texts ``prompt`` and ``response`` instead of token ids is encoded with ``retokenise``; without one it is
    refused, since encoding a text again may not give the tokens that were sampled. The prompt becomes one user message of
    ``template``, with the header of the reply after it, as that of a problem does; without a template it is encoded as it stands.
    Raises UserError naming file, line and field.
    """
    traces: dict[str, TokenTrace] = {}
    for number, record in read_lines(path):
        place = f"{path}:{number}"
        with at_place(place):
            trace = trace_of(record, retokenise, template)
            if trace.id in traces:
                raise UserError(f"trace '{trace.id}' is there twice")
        traces[trace.id] = trace
    if not traces:
        raise UserError(f"{path} holds no trace")
    return list(traces.values())


def write_traces(path: Path, traces: Iterable[TokenTrace]) -> None:
    """Write traces as JSON lines, whole or not at all."""
    write_whole(path, "".join(json.dumps(trace.to_json()) + "\n" for trace in traces))


def trace_of(record: Mapping[str, Any], retokenise: Tokenizer | None = None, template: ChatTemplate | None = None) -> TokenTrace:
    """Inverse of :meth:`TokenTrace.to_json`. Raises UserError naming the field, KeyError, TypeError or ValueError."""
    raw = dict(record)
    for name in raw:
        if name not in _KNOWN:
            raise UserError(f"unknown field '{name}' ({nearest(name, _KNOWN)})")
    if "response_ids" not in raw and "response" in raw:
        if retokenise is None:
            raise UserError(
                "a trace of text only; the tokens that were sampled are needed ('prompt_ids', 'response_ids'), or --retokenise "
                "encodes the text anew"
            )
        prompt, response = (read_field(raw, name, str, "the trace") for name in ("prompt", "response"))
        raw["prompt_ids"] = retokenise.encode(prompt) if template is None else laid_out(template, [("user", prompt)])
        raw["response_ids"] = retokenise.encode(response)
    given = {name: read_field(raw, name, str, "the trace", "") for name in ("verifier", "stop", "model", "tokenizer")}
    given["stop"] = given["stop"] or "eos"
    trace = TokenTrace(
        id=read_field(raw, "id", str, "the trace"),
        problem_id=read_field(raw, "problem_id", str, "the trace", raw["id"]),
        prompt_ids=_ids(raw, "prompt_ids"),
        response_ids=_ids(raw, "response_ids"),
        sampler=sampling_of(read_field(raw, "sampler", dict, "the trace")),
        correct=read_field(raw, "correct", bool, "the trace", None),
        data=read_field(raw, "data", dict, "the trace", {}),
        logprobs=_numbers(raw, "logprobs"),
        seed=read_field(raw, "seed", int, "the trace", None),
        potentials=_potentials(raw),
        early_stopped_at=read_field(raw, "early_stopped_at", int, "the trace", None),
        **given,
    )
    if trace.length > trace.sampler.max_tokens:
        raise UserError(f"the reply has {trace.length} tokens and 'sampler' allows {trace.sampler.max_tokens} ('max_tokens')")
    return trace


_NESTED = ("logit_bias", "grammar")
"""Settings that are neither a number nor a list of one kind of thing."""


def sampling_of(record: Mapping[str, Any]) -> Sampling:
    """Sampling settings from JSON. Raises UserError on a setting there is none of, or one of the wrong kind."""
    known = {f.name: f for f in fields(Sampling) if f.name not in ("until", "seeded", *_NESTED)}
    values: dict[str, Any] = {}
    for name, value in record.items():
        if name in _NESTED:
            values[name] = getattr(read_sampling({name: value}), name)
            continue
        if name not in known:
            raise UserError(f"'sampler' has the unknown setting '{name}' ({nearest(name, known)})")
        default = getattr(Sampling(), name)
        if isinstance(default, tuple):
            inner = str if name == "stop_texts" else int
            good = isinstance(value, list) and all(type(v) is inner for v in value)
            value = tuple(value) if good else value
        else:
            good = type(value) in ((int, float) if isinstance(default, float) else (int,))
        if not good:
            raise UserError(f"'sampler' setting '{name}' cannot be {value!r}")
        values[name] = value
    return Sampling(**values)


def _ids(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = record.get(name)
    if not isinstance(values, list) or not values or not all(type(v) is int and 0 <= v < 1 << 31 for v in values):
        raise UserError(
            f"'{name}' must be a list of token ids" + (", and it is missing" if name not in record else ", at least one")
        )
    return tuple(values)


def _numbers(record: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    values = record.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(v) in (int, float) and v <= 0 for v in values):
        raise UserError(f"'{name}' must be a list of log-probabilities, none above 0")
    return tuple(float(v) for v in values)


def _potentials(record: Mapping[str, Any]) -> tuple[Counts | None, ...] | None:
    """``k`` is a list with null where not measured; the other columns are lists alike, or one number for all."""
    k = record.get("k")
    if k is None:
        return None
    if not isinstance(k, list):
        raise UserError("'k' must be a list with one count a position, null where not measured")
    columns: dict[str, list[Any]] = {"k": k}
    for name in _COLUMNS[1:]:
        value = record.get(name, 0 if name != "n" else None)
        columns[name] = value if isinstance(value, list) else [value] * len(k)
        if len(columns[name]) != len(k):
            raise UserError(f"'{name}' has {plural(len(columns[name]), 'entry')} and 'k' has {len(k)}")
    out: list[Counts | None] = []
    for t, row in enumerate(zip(*columns.values(), strict=True)):
        if row[0] is None:
            out.append(None)
        elif not all(type(value) is int for value in row):
            raise UserError(f"the counts of position {t} are not whole numbers")
        else:
            out.append(Counts(*row))
    return tuple(out)
