"""Runs of LangSmith: JSON lines or a list, as its client and its command line export them; runs may hold their ``child_runs``."""

from __future__ import annotations

import json
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

SILENT = "export runs with their inputs and outputs"
_TYPES = ("llm", "chat_model", "chain", "tool", "retriever", "embedding", "prompt", "parser")
_KNOWN = frozenset(
    (
        *("id", "run_id", "name", "run_type", "start_time", "end_time", "inputs", "outputs", "error", "extra", "parent_run_id"),
        *(
            "parent_run_ids",
            "trace_id",
            "dotted_order",
            "execution_order",
            "serialized",
            "events",
            "tags",
            "session_id",
            "status",
        ),
        *(
            "reference_example_id",
            "feedback_stats",
            "feedback",
            "child_runs",
            "child_run_ids",
            "direct_child_run_ids",
            "app_path",
        ),
        *("manifest_id", "manifest_s3_id", "inputs_preview", "outputs_preview", "inputs_s3_urls", "outputs_s3_urls", "s3_urls"),
        *(
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "first_token_time",
            "prompt_cost",
            "completion_cost",
            "total_cost",
        ),
        *("in_dataset", "last_queued_at", "share_token", "trace_tier", "trace_first_received_at", "ttl_seconds", "trace_upgrade"),
        *(
            "thread_id",
            "price_model_id",
            "messages",
            "metadata",
            "custom_metadata",
            "token_usage",
            "costs",
            "session_name",
            "attachments",
        ),
        *(
            "prompt_token_details",
            "completion_token_details",
            "prompt_cost_details",
            "completion_cost_details",
            "trace_min_start_time",
        ),
        *("project", "project_name", "duration_ms", "reference_dataset_id", "trace_max_start_time"),
    )
)


