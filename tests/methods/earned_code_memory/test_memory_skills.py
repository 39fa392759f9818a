"""What a memory earned as Agent Skills: written with where it came from, kept where somebody changed it, and erased."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.base.skills import FILE, LONGEST_DESCRIPTION, Skill, skill_name, split_skill
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.report import replay
from tests.methods.earned_code_memory.office_notes import APIS, PLAN, QUERIES
from tests.methods.earned_code_memory.test_memory_verbs import log_of, verbs

HERE = "python:tests.methods.earned_code_memory.test_memory_verbs"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a verb on a memory with one tool of three tasks of a run; its last JSON line, or with ``code`` its error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "apis.json").write_text(json.dumps([{"name": name, **one} for name, one in APIS.items()]))
    verb = verbs(capsys)
    verb("learn", "m.sqlite", "--apis", "apis.json", "--review", "auto")
    verb("learn", "m.sqlite", log_of(tmp_path))
    verb("learn", "m.sqlite", "--write", "text", "--model", f"{HERE}:reflects")
    verb("review", "m.sqlite", "add", "plan", "Archive the mail", "Call `mail.list`, then `mail.archive`.")
    return verb


def head_of(path: Path) -> dict[str, str]:
    """The head of a SKILL.md, as the specification has it: quoted texts, those of metadata indented."""
    head, _ = split_skill(path.read_text(encoding="utf-8"))
    found = {}
    for line in head.splitlines()[1:-1]:
        name, _, value = line.partition(":")
        found[name.strip()] = json.loads(value) if value.strip() else ""
    return found


def test_a_plan_past_the_gate_is_a_skill(run: Any, tmp_path: Path) -> None:
    found = run("export", "m.sqlite", "skills", "--out", "skills", "--license", "MIT")
    (made,) = found["skills"]
    assert (made["kind"], made["files"]) == ("plan", [FILE])
    assert any("1 plan served fewer than 3 structurally different requests" in why for why in found["caveats"])
    folder = tmp_path / "skills" / made["name"]
    head = head_of(folder / FILE)
    assert (head["name"], head["license"]) == (folder.name, "MIT")
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", head["name"])
    assert head["description"].startswith(PLAN["title"])
    assert QUERIES[0] in head["description"] or sorted(QUERIES)[0] in head["description"]
    assert head["ramify-id"] == made["id"] == head["ramify-plan"]
    assert head["ramify-evidence"] == "3 structurally different requests, 3 needed"
    assert len(head["ramify-tasks"].split(", ")) == 3
    assert all(one.startswith("run:") for one in head["ramify-nodes"].split(", "))
    assert head["ramify-succeeded"] == "3 of 3 (95 % interval 0.29 to 1.00)"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", head["ramify-earned"])
    assert run("export", "m.sqlite", "skills", "--out", "skills", "--license", "MIT")["skills"] == [made]


def test_a_tool_is_a_skill_with_its_script(run: Any, tmp_path: Path) -> None:
    run("learn", "m.sqlite", "--write", "tools", "--model", f"{HERE}:write_code")
    (made,) = run("export", "m.sqlite", "skills", "--out", "skills")["skills"]
    assert (made["name"], made["id"], made["kind"]) == ("delete-notes", "delete_notes", "tool")
    assert made["files"] == [FILE, "scripts/delete_notes.py", "scripts/tests.py"]
    with Memory(tmp_path / "m.sqlite") as memory:
        source = memory.state.tools["delete_notes"].source.strip()
    assert (tmp_path / "skills/delete-notes/scripts/delete_notes.py").read_text().strip() == source
    assert "A model wrote it" in (tmp_path / "skills/delete-notes" / FILE).read_text()


@pytest.mark.parametrize("change", ["edited", "another file", "a link", "another's"])
def test_a_skill_that_somebody_changed_is_kept(run: Any, tmp_path: Path, change: str) -> None:
    if change == "another's":
        name = skill_name(PLAN["title"])
        (tmp_path / "skills" / name).mkdir(parents=True)
        (tmp_path / "skills" / name / FILE).write_text("---\nname: x\n---\nMine.\n")
    else:
        (made,) = run("export", "m.sqlite", "skills", "--out", "skills")["skills"]
        name = made["name"]
        folder = tmp_path / "skills" / name
        if change == "edited":
            (folder / FILE).write_text((folder / FILE).read_text() + "\nAnd ask first.\n")
        elif change == "another file":
            (folder / "notes.txt").write_text("mine")
        else:
            (folder / "link").symlink_to(tmp_path / "apis.json")
    before = {file.name: file.read_bytes() for file in (tmp_path / "skills" / name).iterdir()}
    found = run("export", "m.sqlite", "skills", "--out", "skills")
    assert found["skills"] == []
    assert any("is kept: it is not as this memory wrote it" in why for why in found["caveats"])
    with Memory(tmp_path / "m.sqlite") as memory:
        (plan,) = [entry.id for entry in memory.state.entries.values() if entry.title == PLAN["title"]]
    erased = run("review", "m.sqlite", "erase", plan, "--skills", "skills")
    assert erased["removed"] == []
    assert any("is kept" in why for why in erased["caveats"]) == (change != "another's")
    assert {file.name: file.read_bytes() for file in (tmp_path / "skills" / name).iterdir()} == before


def test_what_is_erased_is_gone_with_all_that_was_made_of_it(run: Any, tmp_path: Path) -> None:
    run("learn", "m.sqlite", "--write", "tools", "--model", f"{HERE}:write_code")
    run("export", "m.sqlite", "skills", "--out", "skills")
    with Memory(tmp_path / "m.sqlite") as memory:
        plan = memory.state.tools["delete_notes"].plan
        body = memory.state.entries[plan].body
        source = memory.state.tools["delete_notes"].source
    erased = run("review", "m.sqlite", "erase", plan[:6], "--skills", "skills")
    assert (erased["erased"], erased["derived"]) == (plan, ["delete_notes"])
    assert erased["removed"] == ["skills/delete-notes"]
    assert list((tmp_path / "skills").iterdir()) == []
    raw = b"".join(file.read_bytes() for file in tmp_path.glob("m.sqlite*"))
    for text in (body, source):
        assert json.dumps(text)[1:-1].encode() not in raw
    with Memory(tmp_path / "m.sqlite") as memory:
        assert (memory.state.entries[plan].status, memory.state.tools["delete_notes"].status) == ("erased", "erased")
        assert len(memory.state.tasks) == 3, "what it was earned from stays"
        assert replay(memory.store).equal
    assert run("export", "m.sqlite", "skills", "--out", "skills")["skills"] == []
    assert run("recall", "m.sqlite", "delete my 3 oldest notes")["near"] == []
    assert "is not an entry and no tool" in run("review", "m.sqlite", "erase", "nothing", code=2)


def test_a_tool_alone_is_erased_and_its_plan_stays(run: Any, tmp_path: Path) -> None:
    run("learn", "m.sqlite", "--write", "tools", "--model", f"{HERE}:write_code")
    run("export", "m.sqlite", "skills", "--out", "skills")
    erased = run("review", "m.sqlite", "erase", "delete_notes")
    assert erased["derived"] == []
    assert erased["caveats"] == ["skills were written of it: name their folder with --skills, and they are removed as well"]
    (made,) = run("export", "m.sqlite", "skills", "--out", "other")["skills"]
    assert made["kind"] == "plan"
    (tmp_path / "skills" / "delete-notes").rename(tmp_path / "skills" / "old")
    found = run("export", "m.sqlite", "skills", "--out", "skills")
    assert any(why == "skills/old is of an entry that is no longer active" for why in found["caveats"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("export m.sqlite skills", "name it with --out"),
        ("export m.sqlite skills --out x --upstream y", "takes no --upstream"),
        ("export m.sqlite files --out x --license MIT", "takes no --license"),
        ("export m.sqlite skills --out x --license ' '", "--license needs a name"),
        ("review m.sqlite approve x --skills y", "takes no --skills"),
    ],
)
def test_options_that_do_not_belong(run: Any, words: str, sentence: str) -> None:
    import shlex

    assert sentence in run(*shlex.split(words), code=2)


def test_the_text_of_a_skill() -> None:
    skill = Skill("a-b", 'Says "x": y\n# z ' + "long " * 400, "Body", metadata={"k": "v: [1]"})
    head, rest = split_skill(skill.text())
    assert rest == "\nBody\n"
    assert json.loads(head.splitlines()[2].partition(": ")[2]).endswith("...")
    assert len(json.loads(head.splitlines()[2].partition(": ")[2])) <= LONGEST_DESCRIPTION
    assert split_skill("no head") == ("", "no head")
    assert skill_name("Délete -- my Notes" + "x" * 99) == ("delete-my-notes" + "x" * 99)[:64]
    with pytest.raises(UserError, match="not a skill's name"):
        Skill("A_b", "x", "y")
