"""No number is made of data that was not understood: shapes of messages and records, whose fault an end was, bad units.

Success rates are recomputed by hand beside each log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_logs import chat, rate, texts, write

from ramify.trace.db import Run
from ramify.trace.formats import readers

READERS = ("anthropic", "chats", "responses", "sharegpt", "steps", "trl", "verifiers", "verl")
"""The readers of other tools' logs, each with an example of its format."""


# -- a shape that is not known is never read as empty


SAID = [
    {"content": [{"type": "text", "content": "Q"}]},
    {"content": [{"type": "text", "text": {"value": "Q", "annotations": []}}]},
    {"content": {"content_type": "text", "parts": ["Q"]}},
    {"content": [{"parts": [{"text": "Q"}]}]},
    {"content": ["Q"]},
    {"parts": [{"type": "text", "text": "Q"}]},
    {"content": "", "parts": [{"text": "Q"}]},
    {"text": "Q"},
    {"role": None, "type": "human", "content": "Q"},
]


def test_what_a_message_says_is_read_wherever_it_stands(verb: Any, here: Path) -> None:
    spoken = [(json.dumps(said), question) for said in SAID for question in ("one", "two", "three")]
    records = [chat(json.loads(said.replace('"Q"', f'"{question}"')), reward=1.0) for said, question in spoken]
    assert verb("import", write("log.jsonl", *records), "--run", "run").code == 0
    assert texts("run") == sorted([question, "a"] for _, question in spoken)
    with Run.open("run") as run:
        assert sum(node.role == "user" for node in run.nodes("t")) == 3, "each question is one node, however it was written"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"content": [{"type": "text", "words": "Q"}]}, "part 0 of 'content' is of type 'text' and holds no text"),
        ({"content": [{"words": "Q"}]}, "part 0 of 'content' is of no type and holds no text: its fields are 'words'"),
        ({"content": {"answer": "Q"}}, "part 0 of 'content' is of no type and holds no text: its fields are 'answer'"),
        ({"body": "Q"}, "message 0 has neither 'content' nor 'tool_calls', but 'body'"),
        ({"content": None, "segments": ["Q"]}, "message 0 has neither 'content' nor 'tool_calls', but 'segments'"),
        ({"content": [], "blocks": [{"t": "Q"}]}, "message 0 has neither 'content' nor 'tool_calls', but 'blocks'"),
    ],
)
def test_what_a_message_says_elsewhere_is_refused_by_name(verb: Any, here: Path, said: dict[str, Any], named: str) -> None:
    sentence = verb.refused("import", write("log.jsonl", chat("fine"), chat(said)), "--run", "run")
    assert sentence.startswith("log.jsonl:2: message 0")
    assert named in sentence
    assert "--skip-bad" in sentence


CALLS: list[Any] = [
    {"id": "c", "function": "look", "arguments": {"at": "sea"}},
    {"id": "c", "function": '{"name": "look", "arguments": {"at": "sea"}}'},
    {"id": "c", "name": "look", "args": {"at": "sea"}, "type": "tool_call"},
    {"toolCallId": "c", "toolName": "look", "input": {"at": "sea"}},
    {"id": "c", "type": "function", "function": {"name": "look", "parameters": {"at": "sea"}}},
    '{"id": "c", "name": "look", "arguments": {"at": "sea"}}',
]


def test_every_form_of_a_call_is_one_call(verb: Any, here: Path) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": "blue"}
    records = [chat("q", {"content": None, "tool_calls": value}) for call in CALLS for value in ([call], json.dumps([call]))]
    for record in records:
        record["messages"].append(result)
    told = verb("import", write("log.jsonl", *records), "--run", "run", "--json").json
    assert (told["records"], told["open_calls"], told["not_understood"]) == (2 * len(CALLS), 0, [])
    with Run.open("run") as run:
        made = [node.message.calls for node in run.nodes("t") if node.role == "assistant"]
    assert [[(c.name, dict(c.arguments), c.error) for c in calls] for calls in made] == [[("look", {"at": "sea"}, "")]] * len(
        records
    )
    odd = chat("q", {"tool_calls": [{"id": "c", "what": "look"}]})
    sentence = verb.refused("import", write("odd.jsonl", odd), "--run", "odd")
    assert "tool call 0 has neither 'function' nor 'name', but 'what'" in sentence


