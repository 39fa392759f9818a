"""The verbs, as a user calls them; the middleware behind `ramify serve`; the MCP server as a client sees it."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.methods.earned_code_memory.memory import HEAD, Memory
from ramify.methods.earned_code_memory.middleware import Remembers
from ramify.model.function import FunctionModel
from ramify.model.protocol import Prefix, Sampling
from ramify.testing import check_middleware
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify_experiments.earned_code_memory.nulls import line
from tests.methods.earned_code_memory.office_notes import APIS, PLAN, QUERIES, Codifier, candidate, reflecting, trajectory


def verbs(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a verb; its last JSON line, or with ``code`` what it says in error."""

    def verb(*words: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["earned-code-memory", *map(str, words), *([] if code else ["--json"])]) == code, capsys.readouterr().err
        out, err = capsys.readouterr()
        return err.strip() if code else json.loads(out.splitlines()[-1])

    return verb


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return verbs(capsys)


def write_code(messages: list[dict[str, Any]]) -> str:
    """A model that writes the tool of the notes."""
    return Codifier()(messages[-1]["content"]).text


def reflects(messages: list[dict[str, Any]]) -> str:
    """A model that writes one plan."""
    return str(reflecting([PLAN])(messages[-1]["content"]).text)


def log_of(folder: Path) -> Path:
    lines = [line(query, ["notes.list", "notes.list", "notes.delete"], True) for query in QUERIES]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["import", str(folder / "log.jsonl"), "--run", str(folder / "run")]) == 0
    return folder / "run"


def test_from_a_run_to_a_tool_and_back(tmp_path: Path, run: Any) -> None:
    apis = [{"name": name, **one} for name, one in APIS.items()]
    (tmp_path / "apis.json").write_text(json.dumps(apis))
    assert run("learn", "m.sqlite", "--apis", "apis.json", "--review", "ask")["apis"] == 2
    folder = log_of(tmp_path)
    found = run("learn", "m.sqlite", folder)
    assert (found["recorded"], [one["calls"] for one in found["recurring"]]) == (3, [["notes.list", "notes.delete"]])
    with Run.open(folder) as stored:
        (finding,) = stored.findings()
        assert (finding.maker, finding.value, finding.unit) == ("earned-code-memory learn", 3.0, "structures")
        assert finding.node is not None
    assert run("learn", "m.sqlite", folder)["known"] == 3
    here = "python:tests.methods.earned_code_memory.test_memory_verbs"
    assert run("learn", "m.sqlite", "--write", "text", "--model", f"{here}:reflects")["tasks"] == 3
    (plan,) = run("learn", "m.sqlite", "--write", "tools", "--dry-run")["plans"]
    assert plan["evidence"] == 3
    assert run("learn", "m.sqlite", "--write", "tools", "--model", f"{here}:write_code")["waiting"] == ["delete_notes"]
    assert run("review", "m.sqlite", "approve", "delete_notes")["status"] == "active"
    assert run("show", "m.sqlite", "delete_notes")["tool"]["source"].startswith("def delete_notes")
    whole = run("show", "m.sqlite", plan["id"])
    assert (whole["evidence_queries"], whole["entry"]["id"], whole["tool"]) == (sorted(QUERIES), plan["id"], None)
    assert [one["id"] for one in run("recall", "m.sqlite", "delete my 4 oldest notes")["near"]][-1] == "delete_notes"
    report = run("show", "m.sqlite", "--view", "report")
    assert report["never_used"] == ["delete_notes"]
    assert report["break_even"]["after"] is None
    files = run("export", "m.sqlite", "files", "--out", "out")["files"]
    assert files == ["README.md", "delete_notes.py", "test_delete_notes.py", "tools.json"]
    assert run("review", "m.sqlite", "demote", "delete_notes")["demoted"] == ["delete_notes"]
    assert {one["id"] for one in run("show", "m.sqlite", "--view", "diff")["changed"]} == {plan["id"], "delete_notes"}
    assert run("show", "m.sqlite", "--view", "replay")["equal"]


def test_rules_reflect_where_no_model_is_named(tmp_path: Path, run: Any) -> None:
    assert run("learn", "m.sqlite", log_of(tmp_path), "--write", "text")["entries"] >= 1
    assert run("show", "m.sqlite", "--status", "active")["entries"][0]["kind"] == "plan"
    assert run("learn", "m.sqlite", "--inject", 2)["settings"]["inject"] == 2


def test_mistakes_are_one_sentence(tmp_path: Path, run: Any) -> None:
    assert "there is no memory gone.sqlite" in run("show", "gone.sqlite", code=2)
    (tmp_path / "text").write_text("hello")
    assert "damaged" in run("show", "text", "--view", "report", code=2)
    run("learn", "m.sqlite")
    assert "is not an entry and no tool" in run("show", "m.sqlite", "zz", code=2)
    assert "a plan, a fact or a pitfall" in run("review", "m.sqlite", "add", "plam", "t", "b", code=2)
    assert "a secret" in run("review", "m.sqlite", "add", "fact", "t", "sk-" + "a1B2" * 8, code=2)
    assert "has events 1 to 1" in run("show", "m.sqlite", "--view", "diff", "--since", 99, code=2)
    assert "no task 'zz'" in run("review", "m.sqlite", "success", "zz", code=2)
    assert "mode" in run("learn", "m.sqlite", "--mode", "saef", code=2)
    (tmp_path / "apis.json").write_text("{")
    assert "cannot read the APIs" in run("learn", "other.sqlite", "--apis", "apis.json", code=2)
    assert "there is no run and no log gone" in run("learn", "other.sqlite", "gone", code=2)
    assert "there is no memory other.sqlite" in run("learn", "other.sqlite", "--write", "text", code=2)
    assert not (tmp_path / "other.sqlite").exists()
    for words in (("gone.sqlite",), ("text", "--view", "report")):
        assert run("show", *words, code=2).count("\n") == 0


