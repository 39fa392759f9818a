"""Sessions of Claude Code and Codex: rules that a compaction drops, and what is done against them before and after.

The shapes are those of Claude Code 2.1.197 and Codex 0.171; what is said in them was made up here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.governance.lost_rules import RuleAudit, audit
from ramify.methods.governance.obeyed import RuleJudges
from ramify.methods.governance.predicates import UnreadableError, forbids
from ramify.methods.governance.written_rules import Rule, checkable, read_rules, rules_of
from tests.integrations.chat_server import call, chat_server
from tests.integrations.session_logs import boundary, item, line, result, rollout, speech, text, use, write

FORCE = "Never run `git push --force` here."
HINTS = "Functions in lib have type hints."
COMMAND: Mapping[str, Any] = {"kind": "command", "deny": ["git push --force"]}


def nested(uuid: str, parent: str) -> dict[str, Any]:
    """The CLAUDE.md of a folder, as Claude Code shows it after a file of that folder was read."""
    inside = {"path": "/repo/lib/CLAUDE.md", "type": "Project", "content": f"# Lib rules\n\n- {HINTS}\n"}
    about = {"type": "nested_memory", "path": "/repo/lib/CLAUDE.md", "content": inside, "displayPath": "lib/CLAUDE.md"}
    return {"type": "attachment", "uuid": uuid, "parentUuid": parent, "sessionId": "s1", "attachment": about}


def turn(uuid: str, parent: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
    """A reply with a call, and its result."""
    name = "Read" if "file_path" in arguments else "Bash"
    return [line(uuid, parent, use(key, name, **arguments), f"m-{uuid}"), line(f"{uuid}r", uuid, result(key, "ok"))]


def session(before: int = 4, after: int = 4, compacts: bool = True, kept: bool = False) -> list[dict[str, Any]]:
    """A session in which a person and a CLAUDE.md state a rule each: ``before`` careful pushes, a compaction, ``after`` by
    force. ``kept``: the summary holds both rules."""
    lines = [line("u1", None, f"Publish what is done. {FORCE}"), *turn("a0", "u1", "t0", file_path="/repo/lib/util.py")]
    lines += [nested("n1", "a0r")]
    last = "n1"
    for at in range(before):
        lines += turn(f"b{at}", last, f"tb{at}", command="git push origin main")
        last = f"b{at}r"
    if compacts:
        said = f"This session is being continued from a previous conversation.\n\nSummary:\n{FORCE if kept else ''} Go on."
        said += HINTS if kept else ""
        lines += [boundary("x1", last), line("s1", "x1", said, isCompactSummary=True, isVisibleInTranscriptOnly=True)]
        last = "s1"
    for at in range(after):
        lines += turn(f"c{at}", last, f"tc{at}", command="cd sub && git push origin main --force")
        last = f"c{at}r"
    return [*lines, line("e1", last, text("Published."), "m-e")]


def audited(folder: Path, records: list[dict[str, Any]], *rules: Rule, **options: Any) -> RuleAudit:
    return audit(write(folder / "log.jsonl", *records), rules or None, **options)


def test_a_compaction_of_claude_code_drops_what_a_person_and_a_folder_say(tmp_path: Path) -> None:
    found = audited(tmp_path, session(), Rule(FORCE, COMMAND), Rule(HINTS))
    assert (found.sessions, found.replies, len(found.compactions)) == (1, 10, 1)
    force, hints = found.rules
    assert [loss.became for loss in (*force.lost, *hints.lost)] == ["dropped", "dropped"]
    assert [(one.phase, one.broken, one.of) for one in force.phases] == [("before", 0, 4), ("findable", 0, 0), ("lost", 4, 4)]
    assert force.phases[2].found
    assert force.phases[2].corrected == pytest.approx(1 / 35, abs=1e-9)
    assert hints.phases == ()
    assert found.verdict == "compaction dropped 2 of 2 rules; 1 rule is broken more often after it than before"
    assert found.caveats == ("whether 1 rule was obeyed cannot be said without --judge",)
    assert "broken more often: 'Never run `git push --force` here.' by 4 of 4" in str(found)


def test_findable_is_not_obeyed(tmp_path: Path) -> None:
    found = audited(tmp_path, session(8, 8, kept=True), Rule(FORCE, COMMAND))
    assert [(one.phase, one.broken, one.of) for one in found.rules[0].phases] == [
        ("before", 0, 8),
        ("findable", 8, 8),
        ("lost", 0, 0),
    ]
    assert found.verdict == "no rule was lost; 1 rule is broken more often after it than before"


@pytest.mark.parametrize("records", [session(compacts=False), session(after=0), session(6, 0, kept=True)])
def test_without_a_compaction_or_with_all_rules_kept_nothing_is_named(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    found = audited(tmp_path, records, Rule(FORCE, COMMAND))
    assert found.verdict.startswith("nothing stands out") or records == session(after=0)
    assert not any(one.found for one in found.rules[0].phases)


def test_the_rules_are_those_that_the_session_shows(tmp_path: Path) -> None:
    found = audited(tmp_path, session())
    assert [rule.rule for rule in found.rules] == [HINTS]
    assert found.verdict == "compaction dropped 1 of 1 rules"
    with pytest.raises(UserError, match=r"no CLAUDE.md or AGENTS.md is shown .* --rules FILE"):
        audited(tmp_path, [line("u1", None, "Hello."), line("a1", "u1", text("Hello."), "m1")])


def test_what_is_never_shown_is_said(tmp_path: Path) -> None:
    found = audited(tmp_path, session(), Rule("Write no long sentences about the weather."))
    assert found.verdict.startswith("nothing stands out: none of the rules is stated")
    assert found.caveats[0].startswith("1 of 1 rule is never shown in what was logged (Claude Code sends the project's CLAUDE.md")


def codex(kept: bool = True) -> list[dict[str, Any]]:
    """A rollout whose compaction keeps what the person and AGENTS.md say, as Codex does, or the summary alone."""
    shown = f"# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n# Rules\n\n- {FORCE}\n\n</INSTRUCTIONS>"
    call = lambda at, command: [  # noqa: E731
        item("function_call", call_id=f"c{at}", name="exec_command", arguments=json.dumps({"cmd": command})),
        item("function_call_output", call_id=f"c{at}", output="ok"),
    ]
    said = [speech("user", shown), speech("user", "Publish the branch.")]
    summary = speech("user", "Another language model started. The summary: publish.")
    history = [one["payload"] for one in ([*said, summary] if kept else [summary])]
    return [
        rollout("session_meta", id="s1", cwd="/repo", source="cli", base_instructions={"text": "You are an agent."}),
        rollout("event_msg", type="task_started", turn_id="t1"),
        rollout("turn_context", cwd="/repo", model="gpt-x"),
        *said,
        *(one for at in range(4) for one in call(at, "git push origin main")),
        rollout("compacted", message="The summary: publish.", replacement_history=history),
        *(one for at in range(4, 8) for one in call(at, "git push --force origin main")),
        speech("assistant", "Published."),
        rollout("event_msg", type="task_complete", turn_id="t1"),
    ]


@pytest.mark.parametrize("kept", [True, False])
def test_codex(tmp_path: Path, kept: bool) -> None:
    found = audited(tmp_path, codex(kept))
    (rule,) = found.rules
    assert (rule.rule, rule.predicate) == (FORCE, COMMAND)
    assert bool(rule.lost) is not kept
    assert [(one.broken, one.of) for one in rule.phases] == ([(0, 4), (4, 4), (0, 0)] if kept else [(0, 4), (0, 0), (4, 4)])


def test_several_sessions_and_a_folder_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(3):
        write(logs / f"s{number}.jsonl", *session(2, number))
    (logs / "odd.json").write_text("{}")
    written = tmp_path / "CLAUDE.md"
    written.write_text(f"# Rules\n\n- {FORCE}\n- {HINTS}\n")
    assert main(["governance", "audit", str(logs), "--rules", str(written), "--strict", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(one["broken"], one["of"]) for one in found["rules"][0]["phases"]] == [(0, 6), (0, 0), (3, 3)]
    assert any("1 file of no known format: not read (odd.json)" in why for why in found["caveats"])
    assert main(["governance", "audit", *(str(logs / f"s{n}.jsonl") for n in range(2)), "--rules", str(written)]) == 0
    assert "2 sessions" in capsys.readouterr().out
    assert main(["governance", "audit", str(logs), "--rules", str(written), "--judged", "3"]) == 2
    assert "--judged" in capsys.readouterr().err


def test_judges_read_what_no_word_and_no_predicate_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judge_of_rules.py").write_text(
        "from ramify.model.scripted import ScriptedModel\n"
        "def says(messages, key):\n"
        "    asked = messages[0].text\n"
        "    return 'yes' if '<reply>' in asked and '--force' in asked.split('<reply>')[1] else 'no'\n"
        "def model():\n    return ScriptedModel(says, tokens=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from ramify.engine.named import find_model

    judges = RuleJudges.of(["python:judge_of_rules:model"], 3, find_model)
    found = audited(tmp_path, session(), Rule("Be careful when you publish. " + FORCE), judges=judges)
    (rule,) = found.rules
    assert [(one.phase, one.broken, one.of, one.replies) for one in rule.phases] == [
        ("before", 0, 3, 5),
        ("findable", 0, 0, 0),
        ("lost", 3, 3, 5),
    ]
    assert [loss.judged for loss in rule.lost] == [False]
    assert found.caveats == ()
    sys.modules.pop("judge_of_rules", None)


def test_rules_of_markdown() -> None:
    written = (
        "---\ntitle: x\n---\n# Rules\n\nBe brief,\nand kind.\n\n- Never edit `vendor/`.\n  It is copied.\n* [ ] Use `var`.\n"
        "```sh\n- not a rule\n```\n| a | b |\n> quoted\n<!-- - hidden -->\nThese count:\n1. Run `make test` before you commit.\n"
    )
    assert [rule.text for rule in rules_of(written)] == [
        "Be brief, and kind.",
        "Never edit `vendor/`. It is copied.",
        "Use `var`.",
        "Run `make test` before you commit.",
    ]
    assert [None if rule.predicate is None else rule.predicate["kind"] for rule in rules_of(written)] == [
        None,
        "path",
        None,
        "needs",
    ]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("Do not run `rm -rf` or `git reset --hard`.", None),
        ("Never run `npm install`, `npm ci` or `yarn`.", "command"),
        ("NEVER modify files in `gen/`", "path"),
        ("Never run `npm publish` unless asked.", None),
        ("Never use `any`.", None),
        ("Don't edit the `User` class.", None),
        ("Run `pytest` before pushing.", "needs"),
    ],
)
def test_what_can_be_checked_is_read_off_the_words(rule: str, kind: str | None) -> None:
    found = checkable(rule)
    if rule.startswith("Do not run"):
        assert found == {"kind": "command", "deny": ["rm -rf", "git reset --hard"]}
    else:
        assert (None if found is None else found["kind"]) == kind


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("git push --force", True),
        ("git push origin main --force", True),
        ("cd a && A=1 sudo git push --force; ls", True),
        ("bash -lc 'git push --force'", True),
        (["bash", "-lc", "git push --force origin x"], True),
        (["git", "push", "--force"], True),
        ("git push origin main", False),
        ("echo git push --force", False),
        ('git commit -m "no git push --force"', False),
        ("cat > notes <<'EOF'\ngit push --force\nEOF\nls", False),
        ("cat > notes <<EOF\ngit push --force", True),
        ("cat <<< 'EOF'\ngit push --force\nEOF", True),
        ("git push 'unclosed", None),
        (3, None),
    ],
)
def test_commands(command: Any, broken: bool | None) -> None:
    arguments = {"command": command}
    if broken is None:
        with pytest.raises(UnreadableError):
            forbids(COMMAND, "Bash", arguments)
    else:
        assert forbids(COMMAND, "Bash", arguments) is broken
    assert not forbids(COMMAND, "Read", arguments)


def test_a_command_that_must_run_first() -> None:
    rule = checkable("Run `pytest` before you commit.")
    assert rule == {"kind": "needs", "command": "git commit", "first": "pytest"}
    run = lambda command: ("Bash", {"command": command})  # noqa: E731
    commit = run("git commit -m x")
    assert forbids(rule, *commit, [])
    assert forbids(rule, *commit, [run("pytest"), commit])
    assert not forbids(rule, *commit, [commit, run("pytest -q"), run("git add .")])
    assert not forbids(rule, *run("pytest -q && git commit -m x"), [])
    assert not forbids(rule, *run("git add ."), None)
    with pytest.raises(UnreadableError):
        forbids(rule, *commit)


def test_paths_of_coding_agents() -> None:
    rule = checkable("Never edit `vendor/`.")
    assert rule is not None
    assert forbids(rule, "Edit", {"file_path": "/repo/vendor/a.py", "old_string": "a", "new_string": "b"})
    assert not forbids(rule, "Edit", {"file_path": "/repo/src/vendor.py"})
    assert forbids(rule, "apply_patch", {"input": "*** Begin Patch\n*** Update File: vendor/a.py\n@@\n-a\n+b"})
    assert forbids(rule, "file_change", {"changes": [{"path": "/repo/vendor/a.py", "kind": "update"}]})
    assert not forbids(rule, "Read", {"file_path": "/repo/vendor/a.py"})
    assert forbids({"kind": "tool", "tool": "WebSearch"}, "WebSearch", {})


def test_a_regular_expression_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps([{"text": "x", "predicate": {"kind": "pattern", "tool": "t", "pattern": "("}}]))
    with pytest.raises(UserError, match="regular expression"):
        read_rules(path)


HARNESS = """
import json, os, sys, urllib.request

