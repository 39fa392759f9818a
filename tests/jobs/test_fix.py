"""`ramify fix`: an edit that helps is accepted at tasks that its screening never saw, and one that changes nothing is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command import Verb
from halls import Halls

import ramify
from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.cli.main import main
from ramify.jobs.context.answer import CausingPart, ContextCause, WhyContext
from ramify.jobs.fix.ask import FixQuestion, fix
from ramify.jobs.fix.candidates import check_candidates
from ramify.jobs.fix.propose import Proposals, read_proposals, with_rule
from ramify.jobs.why.records import Chance
from ramify.model.scripted import ScriptedModel
from ramify.rollout.stored import WhoPlays
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.trace.outcome import settled

HELPS, REWORDS = "Go left at every door.", "Please be kind at every door."


def walker(name: str = "walker", obeys: bool = True) -> ScriptedModel:
    """Goes left half of the time, and nearly always where it is told to and ``obeys``."""

    def says(messages: Sequence[Any], key: int) -> str:
        told = obeys and any(HELPS in message.text for message in messages if message.role == "system")
        return "left" if generator(key, "walker").random() < (0.97 if told else 0.5) else "right"

    return ScriptedModel(says, name=name)


def played(path: Path, tasks: int = 5, seed: int = 0) -> tuple[Path, str]:
    """A run, and the reply at the second door of an attempt, of one that failed where there is one."""
    ramify.play(walker(), Halls(), [{"id": f"t{i}"} for i in range(tasks)], attempts=4, out=path, seed=seed)
    with Run.open(path) as run:
        lost = min(run.attempts("t0"), key=lambda record: bool(record.success))
        replies = [node.id for node, _ in run.tree("t0").path(lost.leaf).segments if node.role == "assistant"]
    return path, replies[1]


def fixed(path: Path, node: str, question: FixQuestion, model: ScriptedModel | None = None, **rules: str) -> Any:
    edits = check_candidates({name: {"rule": {"add": text}} for name, text in rules.items()})
    with Run.open(path, write=True) as run:
        return fix(run, edits, settled(run), node, question, WhoPlays(model or walker(), Halls()))


def test_the_edit_that_helps_is_accepted(tmp_path: Path) -> None:
    path, node = played(tmp_path / "run")
    found = fixed(path, node, FixQuestion(n=24), left=HELPS, kind=REWORDS)
    assert found.accepted == "left"
    (confirmed,) = (each for each in found.confirmed if each.name == "left")
    assert {each.task for each in confirmed.tasks} == {"t1", "t2", "t3", "t4"}  # not the one it was screened at
    assert confirmed.difference > 0.25
    assert f"+{HELPS}" in found.diffs["left"]
    assert found.other
    again = fixed(path, node, FixQuestion(n=24), left=HELPS, kind=REWORDS)
    assert (again.confirmed, again.attempts) == (found.confirmed, found.attempts)  # read, not played


def test_what_one_agent_did_is_no_answer_about_another(tmp_path: Path) -> None:
    path, node = played(tmp_path / "run")
    assert fixed(path, node, FixQuestion(n=24), left=HELPS).accepted == "left"
    deaf = fixed(path, node, FixQuestion(n=24), walker("deaf", obeys=False), left=HELPS)
    assert (deaf.accepted, deaf.call) == (None, 2)
    assert deaf.screened[0].hits < 20


def test_a_run_without_a_judged_attempt_is_refused(tmp_path: Path) -> None:
    """At no task could an edit be confirmed: that it did no better is not what is said."""
    log = {"task_id": "t", "messages": [{"role": "user", "content": "hall"}, {"role": "assistant", "content": "left"}]}
    (tmp_path / "log.jsonl").write_text(json.dumps(log) + "\n")
    assert main(["import", str(tmp_path / "log.jsonl"), "--run", str(tmp_path / "run")]) == 0
    with Run.open(tmp_path / "run") as run:
        node = next(node.id for info in run.trees() for node in run.nodes(info.name) if node.role == "assistant")
    with pytest.raises(UserError, match="no attempt that somebody judged"):
        fixed(tmp_path / "run", node, FixQuestion(target="says:left"), left=HELPS)


def test_a_run_with_one_task_speaks_of_no_other(tmp_path: Path) -> None:
    path, node = played(tmp_path / "run", tasks=1)
    found = fixed(path, node, FixQuestion(n=24, attempts=12), left=HELPS)
    assert found.accepted == "left"
    assert "one task alone" in found.caveats[0]
    assert "other task" not in str(found)


@pytest.mark.slow
def test_edits_that_change_nothing_are_accepted_at_most_at_the_level(tmp_path: Path) -> None:
    accepted = screened = 0
    for i in range(30):
        path, node = played(tmp_path / str(i), tasks=4, seed=i)
        rules = {f"wording {j} of {i}": f"{REWORDS} ({i}.{j})" for j in range(3)}
        found = fixed(path, node, FixQuestion(attempts=6, level=0.1), **rules)
        accepted, screened = accepted + (found.accepted is not None), screened + len(found.confirmed)
    assert screened > 8  # the screening alone lets about one in five pass
    assert accepted <= 7


def test_the_command_line(tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    path, node = played(tmp_path / "run")
    monkeypatch.setattr("halls.walker", walker, raising=False)
    who = ("--model", "factory:halls:walker", "--env", "factory:halls:Halls")
    edit = tmp_path / "left.json"
    edit.write_text(json.dumps({"rule": {"add": HELPS}}))
    assert "nothing to continue with: name them (--model, --env" in verb.refused(
        "fix", path, node[:12], "--rule", REWORDS, "--dry-run"
    )
    assert "96" in verb.says(
        "fix", path, node[:12], "--rule", REWORDS, "--dry-run", "--json", *who
    )  # twice 16 at the step and 8 at each of 4 tasks
    out = " ".join(verb.says("fix", path, node, "--try", edit, *who).split())
    assert "left.json helps" in out
    assert "Nothing was written" in out
    kept = tmp_path / "kept.json"
    assert main(["fix", str(path), node, "--try", str(edit), "--write", str(kept), *who]) == 0
    assert json.loads(kept.read_text()) == {"rule": {"add": HELPS}}
    assert "left.json helps" in " ".join(verb.says("show", path).split())


def test_a_target_counts_what_a_reply_does(tmp_path: Path) -> None:
    path, node = played(tmp_path / "run")
    for target in ("says:^left", "regex:^left"):
        found = fixed(path, node, FixQuestion(n=24, target=target, attempts=12), left=HELPS, kind=REWORDS)
        row = next(row for row in found.screened if row.intervention == "left")
        assert (row.n, row.hits > 20, found.target) == (24, True, target)
    assert found.accepted == "left"  # of a judge the last reply of an attempt counts
    with Run.open(path) as run:
        turns = [len(run.tree("t0").children(record.leaf)) for record in run.attempts("t0")]
        assert [entry.payload["target"] for entry in run.journal("fix")] == ["says:^left", "regex:^left"]
    assert len(turns) == 4  # those that were played before: what was screened paused after a reply, and is no attempt


def test_three_plain_candidates_of_a_cause(tmp_path: Path, verb: Verb) -> None:
    path, node = played(tmp_path / "run", tasks=2)
    who = ("--model", "factory:halls:agent", "--env", "factory:halls:Halls")
    words = ["fix", str(path), node, "--propose", "cause", "--n", "2", "--attempts", "1", *who]
    assert "--context` first, or give --propose MODEL" in verb.refused(*words)
    chance = Chance.of(Counts(3, 4))
    part = CausingPart("user 1", "Go right,\nI say.", "user", chance, chance, chance)
    cause = ContextCause("one", (part,), 0.05)
    about = {"tree": "t0", "node": node, "action": "right", "target": "same", "headline": "Because."}
    counted = {"whole": chance, "bare": chance, "causes": (cause,), "parts": 3, "samples": 9, "screened": 4, "tried": 1}
    told = WhyContext(**about, **counted, measured="decision", verdict="parts", level=0.05)
    with Run.open(path, write=True) as run:
        run.conclude("why --context", [Finding("x", "why --context", "Because.", node, evidence=codec.to_json(told))])
    found = verb.json(*words)
    forbids = "Do not act on this, wherever it stands: Go right, I say."
    assert found["edits"] == {"forbid": {"rule": {"add": forbids}}, "forbid, first": {"rule": {"first": forbids}}}
    assert (found["proposed"], found["unread"]) == (2, 0)


def test_what_a_model_said_is_read_strictly() -> None:
    said = read_proposals("a <edit> One. </edit><edit>One.</edit><edit>\n</edit><edit>Two.</edit>", "m")
    assert said.edits == {"m 1": {"rule": {"add": "One."}}, "m 2": {"rule": {"add": "Two."}}}
    assert (said.meant, said.unread) == (4, 2)
    assert read_proposals("Be careful.", "m") == Proposals({}, 1, 1)
    many = read_proposals("".join(f"<edit>{i}</edit>" for i in range(9)), "m")
    assert (len(many.edits), many.unread) == (3, 6)


def test_a_rule_in_a_file_stands_below_the_head_of_a_skill() -> None:
    skill = "---\nname: it\n---\n# It\n"
    assert with_rule(skill, first="No.") == "---\nname: it\n---\nNo.\n\n# It\n"
    assert with_rule(skill, add="No.") == "---\nname: it\n---\n# It\n\nNo.\n"
    assert with_rule("", add="No.") == "No.\n"


def test_mistakes_are_one_sentence(tmp_path: Path, verb: Verb) -> None:
    path, node = played(tmp_path / "run", tasks=2)
    (tmp_path / "append.json").write_text('{"append": " left"}')
    (tmp_path / "AGENTS.md").write_text("Mine.")
    with Run.open(path) as run:
        above = str(run.node(node).parent)
    for words, said in (
        ([node], "there is no candidate"),
        ([node, "--try", str(tmp_path / "append.json")], "means the same at every task"),
        (["--rule", HELPS], "no step of"),
        ([node, "--rule", " "], "--rule needs the text"),
        ([node, "--rule", HELPS, "--rule", HELPS], "the same candidate"),
        ([above, "--rule", HELPS], "is a user message; name a reply"),
        ([node, "--rule", HELPS, "--write", str(tmp_path / "no" / "x.json")], "there is no folder"),
        ([node, "--rule", HELPS, "--write", str(tmp_path / "AGENTS.md")], "keeps the edit as a patch or as JSON"),
    ):
        assert said in verb.refused("fix", path, *words)
    with pytest.raises(UserError, match="means the same"):
        check_candidates({"x": {"history": {"message": 0, "text": "no"}}})
