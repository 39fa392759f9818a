"""Exports of Langfuse: a trace with its observations, as its page downloads it and its interface answers, or observations alone.

Known are ``{"trace", "observations", "scores"}``, a trace that holds its ``observations``, lists and pages (``{"data": [...]}``)
of traces or observations, and JSON lines of the table's export and of exports to a blob storage, whose names have underscores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import list_of, object_of, text_of
from ramify.integrations.formats.spans import TracedSpan, nanoseconds, read_spans
from ramify.integrations.formats.spoken import parsed
from ramify.trace.aliases import KNOWN, Fields
from ramify.trace.formats import Reader
from ramify.trace.lines import read_items
from ramify.trace.message import number
from ramify.trace.notes import unread

SILENT = (
    "export with inputs and outputs (`fields=core,basic,io` of the interface; traces with very many observations leave them out)"
)
_KINDS = {"GENERATION": "call", "TOOL": "tool", "AGENT": "agent"}
_TYPES = (*_KINDS, "SPAN", "EVENT", "CHAIN", "RETRIEVER", "EMBEDDING", "EVALUATOR", "GUARDRAIL")
_KNOWN = frozenset(
    (
        *("id", "trace_id", "parent_observation_id", "type", "name", "start_time", "end_time", "completion_start_time", "level"),
        *("status_message", "model", "model_parameters", "input", "output", "metadata", "usage", "usage_details", "cost_details"),
        *(
            "prompt_id",
            "prompt_name",
            "prompt_version",
            "version",
            "environment",
            "project_id",
            "created_at",
            "updated_at",
            "unit",
        ),
        *(
            "internal_model",
            "internal_model_id",
            "provided_model_name",
            "model_id",
            "pricing_tier_name",
            "scores",
            "tags",
            "user_id",
        ),
        *(
            "session_id",
            "trace_name",
            "trace_tags",
            "release",
            "bookmarked",
            "public",
            "trace_metadata",
            "trace_timestamp",
            "timestamp",
        ),
        *("provided_usage_details", "provided_cost_details", "tool_definitions", "tool_calls", "tool_call_names", "model_name"),
        *(
            "usage_pricing_tier_id",
            "usage_pricing_tier_name",
            "pricing_tier_id",
            "comments",
            "bookmarked",
            "external_id",
            "html_path",
        ),
    )
)


def read_langfuse(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from an export of Langfuse. Returns how many records.

    A trace is an attempt: its generations are joined to conversations (:mod:`ramify.integrations.formats.spans`), its scores are
    scores, its task and outcome may stand in its metadata. Raises UserError naming file, line and observation. Nothing is left in
    ``folder`` then."""
    return read_spans(path, folder, "langfuse", _spans, read_items(path), SILENT, fields)


def _spans(record: dict[str, Any], place: str) -> Iterator[TracedSpan]:
    if isinstance(record.get("data"), list):
        for at, row in enumerate(record["data"]):
            spot = f"{place}: 'data' {at}"
            yield from _spans(dict(object_of(row, spot)), place)
        return
    trace = record.get("trace")
    if isinstance(trace, Mapping) and ("observations" in record or "scores" in record):
        record = {**trace, **{name: record[name] for name in ("observations", "scores") if name in record}}
    named = {_snake(name): value for name, value in record.items()}
    if "observations" in record:
        yield from _trace(named, place)
    elif named.get("type") in _TYPES:
        yield _observation(named, None, place)
    elif "trace_id" in named and "value" in named and "name" in named:  # a score of an export to a blob storage
        key = text_of(named, "trace_id", place)
        scored = text_of(named, "id", place, "score")
        yield TracedSpan(key, f"score-{scored}", place, kind="score", scores=_scores([record], place))
    else:
        raise UserError(f"{place}: it is neither a trace with 'observations' nor an observation of type {', '.join(_TYPES)}")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _trace(trace: Mapping[str, Any], place: str) -> Iterator[TracedSpan]:
    key = text_of(trace, "id", place)
    listed = parsed(trace.get("observations")) or []
    scores = parsed(trace.get("scores")) or []
    yield TracedSpan(
        key,
        f"trace-{key}",
        place,
        start=nanoseconds(trace.get("timestamp"), f"{place}: 'timestamp'"),
        kind="trace",
        name=str(trace.get("name") or ""),
        given=parsed(trace.get("input")),
        said=parsed(trace.get("output")),
        fields=_fields(trace.get("metadata")),
        scores=_scores(list_of(scores, f"{place}: 'scores'"), place),
    )
    for at, raw in enumerate(list_of(listed, f"{place}: 'observations'")):
        spot = f"{place}: observation {at}"
        if isinstance(raw, str):
            raise UserError(f"{spot} is only an id: export the trace itself, not its row in the list of traces")
        yield _observation({_snake(name): value for name, value in object_of(raw, spot).items()}, key, place)


