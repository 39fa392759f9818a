"""The example of the method's page runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/methods/make_a_loop_faster.py")], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "MathCall at softmax.c:" in done.stdout