def read_langsmith(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from runs of LangSmith. Returns how many records.

    A trace is an attempt: its runs of models are joined to conversations (:mod:`ramify.integrations.formats.spans`), the mean of
    each feedback is a score, the example of a dataset that it was run on is its task. Raises UserError naming file, line and run.
    Nothing is left in ``folder`` then."""
    return read_spans(path, folder, "langsmith", _spans, read_items(path), SILENT, fields)


def _spans(record: Mapping[str, Any], place: str, trace: str = "", parent: str = "", depth: int = 0) -> Iterator[TracedSpan]:
    key = text_of(record, "id" if "id" in record else "run_id", place)
    spot = f"{place}: run {key!r}"
    kind = text_of(record, "run_type", spot)
    named = record.get("trace_id")
    trace = named if isinstance(named, str) and named else trace or key
    above, aboves = record.get("parent_run_id"), record.get("parent_run_ids")
    if above is None and isinstance(aboves, list) and aboves:
        above = aboves[-1]
    parent = above if isinstance(above, str) else parent
    extra = parsed(record.get("extra"))
    extra = extra if isinstance(extra, Mapping) else {}
    yield _span(record, spot, place, (trace, key, parent), kind, extra)
    if depth > 100:
        raise UserError(f"{spot}: its 'child_runs' are nested too deeply")
    for at, child in enumerate(list_of(record.get("child_runs") or [], f"{spot}: 'child_runs'")):
        yield from _spans(object_of(child, f"{spot}: child {at}"), place, trace, key, depth + 1)


def _span(
    record: Mapping[str, Any], spot: str, place: str, ids: tuple[str, str, str], kind: str, extra: Mapping[str, Any]
) -> TracedSpan:
    trace, key, parent = ids
    error = record.get("error") or None
    if isinstance(error, str):
        error = error.split("Traceback (most recent call last)")[0] or error
    about = {k: record[k] for k in ("total_tokens", "prompt_tokens", "completion_tokens", "tags") if record.get(k)}
    inputs, outputs = parsed(record.get("inputs")), parsed(record.get("outputs"))
    start = nanoseconds(record.get("start_time"), f"{spot}: 'start_time'")
    name = str(record.get("name") or "")
    common: dict[str, Any] = {
        "error": error,
        "fields": _fields(record, extra) if not parent else {},
        "scores": _scores(record, spot),
        "about": about,
    }
    if kind in ("llm", "chat_model"):
        unread(record, _KNOWN, "run")
        settings, model = _settings(extra, inputs)
        return TracedSpan(
            trace, key, place, parent, start, "call", name, given=_input(inputs), said=_output(outputs), model=model,
            settings=settings, **common,
        )  # fmt: skip
    if kind == "tool":
        return TracedSpan(trace, key, place, parent, start, "tool", name, tool=_tool(name, inputs, outputs, extra), **common)
    if not parent:
        return TracedSpan(trace, key, place, parent, start, "trace", name, given=_input(inputs), said=_output(outputs), **common)
    return TracedSpan(trace, key, place, parent, start, "", name, **common)


def _input(inputs: Any) -> Any:
    """What a model was given. Of text completions the prompt."""
    if isinstance(inputs, Mapping) and isinstance(prompts := inputs.get("prompts"), list):
        return prompts[:1]
    return inputs


def _output(outputs: Any) -> Any:
    """What a model answered; ``output`` or ``message`` may hold it."""
    if isinstance(outputs, Mapping) and not {"choices", "generations", "role", "messages"} & outputs.keys():
        for name in ("output", "message"):
            inside = outputs.get(name)
            if isinstance(inside, (Mapping, str)) or (name == "output" and isinstance(inside, list)):
                return inside
    if isinstance(outputs, Mapping) and isinstance(listed := outputs.get("messages"), list) and listed:
        return listed[-1:]  # of a graph's state the last
    return outputs


_ASKED = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "tools", "tool_choice", "n"),
    *("frequency_penalty", "presence_penalty", "response_format", "parallel_tool_calls", "reasoning_effort"),
)


def _settings(extra: Mapping[str, Any], inputs: Any) -> tuple[dict[str, Any], str]:
    asked = extra.get("invocation_params")
    metadata = extra.get("metadata")
    places = [place for place in (asked, inputs) if isinstance(place, Mapping)]
    settings = {name: place[name] for place in reversed(places) for name in _ASKED if place.get(name) is not None}
    names = [place.get(name) for place in places for name in ("model", "model_name")]
    names += [metadata.get("ls_model_name")] if isinstance(metadata, Mapping) else []
    return settings, next((name for name in names if isinstance(name, str)), "")


def _tool(name: str, inputs: Any, outputs: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a tool: LangChain's answer is a message that names the call."""
    said = outputs.get("output", outputs) if isinstance(outputs, Mapping) else outputs
    fields = said.get("kwargs", said) if isinstance(said, Mapping) else {}
    fields = fields if isinstance(fields, Mapping) else {}
    key = (
        fields.get("tool_call_id")
        or extra.get("tool_call_id")
        or (inputs.get("tool_call_id") if isinstance(inputs, Mapping) else None)
    )
    result = fields.get("content", said) if fields.get("tool_call_id") else said
    return {"name": name, **({"id": key} if isinstance(key, str) else {}), **({} if result is None else {"result": result})}


def _fields(record: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for place in (extra.get("metadata"), record.get("metadata"), record.get("custom_metadata")):
        fields |= place if isinstance(place, Mapping) else {}
    example = record.get("reference_example_id")
    return fields | ({"task_id": example} if isinstance(example, str) and "task_id" not in fields else {})


def _scores(record: Mapping[str, Any], spot: str) -> dict[str, float | None]:
    """The mean of each feedback by its name; where every feedback is there itself, its score."""
    scores: dict[str, float | None] = {}
    stats = parsed(record.get("feedback_stats"))
    for name, value in stats.items() if isinstance(stats, Mapping) else ():
        mean = value.get("avg", value.get("mean")) if isinstance(value, Mapping) else value
        if number(mean) is not None:
            scores[str(name)] = number(mean)
    listed = record.get("feedback")
    for at, given in enumerate(listed if isinstance(listed, list) else ()):
        object_of(given, f"{spot}: feedback {at}")
        if isinstance(given.get("key"), str):
            scores[given["key"]] = number(given.get("score"))
    return scores


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None or first.get("run_type") not in _TYPES:
        return False
    return ("id" in first or "run_id" in first) and bool({"inputs", "outputs", "trace_id", "dotted_order"} & first.keys())


def _said(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": kwargs}


EXAMPLE = [
    {
        "id": "run-1",
        "trace_id": "run-1",
        "name": "agent",
        "run_type": "chain",
        "start_time": "2026-01-01T10:00:00.000000",
        "inputs": {"input": "Is it warm in Oslo?"},
        "outputs": {"output": "No: 4 degrees."},
        "feedback_stats": {"correct": {"n": 1, "avg": 1.0}},
        "reference_example_id": "oslo",
    },
    {
        "id": "run-2",
        "trace_id": "run-1",
        "parent_run_id": "run-1",
        "name": "ChatOpenAI",
        "run_type": "llm",
        "start_time": "2026-01-01T10:00:01.000000",
        "inputs": {"messages": [[_said("HumanMessage", content="Is it warm in Oslo?", type="human")]]},
        "outputs": {"generations": [[{"text": "No: 4 degrees.", "message": _said("AIMessage", content="No: 4 degrees.")}]]},
        "extra": {"invocation_params": {"model": "some-model", "temperature": 0.5}},
    },
]

register("reader", "langsmith")(
    Reader(
        "langsmith",
        "LangSmith's runs, JSON lines or a list (llm, tool, chain); feedback is kept, a trace is an attempt.",
        _matches,
        read_langsmith,
        ("task", "reward"),
        "\n".join(map(json.dumps, EXAMPLE)),
    )
)
