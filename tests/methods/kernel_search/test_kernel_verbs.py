"""The verbs as a user calls them: search and explain, a search that was killed, mistakes, and a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from printed import said
from terminals import Screen, Terminal

from ramify.cli.main import main
from ramify.methods.kernel_search.algorithm import KernelSearchConfig
from ramify.methods.kernel_search.diagnosis import Roofs
from ramify.methods.kernel_search.loop import KernelSearch, begin, search, tree_of
from ramify.methods.kernel_search.proposers import LLMProposer, SearchMemory
from ramify.methods.kernel_search.task import from_c
from ramify.methods.kernel_search.wall import Code
from ramify.model.function import FunctionModel
from ramify.trace.db import Run
from tests.methods.kernel_search.kernels import SUM

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is needed")
SMALL = ("--pairs", "4", "--batch", "0.001", "--no-simulate")


def run(*words: object) -> int:
    return main(["kernel-search", *map(str, words)])


def searching(kernel: Path, folder: Path, evals: int) -> list[str]:
    """The command line of a small search, for a process of its own."""
    words = ["search", str(kernel), "--out", str(folder / "run"), "--evals", str(evals), *SMALL]
    return [sys.executable, "-m", "ramify", "kernel-search", *words]


def candidates(folder: Path) -> list[Any]:
    """What the journal holds of each candidate, in order."""
    with Run.open(folder) as opened:
        return [one.payload for one in opened.journal("candidate") if re.fullmatch(r"\d+\.\d+", one.key)]


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "sum.c"
    path.write_text(SUM, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_search_is_stored_explained_and_continued(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("search", f"{kernel}:sum", "--out", tmp_path / "run", *SMALL, "--json")
    assert run(*words, "--evals", 2) == 0
    first = said(capsys)
    assert first["candidates"] == 2
    assert run(*words, "--evals", 3) == 0
    assert said(capsys)["candidates"] == 3
    assert run("explain", tmp_path / "run", "--json", "--out", tmp_path / "comment.md") == 0
    written = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert written.startswith("### Is this kernel faster?\n")
    assert "3 candidates, " in written
    assert "| ReductionOrder | " in written
    found = said(capsys)
    assert found["candidates"] == 3
    assert [one["number"] for one in found["tree"]] == [0, 1, 2, 3]
    assert found["tools"]["ReductionOrder"]["tried"] >= 2
    with Run.open(tmp_path / "run") as opened:
        assert {one.name for one in opened.findings()} >= {"ReductionOrder"}
        assert len(opened.scores()) == 3
        tree, records = tree_of(opened)
        again, _ = tree_of(opened)
    assert [vars(one) for one in tree.nodes] == [vars(one) for one in again.nodes]
    assert all(record.trial.checked for record in records)
    assert run("explain", tmp_path / "run", "--code", "1", "--json") == 0
    assert "sum(int n" in said(capsys)["source"]
    assert run(*words, "--evals", 3, "--algo", "greedy") == 2
    assert "algo" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_that_was_killed_continues(kernel: Path, tmp_path: Path) -> None:
    words = [*searching(kernel, tmp_path, 4), "--json"]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if (tmp_path / "run" / "run.sqlite").exists() or child.poll() is not None:
            try:
                with Run.open(tmp_path / "run") as opened:
                    if len(opened.journal("candidate")) >= 2:
                        break
            except Exception:
                continue
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = candidates(tmp_path / "run")
    done = subprocess.run(words, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    after = candidates(tmp_path / "run")
    assert after[: len(before)] == before
    assert len(after) == 4
    assert json.loads(done.stdout.splitlines()[-1])["candidates"] == 4


def test_bench_says_right_and_faster_or_not(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.c"
    other.write_text(SUM.replace("s += x[i]", "s += x[i] * 1.5f"), encoding="utf-8")
    assert run("bench", f"{kernel}:sum", other, "--pairs", 4) == 1
    assert "refused (wrong): result[0]" in capsys.readouterr().out
    other.write_text(SUM.replace("s += x[i]", "s = s + x[i]"), encoding="utf-8")
    assert run("bench", f"{kernel}:sum", other, "--pairs", 4) == 1
    assert "not faster: it compiles to the machine code of the original" in capsys.readouterr().out


@pytest.mark.slow
def test_diagnose_and_its_loops_name_the_line(
    kernel: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path / "cache"))
    assert run("diagnose", f"{kernel}:sum", "--no-simulate", "--pairs", 4, "--json") == 0
    found = said(capsys)
    assert found["findings"][0]["tool"] == "ReductionOrder"
    assert found["findings"][0]["where"].startswith("sum.c:")
    assert any("cachegrind" in one for one in found["not_measurable"])
    assert run("diagnose", f"{kernel}:sum", "--loops", "--json") == 0
    assert said(capsys)["loops"][0]["chain"]
    subprocess.run(["gcc", "-O3", "-march=native", "-g", "-c", kernel, "-o", tmp_path / "sum.o"], check=True)
    assert run("diagnose", f"{tmp_path / 'sum.o'}:sum", "--json") == 0
    assert said(capsys)["loops"][0]["chain"]
    assert main(["doctor", "--json"]) == 0
    told = {row["name"]: row for row in said(capsys)["findings"] if row["topic"] == "kernels"}
    assert told["C0"]["status"] == told["roofs"]["status"] == "ok"
    assert told["roofs"]["text"].startswith("peak ")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("diagnose", "none.c:f"), "there is no kernel none.c"),
        (("diagnose", "{kernel}:summ"), "did you mean 'sum'"),
        (("search", "{kernel}", "--out", "run", "--evals", "0"), "evals"),
        (("search", "{kernel}", "--out", "run", "--proposer", "nobody:x"), "nobody"),
        (("diagnose", "{kernel}:total", "--loops"), "no function 'total'"),
        (("diagnose", "{kernel}", "--loops"), "of one function, FILE:FUNCTION"),
        (("diagnose", "{kernel}:sum", "--loops", "--pairs", "4"), "machine code takes no --pairs"),
        (("diagnose", "{kernel}:sum", "--flags", "-O2"), "diagnose without --loops takes no --flags"),
        (("diagnose", "{kernel}:sum", "--warps", "4"), "a kernel that is run here takes no --warps"),
        (("diagnose", "add.sass", "--no-simulate"), "a kernel of a GPU takes no --no-simulate"),
        (("diagnose", "add.sass", "--arch", "sm_1"), "not a known chip"),
        (("diagnose", "add.sass"), "there is no kernel add.sass"),
        (("explain", "nowhere"), "no run 'nowhere'"),
        (("bench", "{kernel}", "missing.c"), "cannot read the kernel missing.c"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...],
    part: str,
    kernel: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*(word.replace("{kernel}", str(kernel)) for word in words)) == 2
    text = capsys.readouterr().err
    assert part in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_model_writes_candidates_and_its_last_block_counts(tmp_path: Path) -> None:
    shown: list[str] = []
    better = SUM.replace("  for", "#pragma omp simd reduction(+:s)\n  for")

    def reply(messages: Any) -> str:
        shown.append(str(messages))
        return (
            "First:\n```c\nint nothing;\n```\nRather:\n```c\n// flags: -O3 -march=native -fopenmp-simd "
            f"-fplugin=/tmp/x.so\n{better}```\n"
        )

    task = from_c(SUM)
    made = LLMProposer(task, FunctionModel(reply, name="writer"), None)
    found = search(task, evals=1, pairs=4, batch=0.001, proposer=made, roofs=False)
    assert "every addition waits" in shown[0]
    assert "reduction(+:s)" in found.codes[1].source
    assert "-fopenmp-simd" in found.codes[1].flags
    assert not any("plugin" in flag for flag in found.codes[1].flags)
    assert found.trials[1].ok, found.trials[1].refused


def test_the_memory_learns_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    from ramify.base.errors import UserError

    path = tmp_path / "memory.jsonl"
    memory = SearchMemory(path)
    memory.add("MathCall", "vector-math", 4.0, "")
    memory.add("MathCall", "fast-math", None, "wrong")
    again = SearchMemory(path)
    assert again.rate("MathCall") == pytest.approx(2 / 7)
    assert again.lines(["MathCall"]) == ["- MathCall: vector-math gave 4.00x", "- MathCall: fast-math gave a failure, wrong"]
    again.klass = "memory"  # what came of a kernel of another class is not shown
    assert again.lines(["MathCall"]) == []
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(UserError, match=r"memory.jsonl:3"):
        SearchMemory(path)


@pytest.mark.slow
def test_a_continued_search_remembers_each_candidate_once(tmp_path: Path) -> None:
    task, path = from_c(SUM), tmp_path / "memory.jsonl"
    for evals in (1, 2):
        config = KernelSearchConfig(evals=evals, pairs=4, batch=0.001, memory=str(path))
        with begin(task, config, tmp_path / "run") as opened:
            asyncio.run(KernelSearch(task, config, opened, roofs=Roofs(100e9, {1 << 20: 10e9}, 0.0)).go())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2
    assert {row["klass"] for row in rows} == {"memory"}


@pytest.mark.slow
def test_a_search_in_a_terminal_shows_how_far_it_is(kernel: Path, tmp_path: Path) -> None:
    with Terminal(columns=80) as terminal:
        terminal.execute(searching(kernel, tmp_path, 1), tmp_path, os.environ | {"TERM": "xterm", "COLUMNS": ""})
        assert terminal.wait() == 0
        screen = Screen(terminal.text, terminal.columns)
    assert any("1 candidates" in line for line in screen.lines), screen.lines
    assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_codes_that_are_equal_are_not_compiled_twice() -> None:
    from ramify.methods.kernel_search.proposers import ScriptedProposer

    task = from_c(SUM)
    same = Code(SUM + "\n// a remark\n", task.flags)
    found = search(task, evals=3, pairs=4, batch=0.001, proposer=ScriptedProposer([same]), roofs=False)
    assert len(found.trials) == 1
    assert found.stopped == "nothing is left to propose"


@pytest.mark.slow
def test_candidates_of_one_machine_code_are_timed_once(tmp_path: Path) -> None:
    from ramify.methods.kernel_search.proposers import ScriptedProposer

    task = from_c(SUM)
    simd = SUM.replace("  for", "#pragma omp simd reduction(+:s)\n  for")
    sources = (SUM.replace("s += x[i]", "s = s + x[i]"), simd, simd.replace("s += x[i]", "s = s + x[i]"))
    codes = [Code(source, (*task.flags, "-fopenmp-simd")) for source in sources]
    for evals in (2, 3):  # the second search knows the first one's machine code from the journal
        found = search(
            task,
            evals=evals,
            pairs=4,
            batch=0.001,
            proposer=ScriptedProposer(codes),
            roofs=False,
            out=tmp_path / "run",
        )
    of_original, first, second = found.trials[1:]
    assert "machine code of the original" in of_original.notes[-1]
    assert of_original.gain is None
    assert "machine code of candidate 2" in second.notes[-1]
    assert second.gain == first.gain is not None
