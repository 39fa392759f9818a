"""A compactor by name: through play(), the collection, workers' settings and a fork of what was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.jobs.collect import Collection, RolloutConfig, resume
from ramify.jobs.play import fork_run, play
from ramify.rollout import components
from ramify.rollout.compact import DropOldest
from ramify.trace.db import Run

TASKS = components.find_environment("household").task_set("eval", 1)
WALKER = "factory:ramify_test_walker:walker"


@pytest.fixture(autouse=True)
def walker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ramify_test_walker.py").write_text(
        "from ramify.model.scripted import ScriptedModel\n\n\n"
        "def said(messages, key):\n    return f'wait {len(messages)}'\n\n\n"
        "def walker():\n    return ScriptedModel(said, tokens=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def counts(run: Path) -> list[str]:
    with Run.open(run) as opened:
        return [node.text for node in opened.nodes(opened.trees()[0].name) if node.role == "assistant"]


def test_a_compactor_by_name_is_used_stored_and_used_again_by_a_fork(tmp_path: Path) -> None:
    out = tmp_path / "run"
    attempts = play(WALKER, "household", TASKS, out=out, compactor="drop-oldest", window=200)
    texts = counts(out)
    assert max(int(text.split()[1]) for text in texts) < 2 * len(texts) - 1, "prompts were shortened"
    with Run.open(out) as run:
        assert (run.meta["config"]["compactor"], run.meta["config"]["window"]) == ("drop-oldest", 200)
    step = attempts[0].turns[-2].node
    forked = fork_run(out, step.id, n=1)
    assert forked.arm.attempts[0].turns[0].node.text == step.text, "the fork is shown what the run was shown"
    assert forked.arm.attempts[0].turns[0].node.provenance == step.provenance


def test_a_compactor_of_ones_own_is_asked_for_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    attempts = play(WALKER, "household", TASKS, out=out, compactor=DropOldest(0.4), window=200)
    step = attempts[0].turns[-2].node
    with pytest.raises(UserError, match="pass compactor="):
        fork_run(out, step.id, n=1)
    forked = fork_run(out, step.id, n=1, compactor=DropOldest(0.4))
    assert forked.arm.attempts[0].turns[0].node.text == step.text


def test_a_collection_takes_one_and_continues_with_it(tmp_path: Path) -> None:
    config = RolloutConfig(model=WALKER, count=1, compactor="drop-oldest", window=200)
    Collection(config).collect(tmp_path / "run")
    assert resume(tmp_path / "run").missing == 0
    with pytest.raises(UserError, match="window was 200, is 300"):
        Collection(config.model_copy(update={"window": 300})).collect(tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"compactor": "drop-oldst", "window": 9}, "did you mean 'drop-oldest'"),
        ({"compactor": "drop-oldest"}, "a compactor and a window of at least 1 go together"),
        ({"window": 9}, "a compactor and a window of at least 1 go together"),
    ],
)
def test_mistakes_are_one_sentence(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Collection(RolloutConfig(model=WALKER, count=1, **words))
