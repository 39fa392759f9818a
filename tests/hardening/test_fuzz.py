"""Broken files of every format and broken runs: an error of ours or a run, never a hang,
a crash or a memory of more than 4 times the file.

The shorter test tries 90 files, the longer one a tenth of the 10,000 that ``full.py`` tries (figures in
``repro/hardening.json``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.trace.formats import readers

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
#: Formats whose good files are written by ``fuzz_seeds.py``, and every other whose reader has an example as JSON lines.
FORMS = (
    "run", "chats", "steps", "trl", "verl", "verifiers", "agents-session", "verify-or-ship", "world", "sqlite", "values",
)  # fmt: skip
EXAMPLES = tuple(name for name, reader in readers().items() if reader.example.startswith("{") and name not in FORMS)


def fuzz(folder: Path, count: int, seed: int, *forms: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), str(folder / "fuzz"), str(count), str(seed), *forms],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_broken_files_are_read_or_refused(tmp_path: Path) -> None:
    forms = (*FORMS, *EXAMPLES)
    figures = fuzz(tmp_path, 7 * len(forms), 14, *forms)
    assert figures["formats"].keys() == set(forms)
    assert all(one["files"] == 7 for one in figures["formats"].values())
    refused = sum(one["refused"] for one in figures["formats"].values())
    assert 3 * len(forms) < refused < 7 * len(forms)


def test_every_reader_takes_files_of_20_megabytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "large.py"), str(tmp_path / "large")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() >= {"chats", *EXAMPLES}
    assert sum("read" in figure["ends"] for figure in figures.values()) > len(figures) // 2, figures  # others need whole attempts


@pytest.mark.timeout(400)
def test_a_tenth_of_the_full_count(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: ITS LOGS ARE NOT FUZZED")
    figures = fuzz(tmp_path, 1000, 12)
    assert figures["formats"]["inspect"]["refused"] > 0


LINE = """
import resource, sys
from pathlib import Path
from ramify.base.errors import RamifyError
from ramify.trace.formats import readers
from ramify.trace.lines import first_record
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = Path(sys.argv[1])
first_record(path)
for name in ("run", "chats", "steps", "trl", "verl", "verifiers", "anthropic", "responses", "sharegpt", "otlp", "langfuse",
             "langsmith", "openai-batch"):
    try:
        readers()[name].read(path, Path(sys.argv[2]))
    except RamifyError as error:
        print(str(error)[-80:])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("start", [b'{"kind": "run", "x": "', pytest.param(b'[{"messages": [', marks=pytest.mark.slow)])
def test_a_line_of_100_megabytes(tmp_path: Path, start: bytes) -> None:
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.write(start)
        for _ in range(100):
            file.write(b"1," * (1 << 19))
    done = subprocess.run(
        [sys.executable, "-c", LINE, str(tmp_path / "long.jsonl"), str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *refused, megabytes = done.stdout.splitlines()
    assert len(refused) == 13
    assert all("longer than" in line for line in refused)
    assert int(megabytes) < 150
