"""The tutorial on a coding agent, typed in as it stands, with mini-swe-agent from PyPI (of `.ci/harnesses`)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.trace.db import Run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorials/a-coding-agent.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_harness_does_what_the_tutorial_says(tmp_path: Path) -> None:
    where = Path(os.environ.get("RAMIFY_HARNESSES", "")) / "mini/bin"
    if not (where / "mini").exists():
        pytest.skip("RAMIFY_HARNESSES names no folder with mini (.ci/harnesses makes one): NOT TESTED")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "begin.py").write_text("".join(text for language, text in blocks if language == "python"))
    lines = [line.replace("8799", port) for language, text in blocks if language == "sh" for line in text.splitlines()]
    install, serve, paths, record, *asked = lines
    assert install.startswith("python3 -m venv mini")
    why, fix = asked
    begin = [
        f"{sys.executable} begin.py",
        f"{serve} trap 'kill $!' EXIT",
        f"{paths}; export HOME=$PWD PATH={where}:{Path(sys.executable).parent}:$PATH",
    ]
    text = typed([*begin, record, f"{why} --samples 40 --describe 2 || test $? = 3"], tmp_path)  # 3: the samples are spent
    with Run.open(tmp_path / "runs/record-1") as run:
        assert len(run.attempts(purpose="rollout")) == 8
        assert [one.failure for one in run.attempts() if one.failure] == []
        lost = next(one for one in run.attempts(purpose="rollout") if not one.outcome)
        step = "" if "Lost at" in text else run.node(str(run.node(lost.leaf).parent)).id
    assert ("Lost at" in text) != ("No step stands out" in text)
    assert "rule 1" in typed([*begin[1:], f"{fix} {step} --n 4"], tmp_path)


def typed(lines: list[str], folder: Path) -> str:
    """What a shell prints that these lines are typed into."""
    done = subprocess.run(["bash", "-eu", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
