"""Spans of OpenTelemetry as JSON: GenAI's semantic conventions, old and new, and OpenInference's.

A record is ``{"resourceSpans": [...]}``, as the collector's file exporter writes one a line, ``{"resourceLogs": [...]}`` where
what was said is in events of logs, or one span as the SDK's ``ReadableSpan.to_json(indent=None)`` gives it. A trace is an
attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.integrations.formats.exchanges import list_of, object_of
from ramify.integrations.formats.spans import TracedSpan, nanoseconds, read_spans
from ramify.integrations.formats.spoken import parsed
from ramify.trace.aliases import ALIASES, KNOWN, Fields
from ramify.trace.formats import Reader
from ramify.trace.lines import is_large, read_items, read_within
from ramify.trace.notes import unread

_WHOLE = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs", "batches")
"""Fields of an export; ``batches`` is Tempo's."""
_BIG = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(resourceSpans|batches)"\s*:\s*\[')
SILENT = (
    "set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (TRACELOOP_TRACE_CONTENT=true for OpenLLMetry) where the agent "
    "runs, and export logs into the file of the spans where messages are events of logs"
)


def read_otlp(path: Path, folder: Path, fields: Fields = KNOWN) -> int:
    """Make a run in ``folder`` from spans: JSON lines or one document. Returns how many records.

    Calls of models, in order of their start, are joined to conversations (:mod:`ramify.integrations.formats.spans`); what an
    agent below another says has a tree of its own. Task and outcome stand among the attributes of spans under any name of
    :mod:`ramify.trace.aliases`. Raises UserError naming file, line and span. Nothing is left in ``folder`` then.
    """
    big = _big(path)
    records = read_items(path) if big is None else ((n, {big: [item]}) for n, item in read_within(path, (big,)))
    return read_spans(path, folder, "otlp", _spans, records, SILENT, fields, joined)


def _big(path: Path) -> str | None:
    """The field in which a document that is too large to be read at once has its spans; None of any other file."""
    try:
        if not is_large(path):
            return None
        with path.open("rb") as file:
            opens = _BIG.match(file.read(1 << 12))
    except OSError:
        return None
    return None if opens is None else opens[1].decode()


def _spans(record: dict[str, Any], place: str) -> Iterator[TracedSpan]:
    whole = record.get("trace") if isinstance(record.get("trace"), Mapping) else record
    assert isinstance(whole, Mapping)
    if not any(name in whole for name in _WHOLE):
        if "context" not in record:
            raise UserError(f"{place}: there is neither 'resourceSpans' nor 'resourceLogs', nor the 'context' of a single span")
        yield from _sdk_span(record, place)
        return
    for name in _WHOLE:
        logs = name in ("resourceLogs", "resource_logs")
        for at, resource in enumerate(list_of(whole.get(name) or [], f"{place}: '{name}'")):
            spot = f"{place}: {name} {at}"
            object_of(resource, spot)
            about = _resource(resource.get("resource"), spot)
            scoped = ("scopeLogs", "scope_logs") if logs else ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
            for scope in _listed(resource, scoped, spot):
                for number, raw in enumerate(
                    _listed(object_of(scope, spot), ("logRecords", "log_records") if logs else ("spans",), spot)
                ):
                    where = f"{spot}: {'log record' if logs else 'span'} {number}"
                    yield from (_logged if logs else _otlp_span)(object_of(raw, where), about, place, where)


def _listed(value: Mapping[str, Any], names: tuple[str, ...], spot: str) -> list[Any]:
    name = next((name for name in names if value.get(name) is not None), names[0])
    return list_of(value.get(name) or [], f"{spot}: '{name}'")


def _resource(value: Any, spot: str) -> dict[str, Any]:
    if value is None:
        return {}
    attributes = _attributes(object_of(value, f"{spot}: 'resource'").get("attributes"), f"{spot}: 'resource'")
    return {name: text for name, text in attributes.items() if name in ("service.name", "service.version")}


