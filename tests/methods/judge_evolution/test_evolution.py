"""The search on a workspace, as a user calls it: it continues after a kill, stops at a leak,
and writes its archive as commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.base.progress import Progress
from ramify.cli.main import main
from ramify.methods.judge_evolution import evolution
from ramify.methods.judge_evolution.evolution import CHECKPOINT, OUTCOME, EvolutionCase, begin
from ramify.methods.judge_evolution.workspace import read_workspace
from ramify.sandbox.process import ProcessSandbox
from ramify.trace.db import Run
from ramify.trace.node import Node
from tests.methods.judge_evolution.essays import CASE, essays
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    not ProcessSandbox().isolates, reason="nothing isolates here: PROGRAMS OF WORKSPACES ARE NOT TESTED"
)


def evolve(folder: Path, out: Path, *words: object) -> int:
    return main(["judge-evolution", "evolve", str(folder), "--out", str(out), *map(str, words)])


def history(out: Path) -> list[Any]:
    with Run.open(out) as run:
        return [(one.kind, one.key, one.payload) for one in run.journal()] + [node.id for node in run.each(Node)]


@pytest.mark.slow
def test_a_search_continues_from_any_step(tmp_path: Path) -> None:
    case = essays(tmp_path / "case", CASE.replace("budget = 24\nfirst = 8", "budget = 7\nfirst = 4"))
    (case / "anchor.jsonl").write_text("".join((case / "anchor.jsonl").read_text().splitlines(keepends=True)[:10]))
    evolution.evolve(case, tmp_path / "whole")

    class Stop(Progress):
        """Ends the search after its fifth outcome."""

        def at(self, done: float, note: str = "", phase: str = "") -> None:
            if done == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evolution.evolve(case, tmp_path / "torn", Stop())
    evolution.evolve(case, tmp_path / "torn")
    assert history(tmp_path / "torn") == history(tmp_path / "whole")


@pytest.mark.slow
def test_a_search_continues_after_a_kill_as_if_nothing_had_been(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, whole, torn = essays(tmp_path / "case"), tmp_path / "whole", tmp_path / "torn"
    assert evolve(case, whole, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["outcomes"], found["missing"], found["looks"]) == (24, 0, 2)
    assert found["workspaces"] > 4
    command = [sys.executable, "-m", "ramify", "judge-evolution", "evolve", str(case), "--out", str(torn)]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )

    def under_way() -> bool:
        if child.poll() is not None:
            return True
        try:
            with Run.open(torn) as run:
                return len(run.journal(OUTCOME)) >= 10
        except Exception:  # it is being made
            return False

    assert until(under_way)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert evolve(case, torn) == 0
    assert history(torn) == history(whole)
    assert evolve(case, whole, "--budget", 26) == 0, "a larger budget continues"
    with Run.open(whole) as run:
        assert len(run.journal(OUTCOME)) == 26
        told = run.findings(maker="judge-evolution evolve")
        assert {one.name for one in told} >= {"generalist", "specialist, writer", "specialist, reviewer"}
        slots = run.incumbents()
        assert all(one.judges.get("reviewer", slots["reviewer"]) == slots["reviewer"] for one in run.scores())
        assert len(run.journal(CHECKPOINT)) == 2
    capsys.readouterr()
    assert main(["judge-evolution", "show", str(whole), "--git", str(tmp_path / "git")]) == 0
    log = subprocess.run(
        ["git", "-C", str(tmp_path / "git"), "log", "--all", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert "workspace 0: the seed" in log.stdout
    assert (tmp_path / "git" / "writer.json").is_file()
    again = [sys.executable, "-m", "ramify", "judge-evolution", "show", str(whole), "--git"]
    subprocess.run([*again, str(tmp_path / "again")], check=True, capture_output=True)
    heads = [
        subprocess.run(["git", "-C", str(tmp_path / one), "rev-parse", "main"], capture_output=True, text=True, check=True).stdout
        for one in ("git", "again")
    ]
    assert heads[0] == heads[1], "the same archive is the same commits"


def test_an_anchor_in_the_workspace_ends_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = essays(tmp_path / "case")
    first = json.loads((case / "anchor.jsonl").read_text().splitlines()[3])
    (case / "agent" / "notes.txt").write_text(f"Remember: {first['artefact'].upper()}\n")
    assert evolve(case, tmp_path / "run") == 2
    assert (
        "the anchor of slot 'reviewer' leaks: its item 'paper by hand3' stands in the file notes.txt" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_an_editor_in_the_sandbox_that_writes_an_anchor_item_ends_it_and_nonsense_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = essays(tmp_path / "case", CASE.replace("numbers:0.5", "cmd:edit.py").replace("budget = 24", "budget = 6"))
    stolen = json.loads((case / "anchor.jsonl").read_text().splitlines()[0])["artefact"]
    head = "#!/usr/bin/env python\nimport json, sys\ntold = json.load(sys.stdin)\n"
    nonsense = [
        'print("no JSON")',
        'print(json.dumps({"../up": "x"}))',
        'print(json.dumps({".git/hooks/post-checkout": "x"}))',
        'print(json.dumps({"writer.py": "1/0"}))',
        "sys.exit(3)",
    ]
    for i, line in enumerate(nonsense):
        (case / "edit.py").write_text(f"{head}{line}\n")
        assert evolve(case, tmp_path / f"run{i}", "--json") == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (found["workspaces"], found["outcomes"]) == (1, 6), line
        assert found["dropped"] > 0
    (case / "edit.py").write_text(f"{head}print(json.dumps({{'notes.txt': {stolen!r}}}))\n")
    assert evolve(case, tmp_path / "leak") == 2
    assert "stands in the file notes.txt of a proposal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('slot = "reviewer"\n', 'slot = "reviwer"\n', "did you mean 'reviewer'"),
        ('fills = "reviewer"\n', "", "role 'reviewer' needs one of slot, judge and fills, and has 0"),
        ('anchor = "anchor.jsonl"', 'anchor = "nowhere.jsonl"', "nowhere.jsonl"),
        ("budget = 24", "budget = -1", "budget"),
        ("budget = 24", "bugdet = 24", "did you mean 'budget'"),
        ('command = ["python", "writer.py"]', 'command = ["python", "nobody.py"]', "the seed workspace"),
        ('tasks = "tasks.jsonl"', 'tasks = "anchor.jsonl"', "'input' is missing"),
        ("numbers:0.5", "numbers:much", "is not a scale"),
    ],
)  # fmt: skip
def test_a_wrong_case_is_one_sentence(old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert old in CASE
    case = essays(tmp_path / "case", CASE.replace(old, new, 1))
    assert evolve(case, tmp_path / "run") == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_another_case_is_no_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = essays(tmp_path / "case")
    begin(EvolutionCase(case), tmp_path / "run").close()
    (case / "agent" / "writer.json").write_text('{"facts": 9.0, "praise": 2.0}')
    assert evolve(case, tmp_path / "run") == 2
    assert "workspace" in capsys.readouterr().err
    assert evolve(case, tmp_path / "plan", "--dry-run") == 0
    assert "workspaces" in capsys.readouterr().out
    assert not (tmp_path / "plan").exists()


def test_a_workspace_holds_texts_of_its_own_only(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("x")
    (folder / "a.py").write_text("1")
    assert read_workspace(folder) == {"a.py": "1"}
    (folder / "b.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Exception, match=r"b\.bin cannot be read as text"):
        read_workspace(folder)
    (folder / "b.bin").unlink()
    (folder / "out").symlink_to("/etc/passwd")
    with pytest.raises(Exception, match="is a link"):
        read_workspace(folder)
