"""Traces of observability tools: OpenTelemetry's GenAI conventions in their forms, OpenInference, Langfuse, LangSmith."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import write

from ramify.base.errors import UserError
from ramify.trace import convert, intake, lines
from ramify.trace.db import Run
from ramify.trace.notes import noting
from ramify.trace.outcomes import read_outcomes
from ramify.trace.view import View, views

ASKED = {"role": "user", "content": "Is it warm in Oslo?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
LOOKED = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"}
SAID = {"role": "assistant", "content": "No: 4 degrees."}
TALK = [("user", ASKED["content"]), ("assistant", "I look."), ("tool", "4 degrees"), ("assistant", "No: 4 degrees.")]


def read(path: Path, form: str) -> list[View]:
    """The attempts of the run that a file becomes, longest first."""
    folder = path.with_name(f"{path.stem}-run")
    assert convert.read_run(path, folder) == form
    with Run.open(folder) as run:
        return sorted(views(run, unjudged=True), key=lambda view: (-len(view.messages), view.leaf))


def talk(view: View) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in view.messages]


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        convert.read_run(path, path.with_name("bad"))
    assert not path.with_name("bad").exists()
    return str(caught.value).replace(str(path), "FILE")


# --- OpenTelemetry ------------------------------------------------------------------------------------------------------


def otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": otlp_pairs(value)}}
    return {"stringValue": value}


def otlp_pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": otlp_value(value)} for key, value in values.items()]


def span(key: str, attributes: dict[str, Any], start: int = 0, trace: str = "t1", **more: Any) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": key,
        "name": key,
        "startTimeUnixNano": str(10**18 + start),
        "attributes": otlp_pairs(attributes),
        **more,
    }


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}


def chat(**more: Any) -> dict[str, Any]:
    return {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m1", **more}


def parts(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        inside = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
    else:
        inside = [{"type": "text", "content": message["content"]}]
        inside += [{"type": "tool_call", "id": "call_1", "name": "weather", "arguments": {"city": "Oslo"}}] * (
            "tool_calls" in message
        )
    return {"role": message["role"], "parts": inside}


def in_parts(given: list[dict[str, Any]], reply: dict[str, Any]) -> dict[str, Any]:
    said = [{**parts(reply), "finish_reason": "stop"}]
    return chat(**{"gen_ai.input.messages": json.dumps([parts(m) for m in given]), "gen_ai.output.messages": json.dumps(said)})


def in_flat(given: list[dict[str, Any]], reply: dict[str, Any], names: tuple[str, str, str, str]) -> dict[str, Any]:
    """OpenLLMetry's and OpenInference's attributes: a name for each field of each message."""
    prompt, completion, inside, call = names
    flat: dict[str, Any] = {}
    for prefix, messages in ((prompt, given), (completion, [reply])):
        for at, message in enumerate(messages):
            head = f"{prefix}.{at}.{inside}"
            flat |= {f"{head}{name}": message[name] for name in ("role", "content", "tool_call_id") if name in message}
            if "tool_calls" in message:
                function = "function." if call else ""
                flat[f"{head}tool_calls.0.{call}id"] = "call_1"
                flat[f"{head}tool_calls.0.{call}{function}name"] = "weather"
                flat[f"{head}tool_calls.0.{call}{function}arguments"] = '{"city": "Oslo"}'
    return flat


def old(given: list[dict[str, Any]], reply: dict[str, Any]) -> dict[str, Any]:
    return chat(**in_flat(given, reply, ("gen_ai.prompt", "gen_ai.completion", "", "")))


def inference(given: list[dict[str, Any]], reply: dict[str, Any]) -> dict[str, Any]:
    flat = in_flat(given, reply, ("llm.input_messages", "llm.output_messages", "message.", "tool_call."))
    return {"openinference.span.kind": "LLM", "llm.model_name": "m1", "input.value": "{}", **flat}


def events_of(given: list[dict[str, Any]], reply: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for message in given:
        fields = {"id" if name == "tool_call_id" else name: value for name, value in message.items() if name != "role"}
        yield f"gen_ai.{message['role']}.message", fields
    yield "gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": reply}


@pytest.mark.parametrize("form", [in_parts, old, inference])
def test_calls_of_a_trace_are_one_attempt(form: Any, tmp_path: Path) -> None:
    """The second call comes first in the file, its history is repeated, and its reply hangs below the first one's."""
    first, second = span("a", form([ASKED], LOOKED)), span("b", form([ASKED, LOOKED, TOLD], SAID), 5)
    (view,) = read(write(tmp_path / "spans.jsonl", export(second), export(first)), "otlp")
    assert talk(view) == TALK
    assert [call.name for call in view.messages[1].message.calls] == ["weather"]
    assert view.failure is None