def _attributes(value: Any, spot: str) -> dict[str, Any]:
    """Attributes as an object: OTLP writes them as a list of keys and typed values."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    read = {}
    for at, pair in enumerate(list_of(value, f"{spot}: 'attributes'")):
        key = object_of(pair, f"{spot}: attribute {at}").get("key")
        if not isinstance(key, str):
            raise UserError(f"{spot}: attribute {at} has no 'key' that is text")
        read[key] = _value(pair.get("value"), f"{spot}: attribute '{key}'")
    return read


def _value(value: Any, spot: str) -> Any:
    if value is None:
        return None
    inside = object_of(value, spot)
    for name in (
        "stringValue",
        "string_value",
        "boolValue",
        "bool_value",
        "doubleValue",
        "double_value",
        "bytesValue",
        "bytes_value",
    ):
        if name in inside:
            return inside[name]
    for name in ("intValue", "int_value"):
        if name in inside:
            whole = inside[name]
            return int(whole) if isinstance(whole, str) and re.fullmatch(r"-?\d{1,20}", whole) else whole
    for name in ("arrayValue", "array_value"):
        if name in inside:
            values = list_of(object_of(inside[name], spot).get("values") or [], f"{spot}: 'values'")
            return [_value(item, spot) for item in values]
    for name in ("kvlistValue", "kvlist_value"):
        if name in inside:
            return _attributes(object_of(inside[name], spot).get("values") or [], spot)
    return None


def _otlp_span(raw: Mapping[str, Any], about: Mapping[str, Any], place: str, where: str) -> Iterator[TracedSpan]:
    attributes = {**about, **_attributes(raw.get("attributes"), where)}
    events = [
        (str(object_of(event, where).get("name")), _attributes(event.get("attributes"), where))
        for event in list_of(raw.get("events") or [], f"{where}: 'events'")
    ]
    start = raw.get("startTimeUnixNano", raw.get("start_time_unix_nano"))
    ids = [
        _id(raw, names, where) for names in (("traceId", "trace_id"), ("spanId", "span_id"), ("parentSpanId", "parent_span_id"))
    ]
    yield _span((ids[0], ids[1], ids[2]), raw, attributes, events, nanoseconds(start, f"{where}: 'startTimeUnixNano'"), place)


def _sdk_span(raw: Mapping[str, Any], place: str) -> Iterator[TracedSpan]:
    """A span as the SDK for Python writes it for the console."""
    context = object_of(raw.get("context"), f"{place}: 'context'")
    ids = (_id(context, ("trace_id",), place), _id(context, ("span_id",), place), _id(raw, ("parent_id",), place))
    events = [
        (str(object_of(event, place).get("name")), _attributes(event.get("attributes"), place))
        for event in list_of(raw.get("events") or [], f"{place}: 'events'")
    ]
    start = nanoseconds(raw.get("start_time"), f"{place}: 'start_time'")
    yield _span(ids, raw, _attributes(raw.get("attributes"), place), events, start, place)


def _id(raw: Mapping[str, Any], names: tuple[str, ...], spot: str) -> str:
    value = next((raw[name] for name in names if raw.get(name) is not None), None)
    if value in (None, "") and names[0] in ("parentSpanId", "parent_id"):  # the collector writes "" for a span without one
        return ""
    if not isinstance(value, str) or not value:
        raise UserError(f"{spot}: '{names[0]}' must be text")
    return value.removeprefix("0x")


def _span(
    ids: tuple[str, str, str],
    raw: Mapping[str, Any],
    attributes: dict[str, Any],
    events: list[tuple[str, dict[str, Any]]],
    start: int,
    place: str,
) -> TracedSpan:
    kind, name = _kind(attributes, str(raw.get("name") or "")), str(raw.get("name") or "")
    status = raw.get("status")
    error = _error(status if isinstance(status, Mapping) else {}, events, attributes)
    fields = _metadata(attributes)
    trace, key, parent = ids
    if kind == "tool":
        return TracedSpan(trace, key, place, parent, start, kind, name, error=error, tool=_tool(attributes, name), fields=fields)
    if kind not in ("call", "agent"):
        kind = kind or ("" if parent else "trace")
        return TracedSpan(trace, key, place, parent, start, kind, name, error=error, fields=fields)
    said = _said(attributes, events)
    about = {k: v for k, v in attributes.items() if k not in said.taken and not k.startswith(_TALK) and not _SECRET.search(k)}
    if kind == "call":
        unread({k: v for k, v in about.items() if k.startswith(_OURS)}, _KNOWN, "span")
    return TracedSpan(
        trace, key, place, parent, start, kind, name,
        system=said.system, given=said.given, said=said.replies, stops=said.stops, model=_model(attributes),
        settings=_settings(attributes), about={"attributes": about}, error=error, fields=fields,
    )  # fmt: skip


# --- attributes -----------------------------------------------------------------------------------------------------------

_OURS = ("gen_ai.", "llm.", "input.", "output.", "message", "ai.", "traceloop.")
_TALK = (
    *("gen_ai.prompt.", "gen_ai.completion.", "llm.input_messages.", "llm.output_messages.", "llm.prompts.", "llm.choices."),
    *("llm.tools.", "llm.request.functions."),
)
"""Prefixes of attributes that spell messages and tools."""
_SECRET = re.compile(r"header|cookie|authorization", re.IGNORECASE)
"""Attributes that are not kept."""
_KNOWN = frozenset(
    (
        *("gen_ai.operation.name", "gen_ai.system", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model"),
        *("gen_ai.response.id", "gen_ai.response.finish_reasons", "gen_ai.conversation.id", "gen_ai.output.type", "llm.system"),
        *("gen_ai.agent.name", "gen_ai.agent.id", "gen_ai.agent.description", "gen_ai.tool.definitions", "gen_ai.data_source.id"),
        *("gen_ai.request.stop_sequences", "gen_ai.request.encoding_formats", "gen_ai.token.type", "gen_ai.workflow.name"),
        *("llm.model_name", "llm.provider", "llm.invocation_parameters", "llm.request.type", "llm.headers", "llm.finish_reason"),
        *("input.value", "input.mime_type", "output.value", "output.mime_type", "gen_ai.agent.version"),
        *("gen_ai.request.choice.count", "gen_ai.openai.request.service_tier", "gen_ai.openai.response.service_tier"),
        *(
            "gen_ai.openai.response.system_fingerprint",
            "gen_ai.response.system_fingerprint",
            "gen_ai.request.structured_output_schema",
        ),
        *("openai.response.service_tier", "gen_ai.openai.api_base", "gen_ai.openai.api_version"),
        *("traceloop.span.kind", "traceloop.workflow.name", "traceloop.entity.name", "traceloop.entity.path"),
        *(
            "ai.model.id",
            "ai.model.provider",
            "ai.operationId",
            "ai.response.model",
            "ai.response.id",
            "ai.response.finishReason",
        ),
        *("ai.response.timestamp", "ai.prompt.tools", "ai.prompt.toolChoice"),
    )
)
"""Attributes that are read, or say nothing of what was said."""
_CALLS = ("chat", "text_completion", "generate_content", "completion", "responses")
_KINDS = {"LLM": "call", "TOOL": "tool", "AGENT": "agent"}


def _kind(attributes: Mapping[str, Any], name: str) -> str:
    """What a span is: GenAI's operation, OpenInference's kind, or what OpenLLMetry and the AI SDK say."""
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(kind := attributes.get("openinference.span.kind"), str):
        return _KINDS.get(kind.upper(), "")
    if operation in _CALLS or attributes.get("llm.request.type") in ("chat", "completion"):
        return "call"
    if operation == "execute_tool" or attributes.get("traceloop.span.kind") == "tool" or "ai.toolCall.name" in attributes:
        return "tool"
    around = attributes.get("traceloop.span.kind") in ("agent", "workflow")
    if operation in ("invoke_agent", "create_agent", "invoke_workflow") or around:
        return "agent"
    if isinstance(operation := attributes.get("ai.operationId"), str):  # the AI SDK's
        return "call" if operation.endswith((".doGenerate", ".doStream")) else "agent"
    if operation is None and any(key.startswith("gen_ai.prompt.") or key == "gen_ai.input.messages" for key in attributes):
        return "call"
    return ""


class _Said:
    """What a span says was given and answered, and the attributes that say it."""

    def __init__(self) -> None:
        self.system: Any = None
        self.given: Any = None
        self.replies: Any = None
        self.stops: list[str] = []
        self.taken: set[str] = set()


def _said(attributes: Mapping[str, Any], events: list[tuple[str, dict[str, Any]]]) -> _Said:
    said = _Said()

    def take(name: str) -> Any:
        said.taken.add(name)
        return parsed(attributes[name])

    for source in ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "ai.prompt.messages", "ai.prompt"):
        if said.given is None and source in attributes:
            said.given = take(source)
    for source in ("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages"):
        if said.replies is None and source in attributes:
            said.replies = _choices(take(source))
    if "gen_ai.system_instructions" in attributes:
        said.system = _as_system(take("gen_ai.system_instructions"))
    for given, replies in (("gen_ai.prompt.", "gen_ai.completion."), ("llm.input_messages.", "llm.output_messages.")):
        said.given = said.given or nested(attributes, given) or None
        if said.replies is None and (listed := nested(attributes, replies)):
            said.replies = _choices(listed)
    if said.given is None and (prompts := nested(attributes, "llm.prompts.")):
        said.given = "\n".join(str(_deep(prompt, "prompt", "text")) for prompt in prompts)
        said.replies = {
            "choices": [{"text": str(_deep(choice, "completion", "text"))} for choice in nested(attributes, "llm.choices.")]
        }
    if said.replies is None and ("ai.response.text" in attributes or "ai.response.toolCalls" in attributes):
        calls = take("ai.response.toolCalls") if "ai.response.toolCalls" in attributes else None
        text = take("ai.response.text") if "ai.response.text" in attributes else ""
        said.replies = [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]
    logged = [(str(event.get("event.name")), event) for event in _dicts(parsed(attributes.get("events")))]
    _from_events(said, [*events, *logged])
    if logged:
        said.taken.add("events")
    if said.given is None and "input.value" in attributes:
        said.given = take("input.value")
    if said.replies is None and "output.value" in attributes:
        said.replies = take("output.value")
    reasons = parsed(attributes.get("gen_ai.response.finish_reasons", attributes.get("ai.response.finishReason")))
    said.stops = [str(word) for word in reasons] if isinstance(reasons, list) else [reasons] if isinstance(reasons, str) else []
    return said


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [dict(item) for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _as_system(parts: Any) -> Any:
    return [{"role": "system", "parts": parts}] if isinstance(parts, list) else parts


def _choices(messages: Any) -> Any:
    """Output messages are the choices of one call; each is a reply."""
    if isinstance(messages, list) and messages and all(isinstance(message, Mapping) for message in messages):
        if not any("role" in message or "message" in message for message in messages):
            return messages
        inside = [message.get("message") if isinstance(message.get("message"), Mapping) else message for message in messages]
        return {"choices": [{"message": said, "finish_reason": _text(said.get("finish_reason"))} for said in inside]}
    return messages


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def _from_events(said: _Said, events: list[tuple[str, dict[str, Any]]]) -> None:
    """What events of a span say: a message each, as the conventions had it before attributes held them."""
    given: list[Any] = []
    choices: list[Any] = []
    for name, attributes in events:
        body = parsed(attributes.get("gen_ai.event.content", attributes.get("event_body")))
        fields = {**attributes, **body} if isinstance(body, Mapping) else attributes
        fields = {k: parsed(v) if k in ("tool_calls", "message", "parts") else v for k, v in fields.items()}
        if name in _ROLES:
            given.append(_event_message(fields, _ROLES[name]))
        elif name == "gen_ai.choice":
            inside = fields.get("message")
            message = dict(inside) if isinstance(inside, Mapping) else _event_message(fields, "assistant")
            if isinstance(inside, str):
                message["content"] = inside
            choices.append({"message": {"role": "assistant", **message}, "finish_reason": _text(fields.get("finish_reason"))})
        elif name == "gen_ai.content.prompt":
            said.given = said.given or parsed(fields.get("gen_ai.prompt"))
        elif name == "gen_ai.content.completion":
            said.replies = said.replies or _choices(parsed(fields.get("gen_ai.completion")))
        elif name == "gen_ai.client.inference.operation.details":
            said.given = said.given or parsed(fields.get("gen_ai.input.messages"))
            said.replies = said.replies or _choices(parsed(fields.get("gen_ai.output.messages")))
            said.system = said.system or _as_system(parsed(fields.get("gen_ai.system_instructions")))
        elif name != "exception" and name.startswith("gen_ai."):
            unread({name: "event"}, (), "span")
    said.given = said.given or given or None
    said.replies = said.replies or ({"choices": choices} if choices else None)


def _event_message(fields: Mapping[str, Any], role: str) -> dict[str, Any]:
    kept = {k: fields[k] for k in ("content", "tool_calls", "name", "parts") if fields.get(k) is not None}
    key = fields.get("id", fields.get("tool_call_id"))
    return {"role": role, **kept, **({"tool_call_id": key} if role == "tool" and isinstance(key, str) else {})}


def _logged(raw: Mapping[str, Any], about: Mapping[str, Any], place: str, where: str) -> Iterator[TracedSpan]:
    """An event of a log that says a message: a span of its own, which is joined with the span that it belongs to."""
    attributes = _attributes(raw.get("attributes"), where)
    name = raw.get("eventName", raw.get("event_name")) or attributes.get("event.name")
    if not isinstance(name, str) or not name.startswith("gen_ai."):
        yield from ()
        return
    body = raw.get("body")
    fields = _value(body, f"{where}: 'body'") if isinstance(body, Mapping) else None
    if isinstance(fields, Mapping):
        attributes = {**attributes, **fields}
    start = nanoseconds(raw.get("timeUnixNano", raw.get("observedTimeUnixNano")), f"{where}: 'timeUnixNano'")
    ids = [_id(raw, names, where) for names in (("traceId", "trace_id"), ("spanId", "span_id"))]
    yield TracedSpan(ids[0], ids[1], place, start=start, kind="event", name=name, fields={}, about={**attributes})


def joined(span: TracedSpan | None, events: list[TracedSpan]) -> TracedSpan:
    """A span with what events of logs say of it; where the span itself is not in the file, the call that they tell of."""
    said = _Said()
    _from_events(said, [(event.name, dict(event.about)) for event in events])
    first = events[0]
    base = span or TracedSpan(first.trace, first.key, first.place, start=first.start, kind="call", name="call")
    system = base.system if base.system is not None else said.system
    given = base.given if base.given not in (None, [], "") else said.given
    replies = base.said if base.said not in (None, [], "") else said.replies
    return TracedSpan(
        base.trace, base.key, base.place, base.parent, base.start, base.kind, base.name, system, given, replies, base.stops,
        base.model, base.settings, base.about, base.error, base.tool, base.fields, base.scores,
    )  # fmt: skip


def nested(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """The list that flat attributes spell: ``PREFIX0.role``, ``PREFIX0.tool_calls.1.name``. Missing numbers are skipped."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(prefix):
            at = tree
            *inner, last = name[len(prefix) :].split(".")
            for piece in inner:
                after = at.setdefault(piece, {})
                if not isinstance(after, dict):
                    after = at[piece] = {}
                at = after
            at.setdefault(last, value)
    return _as_list(tree) if tree else []