def test_calls_and_results_among_the_parts(verb: Any, here: Path) -> None:
    call = {"type": "tool-call", "toolCallId": "c", "toolName": "look", "args": {"at": "sea"}}
    told = {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": "c", "toolName": "look", "result": {"sky": "blue"}}],
    }
    record = chat("q", {"content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "I look."}, call]})
    record["messages"].append(told)
    gemini = chat(
        {"parts": [{"text": "q"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
        {"parts": [{"text": "hm", "thought": True}, {"functionCall": {"name": "look", "args": {"at": "sea"}}}]},
    )
    verb("import", write("log.jsonl", record, gemini), "--run", "run")
    with Run.open("run") as run:
        replies = [node.message for node in run.nodes("t") if node.role == "assistant"]
        (result,) = [node.message for node in run.nodes("t") if node.role == "tool"]
        asked = [node for node in run.nodes("t") if "content" in node.data and node.role == "user"]
    assert [(m.text, m.reasoning, [c.name for c in m.calls]) for m in replies] == [
        ("I look.", "hm", ["look"]),
        ("", "hm", ["look"]),
    ]
    assert [(node.text, "inlineData" in node.data["content"][1]) for node in asked] == [("q", True)]
    assert (result.text, result.data["tool_call_id"]) == ('{"sky":"blue"}', "c")


def test_several_results_in_one_message_are_a_message_each(verb: Any, here: Path) -> None:
    def results(*more: dict[str, Any]) -> list[dict[str, Any]]:
        told = [{"functionResponse": {"id": key, "name": "look", "response": {"output": f"{key}!"}}} for key in ("a", "b")]
        calls = [{"functionCall": {"id": key, "name": "look", "args": {}}} for key in ("a", "b")]
        return [
            {"role": "user", "parts": [{"text": "q"}]},
            {"role": "model", "parts": calls},
            {"role": "user", "parts": [*told, *more]},
            {"role": "model", "parts": [{"text": "Done."}]},
        ]

    verb("import", write("gemini.jsonl", {"task": "t", "contents": results()}), "--run", "run")
    call = {"request": {"messages": results()[:3]}, "response": {"choices": [{"message": {"content": "Done."}}]}}
    verb("import", write("calls.jsonl", {"task": "t", **call}), "--run", "calls")
    for folder in ("run", "calls"):
        with Run.open(folder) as run:
            nodes = run.nodes("t")
            assert [(node.role, node.data.get("tool_call_id")) for node in nodes[3:5]] == [("tool", "a"), ("tool", "b")]
            assert ([node.text for node in nodes[3:5]], nodes[-1].text) == (['{"output":"a!"}', '{"output":"b!"}'], "Done.")
    beside = write("beside.jsonl", {"task": "t", "contents": results({"text": "x"})})
    assert "message 2 holds a result of a tool beside other parts" in verb.refused("import", beside, "--run", "beside")


def test_an_object_of_conversations_by_name_is_the_conversations_it_holds(verb: Any, here: Path) -> None:
    """As FireAct and others write their results: the question's id -> its reward and what was said."""
    named = {key: {"reward": key == "q7", "traj": chat(key)["messages"]} for key in ("q7", "q8")}
    for name, indent in (("line.json", None), ("lines.json", 1)):
        Path(name).write_text(json.dumps(named, indent=indent))
        assert verb("import", name, "--run", f"run-{name}").code == 0
        with Run.open(f"run-{name}") as run:
            assert [(info.name, [node.text for node in run.nodes(info.name)][1]) for info in run.trees()] == [
                ("q7", "q7"),
                ("q8", "q8"),
            ]
            assert sorted(attempt.reward for attempt in run.attempts()) == [0.0, 1.0]
    Path("texts.json").write_text(json.dumps({key: {"reward": 1, "traj": "> look"} for key in ("q7", "q8")}))
    assert "of no format known here" in verb.refused("import", "texts.json", "--run", "texts")


def test_a_list_of_lists_of_messages_is_a_list_of_conversations(verb: Any, here: Path) -> None:
    Path("talks.json").write_text(json.dumps([chat(key)["messages"] for key in ("one", "two")], indent=1))
    assert verb("import", "talks.json", "--run", "run").code == 0
    with Run.open("run") as run:
        assert [[node.text for node in run.nodes(info.name)] for info in run.trees()] == [["", "one", "a"], ["", "two", "a"]]
    Path("calls.json").write_text(json.dumps([[{"name": "look", "arguments": {}}]]))
    assert verb.refused("import", "calls.json", "--run", "calls").endswith(
        "item 1 of the list is a list, and not one of messages: each has a 'role'"
    )


def test_columns_of_json_text_are_the_conversations_they_hold(verb: Any, here: Path) -> None:
    rows = [
        {"task": "t", "messages": json.dumps(chat(question)["messages"]), "tools": "[]", "reward": reward}
        for question, reward in (("one", 1.0), ("two", 0.0), ("three", 0.0))
    ]
    sides = [
        {"prompt": json.dumps(r[:1]), "completion": json.dumps(r[1:]), "reward": 1.0}
        for r in (json.loads(row["messages"]) for row in rows)
    ]
    for name, some, share in (("messages", rows, (1, 3)), ("sides", sides, (3, 3))):
        pq.write_table(pa.Table.from_pylist(some), f"{name}.parquet")
        for file in (write(f"{name}.jsonl", *some), f"{name}.parquet"):
            run = f"run-{file}"
            assert verb("import", file, "--run", run).code == 0
            assert texts(run) == [["one", "a"], ["three", "a"], ["two", "a"]]
            assert rate(verb, run) == share
    as_python = {**rows[0], "messages": str(chat("one")["messages"])}
    sentence = verb.refused("import", write("python.jsonl", as_python), "--run", "no", "--from", "chats")
    assert "python.jsonl:1: 'messages' is text as Python prints it, not JSON" in sentence


def test_questions_in_an_unknown_column_are_not_one_task(verb: Any, here: Path) -> None:
    rows = [{"question": question, "completion": "a", "reward": 0.0} for question in ("one", "two")]
    sentence = verb.refused("import", write("rows.jsonl", *rows), "--run", "run")
    assert "has neither 'prompt' nor a task, but 'question'" in sentence


def spots(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], str]]:
    """Every field that holds text or lists, with where its object stands."""
    if isinstance(value, list):
        return [spot for i, one in enumerate(value) for spot in spots(one, (*at, i))]
    if not isinstance(value, dict):
        return []
    own = [(at, name) for name, one in value.items() if isinstance(one, (str, list)) and one]
    return own + [spot for name, one in value.items() for spot in spots(one, (*at, name))]


def changed(record: dict[str, Any], at: tuple[Any, ...], rename: str | None) -> dict[str, Any]:
    found = json.loads(json.dumps(record))
    inside = found
    for step in at:
        inside = inside[step]
    if rename is None:
        inside["zz_unknown"] = ["something that was said"]
    else:
        inside["zz_unknown"] = inside.pop(rename)
    return found


@pytest.mark.parametrize("form", READERS)
def test_no_reader_passes_over_an_unknown_field(verb: Any, here: Path, form: str) -> None:
    (record,) = [json.loads(line) for line in readers()[form].example.splitlines()]
    inside = [(at, name) for at, name in spots(record) if "input" not in at and "arguments" not in at]
    odd = [changed(record, at, name) for at, name in inside]  # each field renamed
    odd += [changed(record, at, None) for at in dict(inside)]  # and one added to each object
    if form == "steps":  # an attempt each
        odd = [{name: i if name == "attempt_id" else value for name, value in one.items()} for i, one in enumerate(odd)]
    code, out, err = verb("import", write("odd.jsonl", *odd), "--run", "run", "--from", form, "--skip-bad", "--json")
    assert code == 0, err
    told = json.loads(out)
    counted = sum(one["count"] for one in told["not_understood"] if one["field"] == "zz_unknown")
    assert told["records"] + told["bad"] == len(odd)
    assert counted == told["records"] > 0, told
    assert told["bad"] <= len(inside), "what is only added is no reason to refuse a record"


def test_unknown_fields_are_counted_in_the_last_line(verb: Any, here: Path) -> None:
    records = [chat("one", {"content": "a", "citations": ["x"]}, note="n"), chat("two", {"content": "b", "citations": ["y"]})]
    shown = verb("import", write("log.jsonl", *records), "--run", "run").out
    assert shown.splitlines()[-1] == "not understood: 'citations' of 2 messages, 'note' of 1 record"


def test_pictures_in_unknown_fields_keep_questions_apart(verb: Any, here: Path) -> None:
    records = [chat({"content": "what is it?", "images": [picture]}, reward=1) for picture in ("cat", "dog", "cat")]
    verb("import", write("log.jsonl", *records), "--run", "run")
    with Run.open("run") as run:
        shown = [node.data["images"] for node in run.nodes("t") if node.role == "user"]
    assert sorted(map(tuple, shown))[-1] == ("dog",)
    assert {tuple(one) for one in shown} == {("cat",), ("dog",)}


# -- whose fault it was


BROKEN = [
    {"error": "RateLimitError: 429"},
    {"errors": ["the sandbox died"]},
    {"exception_info": {"exception_type": "EnvironmentStartTimeoutError", "exception_message": "no machine"}},
    {"info": {"error": "connection reset", "traceback": "..."}},
    {"termination_reason": "infrastructure_error"},
    {"termination_reason": "unexpected_error"},
    {"info": {"exit_status": "exit_environment_error"}},
    {"stop_condition": "has_error", "error": {"error": "ModelError", "error_chain_str": "gone"}},
]
OWN = [
    {"error": None},
    {"error": ""},
    {"errors": []},
    {"errors": {}},
    {"error": False, "exception_info": None},
    {"error": {"message": None, "code": ""}},
    {"info": {"error": "None"}},
    {"termination_reason": "agent_stop"},
    {"termination_reason": "user_stop"},
    {"termination_reason": "agent_error"},
    {"info": {"exit_status": "submitted"}},
]
CUT = [
    {"termination_reason": "max_steps"},
    {"termination_reason": "too_many_errors"},
    {"termination_reason": "context_window_exceeded"},
    {"exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "900 seconds"}},
    {"info": {"exit_status": "submitted (exit_cost)"}},
    {"stop_condition": "max_turns_reached"},
]


def verifiers(fields: dict[str, Any], reward: float) -> dict[str, Any]:
    return {"example_id": 0, "prompt": "q", "completion": [{"role": "assistant", "content": "a"}], "reward": reward, **fields}


def tau(fields: dict[str, Any], reward: float) -> dict[str, Any]:
    """As tau-bench writes a trajectory; one that broke before it began has none."""
    talk = [] if "error" in fields.get("info", {}) and fields["info"]["error"] != "None" else chat("q")["messages"]
    return {"task_id": 7, "trial": 0, "traj": talk, "reward": reward, **fields}


def trl(fields: dict[str, Any], reward: float) -> dict[str, Any]:
    return {"prompt": "q", "completion": "a", "reward": reward, **fields}


@pytest.mark.parametrize("make", [lambda fields, reward: chat("q", reward=reward, **fields), verifiers, tau, trl])
def test_what_was_not_the_models_fault_is_not_in_the_denominator(verb: Any, here: Path, make: Any) -> None:
    won = [make({}, 1.0), make({"error": None}, 1.0)]
    records = [*won, *(make(fields, 0.0) for fields in (*BROKEN, *OWN, *CUT))]
    shown = verb("import", write("log.jsonl", *records), "--run", "run").out
    assert rate(verb, "run") == (2, 2 + len(OWN) + len(CUT))
    assert f"{len(BROKEN)} of {len(records)} attempts failed" in shown
    assert "Failed attempts are not counted" in verb("show", "run").out
    with Run.open("run") as run:
        stops = [run.node(end).stop for end in run.ends()]
    assert (stops.count("failed"), stops.count("truncated")) == (len(BROKEN), len(CUT))


def test_tau2s_own_results_file(verb: Any, here: Path) -> None:
    ends = [("user_stop", 1.0), ("agent_stop", 0.0), ("max_steps", 0.0), ("infrastructure_error", 0.0)]
    runs = [
        {
            "id": str(i),
            "task_id": "7",
            "termination_reason": why,
            "reward_info": {"reward": reward},
            "messages": chat("q")["messages"],
        }
        for i, (why, reward) in enumerate(ends)
    ]
    Path("results.json").write_text(json.dumps({"timestamp": "now", "info": {}, "tasks": [], "simulations": runs}, indent=1))
    assert verb("import", "results.json", "--run", "run").code == 0
    assert rate(verb, "run") == (1, 3)


def test_a_step_log_whose_environment_broke(verb: Any, here: Path) -> None:
    def step(attempt: str, number: int, **fields: Any) -> dict[str, Any]:
        return {"task_id": "t", "attempt_id": attempt, "step": number, "obs": "o", "action": "go", "reward": 0.0, **fields}

    log = [step("a", 0, reward=1.0, done=True), step("b", 0, done=True), step("c", 0), step("c", 1, error="the maze crashed")]
    verb("import", write("steps.jsonl", *log), "--run", "run")
    assert rate(verb, "run") == (1, 2)


# -- one unit of trouble does not take the whole with it


def test_bad_lines_are_left_out_counted_and_named(verb: Any, here: Path) -> None:
    good = [json.dumps(chat("q", reward=reward)) for reward in (1, 0, 1, 1)]
    bad = ['{"messages": [', json.dumps(chat({"body": "x"})), json.dumps({"messages": 3}), "17"]
    lines = [good[0], bad[0], good[1], bad[1], bad[2], good[2], bad[3], good[3]]
    Path("log.jsonl").write_text("\n".join(lines))
    sentence = verb.refused("import", "log.jsonl", "--run", "run")
    assert sentence.startswith("log.jsonl:2: not JSON")
    assert sentence.endswith("--skip-bad leaves out bad records, and counts them")
    told = verb("import", "log.jsonl", "--run", "run", "--skip-bad", "--json").json
    assert (told["records"], told["bad"], told["nodes"]) == (4, 4, 6)
    assert [one.split(": ")[0] for one in told["bad_first"]] == [f"log.jsonl:{at}" for at in (2, 4, 5, 7)]
    assert rate(verb, "run") == (3, 4)
    Path("first.jsonl").write_text("\n".join([bad[0], good[0]]))
    assert verb("import", "first.jsonl", "--run", "first", "--skip-bad", "--json").json["bad"] == 1
    Path("none.jsonl").write_text("\n".join(bad))
    assert "none.jsonl" in verb.refused("import", "none.jsonl", "--run", "none", "--skip-bad")
    assert not Path("none").exists()


def test_an_attempt_that_lost_a_step_has_no_outcome(verb: Any, here: Path) -> None:
    def step(attempt: str, number: int, **fields: Any) -> dict[str, Any]:
        return {"task_id": "t", "attempt_id": attempt, "step": number, "obs": "o", "action": "go", "reward": 0.0, **fields}

    bad, end = step("a", 1), {"reward": 1.0, "done": True}
    del bad["action"]
    log = [step("a", 0), bad, step("a", 2, **end), step("b", 0), step("b", 1, **end), step("c", 0, done=True), bad | {"step": 0}]
    told = verb("import", write("steps.jsonl", *log), "--run", "run", "--skip-bad", "--json").json
    assert (told["records"], told["bad"], told["failed"]) == (4, 3, 1)
    assert rate(verb, "run") == (1, 2)


def use(key: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": "look", "input": {}}


BROKEN_OFF = {
    "chats": chat("q", {"content": None, "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]}),
    "anthropic": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [use("a")]}]},
    "responses": {
        "items": [{"role": "user", "content": "q"}, {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}]
    },
    "sharegpt": {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "look"}'}]},
}
THEN = {
    "chats": ("messages", {"role": "user", "content": "go on"}),
    "anthropic": ("messages", {"role": "user", "content": "go on"}),
    "responses": ("items", {"role": "user", "content": "go on"}),
    "sharegpt": ("conversations", {"from": "human", "value": "go on"}),
}


@pytest.mark.parametrize("form", list(BROKEN_OFF))
def test_a_call_without_a_result_is_read_and_marked(verb: Any, here: Path, form: str) -> None:
    name, more = THEN[form]
    record = BROKEN_OFF[form] | {"reward": 0.0}
    continued = record | {name: [*record[name], more]}
    shown = verb("import", write("log.jsonl", record, continued), "--run", "run", "--from", form).out
    assert "2 calls of tools without a result" in shown
    with Run.open("run") as run:
        marks = [run.node(end).data["unanswered"] for end in run.ends()]
    assert [[one["name"] for one in mark] for mark in marks] == [["look"], ["look"]]
    assert rate(verb, "run") == (0, 2)


def test_the_export_to_anthropics_form_is_read_by_its_own_reader(verb: Any, here: Path) -> None:
    call = {"function": {"name": "look", "arguments": "{}"}}
    again = [
        {"role": "assistant", "tool_calls": [{**call, "id": "call_0"}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "x"},
    ]
    old = [
        {"role": "assistant", "function_call": {"name": "look", "arguments": "no json"}},
        {"role": "function", "name": "look", "content": "y"},
    ]
    open_ = [{"role": "assistant", "tool_calls": [call, {**call, "id": "b"}]}, {"role": "user", "content": "hello?"}]
    empty = [{"role": "assistant", "content": ""}]
    lost = [{"role": "tool", "tool_call_id": "gone", "content": "z"}]
    user = [{"role": "user", "content": "q"}]
    talks = [
        user + again + again,
        user + old,
        user + open_,
        user + empty,
        user + lost,
        user + again + open_ + again + lost + empty,
    ]
    verb(
        "import", write("log.jsonl", *({"task": str(i), "messages": m, "reward": 1} for i, m in enumerate(talks))), "--run", "run"
    )
    assert verb("export", "run", "out.jsonl", "--to", "anthropic").code == 0
    back = verb("import", "out.jsonl", "--run", "back", "--from", "anthropic", "--json").json
    assert (back["records"], back["scored"]) == (len(talks), len(talks))
    calls = [sum(len(one.calls) for one in talk) for talk in messages("back")]
    assert calls == [sum(len(one.calls) for one in talk) for talk in messages("run")]


def messages(run: str) -> list[list[Any]]:
    with Run.open(run) as opened:
        return [opened.path(end).messages() for info in opened.trees() for end in [opened.tree(info.name).leaves()[0].id]]


# -- on the way out


PICTURE = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}


def test_writers_write_tools_and_reasoning_and_count_what_they_cannot(verb: Any, here: Path) -> None:
    reply = {"content": "a cat", "reasoning_content": "whiskers"}
    verb(
        "import",
        write("log.jsonl", chat(PICTURE, reply, tools=[TOOL], reward=1), chat("q", reward=0), chat("r", error="no net")),
        "--run",
        "run",
    )
    found = {}
    failed = {"attempt that a failure ended": 1}
    for form, left in (("trl-sft", {"image": 1}), ("sharegpt", {"image": 1}), ("anthropic", {})):
        told = verb("export", "run", f"{form}.jsonl", "--to", form, "--json").json
        assert told["not_written"] == left | failed
        rows = [json.loads(line) for line in Path(f"{form}.jsonl").read_text().splitlines()]
        (found[form],) = [row for row in rows if "tools" in row]
    assert (
        "wrote out.jsonl; sharegpt has no place for 1 attempt that a failure ended, 1 image"
        in verb("export", "run", "out.jsonl", "--to", "sharegpt").out
    )
    assert found["trl-sft"]["tools"] == [TOOL] == json.loads(found["sharegpt"]["tools"])
    assert found["trl-sft"]["messages"][-1]["reasoning_content"] == "whiskers"
    assert found["anthropic"]["tools"] == [
        {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert found["anthropic"]["messages"][0]["content"][1]["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": "aGk=",
    }
    for form in ("sharegpt", "anthropic", "trl-sft"):  # and the tools come back from each of them
        reader = {"trl-sft": "chats"}.get(form, form)
        assert verb("import", f"{form}.jsonl", "--run", f"from-{form}", "--from", reader).code == 0
        verb("export", f"from-{form}", f"again-{form}.jsonl", "--to", "trl-sft")
        rows = [json.loads(line) for line in Path(f"again-{form}.jsonl").read_text().splitlines()]
        assert [row["tools"] for row in rows if "tools" in row] == [[TOOL]]