def test_a_span_without_a_parent_as_the_collector_writes_it(tmp_path: Path) -> None:
    first, second = span("a", in_parts([ASKED], LOOKED)), span("b", in_parts([ASKED, LOOKED, TOLD], SAID), 5)
    made = export({**first, "parentSpanId": ""}, {**second, "parentSpanId": ""})
    (view,) = read(write(tmp_path / "spans.jsonl", made), "otlp")
    assert talk(view) == TALK


def test_results_that_share_a_message(tmp_path: Path) -> None:
    """The AI SDK writes the results of a step's calls into one message, and wraps its calls into a span that says the same."""

    def wanted(city: str) -> dict[str, str]:
        return {"toolCallId": city, "toolName": "weather", "input": json.dumps({"city": city})}

    def gave(city: str) -> dict[str, Any]:
        return {
            "type": "tool-result",
            "toolCallId": city,
            "toolName": "weather",
            "output": {"type": "text", "value": f"{city}: 4"},
        }

    cities = ("Oslo", "Rome")
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Where is it warm?"}]},
        {"role": "assistant", "content": [{"type": "tool-call", **wanted(city)} for city in cities]},
        {"role": "tool", "content": [gave(city) for city in cities]},
    ]
    first = {
        "ai.prompt.messages": json.dumps(history[:1]),
        "ai.response.toolCalls": json.dumps([wanted(city) for city in cities]),
    }
    second = {"ai.prompt.messages": json.dumps(history), "ai.response.text": "In Rome."}
    whole = {"ai.operationId": "ai.generateText", "ai.prompt": '{"prompt": "Where is it warm?"}', "ai.response.text": "In Rome."}
    inner = {"ai.operationId": "ai.generateText.doGenerate", "ai.response.finishReason": "tool-calls"}
    steps = [span(f"s{at}", {**inner, **said}, at, parentSpanId="all") for at, said in enumerate((first, second), 1)]
    (view,) = read(write(tmp_path / "ai.jsonl", export(span("all", whole), *steps)), "otlp")
    assert [role for role, _ in talk(view)] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [call.arguments["city"] for call in view.messages[1].message.calls] == ["Oslo", "Rome"]
    assert view.messages[1].nodes[0].stop == "stop"


def test_messages_in_events_of_spans_and_of_logs(tmp_path: Path) -> None:
    calls = [([ASKED], LOOKED), ([ASKED, LOOKED, TOLD], SAID)]
    spans, records = [], []
    for number, (given, reply) in enumerate(calls):
        held = list(events_of(given, reply))
        texts = [(name, {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}) for name, fields in held]
        events = [{"name": name, "attributes": otlp_pairs(fields)} for name, fields in texts]
        spans.append(span(f"s{number}", chat(), number, events=events))
        for at, (name, fields) in enumerate(held):
            where = {"traceId": "t1", "spanId": f"s{number}", "timeUnixNano": str(10**18 + 10 * number + at)}
            records.append({**where, "eventName": name, "body": otlp_value(fields)})
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    bare = export(*({**one, "events": []} for one in spans))
    for name, made in {"events": [export(*spans)], "logs": [logs, bare], "only-logs": [logs]}.items():
        (view,) = read(write(tmp_path / f"{name}.jsonl", *made), "otlp")
        assert talk(view) == TALK, name


