"""Traces of a scan: stored in a run, and as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.words import plural
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Sampling, Tokenizer
from ramify.model.rendered import laid_out
from ramify.rollout.components import read_sampling
from ramify.rollout.potential import counts_annotation
from ramify.rollout.token_traces import COLUMNS, TokenTrace
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.lines import at_place, read_lines
from ramify.trace.lines import field as read_field
from ramify.trace.node import IMPORT, AttemptRecord, Provenance, Score, make_node


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


_KNOWN = {f.name for f in fields(TokenTrace)} - {"potentials"} | {*COLUMNS, "prompt", "response"}


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
        potentials=potentials_of(raw),
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


def potentials_of(record: Mapping[str, Any]) -> tuple[Counts | None, ...] | None:
    """Those of positions 0..T that a record has, if it has any.

    ``k`` is a list with null where not measured; the other columns are lists alike, or one number for all.
    """
    k = record.get("k")
    if k is None:
        return None
    if not isinstance(k, list):
        raise UserError("'k' must be a list with one count a position, null where not measured")
    columns: dict[str, list[Any]] = {"k": k}
    for name in COLUMNS[1:]:
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