def _as_list(tree: dict[str, Any]) -> Any:
    values = {key: _as_list(value) if isinstance(value, dict) and value else value for key, value in tree.items()}
    if values and all(key.isdigit() and len(key) < 9 for key in values):
        return [values[key] for key in sorted(values, key=int)]
    return values


def _deep(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return value


def _model(attributes: Mapping[str, Any]) -> str:
    names = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.response.model", "ai.model.id")
    return next((attributes[name] for name in names if isinstance(attributes.get(name), str)), "")


_ASKED = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "stop_sequences")


_OF_A_CALL = frozenset(
    (
        *(
            "model",
            "messages",
            "input",
            "instructions",
            "id",
            "object",
            "created_at",
            "completed_at",
            "status",
            "output",
            "usage",
        ),
        *("previous_response_id", "metadata", "extra_headers", "error", "incomplete_details"),
    )
)
"""Parameters of an invocation that are no settings: they are each call's, or hold keys."""


def _settings(attributes: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: attributes[f"gen_ai.request.{name}"] for name in _ASKED if f"gen_ai.request.{name}" in attributes}
    more = parsed(attributes.get("llm.invocation_parameters"))
    if isinstance(more, Mapping):
        settings |= {str(k): v for k, v in more.items() if k not in _OF_A_CALL}
    tools = parsed(attributes.get("gen_ai.tool.definitions"))
    if not isinstance(tools, list):
        schemas = [parsed(_deep(tool, "tool", "json_schema")) for tool in nested(attributes, "llm.tools.")]
        functions = nested(attributes, "llm.request.functions.")
        tools = [tool for tool in schemas if isinstance(tool, Mapping)] or [
            {**tool, "parameters": parsed(tool.get("parameters"))} for tool in functions if isinstance(tool, Mapping)
        ]
    return {**settings, **({"tools": tools} if tools else {})}


