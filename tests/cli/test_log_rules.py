"""What a log alone says: rules that a step breaks, each with the like of it that breaks none, and how rare they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify.env.tools import describe, described, tool_json
from ramify.jobs.log.rarity import PUBLIC, PUBLIC_LOGS, Successes
from ramify.jobs.log.rules import RULES, Violation, violations
from ramify.trace.db import Run
from ramify.trace.view import views

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("here")  # runs and logs are written into an empty folder
Row = dict[str, Any]
TOOLS = [tool_json("pay", "Pay.", {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})]


def call(name: str, result: str, text: str = "", **arguments: Any) -> list[Row]:
    """A call with what it was answered."""
    about = {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    reply = {"role": "assistant", "content": text, "tool_calls": [about]}
    return [reply, {"role": "tool", "tool_call_id": "c", "content": result}]


def say(text: str) -> list[Row]:
    """A reply."""
    return [{"role": "assistant", "content": text}]


def imported(verb: Any, logs: list[Row]) -> Path:
    """A new run of logs."""
    name = f"run-{len(list(Path().glob('run-*')))}"
    Path("log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in logs))
    assert verb("import", "log.jsonl", "--run", name).code == 0
    return Path(name)


def log(*parts: list[Row], success: bool = False, task: str = "t", **more: Any) -> Row:
    """A conversation about one wish."""
    messages = [{"role": "user", "content": "Pay 12 to Ann."}, *(row for part in parts for row in part)]
    return {"task_id": task, "messages": messages, "success": success, **more}


def broken(verb: Any, *parts: list[Row], **more: Any) -> list[Violation]:
    """What the rules say of one log."""
    with Run.open(imported(verb, [log(*parts, **more)])) as run:
        (view,) = views(run)
        return violations(run, view)


ERROR = "Error: no account 'Anne'"
RIGHT = call("pay", "paid", to="Ann")
CASES: dict[str, tuple[str, list[list[Row]], int]] = {
    "an error that nobody takes up": ("ignored error", [call("pay", ERROR, to="Anne"), say("I have paid 12 to Ann.")], 1),
    "an exit code": ("ignored error", [call("sh", "exitcode: 1 (execution failed)", to="x"), say("The result is 5.")], 1),
    "success that is claimed": ("contradicted result", [call("pay", ERROR, to="Anne"), say("It has been transferred.")], 2),
    "another number": ("contradicted result", [call("pay", '{"balance": 90}', to="Ann"), say("Your balance is 95.")], 2),
    "the same again": ("repeated action", [RIGHT, RIGHT, say("Paid.")], 2),
    "a step that never comes": (
        "skipped plan step",
        [say("My plan:\n1. Call `balance_of` first.\n2. Call `pay`.\n"), RIGHT, call("done", "ok"), say("Paid.")],
        1,
    ),
    "a todo that stays open": (
        "skipped plan step",
        [
            call("todo", "ok", todos=[{"content": "pay", "status": "completed"}, {"content": "mail", "status": "pending"}]),
            say("ok"),
        ],
        2,
    ),
    "arguments that are no JSON": (
        "refused call",
        [[{"role": "assistant", "content": '<tool_call>{"name": "pay", "arguments": 3}</tool_call>'}], say("Hm.")],
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_breaks_a_rule(name: str, verb: Any, here: Path) -> None:
    rule, parts, step = CASES[name]
    tools = [
        *TOOLS,
        tool_json("balance_of", "", {}),
        tool_json("done", "", {}),
        tool_json("todo", "", {}),
        tool_json("sh", "", {}),
    ]
    found = broken(verb, *parts, tools=tools)
    assert (rule, step) in [(one.rule, one.step) for one in found]
    assert all(one.why and one.node and one.shown for one in found)


HARMLESS: dict[str, list[list[Row]]] = {
    "an error that is mended": [call("pay", ERROR, to="Anne"), call("pay", "paid", to="Ann"), say("I have paid.")],
    "an error that is mentioned": [call("pay", ERROR, to="Anne"), say("Unfortunately there is no such account.")],
    "a number that was shown": [call("pay", '{"balance": 90}', to="Ann"), say("Your balance is 90, and I paid 12.")],
    "a plan that is kept": [say("Plan:\n1. Call `pay`.\n2. Say so.\n"), RIGHT, say("Paid.")],
    "the same with another result": [call("pay", "paid 1", to="Ann"), call("pay", "paid 2", to="Ann"), say("Paid.")],
    "a person's words": [say("Which account?"), [{"role": "user", "content": "I failed to find it."}], say("Then I wait.")],
    "a call that is put right": [call("pay", "missing 1 required argument"), RIGHT, say("Paid.")],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_breaks_none(name: str, verb: Any, here: Path) -> None:
    assert {one.rule for one in broken(verb, *HARMLESS[name], tools=TOOLS)} <= {"failed call"}


@pytest.mark.parametrize(
    ("tool", "arguments", "why"), [("pey", {"to": "Ann"}, "no tool 'pey'"), ("pay", {}, "needs to"), ("pay", {"to": 3}, "string")]
)
def test_a_call_that_the_offered_tools_refuse(tool: str, arguments: Row, why: str, verb: Any, here: Path) -> None:
    (found,) = broken(verb, call(tool, "ok", **arguments), say("Paid."), tools=TOOLS)
    assert (found.rule, found.step) == ("refused call", 1)
    assert why in found.why
    assert not broken(verb, call(tool, "ok", **arguments), say("Paid."), task="without schemas")


def test_tools_in_a_system_message() -> None:
    assert described(describe(TOOLS, "You pay.")) == TOOLS
    assert described("Tools:\nnone") == described("") == []


def test_agents_that_speak_in_turn(verb: Any, here: Path) -> None:
    """A log of several agents in which nobody else speaks can be asked about, and a terminal's error names who ran it."""
    talk = [("Manager", "How many rows?"), ("Excel_Expert", "print(x)"), ("Computer_terminal", "exitcode: 1 (execution failed)")]
    talk.append(("Checker_Expert", "There are 7 rows. TERMINATE"))
    history = [{"role": "assistant" if "Expert" in name else "user", "name": name, "content": text} for name, text in talk]
    record = {"question_ID": "q", "history": history, "mistake_agent": "Excel_Expert", "mistake_step": "1", "is_correct": False}
    quiet = {**record, "question_ID": "r", "history": [history[1], history[3]], "mistake_step": "0"}
    (here / "logs").mkdir()
    for name, one in (("1", record), ("2", quiet)):
        (here / "logs" / f"{name}.json").write_text(json.dumps(one))
    assert verb("import", "logs", "--run", "run").code == 0
    first, second = verb("why", "run", "--all", "--json").json["all"]
    assert (first["verdict"], first["named_by"], first["action"]) == ("step", "rule", "print(x)")
    assert "exitcode: 1" in first["headline"]
    assert first["headline"].endswith("this is not a counterfactual.")
    assert (first["counterfactual"], second["verdict"], second["broken"]) == (False, "none", [])


