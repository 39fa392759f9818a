"""`ramify fix --file`: the text of a file of instructions, for agents that are recorded as they are."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import CODER, ChatServer, call, chat_server, results
from command import Verb

from ramify.cli.main import main
from ramify.integrations.harnesses.worktrees import base_commit, commit_with, edited_text, file_at, git, patch_between
from ramify.trace.db import Run

CHECK = f"{sys.executable} -c 'from area import area; assert area(3, 4) == 12'"
OLD = "# Rules\n\nWrite area in area.py.\n"
HELPS = "# Rules\n\nWrite area in area.py.\nMultiply the sides.\n"
REWORDED = "# Rules\n\nPut area into area.py.\n"


TURNS = itertools.count()


def coder(body: dict[str, Any]) -> dict[str, Any]:
    """Reads AGENTS.md, and multiplies where that, a rule or its tool says so; else it adds, but for every fourth time. Asked for
    proposals it makes three, of which one can be read."""
    asked = body["messages"][-1]["content"] or ""
    if "Propose at most" in asked:
        text = HELPS if "=== the file" in asked else "Multiply the sides."
        return {"content": f"Two:\n<edit>\n{text}</edit> <edit> </edit>\n<edit>Add"}
    seen = results(body)
    if len(seen) == 2:
        return {"content": "done"}
    command = "cat AGENTS.md"
    if seen:
        rules = [message["content"] for message in body["messages"] if message["role"] in ("system", "tool")]
        told = json.dumps([rules, body["tools"]])
        operator = "*" if "Multiply" in told or next(TURNS) % 4 == 3 else "+"
        command = f"printf 'def area(a, b):\\n    return a {operator} b\\n' > area.py"
    return {"content": None, "tool_calls": [call("shell", f"s{len(seen)}", command=command)]}


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository, in the folder that is the current one."""
    (tmp_path / "coder.py").write_text(CODER)
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "area.py").write_text("# to do\n")
    (folder / "AGENTS.md").write_text(OLD)
    (folder / "skills").mkdir()
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qm", "begin"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    (tmp_path / "helps.md").write_text(HELPS)
    (tmp_path / "reworded.md").write_text(REWORDED)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(coder) as found:
        yield found


def reply_with(text: str) -> str:
    """The first reply in the run that makes a call with ``text`` in it."""
    with Run.open("run") as run:
        nodes = [node for info in run.trees() for node in run.tree(info.name).nodes.values() if node.role == "assistant"]
    return next(node.id for node in nodes if text in json.dumps(node.data.get("tool_calls")))


def accepted(found: dict[str, Any]) -> list[str]:
    return [fix["name"] for fix in found["confirmed"] if fix["accepted"]]


def recorded(server: ChatServer, n: int = 2) -> None:
    words = ["record", "-n", str(n), "--repo", "repo", "--run", "run", "--model", server.model, "--check", CHECK, "--"]
    assert main([*words, sys.executable, str(Path.cwd() / "coder.py"), "Do what AGENTS.md says."]) == 0


def test_the_text_that_helps_is_accepted_and_its_patch_applies(
    repo: Path, server: ChatServer, capsys: pytest.CaptureFixture[str], verb: Verb
) -> None:
    recorded(server, n=1)
    state = [("status", "--porcelain"), ("rev-parse", "HEAD"), ("branch", "-a"), ("log", "--format=%H")]
    before = [git(repo, *words) for words in state]
    words = ["--file", "repo/AGENTS.md", "--try", "helps.md", "--attempts", "4", "--level", "0.5"]
    dry = verb.says("fix", "run", *words, "--dry-run")
    assert "8" in dry
    assert "the file" not in dry
    assert main(["fix", "run", "--file", "repo/AGENT.md", "--try", "helps.md", "--dry-run"]) == 0  # as somebody mistypes it
    dry = capsys.readouterr().out
    assert "AGENT.md is new: the repository has none" in dry
    assert "TriedOptions" not in dry
    found = verb.json("fix", "run", *words, "--write", ".")
    assert accepted(found) == ["helps.md"]
    assert (found["node"], found["unscreened"], found["attempts"], found["failed"]) == ("", ["helps.md"], 8, 0)
    assert "nothing was screened" in found["caveats"][0]
    assert [git(repo, *words) for words in state] == before
    subprocess.run(["git", "-C", str(repo), "apply", str(Path("fix.patch").resolve())], check=True)
    assert (repo / "AGENTS.md").read_text() == HELPS
    asked = len(server.asked)
    again = verb.json("fix", "run", *words)
    assert (again["confirmed"], again["call"], len(server.asked)) == (found["confirmed"], 1, asked)  # read, not played
    assert "1 attempt at 1 task" in verb.says("test", "run")  # what was tried counts in no rate
    with Run.open("run") as run:
        (tree,) = (info.name for info in run.trees() if " with AGENTS.md " in info.name)
        node = next(node.id for node in run.tree(tree).nodes.values() if "area.py" in json.dumps(node.data.get("tool_calls")))
    assert verb.json("fork", "run", node, "--n", "1")["fork"]["successes"] == 1