def test_attempts_subagents_tools_and_whose_fault(tmp_path: Path) -> None:
    """Two traces with the same question are attempts at one task; a subagent talks in a tree of its own."""
    agent = {"gen_ai.operation.name": "invoke_agent", "task_id": "oslo"}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "call_1", "gen_ai.tool.name": "weather"}
    other = {"role": "user", "content": "Find the station."}
    raised = {
        "name": "exception",
        "attributes": otlp_pairs({"exception.type": "ApiError", "exception.message": "bad key sk-abcdefghijklmnopqrst"}),
    }
    file = write(
        tmp_path / "spans.jsonl",
        export(
            span("root", {**agent, "success": True}),
            span("call", in_parts([ASKED], LOOKED), 1, parentSpanId="root"),
            span(
                "tool",
                {**tool, "gen_ai.tool.call.result": "4 degrees"},
                2,
                parentSpanId="root",
                status={"code": 2, "message": "slow"},
            ),
            span("sub", {"gen_ai.operation.name": "invoke_agent"}, 3, parentSpanId="tool"),
            span("sub-call", in_parts([other], SAID), 4, parentSpanId="sub"),
            span("last", in_parts([ASKED, LOOKED, TOLD], SAID), 5, parentSpanId="root"),
            span("http", {"http.method": "POST"}, 6, parentSpanId="last"),
            span("root", agent, 10, "t2"),
            span("again", in_parts([ASKED], SAID), 11, "t2", parentSpanId="root", status={"code": 2}, events=[raised]),
        ),
    )
    first, failed, subagent = read(file, "otlp")
    assert (talk(first), first.task, first.success) == (TALK, "oslo", True)
    assert first.messages[2].data["error"] == '{"message":"slow"}'
    assert (failed.task, failed.failure, failed.success) == ("oslo", "ApiError: bad key [key]", None)
    outcomes = write(tmp_path / "outcomes.json", {"t1": 0.0})
    intake.take([], tmp_path / "spans-run", outcomes=read_outcomes(outcomes), outcomes_file=outcomes)
    with Run.open(tmp_path / "spans-run") as run:
        assert [attempt.success for attempt in run.attempts(leaf=first.leaf)] == [False]  # and nothing of its subagent
    assert subagent.task.startswith("find-the-station-")
    assert talk(subagent) == [("user", "Find the station."), ("assistant", "No: 4 degrees.")]
    with Run.open(tmp_path / "spans-run") as run:
        (left,) = run.journal("ignored")
        assert (left.key, left.payload["count"]) == ("neither call nor tool", 1)
        assert b"abcdefghijkl" not in (tmp_path / "spans-run" / "run.sqlite").read_bytes()


def test_a_trace_that_ends_with_a_tool_and_one_that_was_retried(tmp_path: Path) -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "call_1", "gen_ai.tool.call.result": "4 degrees"}
    failed = span("a", in_parts([ASKED], LOOKED), 0, status={"code": 2, "message": "HTTP 529"})
    file = write(tmp_path / "spans.jsonl", export(failed, span("b", in_parts([ASKED], LOOKED), 1), span("c", tool, 2)))
    (view,) = (view for view in read(file, "otlp") if view.failure is None)
    assert talk(view) == TALK[:3]
    with Run.open(tmp_path / "spans-run") as run:
        assert [attempt.failure for attempt in run.attempts()] == [None]


def test_a_limit_is_the_models(tmp_path: Path) -> None:
    """What an agent raises where it ran out of turns cuts the attempt short, and is no failure."""
    limit = {"name": "exception", "attributes": otlp_pairs({"exception.type": "agents.exceptions.MaxTurnsExceeded"})}
    root = span("root", {"gen_ai.operation.name": "invoke_agent", "reward": 0.0}, status={"code": 2}, events=[limit])
    (view,) = read(
        write(tmp_path / "spans.jsonl", export(root, span("a", in_parts([ASKED], SAID), 1, parentSpanId="root"))), "otlp"
    )
    assert (view.cut, view.failure, view.reward) == (True, None, 0.0)
    stuck = smith("a", "llm", {"messages": [ASKED]}, {"choices": [{"message": SAID}]}, 1)
    graph = smith("root", "chain", {}, None, 0, None, error="GraphRecursionError('Recursion limit of 25 reached')")
    (view,) = read(write(tmp_path / "runs.jsonl", graph, stuck), "langsmith")
    assert (view.cut, view.failure) == (True, None)


def test_a_trimmed_history_says_what_the_model_was_shown(tmp_path: Path) -> None:
    """The third call shows a summary instead of the beginning, and still the newest exchange: the attempt goes on below it."""
    more = {"role": "user", "content": "And in Rome?"}
    summary = {"role": "user", "content": "They asked about Oslo."}
    calls = [([ASKED], LOOKED), ([ASKED, LOOKED, TOLD], SAID), ([summary, TOLD, SAID, more], LOOKED)]
    file = write(tmp_path / "spans.jsonl", export(*(span(f"s{at}", in_parts(*call), at) for at, call in enumerate(calls))))
    (view,) = read(file, "otlp")
    assert talk(view) == [*TALK, ("user", "And in Rome?"), ("assistant", "I look.")]
    with Run.open(tmp_path / "spans-run") as run:
        shown = run.shown(view.leaf).messages
    assert [message.text for message in shown] == ["They asked about Oslo.", "4 degrees", "No: 4 degrees.", "And in Rome?"]