def test_a_step_is_named_by_how_rare_its_rule_is(verb: Any, here: Path) -> None:
    """A rule that successes of the run break too names nothing; without enough of these, public logs say how rare it is."""
    bad = [call("pay", ERROR, to="Anne"), say("I have paid 12 to Ann.")]
    lost = log(*bad, task="lost")
    run = imported(verb, [lost, *(log(*bad, success=True, task=f"won {i}") for i in range(25))])
    answer = ramify.why(run)
    assert (answer.verdict, answer.named_by) == ("none", "")
    (one,) = answer.broken
    assert (one.rule, one.k, one.n, one.of_run) == ("ignored error", 25, 25, True)
    won = verb("why", run, "won 3", "--json").json
    assert (won["success"], won["verdict"]) == (True, "none")
    few = imported(verb, [lost, log(RIGHT, say("Paid."), success=True, task="won")])
    named = ramify.why(few)
    assert (named.verdict, named.named_by, named.change) == ("step", "rule", None)
    assert named.node == named.broken[0].node
    assert (named.broken[0].n, named.broken[0].of_run) == (PUBLIC_LOGS, False)
    assert "steps that break a rule" in verb("why", few).out
    with Run.open(few) as stored:
        (finding,) = stored.findings(maker="why")
        assert (finding.name, finding.node, finding.why) == ("lost here", named.node, named.headline)


def test_the_public_rates_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "repro" / "why-outside.json").read_text())["nulls"]["public"]
    assert measured == {"n": PUBLIC_LOGS, **PUBLIC}
    assert list(PUBLIC) == list(RULES)
    assert list(PUBLIC.values()) == sorted(PUBLIC.values())


def test_ranks_are_exact_at_their_level() -> None:
    """Of successes alone, with each left out in turn, at most the level have a step named, whatever they break."""
    ranks = Successes(tuple((str(i), i % 6) for i in range(200)))
    rules = list(RULES)
    named = sum((k + 1) / (n + 1) <= 0.05 for leaf, at in ranks.ranks for k, n, _ in [ranks.rarity(rules[at], 0.05, leaf)])
    assert named <= 0.05 * 200


@pytest.mark.parametrize(
    "schema", [{"required": 3}, "a text", {"properties": [1]}, {"properties": {"to": {"enum": 3}}}, {"type": {"a": 1}}]
)
def test_a_schema_that_cannot_be_read_refuses_no_call(verb: Any, schema: Any) -> None:
    tools = [{"type": "function", "function": {"name": "pay", "parameters": schema}}]
    assert broken(verb, call("pay", "paid", to="Ann"), say("Paid."), tools=tools) == []
    (unknown,) = broken(verb, call("pya", "paid", to="Ann"), say("Paid."), tools=tools)
    assert (unknown.rule, unknown.why) == ("refused call", "there is no tool 'pya' (did you mean 'pay'?)")


def test_a_log_that_means_to_be_slow_is_read(verb: Any) -> None:
    """Each of these took a minute or more of patterns that look back, or ended in a traceback."""
    deep = '{"total":' * 900 + "1" + "}" * 900
    fields = json.dumps({f"field number {i}": i for i in range(5000)})
    parts = [call("pay", text, to="Ann") for text in (deep, fields)]
    assert broken(verb, *parts, say("The plan" + "\n" * 50_000), say("Nothing is 12 or so. " * 2000)) == []
