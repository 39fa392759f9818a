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
    lines = [line.replace("8765", port) for language, text in blocks if language == "sh" for line in text.splitlines()]
    install, serve, paths, record, *asked = lines
    assert install.startswith("python3 -m venv mini")
    asked = [f"{line} {few}" for line, few in zip(asked, ("--samples 12 --describe 2", "--n 4"), strict=True)]
    script = [
        f"{sys.executable} begin.py",
        f"{serve} trap 'kill $!' EXIT",
        f"{paths}; export HOME=$PWD PATH={where}:{Path(sys.executable).parent}:$PATH",
        record,
        *(f"{line} || test $? = 3" for line in asked),  # 3: the few samples are spent
    ]
    done = subprocess.run(["bash", "-eu", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with Run.open(tmp_path / "runs/record-1") as run:
        attempts = run.attempts(purpose="rollout")
        assert len(attempts) == 8
        assert [one.failure for one in run.attempts() if one.failure] == []
        assert [one.maker for one in run.findings(maker="why")]
    for said in ("which step" if "stands out" in done.stdout else "Lost at", "rule 1"):
        assert said in done.stdout