def test_one_span_of_the_sdk_and_a_large_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = {
        "name": "chat",
        "context": {"trace_id": "0x1", "span_id": "0x2", "trace_state": "[]"},
        "parent_id": None,
        "start_time": "2026-01-01T10:00:00.000000Z",
        "status": {"status_code": "UNSET"},
        "attributes": inference([ASKED], SAID),
        "events": [],
    }
    (view,) = read(write(tmp_path / "sdk.jsonl", sdk), "otlp")
    assert talk(view) == [TALK[0], TALK[3]]
    whole = {"resourceSpans": export(span("a", in_parts([ASKED], LOOKED)))["resourceSpans"] * 3, "more": {"x": [1]}}
    monkeypatch.setattr(lines, "MAX_LINE", 3000)
    (view,) = read(write(tmp_path / "large.json", whole), "otlp")
    assert talk(view) == TALK[:2]
    (tmp_path / "cut.json").write_text(json.dumps(whole)[:-20])
    assert "FILE" in refused(tmp_path / "cut.json")


def test_spans_that_do_not_say_what_was_said(tmp_path: Path) -> None:
    assert "CAPTURE_MESSAGE_CONTENT=true" in refused(write(tmp_path / "silent.jsonl", export(span("a", chat()))))
    roles = [{"role": "user", "parts": []}, {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "weather"}]}]
    assert "CAPTURE" in refused(
        write(tmp_path / "roles.jsonl", export(span("a", chat(**{"gen_ai.input.messages": json.dumps(roles)}))))
    )
    assert "none of its spans is the call of a model" in refused(
        write(tmp_path / "http.jsonl", export(span("a", {"http.method": "GET"})))
    )


def test_what_is_not_understood_is_counted_and_a_bad_span_named(tmp_path: Path) -> None:
    file = write(tmp_path / "spans.jsonl", export(span("a", in_parts([ASKED], SAID) | {"gen_ai.new.thing": "text"})))
    with noting() as notes:
        read(file, "otlp")
    assert [(one.field, one.of, one.count) for one in notes.unread] == [("gen_ai.new.thing", "span", 1)]
    bad = span("a", chat(**{"gen_ai.input.messages": json.dumps([{"role": "oracle", "content": "x"}])}))
    assert "FILE:1: span 'a': input: message 0 has the role 'oracle'" in refused(write(tmp_path / "bad.jsonl", export(bad)))
    late = refused(write(tmp_path / "late.jsonl", export({**span("a", chat()), "startTimeUnixNano": "soon"})))
    assert late.startswith("FILE:1: resourceSpans 0: span 0: 'startTimeUnixNano' is not a time")


# --- Langfuse -----------------------------------------------------------------------------------------------------------


def observation(key: str, given: Any, said: Any, at: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "traceId": "t1",
        "type": "GENERATION",
        "name": key,
        "startTime": f"2026-01-01T10:00:{at:02}.000Z",
        "parentObservationId": None,
        "level": "DEFAULT",
        "model": "m1",
        "modelParameters": {"temperature": 0.5},
        "input": given,
        "output": said,
        **more,
    }


LANGFUSE = [observation("b", {"messages": [ASKED, LOOKED, TOLD]}, SAID, 5), observation("a", [ASKED], LOOKED, 1)]


def snake(row: dict[str, Any]) -> dict[str, Any]:
    names = {
        "traceId": "trace_id",
        "startTime": "start_time",
        "parentObservationId": "parent_observation_id",
        "modelParameters": "model_parameters",
    }
    return {names.get(name, name): json.dumps(value) if isinstance(value, (list, dict)) else value for name, value in row.items()}


SCORES = [{"id": "s", "traceId": "t1", "name": "correct", "value": 1, "dataType": "NUMERIC"}]
TRACE = {"id": "t1", "name": "agent", "timestamp": "2026-01-01T10:00:00Z", "metadata": {"task_id": "oslo"}}