@pytest.mark.slow
def test_what_was_shown_is_screened_at_the_step(repo: Path, server: ChatServer, verb: Verb) -> None:
    recorded(server)
    tries = ["--file", "repo/AGENTS.md", "--try", "helps.md", "--try", "reworded.md", "--n", "8"]
    found = verb.json("fix", "run", reply_with("area.py"), *tries)
    assert accepted(found) == ["helps.md"]
    assert {row["intervention"]: row["hits"] for row in found["screened"]}["helps.md"] == 8
    assert found["unscreened"] == []
    first = verb.json("fix", "run", reply_with("cat AGENTS.md"), *tries)  # there the agent had not read it
    assert (first["screened"], first["unscreened"], first["call"]) == ([], ["helps.md", "reworded.md"], 2)
    assert "not shown to the agent before the step" in first["caveats"][0]
    assert any("1 call before this one" in caveat for caveat in first["caveats"])
    assert accepted(first) == ["helps.md"]
    with Run.open("run") as run:
        assert [kept.maker for kept in run.results()] == ["fix", "fix 2"]


@pytest.mark.slow
def test_tools_rules_and_a_target(repo: Path, server: ChatServer, verb: Verb) -> None:
    recorded(server)
    Path("tool.json").write_text(json.dumps({"tool": {"name": "shell", "description": "Multiply the sides."}}))
    words = ["--try", "tool.json", "--rule", "Multiply the sides.", "--rule", "Be kind.", "--n", "8"]
    found = verb.json("fix", "run", reply_with("area.py"), *words)
    assert "+Multiply the sides." in found["diffs"]["tool.json"].splitlines()
    assert set(accepted(found)) == {"tool.json", "rule 1"}
    asked = len(server.asked)
    aimed = verb.json(
        "fix", "run", reply_with("area.py"), "--rule", "Multiply the sides.", "--n", "8", "--target", r"says:a \* b"
    )
    assert (aimed["target"], accepted(aimed)) == (r"says:a \* b", ["rule 1"])
    assert aimed["screened"][0]["hits"] == 8
    screened = 2 * 8  # one reply each, and not the rest of the attempt
    assert len(server.asked) - asked == screened + 3 * (aimed["attempts"] - screened)
    with Run.open("run") as run:
        declared = run.journal("fix")[-1].payload
    assert (declared["target"], declared["level"]) == (r"says:a \* b", 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--file", "repo/AGENTS.md")])
def test_what_a_model_proposes(repo: Path, server: ChatServer, verb: Verb, words: tuple[str, ...]) -> None:
    recorded(server)
    found = verb.json("fix", "run", reply_with("area.py"), "--propose", server.model, "--n", "8", *words)
    assert (found["proposed"], found["unread"]) == (3, 2)
    assert accepted(found) == ["chat:scripted 1"]
    assert "+Multiply the sides." in found["diffs"]["chat:scripted 1"].splitlines()
    assert sum("Propose" in json.dumps(body) for body in server.bodies) == 1
    verb.json("fix", "run", reply_with("area.py"), "--propose", server.model, "--n", "8", *words)
    assert sum("Propose" in json.dumps(body) for body in server.bodies) == 1  # what it said is kept


def test_mistakes_with_files_are_one_sentence(repo: Path, server: ChatServer, verb: Verb) -> None:
    recorded(server, n=1)
    os.symlink("AGENTS.md", repo / "CLAUDE.md")
    diff = "--- AGENTS.md\n+++ new.md\n@@ -1 +1 @@\n-# Other\n+# Rules\n"
    for name, text in {"same.md": OLD, "two.diff": diff + diff, "off.diff": diff}.items():
        Path(name).write_text(text)
    for words, said in (
        (["--file", "repo/AGENTS.md"], "there is no candidate"),
        (["--file", "/etc/hostname", "--try", "helps.md"], "is not a file in the repository"),
        (["--file", "repo/skills", "--try", "helps.md", "--attempts", "0"], "--attempts"),
        (["--file", "repo/AGENTS.md", "--try", "same.md"], "there is nothing to try"),
        (["--file", "repo/AGENTS.md", "--try", "two.diff"], "is a diff of 2 files"),
        (["--file", "repo/AGENTS.md", "--try", "off.diff"], "does not fit the file"),
        (["--file", "repo/AGENTS.md", "--try", "helps.md", "--effect", "shell=ask"], "would run"),
        (["--file", "repo/AGENTS.md", "--try", "helps.md", "--target", "calls"], "needs an argument"),
        (["--rule", "Be kind.", "--target", "same"], "the step as it was"),
        ([reply_with("area.py"), "--propose", "cause"], "no cause of step"),
    ):
        assert said in verb.refused("fix", "run", *words)


def test_a_commit_that_differs_in_one_file(repo: Path) -> None:
    os.chmod(repo / "AGENTS.md", 0o755)
    subprocess.run(["git", "-C", str(repo), "-c", "user.name=me", "-c", "user.email=me@x", "commit", "-qam", "mode"], check=True)
    base = base_commit(repo, "HEAD")
    assert file_at(repo, base, "AGENTS.md") == file_at(repo / "skills", base, "../AGENTS.md") == ("AGENTS.md", OLD)
    assert file_at(repo, base, "skills/new.md") == ("skills/new.md", "")
    made = commit_with(repo, base, "AGENTS.md", HELPS)
    assert made == commit_with(repo, base, "AGENTS.md", HELPS)
    assert git(repo, "diff-tree", "-r", "--name-only", base, made) == "AGENTS.md"
    assert git(repo, "ls-tree", made, "AGENTS.md").startswith("100755")
    assert git(repo, "log", "-1", "--format=%an %ad %s %P", made) == git(repo, "log", "-1", "--format=%an %ad %s %P", base)
    patch = patch_between(repo, base, made)
    assert edited_text(OLD, patch, "x") == HELPS
    assert edited_text(OLD, patch.replace("a/AGENTS.md", "AGENTS.md").replace("b/AGENTS.md", "new.md"), "x") == HELPS
    holds_one = f"# A text with a diff in it\n\n{patch}"
    assert edited_text(OLD, holds_one, "x") == holds_one
    new = commit_with(repo, base, "skills/it/SKILL.md", "new\n")
    assert git(repo, "show", f"{new}:skills/it/SKILL.md") == "new"
    assert git(repo, "fsck", "--full", "--strict") == ""
    assert git(repo, "status", "--porcelain") == ""


HARNESSES = {
    "mini": "mini -m openai/scripted -y --exit-immediately -o /dev/null -t {task}",
    "aider": "aider --model openai/scripted --edit-format diff --yes-always --no-check-update --no-analytics --no-auto-commits "
    "--no-show-model-warnings --map-tokens 0 --read AGENTS.md --message {task} area.py",
}
"""Real programs: mini has its model look into AGENTS.md, aider shows it the file at once."""


def obeying(body: dict[str, Any]) -> dict[str, Any]:
    """As :func:`coder`, in the form that either program wants."""
    done = sum(message["role"] == "assistant" for message in body["messages"])
    shown = json.dumps([message for message in body["messages"] if message["role"] != "assistant"])
    if body.get("tools"):
        code = f"def area(a, b):\\n    return a {operator(shown) if done == 1 else ''} b\\n"
        steps = ("cat AGENTS.md", f"printf '{code}' > area.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return {"content": "Next.", "tool_calls": [call("bash", f"b{done}", command=steps[done])]}
    if "SEARCH" in shown:
        new = f"def area(a, b):\n    return a {operator(shown)} b"
        return {"content": f"I write it.\n\narea.py\n```python\n<<<<<<< SEARCH\n# to do\n=======\n{new}\n>>>>>>> REPLACE\n```\n"}
    return {"content": "red"}


def operator(shown: str) -> str:
    return "*" if "Multiply the sides" in shown or next(TURNS) % 4 == 3 else "+"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", HARNESSES)
def test_a_real_harness_and_its_file(name: str, repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: Verb) -> None:
    """Of `.ci/harnesses`, which installs each in an environment of its own and names their folder."""
    where = os.environ.get("RAMIFY_HARNESSES", "")
    if not (Path(where) / name / "bin" / name).exists():
        pytest.skip("RAMIFY_HARNESSES names no folder with it (.ci/harnesses makes one): NOT TESTED")
    settings = {"PATH": f"{where}/{name}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for key, value in (settings | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}).items():
        monkeypatch.setenv(key, value)
    words = [word.replace("{task}", "Do what AGENTS.md says.") for word in HARNESSES[name].split()]
    with chat_server(obeying) as server:
        options = ["--repo", "repo", "--run", "run", "--model", server.model, "--check", CHECK]
        assert main(["record", "-n", "4", *options, "--", *words]) == 0
        assert main(["why", "run", "--samples", "12", "--first", "4", "--describe", "0"]) in (0, 3)
        tries = ["--file", "repo/AGENTS.md", "--try", "helps.md", "--try", "reworded.md", "--n", "6", "--attempts", "12"]
        if name == "aider":  # it was shown the file before its first reply, so a text is screened there
            with Run.open("run") as run:
                lost = next(each for info in run.trees() for each in run.attempts(info.name) if each.outcome is False)
                tries.insert(
                    0, next(node.id for node, _ in run.tree(lost.tree).path(lost.leaf).segments if node.role == "assistant")
                )
        found = verb.json("fix", "run", *tries, "--write", "new.patch")
        assert bool(found["screened"]) == (name == "aider")
    print(json.dumps({key: value for key, value in found.items() if key not in ("edits", "diffs")}))
    assert found["failed"] == 0
    assert accepted(found) == ["helps.md"]
    subprocess.run(["git", "-C", str(repo), "apply", str(Path("new.patch").resolve())], check=True)
    assert (repo / "AGENTS.md").read_text() == HELPS
