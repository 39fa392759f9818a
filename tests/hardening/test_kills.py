"""Every command that writes, killed at random instants and in the middle of its writes: nothing committed is lost, no file is
half there, and the same command again ends like one that was not disturbed.

The default run strikes a few commands, the slow one each; ``full.py`` strikes all of them several times
(``repro/hardening.json``).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kill_table import ELSEWHERE, READERS, VERBS
from test_faults import preloaded

HERE = Path(__file__).parent
#: What a command writes is named by these, or its help says so.
WRITING = re.compile(r"--(out|run|html|svg|record|cache)\b|.*\b(to write|to make|written|also write|write the)\b", re.IGNORECASE)
#: Options that look so and name what is read.
READ = {"forensics ask --run", "forensics change --run"}
#: Runs whose records are measured times, so none is like another, and reports of them:
#: tests/methods/kernel_search/test_kernel_verbs.py kills the writer of the run; a report is written whole.
MEASURED = {"kernel-search search --out", "kernel-search explain --out"}
#: Needs Triton, which is not installed here; its file is written whole.
UNTRIED = {"kernel-search tune --out"}
#: Options whose help speaks of writing, and that write nothing themselves.
NOT_FILES = {"cliffs scan --dry-run", "implicit-advantage score --dry-run"}


def kill(folder: Path, kills: int, seed: int, *kinds: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / "kills.py"), str(folder / "kills"), str(kills), str(seed), *kinds],
        capture_output=True, text=True, env=preloaded(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_killed_at_random_instants(tmp_path: Path) -> None:
    figures = kill(tmp_path, 20, 5, "import", "rollout", "new", "graph-credit mark")
    assert figures["kills"] == 20
    assert figures["runs"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_of_run_killed(tmp_path: Path) -> None:
    names = ["store", "improve", "resume", "serve", "cliffs scan", "import", "crosscoder steer", "dspark train"]
    names += ["early-decision run", "forensics run", "governance bench", "implicit-advantage score", "rollout-tree"]
    figures = kill(tmp_path, 2 * len(names), 6, *names)
    assert all(figures["by kind"].values())


def enumerated() -> dict[str, list[tuple[str, str]]]:
    """Every command with its options and their help."""
    spec = importlib.util.spec_from_file_location("commands", HERE.parents[1] / "docs" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return {name: [*made.options(command)] for name, command in made.commands()}


def missing(known: dict[str, list[tuple[str, str]]], writes: str, reads: set[str]) -> list[str]:
    """Options that write and that no line of the table uses, and commands that are in neither table."""
    lines = [*re.findall(r"^.+$", writes, re.MULTILINE)]
    found = []
    for name, options in known.items():
        own = [line for line in lines if line == name or line.startswith(f"{name} ")]
        if not own and name not in reads:
            found.append(name)
        for written, helped in options:
            option = re.split(r"[ /]", written)[0]
            if (
                option.startswith("--")
                and WRITING.match(f"{option} {helped}")
                and f"{name} {option}" not in READ | NOT_FILES | MEASURED | UNTRIED
            ):
                found += [f"{name} {option}"] if not any(option in line.split() for line in own) else []
    return found


def test_every_command_that_writes_is_killed() -> None:
    table = "\n".join(verb.words for verb in VERBS)
    reads = {verb.command for verb in READERS} | ELSEWHERE
    known = enumerated()
    assert missing(known, table, reads) == []
    assert sorted({verb.command for verb in (*VERBS, *READERS)} - set(known)) == [], "commands that are gone"
    # and it would say so
    assert missing({**known, "verify run": [("--out FILE", "JSON lines.")]}, table, reads) == ["verify run", "verify run --out"]
    assert missing({"show": [("--html FILE", "Write the report.")]}, "show run --json", reads) == ["show --html"]
    assert missing({"cliffs ablate": [("--keep FILE", "Table to write.")]}, table, reads) == ["cliffs ablate --keep"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_that_only_read_leave_every_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "readers.py"), str(tmp_path / "readers")],
        capture_output=True, text=True, env=preloaded(None),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == len(READERS)
