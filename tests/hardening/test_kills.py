"""Runs of several kinds, killed at random instants: nothing committed is lost, and what is resumed ends like what was not disturbed.

The default run makes 20 kills, the slow one adds the main job; ``full.py`` makes 200 over 20 runs (figures in ``repro/hardening.json``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def kill(folder: Path, kills: int, seed: int, *kinds: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / "kills.py"), str(folder / "kills"), str(kills), str(seed), *kinds],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_at_random_instants(tmp_path: Path) -> None:
    figures = kill(tmp_path, 20, 5, "import", "rollout")
    assert figures["kills"] == 20
    assert figures["runs"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_kind_of_run_killed(tmp_path: Path) -> None:
    figures = kill(tmp_path, 24, 6, "improve", "fork", "store")
    assert figures["by kind"]["improve"] > 0
