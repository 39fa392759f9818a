"""What a notebook's cell shows of a run, a tree, an attempt, a fork and an answer of `why`: real ones, hostile texts included."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from web_hostile import all_in_one
from web_sample import make_run

from ramify import Run, fork_run, play
from ramify.jobs.why import why
from ramify.web.notebook import shown


class Cell(HTMLParser):
    """Tags, and the text of a cell."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.frames: list[dict[str, str | None]] = []
        self.words = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))
        assert not any(name.startswith("on") or name == "src" for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_run_is_its_page_in_a_frame(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "run", updates=1, tasks=1, twist=all_in_one)) as run:
        cell = Cell(run._repr_html_())
        (frame,) = cell.frames
        assert frame["sandbox"] == "allow-scripts"
        assert cell.tags == {"div", "style", "iframe"}
        assert str(frame["srcdoc"]).startswith("<!doctype html>")


def test_a_tree_is_a_picture(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path / "run", twist=all_in_one)) as run:
        for info in run.trees()[:2]:
            tree = run.tree(info.name)
            cell = Cell(tree._repr_html_())
            assert {"svg", "figure"} <= cell.tags
            assert not cell.tags & {"script", "img", "iframe"}
            assert "go kitchen<script>alert(1)</script>" in cell.words
    with Run.create(tmp_path / "empty", {}) as run:
        run.add_tree("t", {})
        assert "<svg" not in run.tree("t")._repr_html_()


def test_an_attempt_a_fork_and_why_are_tables(tmp_path: Path) -> None:
    out = tmp_path / "run"
    attempts = play("builtin", "household", out=out, attempts=2)
    cell = Cell(attempts[0]._repr_html_())
    assert "the environment answered" in cell.words
    assert attempts[0].turns[0].node.text in cell.words
    with Run.open(out) as run:
        seen = next(node for node in run.nodes(attempts[0].tree) if node.role == "user")
    fork = fork_run(out, seen.id, n=3, edit={"replace": "<script>alert(1)</script>"})
    cell = Cell(fork._repr_html_())
    assert "The edit changed success by" in cell.words
    assert "<script>alert(1)</script>" in cell.words  # the diff, as text
    assert "script" not in cell.tags
    found = why(out, attempts[0].tree, samples=0)
    cell = Cell(found._repr_html_())
    assert found.headline.replace("`", "") in cell.words.replace("`", "")
    assert all(step.action in cell.words for step in found.steps)


def test_what_is_none_of_these_has_no_page() -> None:
    with pytest.raises(TypeError, match="a dict has no page"):
        shown({})
