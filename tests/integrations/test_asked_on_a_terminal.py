"""A person is asked in a terminal, above the live line, before a tool runs on a branch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.terminals import Terminal

pytestmark = pytest.mark.slow

pytest.importorskip("openai", reason="openai is not installed: NO AGENT OF A PERSON'S OWN IS TESTED IN A TERMINAL")
EXAMPLE = Path(__file__).parents[2] / "examples/agents/tool_loop.py"


def test_a_no_ends_the_branch_and_a_yes_runs_the_tool(tmp_path: Path) -> None:
    import ramify
    from ramify.trace.db import Run

    task = '[{"id": "room", "prompt": "Book the cheaper of rooms 4 and 7."}]'
    text = EXAMPLE.read_text(encoding="utf-8").partition("\nramify.play")[0]
    (tmp_path / "agent.py").write_text(text.replace("ramify.agent(booker, ", f"ramify.agent(booker, tasks={task}, "))
    ramify.play(
        f"{tmp_path}/agent.py:model",
        f"{tmp_path}/agent.py:mine",
        tasks=[{"id": "room", "prompt": "Book the cheaper of rooms 4 and 7."}],
        out=tmp_path / "run",
    )
    with Run.open(tmp_path / "run") as run:
        second = [node.id for node in run.nodes(run.trees()[0].name) if node.role == "assistant"][1]
    words = ["fork", "run", second, "--n", "2", "--effect", "book=ask"]
    with Terminal(columns=100) as terminal:
        terminal.execute([sys.executable, "-m", "ramify", *words], tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"})
        for n, answer in enumerate((b"n\r", b"y\r"), 1):
            assert terminal.until(r"(Run book\(room=[47]\) on this branch\? \[y/N\][\s\S]*)" f"{{{n}}}"), terminal.text
            terminal.press(answer)
        assert terminal.wait() == 0, terminal.text
        assert terminal.text.count("for real") == 1
        assert re.search(r"^forked +1 +1 .* 1\s*$", terminal.text, re.MULTILINE), "one succeeded, and one failed"
