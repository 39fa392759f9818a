"""Where attempts at one task part first, and what good and bad attempts differ in: planted, shuffled, and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ramify.cli.main import main
from ramify.jobs.why.parting import first_partings, judged, whole_differences
from ramify.trace.db import Run
from ramify.trace.outcome import settled


def called(name: str, number: int) -> list[dict]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": "done"},
    ]


def run_of(folder: Path, tools: Callable[[int, int], list[str]], won: Callable[[int, int], bool]) -> Path:
    """Eight tasks with six attempts each: the tools that an attempt calls in its steps, and whether it won."""
    lines = []
    for task in range(8):
        for i in range(6):
            calls = [message for t, name in enumerate(tools(task, i)) for message in called(name, t)]
            last = {"role": "assistant", "content": f"That is all, for the {i + 1}th time."}
            messages = [{"role": "user", "content": f"Do {task}."}, *calls, last]
            lines.append(json.dumps({"task_id": f"t{task}", "messages": messages, "reward": float(won(task, i))}))
    folder.mkdir()
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["import", str(folder / "log.jsonl"), "--run", str(folder / "run")]) == 0
    return folder / "run"


def test_what_was_planted_is_first(tmp_path: Path) -> None:
    path = run_of(tmp_path / "x", lambda _, i: ["look", "skip" if i % 2 else "check", "send"], lambda _, i: i % 2 == 0)
    with Run.open(path) as run:
        tasks = judged(run, settled(run))
        parting = first_partings(tasks)[0]
        assert (parting.step, {(way.action, way.k, way.n) for way in parting.ways}) == (
            2,
            {("check({})", 3, 3), ("skip({})", 0, 3)},
        )
        whole = whole_differences(tasks)
    assert {whole[0].what, whole[1].what} == {"calls check", "calls skip"}
    assert whole[0].p_corrected < 1e-6
    assert all("look" not in each.what for each in whole)  # every attempt looks: nothing to compare


def test_chance_is_named_at_most_at_the_level(tmp_path: Path) -> None:
    named = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        took = rng.choice(["a", "b", "c", "d", "e"], size=(8, 6, 4))
        won = rng.random((8, 6)) < rng.random((8, 1))  # tasks differ, attempts at one do not

        def tools(task: int, i: int, took: np.ndarray = took) -> list[str]:
            return [str(name) for name in took[task, i]]

        def wins(task: int, i: int, won: np.ndarray = won) -> bool:
            return bool(won[task, i])

        path = run_of(tmp_path / str(seed), tools, wins)
        with Run.open(path) as run:
            named += whole_differences(judged(run, settled(run)))[0].p_corrected <= 0.05
    assert named <= 4


def test_why_all_tells_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of(tmp_path / "x", lambda t, i: ["look"] * (1 + i % 3), lambda t, i: i % 3 == 0)
    assert main(["why", str(path), "--all"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(no call): 2 of 2" in out
    assert "p is of one task alone" in out
    assert "does the same twice in a row 0 of 32 16 of 16" in out
    assert "no cause" in out