def test_what_a_choice_does_not_take_is_refused(run: Any) -> None:
    run("learn", "m.sqlite")
    for words, says in (
        ("learn m.sqlite --model builtin", "learning without --write takes no --model"),
        ("learn m.sqlite --from run", "learning without SOURCE takes no --from"),
        ("learn m.sqlite --write text --gate 2", "--write text takes no --gate"),
        ("learn m.sqlite --write tools", "name one with --model"),
        ("learn m.sqlite --write tools --dry-run --k 2", "--dry-run takes no --k"),
        ("show m.sqlite zz --view diff", "an ID takes no --view"),
        ("show m.sqlite --view report --status active", "the view report takes no --status"),
        ("show m.sqlite --since 1", "the view entries takes no --since"),
        ("review m.sqlite approve", "approve takes ID, not nothing"),
        ("review m.sqlite demote zz --scope x", "demote takes no --scope"),
        ("export m.sqlite files", "name it with --out"),
        ("export m.sqlite mcp --out x", "mcp takes no --out"),
    ):
        assert says in run(*words.split(), code=2)


# -- middleware


def test_the_middleware_is_middleware() -> None:
    assert check_middleware(Remembers) == []


def test_a_client_gets_a_memory(tmp_path: Path) -> None:
    file, shown = tmp_path / "m.sqlite", list[list[dict[str, Any]]]()
    with Memory(file) as memory:
        memory.add("plan", "delete oldest notes", "Call `notes.list`, then `notes.delete`.")

    def agent(messages: list[dict[str, Any]]) -> str:
        shown.append(messages)
        return "done" if messages[-1]["role"] == "tool" else '<tool_call>{"name": "notes.list", "arguments": {}}</tool_call>'

    model = Remembers(FunctionModel(agent), str(file))
    chat = (Message("system", "Be brief."), Message("user", "delete my 3 oldest notes"))
    (first,) = asyncio.run(model.sample(Prefix(messages=chat), 1, Sampling(), [1]))
    told = first.data["memory"]  # type: ignore[index]
    assert len(told["ids"]) == 1
    assert [m["role"] for m in shown[0]] == ["system", "system", "user"]
    assert shown[0][1]["content"].startswith(HEAD)
    later = (*chat, first.message, Message("tool", "[]"))
    (second,) = asyncio.run(model.sample(Prefix(messages=later), 1, Sampling(), [1]))
    assert shown[1][1]["content"] == shown[0][1]["content"], "the same at every turn"
    assert second.data["memory"]["task"] == told["task"]  # type: ignore[index]
    with Memory(file, create=False) as memory:
        (task,) = memory.state.tasks.values()
        assert (task.id, task.query, task.recorded > 0) == (told["task"], "delete my 3 oldest notes", True)
        kept = memory.store.messages(task.recorded)
        assert not any(one.text.startswith(HEAD) for one in kept), "what the memory said is not an experience"


def test_a_chat_without_a_near_entry_goes_through_as_it_is(tmp_path: Path) -> None:
    Memory(tmp_path / "m.sqlite").close()
    shown = list[int]()
    model = Remembers(FunctionModel(lambda messages: str(shown.append(len(messages)))), str(tmp_path / "m.sqlite"))
    asyncio.run(model.sample(Prefix(messages=(Message("user", "hello"),)), 1, Sampling(), [1]))
    assert shown == [1]


# -- MCP

SERVER = """
from mcp.server import MCPServer
server, notes = MCPServer("notes"), [{"id": i, "date": -i} for i in range(5)]
@server.tool(name="notes.list")
def listed(page: int = 0) -> dict:
    return {"items": notes}
@server.tool(name="notes.delete")
def delete(id: int) -> str:
    notes[:] = [one for one in notes if one["id"] != id]
    return "ok"
server.run()
"""


@pytest.mark.slow
def test_an_mcp_client_recalls_records_and_calls_tools(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed: THE MCP SERVER OF A MEMORY IS NOT TESTED")
    from ramify.integrations.environments.mcp import ToolServer

    file = tmp_path / "m.sqlite"
    with Memory(file, review="auto") as memory:
        memory.offer(APIS)
        for query in QUERIES:
            memory.record(query, trajectory(query), True)
            asyncio.run(memory.reflect(reflecting([PLAN])))
        asyncio.run(memory.codify(Codifier(candidate())))
    (tmp_path / "notes.py").write_text(SERVER)
    upstream = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'notes.py'))}"
    client = ToolServer(
        [sys.executable, "-m", "ramify", "earned-code-memory", "export", str(file), "mcp", "--upstream", upstream], 60.0
    )
    try:
        assert [tool["function"]["name"] for tool in client.tools] == ["memory_recall", "memory_record", "delete_notes"]
        told = json.loads(client.call("memory_recall", {"request": "delete my 2 oldest notes"}).content[0].text)
        assert told["tools"] == ["delete_notes"]
        assert json.loads(client.call("delete_notes", {"n": 2}).content[0].text) == {"result": [4, 3]}
        said = client.call("delete_notes", {"n": 20})
        assert said.is_error
        assert "do instead" in said.content[0].text
        record = {"request": "delete my 2 oldest notes", "messages": trajectory("delete my 2 oldest notes"), "success": True}
        task = json.loads(client.call("memory_record", record).content[0].text)["task"]
        assert client.call("nothing", {}).is_error
    finally:
        client.close()
    with Memory(file, create=False) as memory:
        assert memory.state.tasks[task].outcome is True
        assert memory.state.tools["delete_notes"].calls == 2
