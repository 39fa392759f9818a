"""A run that acts can be tried on: halls, an agent that can be slow, and its failed attempt."""

from __future__ import annotations

from pathlib import Path

from ramify.cli.main import main
from ramify.trace.db import Run

HALLS = Path(__file__).with_name("slow_halls.py")


def halls_run(folder: Path) -> Path:
    """Four tasks, four attempts each."""
    words = ["rollout", "--model", f"{HALLS}:agent", "--env", f"{HALLS}:Halls", "--count", "4", "--attempts", "4"]
    assert main([*words, "--out", str(folder)]) == 0
    return folder


def steps_of_a(run: Path, outcome: bool, apart: str = "") -> list[str]:
    """Ids of the replies of an attempt that ended so, of another tree than ``apart``."""
    with Run.open(run) as opened:
        leaf = next(record.leaf for record in opened.attempts() if record.outcome is outcome and record.tree != apart)
        return [node.id for node, _ in opened.path(leaf).segments if node.role == "assistant"]