def _observation(raw: Mapping[str, Any], trace: str | None, place: str) -> TracedSpan:
    key = text_of(raw, "id", place)
    spot = f"{place}: observation {key!r}"
    name = str(raw.get("name") or "")
    kind = _KINDS.get(str(raw.get("type")), "")
    start = nanoseconds(raw.get("start_time"), f"{spot}: 'startTime'")
    parent = raw.get("parent_observation_id")
    tool: dict[str, Any] = {}
    if kind == "tool":
        metadata = parsed(raw.get("metadata"))
        given = metadata.get("tool_call_id") if isinstance(metadata, Mapping) else None
        tool = {"name": name, "result": parsed(raw.get("output")), **({"id": given} if isinstance(given, str) else {})}
    settings = parsed(raw.get("model_parameters"))
    about = {
        k: raw[k] for k in ("usage_details", "cost_details", "usage", "metadata", "version") if raw.get(k) not in (None, {}, "")
    }
    if kind == "call":
        unread(raw, _KNOWN, "observation")
        if isinstance(tools := parsed(raw.get("tool_definitions")), list) and tools:
            settings = {**(settings if isinstance(settings, Mapping) else {}), "tools": tools}
    talks = kind in ("call", "agent")
    model = next((raw[k] for k in ("model", "provided_model_name", "model_name") if isinstance(raw.get(k), str)), "")
    return TracedSpan(
        text_of(raw, "trace_id", spot) if trace is None else trace, key, place,
        parent if isinstance(parent, str) else "", start, kind, name,
        given=parsed(raw.get("input")) if talks else None, said=parsed(raw.get("output")) if talks else None, model=model,
        settings=dict(settings) if isinstance(settings, Mapping) else {}, about=about,
        error=(raw.get("status_message") or True) if raw.get("level") == "ERROR" else None, tool=tool,
        fields=_fields(raw.get("trace_metadata")) | ({} if parent else _fields(raw.get("metadata"))),
        scores=_scores(raw["scores"], spot) if isinstance(raw.get("scores"), list) else {},
    )  # fmt: skip


def _fields(value: Any) -> dict[str, Any]:
    """Metadata in which task and outcome may stand, also what OpenTelemetry's attributes put there."""
    value = parsed(value)
    if not isinstance(value, Mapping):
        return {}
    inside = parsed(value.get("attributes"))
    return {**(inside if isinstance(inside, Mapping) else {}), **value}


def _scores(listed: list[Any], place: str) -> dict[str, float | None]:
    """Scores by name: numbers and booleans; of a category its value as a number where it has one."""
    scores: dict[str, float | None] = {}
    for at, score in enumerate(listed):
        spot = f"{place}: score {at}"
        scores[text_of(object_of(score, spot), "name", spot)] = number(score.get("value"))
    return scores


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return False
    if isinstance(rows := first.get("data"), list) and rows and isinstance(rows[0], Mapping):
        first = rows[0]
    if isinstance(first.get("observations"), list):
        return isinstance(first.get("trace"), Mapping) or "id" in first
    names = {_snake(str(name)) for name in first}
    observed = first.get("type") in _TYPES and {"id", "trace_id"} <= names
    return observed or ({"trace_id", "name", "value", "data_type"} <= names and "data_type" in names)


EXAMPLE = {
    "trace": {"id": "trace-1", "name": "weather", "timestamp": "2026-01-01T10:00:00.000Z", "metadata": {"task_id": "oslo"}},
    "observations": [
        {
            "id": "obs-1",
            "traceId": "trace-1",
            "type": "GENERATION",
            "startTime": "2026-01-01T10:00:01.000Z",
            "model": "some-model",
            "level": "DEFAULT",
            "input": [{"role": "user", "content": "Is it warm in Oslo?"}],
            "output": {"role": "assistant", "content": "No: 4 degrees."},
        }
    ],
    "scores": [{"id": "score-1", "name": "correct", "value": 1, "dataType": "NUMERIC"}],
}

register("reader", "langfuse")(
    Reader(
        "langfuse",
        "Langfuse's traces and observations (JSON of a page or of the interface, JSON lines); scores are kept.",
        _matches,
        read_langfuse,
        ("task", "reward"),
        json.dumps(EXAMPLE),
    )
)
