"""Attempts are counted alone, in the terminal, as JSON and on the page; forks are named beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ramify
from ramify.jobs.summary import summarise
from ramify.jobs.why.moves import worst_moves
from ramify.trace.db import Run
from ramify.trace.outcome import settled
from ramify.web.tasks import task_rows


def agent(messages: Any, key: Any) -> str:
    return ["go hall", "go kitchen", "take red-key"][key % 3]


def test_forks_are_no_attempts(verb: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    attempts = ramify.play(agent, "household", attempts=3, out=out, seed=2)
    with Run.open(out) as run:
        before, steps = summarise(run), worst_moves(run, settled(run))
    assert (before.attempts.n, before.forks) == (24, None)
    first = attempts[0].turns[0].node.id
    ramify.fork_run(out, first, n=4, model=agent, env="household")
    ramify.fork_run(out, first, n=2, edit={"replace": "go kitchen"}, model=agent, env="household")
    ramify.why(out, model=agent, env="household", samples=8)
    with Run.open(out) as run:
        now = summarise(run)
        rows = task_rows(run, settled(run))
        assert worst_moves(run, settled(run)) == steps
    assert now.attempts == before.attempts
    assert now.forks.n >= 4 + 2 + 2
    assert {row.attempts for row in rows} == {3}
    assert sum(row.forks for row in rows) == now.forks.n
    assert f"{now.forks.n} forks are not counted with them" in verb("show", out).out
    page = tmp_path / "page.html"
    assert verb("show", out, "--html", str(page)).code == 0
    assert re.search(r"\d of 3 attempts succeed; \d+ forks beside them", page.read_text())
