"""What the tests of readers of benchmarks' and agents' logs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.trace import convert, formats
from ramify.trace.db import Run
from ramify.trace.notes import Notes, noting
from ramify.trace.view import View, views


def example(form: str) -> Any:
    """A fresh copy of the example of a reader."""
    return json.loads(formats.readers()[form].example)


class Taken:
    """A run that a file became, recognised by itself."""

    def __init__(self, path: Path, form: str) -> None:
        self.folder = path.parent / f"{path.name}-run"
        with noting() as notes:
            assert convert.read_run(path, self.folder) == form
        self.notes: Notes = notes
        with Run.open(self.folder) as run:
            self.views: list[View] = sorted(views(run, unjudged=True), key=lambda view: view.record.index if view.record else 0)
            self.attempts = sorted(run.attempts(), key=lambda attempt: attempt.index)
            self.trees = [info.name for info in run.trees()]
            self.tasks = [dict(info.task) for info in run.trees()]
            scores = [score for tree in self.trees for score in run.scores(tree=tree)]
            self.metrics = {score.scorer: score.value for score in scores if score.unit == "metric"}
            self.ignored = {entry.key: entry.payload["count"] for entry in run.journal("ignored")}
            self.notes_at = [(run.node(note.node).text, note) for tree in self.trees for note in run.annotations(tree=tree)]
            """Text of the annotated message, and the annotation."""

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Role and text of each message of the only attempt."""
        (view,) = self.views
        return [(message.role, message.text) for message in view.messages]


def refused(path: Path, form: str) -> str:
    """The sentence that refuses a file, of which nothing is left."""
    folder = path.parent / "refused"
    with pytest.raises(UserError) as caught:
        convert.read_run(path, folder, form)
    assert not folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")
