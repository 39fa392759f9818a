"""Conversations as Anthropic, OpenAI's Responses interface and ShareGPT write them: in, out again, and what is wrong with one."""

from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from command import Verb
from records import write

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.testing import check
from ramify.trace import convert, formats
from ramify.trace.db import Run
from ramify.trace.lines import first_record, read_items
from ramify.trace.view import View, views

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


def taken(tmp_path: Path, *records: object, name: str = "in") -> list[View]:
    """The attempts of the run that a file of these records becomes, whose format is seen from them."""
    folder = tmp_path / f"{name}-run"
    convert.read_run(write(tmp_path / f"{name}.jsonl", *records), folder)
    with Run.open(folder) as run:
        return sorted(views(run, unjudged=True), key=lambda view: view.leaf)


def texts(view: View) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in view.messages]


def refused(tmp_path: Path, form: str, *records: object) -> str:
    with pytest.raises(UserError) as caught:
        convert.read_run(write(tmp_path / "bad.jsonl", *records), tmp_path / "bad", form)
    assert not (tmp_path / "bad").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(tmp_path / "bad.jsonl"), "FILE")


LONG = ("claude-code", "codex", "langsmith", "langfuse", "otlp", "openhands", "swe-agent", "atif")
"""Readers whose examples have many parts to break: each has tests of its own beside it."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in sorted(formats.readers())]
)
def test_every_reader_conforms(name: str) -> None:
    if name.startswith("inspect"):
        pytest.importorskip("inspect_ai")
    assert check("reader", formats.readers()[name]) == []


def test_readers_that_break_do_not_conform() -> None:
    def loud(path: Path, folder: Path) -> int:
        return len(json.loads(path.read_text()))

    def greedy(path: Path, folder: Path) -> int:
        with Run.create(folder, {}):
            return 0

    found = [p.message for p in check("reader", formats.Reader("loud", "x", lambda path, first: first["a"], loud))]
    assert any("'matches' raises" in message for message in found)
    assert any("with FileNotFoundError" in m and "instead of a UserError of one sentence" in m for m in found)
    found = {
        p.check: p.message for p in check("reader", formats.Reader("greedy", "x", lambda path, first: True, greedy, example="{}"))
    }
    assert found.keys() == {"matches_without_raising", "refuses_what_is_none", "reads_its_example"}


# --- Anthropic --------------------------------------------------------------------------------------------------------


def use(key: str, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": name, "input": arguments}


def result(key: str, content: Any = "3", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": key, "content": content, **fields}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
SUM = {
    "task_id": "sum",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Add what is here: "}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two sums.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "b3BhcXVl"},
                {"type": "text", "text": "Both."},
                use("toolu_1", x=1, y=2),
                use("toolu_2", x=3, y=4),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and?"},
                result("toolu_2", [{"type": "text", "text": "7 "}, IMAGE]),
                result("toolu_1", "no adder", is_error=True),
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "3+4"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srv_1",
                    "content": [{"type": "web_search_result", "title": "seven", "encrypted_content": "x" * 50}],
                },
                {"type": "text", "text": "7."},
            ],
        },
    ],
    "reward": 0.5,
    "success": True,
    "note": "kept",
}


def test_anthropic_blocks_become_messages(tmp_path: Path) -> None:
    (view,) = taken(tmp_path, SUM)
    roles = [message.role for message in view.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant", "tool", "assistant"]
    _, question, both, second, first, more, searched, found, last = view.messages
    assert question.text.startswith("Add what is here: [image: image/png, ")
    assert both.text == "Both."
    assert both.message.reasoning == "Two sums."
    assert [(call.name, dict(call.arguments)) for call in both.message.calls] == [
        ("add", {"x": 1, "y": 2}),
        ("add", {"x": 3, "y": 4}),
    ]
    assert (second.data["tool_call_id"], first.data["tool_call_id"], first.data["is_error"]) == ("toolu_2", "toolu_1", True)
    assert second.text.startswith("7 [image: image/png, ")
    assert more.text == "and?"
    assert [call.name for call in searched.message.calls] == ["web_search"]
    assert "seven" in found.text
    assert "xxxx" not in found.text
    assert last.text == "7."
    assert (view.task, view.reward, view.success, view.end.data["record"]) == ("sum", 0.5, True, {"note": "kept"})
    assert len(view.steps) == 3
    assert view.steps[0].action == 'Both.\nadd({"x":1,"y":2})\nadd({"x":3,"y":4})'


def test_anthropic_goes_out_as_it_came(tmp_path: Path) -> None:
    taken(tmp_path, SUM)
    with Run.open(tmp_path / "in-run") as run:
        assert formats.writers()["anthropic"].write(run, tmp_path / "out.jsonl") == 1
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = json.loads(json.dumps(SUM["messages"]))
    third = expected[2]["content"]
    third.append(third.pop(0))  # results come first, as the provider asks for them
    assert row["messages"] == expected
    assert (row["system"], row["reward"]) == ("Be brief.", 0.5)
    again = taken(tmp_path, row, name="again")
    first = taken(tmp_path, SUM, name="first")
    assert texts(again[0]) == texts(first[0])


def test_a_log_of_anthropic_calls_grows_one_tree(tmp_path: Path) -> None:
    question = {"role": "user", "content": "1+2?"}
    first = {"role": "assistant", "content": [use("toolu_1", x=1, y=2)]}
    answered = {"role": "user", "content": [result("toolu_1")]}

    def call(messages: list, content: list, reason: str, **fields: Any) -> dict[str, Any]:
        response = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "m-1",
            "content": content,
            "stop_reason": reason,
        }
        return {
            "task": "t",
            "request": {"model": "m", "system": "s", "max_tokens": 9, "messages": messages},
            "response": response,
            **fields,
        }

    views_ = taken(
        tmp_path,
        call([question], first["content"], "tool_use"),
        call([question, first, answered], [{"type": "text", "text": "three and"}], "max_tokens", reward=1.0),
        call([question], [], "end_turn"),
    )
    with Run.open(tmp_path / "in-run") as run:
        nodes = run.nodes("t")
        assert [node.role for node in nodes] == ["root", "system", "user", "assistant", "tool", "assistant", "assistant"]
        assert [node.stop for node in nodes if node.role == "assistant"] == ["stop", "length", "stop"]
        assert run.provenance(nodes[3].provenance or "").model == "m-1"
        assert run.provenance(nodes[3].provenance or "").settings == {"max_tokens": 9}
    assert sorted(len(view.messages) for view in views_ if view.reward is not None) == [5]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "FILE:1: 'messages' is empty"),
        ([3], "FILE:1: message 0 is not an object"),
        ([{"role": "user", "content": 3}], "FILE:1: message 0: 'content', if no text, must be a list"),
        ([{"role": "tool", "content": "x"}], "message 0 has the role 'tool', which is none of user, assistant, system"),
        (
            [{"role": "user", "content": [{"type": "tool_result"}]}],
            "message 0: block 0: 'tool_use_id' must be text, and it is missing",
        ),
        ([{"role": "user", "content": [result("a")]}], "is a result without a call: the call 'a' was not made before"),
        ([{"role": "assistant", "content": [use("a"), use("a")]}], "message 0: block 1: the id 'a' is that of an earlier call"),
        ([{"role": "assistant", "content": [use("a") | {"input": "x"}]}], "block 0: 'input' must be an object"),
        (
            [{"role": "assistant", "content": [use("a")]}, *[{"role": "user", "content": [result("a")]}] * 2],
            "FILE:1: message 2: block 0 is a result without a call: the call 'a' is answered already",
        ),
        ([{"role": "user", "content": [{"type": "video"}]}], "block 0 is of type 'video', which is none of text, thinking"),
        (
            [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "%%"}}]}],
            "the data of the image is not a base64",
        ),
    ],
)
def test_what_is_wrong_with_anthropic_messages(tmp_path: Path, messages: list, sentence: str) -> None:
    assert sentence in refused(tmp_path, "anthropic", {"messages": messages})


def test_an_attempt_may_end_with_an_open_call(tmp_path: Path) -> None:
    (view,) = taken(tmp_path, {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [use("a")]}]})
    assert [call.name for call in view.messages[-1].message.calls] == ["add"]


# --- Responses --------------------------------------------------------------------------------------------------------

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is it? "},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        ],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look."}], "encrypted_content": "zzz"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "it"}},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at": "it"}'},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "shell", "input": "ls"},
    {"type": "function_call_output", "call_id": "call_1", "output": "a cat"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "cat.png"}]},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "code": "1+1",
        "container_id": "c",
        "outputs": [{"type": "logs", "logs": "2"}],
    },
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A cat.", "annotations": []}],
    },
]


def test_responses_items_become_messages(tmp_path: Path) -> None:
    (view,) = taken(tmp_path, {"task": "t", "items": ITEMS, "score": 1})
    assert [m.role for m in view.messages] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    _, question, looks, seen, listed, code, two, last = view.messages
    assert question.text.startswith("What is it? [image: image/png, ")
    assert looks.message.reasoning == "I look."
    assert [call.name for call in looks.message.calls] == ["web_search", "look", "shell"]
    assert dict(looks.message.calls[2].arguments) == {"input": "ls"}
    assert (seen.text, seen.data["tool_call_id"], listed.text) == ("a cat", "call_1", "cat.png")
    assert ([call.name for call in code.message.calls], two.text, last.text) == (["code_interpreter"], "2", "A cat.")
    assert (view.task, view.reward) == ("t", 1.0)
    with Run.open(tmp_path / "in-run") as run:
        assert [(e.key, e.payload["count"]) for e in run.journal("ignored")] == [("mcp_list_tools", 1)]
        assert run.get_blob(next(iter(question.data["media"].values()))["blob"]) == b"\x89PNG pixel"


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_of_the_items_of_one_conversation(tmp_path: Path, whole: bool) -> None:
    file = tmp_path / "items.json"
    file.write_text(json.dumps(ITEMS, indent=1) if whole else "".join(json.dumps(item) + "\n" for item in ITEMS))
    assert convert.read_run(file, tmp_path / "one") == "responses"
    with Run.open(tmp_path / "one") as run:
        assert [len(view.messages) for view in views(run, unjudged=True)] == [8]


def test_responses_that_continue_one_another(tmp_path: Path) -> None:
    def response(key: str, *output: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"id": key, "object": "response", "model": "m", "status": "completed", "output": [*output], **fields}

    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]}
    seen = {"type": "function_call_output", "call_id": "call_1", "output": "a cat"}
    question = {"role": "user", "content": "What?"}
    by_id = [
        {"task": "t", "request": {"model": "m", "instructions": "s", "input": "What?"}, "response": response("r1", ITEMS[4])},
        {
            "request": {"model": "m", "previous_response_id": "r1", "input": [seen]},
            "response": response("r2", answer),
            "reward": 1,
        },
    ]
    whole = [
        {"task": "t", "request": {"model": "m", "instructions": "s", "input": "What?"}, "response": response("r1", ITEMS[4])},
        {
            "task": "t",
            "request": {"model": "m", "instructions": "s", "input": [question, ITEMS[4], seen]},
            "response": response("r2", answer, status="incomplete"),
            "reward": 1,
        },
    ]
    for name, records in (("id", by_id), ("whole", whole)):
        (view,) = taken(tmp_path, *records, name=name)
        assert [m.role for m in view.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert (view.reward, view.end.stop) == (1.0, "stop" if name == "id" else "length")
    flat = {"task": "t", "input": "What?", "reward": 1, **response("r1", ITEMS[4], answer)}
    (view,) = taken(tmp_path, flat, name="flat")
    assert texts(view) == [("user", "What?"), ("assistant", "A cat.")]
    unknown = "FILE:1: 'previous_response_id' is 'r0', and no response of that id stands before it in the file"
    assert refused(tmp_path, "responses", flat | {"previous_response_id": "r0"}) == unknown


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"items": []}, "FILE:1: 'items' is empty"),
        ({"items": [3]}, "FILE:1: item 0 is not an object"),
        ({"items": [{"type": "dance_call"}]}, "FILE:1: item 0 is of type 'dance_call', which is none of message, reasoning"),
        ({"items": [{"type": "item_reference", "id": "x"}]}, "item 0 refers to the item 'x', whose content is not in the file"),
        (
            {"items": [{"type": "reasoning", "id": "p1", "messageID": "m1", "text": "I look first."}]},
            "item 0 has neither 'summary' nor 'content' nor 'encrypted_content', but 'messageID', 'text', which is not known",
        ),
        ({"items": [ITEMS[6]]}, "FILE:1: item 0 is a result without a call: the call 'call_1' was not made before"),
        ({"items": [ITEMS[4], ITEMS[4]]}, "FILE:1: item 1: the id 'call_1' is that of an earlier call"),
        ({"items": [ITEMS[4] | {"arguments": {}}]}, "FILE:1: item 0: 'arguments' must be text"),
        ({"items": [{"type": "function_call", "name": "x"}]}, "item 0: 'id' must be text, and it is missing"),
        ({"items": [{"role": "user", "content": 3}]}, "item 0: 'content', if no text, must be a list"),
        ({"input": 3, "output": []}, "FILE:1: 'input', if no text, must be a list"),
        ({"input": "q", "output": [ITEMS[6]]}, "FILE:1: item 0 of 'output' is a result without a call"),
        ({"n": 1}, "FILE:1: there is neither 'items' nor 'input' and 'output', nor 'request' and 'response'"),
    ],
)
def test_what_is_wrong_with_responses(tmp_path: Path, record: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(tmp_path, "responses", record)


# --- ShareGPT ---------------------------------------------------------------------------------------------------------


def turn(who: str, value: str, **fields: Any) -> dict[str, Any]:
    return {"from": who, "value": value, **fields}


ADD = '{"name": "add", "arguments": {"x": 1, "y": 2}}'
SHARED = {
    "id": "sum",
    "system": "Be brief.",
    "tools": "[]",
    "conversations": [
        turn("human", "1+2, twice?"),
        turn("function_call", f"[{ADD}, {ADD}]"),
        turn("observation", "3"),
        turn("observation", "three"),
        turn("gpt", f"Once more.\n<tool_call>{ADD}</tool_call>", weight=0),
        turn("tool", "<tool_response>3</tool_response>"),
        turn("gpt", "3", weight=1, loss=True),
    ],
    "correct": True,
}


def test_sharegpt_turns_become_messages(verb: Verb, tmp_path: Path) -> None:
    (view,) = taken(tmp_path, SHARED)
    assert [m.role for m in view.messages] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [call.name for call in view.messages[2].message.calls] == ["add", "add"]
    assert [m.data.get("tool_call_id") for m in view.messages if m.role == "tool"] == ["call_0", "call_1", None]
    assert [call.name for call in view.messages[5].message.calls] == ["add"]
    assert (view.task, view.success) == ("sum", True)
    assert "'weight' of 2 turns does not describe an attempt: ignored\n'loss' of 1 turns" in verb.says(
        "import", tmp_path / "in.jsonl", "--run", tmp_path / "verb"
    )
    assert verb.json("import", tmp_path / "in.jsonl", "--run", tmp_path / "json")["ignored"] == {
        "weight": {"count": 2, "what": "turns"},
        "loss": {"count": 1, "what": "turns"},
    }


def test_sharegpt_goes_out_and_comes_in_again(verb: Verb, tmp_path: Path) -> None:
    (first,) = taken(tmp_path, SHARED)
    assert main(["export", str(tmp_path / "in-run"), str(tmp_path / "out.jsonl"), "--to", "sharegpt"]) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [t["from"] for t in row["conversations"]] == [
        "system", "human", "function_call", "observation", "observation", "gpt", "observation", "gpt",
    ]  # fmt: skip
    (again,) = taken(tmp_path, row, name="again")
    assert (texts(again), again.task, again.reward) == (texts(first), "sum", 1.0)
    taken(tmp_path, SUM, name="thinks")
    assert main(["export", str(tmp_path / "thinks-run"), str(tmp_path / "t.jsonl"), "--to", "sharegpt"]) == 0
    value = json.loads((tmp_path / "t.jsonl").read_text())["conversations"][2]["value"]
    assert value.startswith("<think>\nTwo sums.\n</think>\n\nBoth.\n<tool_call>\n")
    assert "ends in .jsonl" in verb.refused("export", tmp_path / "in-run", tmp_path / "x.json", "--to", "sharegpt")


def test_sharegpt_as_one_list_and_as_preferences(tmp_path: Path) -> None:
    pair = {"conversations": [turn("human", "1+2?")], "chosen": turn("gpt", "3"), "rejected": turn("gpt", "4")}
    views_ = taken(tmp_path, pair)
    assert sorted((view.messages[-1].text, view.reward) for view in views_) == [("3", 1.0), ("4", 0.0)]
    assert len({view.task for view in views_}) == 1
    file = tmp_path / "list.json"
    file.write_text(json.dumps([SHARED, pair]))
    assert convert.read_run(file, tmp_path / "list") == "sharegpt"
    file.write_text(json.dumps(SHARED["conversations"]))
    assert convert.read_run(file, tmp_path / "turns") == "sharegpt"
    openai = {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert [texts(view) for view in taken(tmp_path, openai, name="roles")] == [[("user", "q"), ("assistant", "a")]]


@pytest.mark.parametrize(
    ("turns", "sentence"),
    [
        ([], "FILE:1: 'conversations' is empty"),
        ([3], "FILE:1: turn 0 is not an object"),
        ([{"from": "human"}], "FILE:1: turn 0: 'value' must be text, and it is missing"),
        ([turn("humann", "x")], "FILE:1: turn 0 is from 'humann', which is unknown (did you mean 'human'?)"),
        ([turn("function_call", "add(1)")], "FILE:1: turn 0: the call is not JSON"),
        ([turn("function_call", "{}")], "FILE:1: turn 0: 'name' must be text, and it is missing"),
        ([turn("gpt", "x"), turn("observation", "3")], "FILE:1: turn 1 is a result without a call"),
    ],
)
def test_what_is_wrong_with_sharegpt(tmp_path: Path, turns: list, sentence: str) -> None:
    assert sentence in refused(tmp_path, "sharegpt", {"conversations": turns})


# --- which format, and how much memory --------------------------------------------------------------------------------


def test_chats_say_which_reader_a_message_needs(tmp_path: Path) -> None:
    plain = {"messages": [{"role": "user", "content": "q"}]}
    blocks = {"messages": [{"role": "assistant", "content": [use("a")]}]}
    reason = refused(tmp_path, "chats", plain, blocks)
    assert (
        reason == "FILE:2: message 0 holds 'tool_use', which is a block of Anthropic's messages: import it with --from anthropic"
    )
    reason = refused(tmp_path, "chats", {"messages": [ITEMS[4]]})
    assert (
        reason
        == "FILE:1: message 0 holds 'function_call', which is an item of OpenAI's Responses interface: import it with --from "
        "responses"
    )
    convert.read_run(write(tmp_path / "both.jsonl", plain, blocks), tmp_path / "both", "anthropic")
    assert formats.formats(write(tmp_path / "verl.jsonl", {"input": "q", "output": "a", "score": 1.0})) == ["verl"]


def test_a_long_list_is_read_item_by_item(tmp_path: Path) -> None:
    file = tmp_path / "long.json"
    record = {"conversations": [turn("human", "x" * 4000), turn("gpt", 'é "[{' * 20)]}
    count = 2500
    file.write_text(f"[{', '.join([json.dumps(record, ensure_ascii=False)] * count)}]", encoding="utf-8")
    tracemalloc.start()
    assert first_record(file)[1] == record
    read = [number for number, found in read_items(file) if found == record]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == [*range(1, count + 1)]
    assert peak < 1 << 20 < file.stat().st_size / 8


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('[{"a": 1}, {"a": 2', ":2: item 2 of the list: not JSON"),
        ('[{"a": 1} {"a": 2}]', ":2: item 2 of the list is not an object"),
        ('[{"a": 1},]', ":2: item 2 of the list is not an object"),
        ('[{"a": 1}] x', ": text follows the list"),
        ('[{"a": 1}', ":2: item 2 of the list: it ends inside the list"),
        ('[{"a": 1}, 3]', ":2: item 2 of the list is not an object"),
        ('[{"a": tru}]', ":1: item 1 of the list: not JSON"),
    ],
)
def test_a_broken_list_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError) as caught:
        list(read_items(tmp_path / "x.json"))
    assert f"x.json{sentence}" in str(caught.value)