def ask(messages):
    shell = {"name": "shell", "parameters": {"type": "object", "properties": {"shown": {"type": "string"}}}}
    body = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": shell}], "user": str(len(messages))}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    call = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(call))["choices"][0]["message"]

rules, compacts = sys.argv[1:]
system = {"role": "system", "content": "You are a coding agent."}
talk = [system, {"role": "user", "content": rules + " Sort the notes, please."}]
talk.append(ask(talk))
ask([{"role": "user", "content": "A title for: sort the notes"}])
if compacts == "yes":
    summary = ask([*talk, {"role": "user", "content": "Write a summary of this conversation."}])["content"]
    talk = [system, {"role": "user", "content": "This session is continued. " + summary}]
talk.append({"role": "user", "content": "Publish the branch."})
talk.append(ask(talk))
ask([*talk, {"role": "tool", "tool_call_id": "p", "content": "pushed"}])
"""


def coder(body: dict[str, Any]) -> dict[str, Any]:
    last = body["messages"][-1]["content"]
    if "Publish" in last:
        return {"tool_calls": [call("shell", "p", command="git push --force")]}
    return {"content": "The person asked for sorted notes, and they are sorted." if "summary" in last else f"Done: {last[:12]}"}


@pytest.mark.parametrize(("compacts", "lost"), [("yes", 1), ("no", 0)])
def test_a_compaction_within_a_recorded_command(tmp_path: Path, compacts: str, lost: int) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/harness.py").write_text(HARNESS)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(tmp_path / "repo"), "-c", "user.name=a", "-c", "user.email=a@x", *words], check=True)
    with chat_server(coder) as server:
        options = ["--repo", str(tmp_path / "repo"), "--run", str(tmp_path / "run"), "--model", server.model, "--n", "2"]
        assert main(["record", *options, "--", sys.executable, "harness.py", FORCE, compacts]) == 0
    found = audit(tmp_path / "run", [Rule(FORCE, COMMAND)])
    (rule,) = found.rules
    assert (found.sessions, len(found.compactions), found.other_calls) == (4, 2 * lost, {"compaction": 2} if lost else {})
    assert (len(rule.lost), len(rule.calls_without), rule.forbidden) == (2 * lost, 2 * lost, 2 * lost)
