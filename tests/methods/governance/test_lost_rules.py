"""Rules in logged conversations: which were lost, when, and what was called without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.methods.governance.lost_rules import RuleAudit, audit
from ramify.methods.governance.written_rules import Rule, read_rules
from ramify.render.result import Cell, Grid

RULE = "Only send email to recipients at acme.com."
SYSTEM = {"role": "system", "content": "You help."}
PREDICATE = {"kind": "email", "tool": "send_email", "allow": ["acme.com"]}


def call(to: str) -> dict[str, Any]:
    arguments = json.dumps({"to": to, "subject": "s", "body": "b"})
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "send_email", "arguments": arguments}}],
    }


def logged(requests: list[tuple[list[dict[str, Any]], dict[str, Any]]], path: Path, **fields: Any) -> Path:
    """A log of calls, one a line."""
    lines = [
        {"request": {"model": "m", "messages": shown}, "response": {"choices": [{"message": said}]}} | fields
        for shown, said in requests
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def session() -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    stated = [SYSTEM, {"role": "user", "content": RULE}]
    ok = {"role": "assistant", "content": "Understood."}
    more = [*stated, ok, {"role": "user", "content": "Send it to a@acme.com"}]
    answer = {"role": "tool", "tool_call_id": "c", "content": "sent"}
    summary = [
        SYSTEM,
        {"role": "user", "content": "Summary: one mail was sent."},
        {"role": "user", "content": "Send it to b@evil.com"},
    ]
    return [
        (stated, ok),
        (more, call("a@acme.com")),
        (summary, call("b@evil.com")),
        ([*summary, call("b@evil.com"), answer], {"role": "assistant", "content": "Done."}),
    ]


def rows(found: RuleAudit) -> tuple[tuple[Cell, ...], ...]:
    """A row for each rule, as a reader sees it."""
    (section,) = found.sections()
    return next(part.rows for part in section.parts if isinstance(part, Grid))


@pytest.mark.parametrize("fields", [{}, {"task": "one"}], ids=["no task", "a task"])
def test_a_log_of_calls(tmp_path: Path, fields: dict[str, Any]) -> None:
    found = audit(
        logged(session(), tmp_path / "log.jsonl", **fields), [Rule(RULE, PREDICATE), Rule("Never disable audit logging.")]
    )
    assert (found.sessions, found.replies) == (1, 4)
    assert [(c.step, c.dropped) for c in found.compactions] == [(3, 3)]
    lost, other = found.rules
    assert [(loss.step, loss.became) for loss in lost.lost] == [(3, "dropped")]
    assert (lost.replies_without, lost.replies_since_stated, lost.forbidden) == (2, 4, 1)
    assert [(c.step, c.arguments["to"], c.forbidden) for c in lost.calls_without] == [(3, "b@evil.com", True)]
    assert (other.stated_in, other.lost, other.calls_without) == (0, (), ())
    assert list(rows(found)[0]) == [RULE, 1, 1, "2 of 4", 1, 1]
    assert "FORBIDDEN call without it at reply 3: send_email" in str(found)


def test_a_rule_without_a_predicate_is_not_said_to_have_been_kept(tmp_path: Path) -> None:
    found = audit(logged(session(), tmp_path / "log.jsonl"), [Rule(RULE)])
    assert (found.rules[0].forbidden, len(found.rules[0].calls_without)) == (None, 1)
    assert list(rows(found)[0]) == [RULE, 1, 1, "2 of 4", 1, "no predicate"]


def test_a_conversation_that_only_grew_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    chat = [
        SYSTEM,
        {"role": "user", "content": RULE},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go."},
        call("b@evil.com"),
    ]
    path.write_text(json.dumps({"messages": chat}) + "\n" + json.dumps({"messages": chat[:3]}) + "\n", encoding="utf-8")
    found = audit(path, [Rule(RULE)])
    assert (found.sessions, found.compactions) == (2, ())
    assert found.rules[0].lost == ()
    assert found.rules[0].stated_in == 2


def test_a_run_whose_compactor_dropped_the_rule(tmp_path: Path) -> None:
    import asyncio

    from ramify.env.builtin.household import HouseholdEnvironment
    from ramify.env.protocol import Task
    from ramify.model.protocol import Sampling
    from ramify.model.scripted import ScriptedModel
    from ramify.rollout.agent import Agent
    from ramify.rollout.compact import DropOldest
    from ramify.rollout.pins import Pins
    from ramify.rollout.run import Episodes
    from ramify.trace.db import Run

    task = next(iter(HouseholdEnvironment().task_set("eval", 1)))
    assert isinstance(task, Task)
    rule = "Keep away from the red door."
    for name, compactor in (("bare", DropOldest(0.9)), ("pinned", Pins([rule]).wrap(DropOldest(0.9)).part)):
        model = ScriptedModel(lambda messages, key: f"look around, {rule}" if len(messages) < 4 else "look", tokens=False)
        with Run.create(tmp_path / name, {}) as run:
            made = Episodes(Agent(model, None, Sampling(max_tokens=80), compactor, 700), HouseholdEnvironment(), run, seed=1)
            asyncio.run(made.attempt(task.id, task, 0))
        found = audit(tmp_path / name, [Rule(rule)])
        assert found.replies > 3
        if name == "pinned":
            assert found.rules[0].lost == ()


def test_rules_from_files(tmp_path: Path) -> None:
    text, toml, listed = (tmp_path / name for name in ("r.txt", "r.toml", "r.json"))
    text.write_text(f"{RULE}\n\nBe kind.\n", encoding="utf-8")
    toml.write_text(
        f'[[rule]]\ntext = "{RULE}"\npredicate = {{kind = "email", tool = "send_email", allow = ["acme.com"]}}\n',
        encoding="utf-8",
    )
    listed.write_text(json.dumps([RULE, {"text": "Be kind."}]), encoding="utf-8")
    assert read_rules(text) == read_rules(listed) == [Rule(RULE), Rule("Be kind.")]
    assert read_rules(toml) == [Rule(RULE, PREDICATE)]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("r.txt", "", "holds no rule"),
        ("r.toml", "x = 1", "holds no rule"),
        ("r.json", "[1]", "rule 0 is neither"),
        ("r.json", '[{"predicate": {}}]', "'text' is missing"),
        ("r.json", '[{"text": "x", "predicate": {"kind": "emial", "tool": "t"}}]', "did you mean 'email'"),
        ("r.json", '[{"text": "x", "predicate": {"kind": "pattern", "tool": "t"}}]', "lacks 'pattern'"),
    ],
)
def test_rules_that_are_none(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=sentence) as caught:
        read_rules(path)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="cannot read"):
        read_rules(tmp_path / "none.txt")


def test_a_log_without_replies(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [SYSTEM]}) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="no reply"):
        audit(path, [Rule(RULE)])
