"""Replies that a limit of tokens cut count neither as right nor as wrong, whoever reads them; replies that ended do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from command import Verb

from ramify.base.errors import RamifyError
from ramify.base.verdicts import collected
from ramify.env.protocol import Task
from ramify.methods.forensics.case import CaseConfig
from ramify.methods.forensics.judges import find_behaviour
from ramify.methods.forensics.logs import read_log
from ramify.methods.forensics.run import Case
from ramify.model.chat import TagTemplate
from ramify.model.scripted import ScriptedModel
from ramify.score.anchor import read_anchor
from ramify.score.judge import Item, find_judge, judged
from ramify.score.trajectories import plain_layout, run_trajectories
from ramify.testing.judge import path_of
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Score, make_node

CUT = "3 of the replies that were to be judged had been cut by their limit of tokens"


@pytest.fixture
def half_cut(tmp_path: Path) -> Path:
    """Six attempts at two tasks, half of them cut: of these one had the answer already."""
    with Run.create(tmp_path / "run", {}) as run:
        for task in ("a", "b"):
            run.add_tree(task, {"id": task, "data": {"prompt": f"say {task}"}})
            root = make_node(task, None, 0, "root", "")
            asked = make_node(task, root.id, 0, "user", f"say {task}")
            run.add(root, asked)
            for i, stop in enumerate(("eos", "length", "eos") if task == "a" else ("length", "eos", "length")):
                won = i == 0
                reply = make_node(task, asked.id, len(asked), "assistant", f"{task}{i}", index=i, stop=stop)
                run.add(reply, AttemptRecord(reply.id, task, index=i, outcome=won, reward=float(won)))
                run.add(Score(reply.id, "verifier", float(won)), Score(reply.id, "tests", float(won), "verdict"))
    return tmp_path / "run"


def test_a_judge_whose_reply_was_cut_has_not_judged() -> None:
    words = "Yes. No, let me think about it again"
    model = ScriptedModel(lambda messages, key: words, tokens=False)
    opener: Any = lambda name: (model, None)  # noqa: E731
    judge = find_judge("judge:m", opener=opener)
    (found,) = asyncio.run(judged(judge, [Item("4", prompt="2 + 2")]))
    assert found.value is False
    cut = ScriptedModel(lambda messages, key: words * 100)
    (found,) = asyncio.run(
        judged(find_judge("judge:m", opener=lambda name: (cut, TagTemplate(cut.tokenizer))), [Item("4", prompt="2 + 2")])
    )
    assert (found.value, found.failure) == (None, "the judge's reply was cut at 512 tokens")


def test_an_item_of_a_path_knows_what_it_replies_to() -> None:
    item = Item.of(path_of("4", "2 + 2"), Task("t"))
    assert (item.prompt, item.text) == ("2 + 2", "4")


def test_anchors_and_attempts_leave_cut_replies_open(half_cut: Path) -> None:
    with collected() as verdicts:
        anchor = read_anchor(half_cut, "verifier")
    assert [one.item.text for one in anchor.items] == ["a0", "a2", "b1"]
    assert len(verdicts.open) == 3
    assert next(verdicts.caveats()).startswith(CUT)
    with collected() as verdicts, Run.open(half_cut) as run:
        found, skipped = run_trajectories(run, plain_layout(ScriptedModel(lambda messages, key: "").tokenizer))
    assert sorted((one.actions, one.success) for one in found if one.success is not None) == [
        (("a0",), True),
        (("a2",), False),
        (("b1",), False),
    ]
    assert (skipped, len(found), len(verdicts.open)) == ([], 6, 3)


def test_candidates_that_were_cut_have_no_truth(half_cut: Path, verb: Verb) -> None:
    found = verb.json("verify-or-ship", "calibrate", half_cut)
    assert [(one["n_right"], one["n_wrong"]) for one in found["critics"]] == [(1, 2)]
    assert any(caveat.startswith(CUT) for caveat in found["caveats"])


def test_forensics_counts_a_run_whose_last_reply_was_cut_neither_way(tmp_path: Path) -> None:
    """Of runs that all do it in words, half go on until the limit cuts them: before, these counted."""
    talker = ScriptedModel(lambda messages, key: "I did it. " * (1 if key % 2 else 40))
    config = CaseConfig(env="household", behavior="regex:did it", n=12, patience=1, max_reply=20)
    for again in (False, True):
        with collected() as verdicts, Case(tmp_path, config, model=talker) as case:
            rate = case.baseline()
            runs = case.play("baseline", {})
        assert (rate.rate.k, rate.rate.n + rate.invalid) == (rate.rate.n, 12), again
        assert 0 < rate.invalid < 12
        assert len(verdicts.open) == rate.invalid == sum(run.cut for run in runs)
        assert all(run.behavior is (None if run.cut else True) for run in runs)


def test_forensics_names_the_limit_where_it_cut_every_run(tmp_path: Path) -> None:
    talker = ScriptedModel(lambda messages, key: "I did it. " * 40)
    config = CaseConfig(env="household", behavior="regex:did it", n=12, patience=1, max_reply=20)
    with (
        Case(tmp_path, config, model=talker) as case,
        pytest.raises(RamifyError, match="max_reply cut at 20 tokens"),
    ):
        case.baseline()


def test_a_log_s_cut_runs_are_invalid_to_forensics(half_cut: Path) -> None:
    with collected() as verdicts:
        runs = read_log(half_cut, find_behaviour("outcome"), scorer="verifier")
    assert [run.did for run in runs if run.did is not None] == [True, False, False]
    assert [run.why for run in runs if run.did is None] == ["its limit of tokens cut its last reply"] * 3
    assert len(verdicts.open) == 3