def _tool(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    def first(*names: str) -> Any:
        return next((attributes[n] for n in names if attributes.get(n) is not None), None)

    tool = {
        "id": first("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id"),
        "name": first("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name") or name,
        "result": first(
            "gen_ai.tool.call.result", "gen_ai.tool.message", "output.value", "ai.toolCall.result", "traceloop.entity.output"
        ),
    }
    return {key: value for key, value in tool.items() if value is not None}


def _error(status: Mapping[str, Any], events: list[tuple[str, dict[str, Any]]], attributes: Mapping[str, Any]) -> Any:
    """What a span ended in: its exception, or the message of its status; None where it did not end in an error."""
    failed = status.get("code", status.get("status_code")) in (2, "2", "STATUS_CODE_ERROR", "ERROR")
    raised = [fields for name, fields in events if name == "exception"]
    if not failed:
        return None  # an exception that was caught
    kind = attributes.get("error.type")
    said = raised[-1] if raised else {}
    kind, message = (
        said.get("exception.type", kind),
        said.get("exception.message", status.get("message", status.get("description"))),
    )
    error = {"type": kind, "message": message}
    return {k: v for k, v in error.items() if isinstance(v, str) and v} or True


_NAMES = frozenset(name for names in ("task", "reward", "success") for name in ALIASES[names])


def _metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in which task and outcome may stand, also those inside ``metadata``."""
    inside = parsed(attributes.get("metadata"))
    about = dict(inside) if isinstance(inside, Mapping) else {}
    about |= {name.removeprefix("metadata."): value for name, value in attributes.items() if name.startswith("metadata.")}
    about |= {name: value for name, value in attributes.items() if name in _NAMES}
    return about


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if first is None:
        return path.is_file() and _big(path) is not None
    whole = first.get("trace") if isinstance(first.get("trace"), Mapping) else first
    if isinstance(whole, Mapping) and any(isinstance(whole.get(name), list) for name in _WHOLE):
        return True
    context = first.get("context")
    return isinstance(context, Mapping) and "trace_id" in context and "span_id" in context


def _example() -> Iterator[dict[str, Any]]:
    """Two calls of an agent with a tool between them."""
    call = {"type": "tool_call", "id": "call_1", "name": "weather", "arguments": {"city": "Oslo"}}
    asked = {"role": "user", "parts": [{"type": "text", "content": "Is it warm in Oslo?"}]}
    looked = {"role": "assistant", "parts": [call], "finish_reason": "tool_call"}
    told = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": "4 degrees"}]}
    said = {"role": "assistant", "parts": [{"type": "text", "content": "No: 4 degrees."}], "finish_reason": "stop"}
    for number, (given, reply) in enumerate((([asked], looked), ([asked, looked, told], said))):
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "some-model",
            "gen_ai.input.messages": json.dumps(given),
            "gen_ai.output.messages": json.dumps([reply]),
        }
        span = {
            "traceId": "5b8efff798038103d269b633813fc60c",
            "spanId": f"eee19b7ec3c1b17{number}",
            "name": "chat some-model",
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + number),
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
        }
        yield {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


register("reader", "otlp")(
    Reader(
        "otlp",
        "OpenTelemetry's spans as OTLP JSON: GenAI's conventions, OpenInference's, OpenLLMetry's; a trace is an attempt.",
        _matches,
        read_otlp,
        ("task", "reward"),
        "\n".join(map(json.dumps, _example())),
    )
)
