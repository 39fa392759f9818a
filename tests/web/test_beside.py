"""Two runs beside each other: tasks are matched, differences are Newcombe's and Fisher's, and equal runs have none."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Verb

from ramify.cli.main import main
from ramify.stats.intervals import difference_of_proportions
from ramify.trace.db import Run
from ramify.trace.node import Provenance, Score, make_node
from ramify.trace.outcome import settled
from ramify.web.beside import compare_runs
from ramify.web.pages import report_html


def grow(folder: Path, left: int, right: int, name: str = "t") -> Path:
    """A run of one task: `left` attempts go left and fail, `right` ones go right and succeed."""
    with Run.create(folder, {}) as run:
        by = Provenance("m", "w", {}, 0)
        run.add(by)
        run.add_tree(name, {"id": "task"})
        start = make_node(name, None, 0, "user", "find the <b>key</b>")
        run.add(start)
        for i in range(left + right):
            reply = make_node(name, start.id, 1, "assistant", "go left" if i < left else "go right", provenance=by.hash, index=i)
            end = make_node(name, reply.id, 1, "user", "done")
            run.add(reply, end, Score(end.id, "env", float(i >= left)))
    return folder


def test_what_differs_is_named_and_what_does_not_is_not(tmp_path: Path) -> None:
    with Run.open(grow(tmp_path / "a", 18, 2)) as run, Run.open(grow(tmp_path / "b", 3, 17, "another name")) as other:
        rows, parting = compare_runs(run, other, settled(run), settled(other))
        (row,) = rows
        assert row.difference is not None
        assert row.difference[0] == pytest.approx(17 / 20 - 2 / 20)
        assert row.difference[1] == pytest.approx(difference_of_proportions(17, 20, 2, 20))
        assert {(one.action, one.taken, one.other_taken) for one in parting} == {
            ("go left", (18, 20), (3, 20)),
            ("go right", (2, 20), (17, 20)),
        }
        assert all(one.p < 0.01 for one in parting)
        html = report_html(run, beside=other)
        assert "Beside" in html
        assert "<b>" not in html
        same, none = compare_runs(run, run, settled(run), settled(run))
        assert same[0].difference is not None
        assert same[0].difference[0] == 0
        assert all(one.p == 1 for one in none)


def test_the_command(tmp_path: Path, verb: Verb) -> None:
    a, b = grow(tmp_path / "a", 5, 5), grow(tmp_path / "b", 1, 9)
    assert main(["show", str(a), "--beside", str(b), "--html", str(tmp_path / "out.html")]) == 0
    assert "+40.0" in (tmp_path / "out.html").read_text()
    assert "--beside goes with --web or --html" in verb.refused("show", a, "--beside", b)
    assert main(["show", str(a), "--beside", str(tmp_path / "none"), "--html", str(tmp_path / "out.html")]) == 2