@pytest.mark.parametrize(
    ("records", "task", "scored"),
    [
        ([{"trace": TRACE, "observations": LANGFUSE, "scores": SCORES}], "oslo", True),
        ([{**TRACE, "observations": LANGFUSE, "scores": SCORES}], "oslo", True),
        ([{"data": LANGFUSE, "meta": {"page": 1}}], "is-it-warm-in-oslo-", False),
        (LANGFUSE, "is-it-warm-in-oslo-", False),
        (
            [*map(snake, LANGFUSE), {"id": "s", "trace_id": "t1", "name": "correct", "value": 1, "data_type": "NUMERIC"}],
            "is-it",
            True,
        ),
    ],
)
def test_langfuse_in_its_forms(records: list[Any], task: str, scored: bool, tmp_path: Path) -> None:
    (view,) = read(write(tmp_path / "langfuse.jsonl", *records), "langfuse")
    assert talk(view) == TALK
    assert view.task.startswith(task)
    with Run.open(tmp_path / "langfuse-run") as run:
        assert [(score.scorer, score.value) for score in run.scores()] == ([("correct", 1.0)] if scored else [])
        assert {provenance.settings["temperature"] for provenance in map(run.provenance, {view.end.provenance})} == {0.5}


def test_langfuse_errors_and_what_is_missing(tmp_path: Path) -> None:
    failed = observation("a", [ASKED], None, level="ERROR", statusMessage="RateLimitError: slow down")
    (view,) = read(write(tmp_path / "failed.jsonl", failed), "langfuse")
    assert view.failure == "RateLimitError: slow down"
    silent = observation("a", None, None)
    assert "export with inputs and outputs" in refused(write(tmp_path / "silent.jsonl", silent))
    ids = {**TRACE, "observations": ["a", "b"]}
    assert "observation 0 is only an id" in refused(write(tmp_path / "ids.jsonl", ids))


# --- LangSmith ----------------------------------------------------------------------------------------------------------


def chain(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": kwargs}


def smith(key: str, kind: str, inputs: Any, outputs: Any, at: int, parent: str | None = "root", **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "trace_id": "root",
        "parent_run_id": parent,
        "name": key,
        "run_type": kind,
        "start_time": f"2026-01-01T10:00:{at:02}.000000",
        "inputs": inputs,
        "outputs": outputs,
        "error": None,
        **more,
    }


LOOKS = chain(
    "AIMessage",
    content="I look.",
    type="ai",
    tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "call_1", "type": "tool_call"}],
)
HUMAN = chain("HumanMessage", content=ASKED["content"], type="human")
RESULT = chain("ToolMessage", content="4 degrees", type="tool", tool_call_id="call_1")
ANSWER = {
    "text": "No: 4 degrees.",
    "generation_info": {"finish_reason": "length"},
    "message": chain("AIMessage", content="No: 4 degrees."),
}
SMITH = [
    smith("second", "llm", {"messages": [[HUMAN, LOOKS, RESULT]]}, {"generations": [[ANSWER]]}, 5),
    smith("first", "llm", {"messages": [[HUMAN]]}, {"generations": [[{"text": "I look.", "message": LOOKS}]]}, 1),
    smith("weather", "tool", {"city": "Oslo"}, {"output": RESULT}, 3),
    smith(
        "root",
        "chain",
        {"input": "x"},
        {"output": "y"},
        0,
        None,
        feedback_stats={"right": {"n": 2, "avg": 0.5}},
        reference_example_id="ex-1",
    ),
]


def test_langsmith_flat_and_nested(tmp_path: Path) -> None:
    *inside, root = SMITH
    for name, records in {"flat": SMITH, "nested": [{**root, "child_runs": inside}]}.items():
        (view,) = read(write(tmp_path / f"{name}.jsonl", *records), "langsmith")
        assert (talk(view), view.task) == (TALK, "ex-1"), name
        assert view.end.stop == "length"
        with Run.open(tmp_path / f"{name}-run") as run:
            assert [(score.scorer, score.value) for score in run.scores()] == [("right", 0.5)]


def test_langsmith_plain_messages_and_an_error(tmp_path: Path) -> None:
    wrapped = smith(
        "a", "llm", {"messages": [ASKED], "model": "m1"}, {"choices": [{"message": SAID, "finish_reason": "stop"}]}, 1, None
    )
    (view,) = read(write(tmp_path / "wrapped.jsonl", wrapped), "langsmith")
    assert talk(view) == [TALK[0], TALK[3]]
    failed = smith(
        "a", "llm", {"messages": [ASKED]}, None, 1, None, error="ApiError('gone')Traceback (most recent call last):\n x"
    )
    (view,) = read(write(tmp_path / "failed.jsonl", failed), "langsmith")
    assert view.failure == "ApiError('gone')"
    assert "FILE:1: 'id' must be text" in refused(write(tmp_path / "bad.jsonl", {**failed, "id": 3}))
