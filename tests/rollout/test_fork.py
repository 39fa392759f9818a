"""Forks: every kind of edit does what it says, and nothing but bad input is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.env.builtin.household import HouseholdEnvironment, next_action
from ramify.model.scripted import ScriptedModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.fork import Fork, check_edit, compare, fork
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import FailurePolicy
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node, Provenance, Score
from tests.engine.kernels import needs_tiles
from tests.rollout.test_run import TASKS, episodes, play, tiny_model, wander

TASK = TASKS[0]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    with Run.create(tmp_path / "run", {}) as run:
        yield episodes(run)


def first(made: Episodes) -> Attempt:
    return play(made, attempts=1)[0]


def do(made: Episodes, attempt: Attempt, node: str, *args: Any, **options: Any) -> Fork:
    return asyncio.run(fork(made, attempt.tree, TASK, node, *args, **options))


def texts(made: Episodes, attempt: Attempt) -> list[str]:
    return [m.text for m in made.trees[attempt.tree].path(attempt.leaf).messages()]


def test_resampling_from_a_message_keeps_the_past(made: Episodes) -> None:
    attempt = first(made)
    result = do(made, attempt, attempt.turns[3].node.id, n=4)
    assert result.control is None
    assert len(result.arm.attempts) == 4
    for forked in result.arm.attempts:
        assert texts(made, forked)[:7] == texts(made, attempt)[:7]
        assert forked.start == attempt.turns[3].node.id
    assert len({a.leaf for a in result.arm.attempts}) == 4, "equal samples are different nodes"


def test_append_inside_a_message_then_the_agents_own_words(made: Episodes) -> None:
    attempt = first(made)
    node = attempt.turns[0].node
    result = do(made, attempt, node.id, 4, n=2, edit={"append": "zz"})
    said = texts(made, result.arm.attempts[0])[1]
    assert said.startswith(node.text[:3] + "zz")
    assert result.control is not None
    assert texts(made, result.control.attempts[0])[1].startswith(node.text[:3])
    inserted = made.trees[attempt.tree].nodes[result.arm.attempts[0].start]
    assert inserted.provenance is None
    assert inserted.sampled is None, "inserted tokens are never trained on as if sampled"


def test_replacing_a_message_acts_it_and_plays_on(made: Episodes) -> None:
    attempt = first(made)
    result = do(made, attempt, attempt.turns[1].node.id, n=3, edit={"replace": "stand still"})
    for forked in result.arm.attempts:
        assert texts(made, forked)[3:5] == ["stand still", "Nothing happens."]


def test_replacing_an_observation_changes_what_is_seen_and_not_the_environment(made: Episodes) -> None:
    attempt = first(made)
    answer = attempt.turns[0].answer
    result = do(made, attempt, answer.id, n=2, edit={"replace": "hall. exits nowhere."})
    forked = result.arm.attempts[0]
    assert texts(made, forked)[2:4] == ["hall. exits nowhere.", "go nowhere"]
    assert texts(made, forked)[4] == "Nothing happens."
    assert made.trees[attempt.tree].nodes[forked.start].snapshot == answer.snapshot


def test_replay_of_the_recorded_rest_behind_a_better_action(made: Episodes) -> None:
    attempt = first(made)
    same = do(made, attempt, attempt.turns[2].node.id, after="replay")
    assert texts(made, same.arm.attempts[0]) == texts(made, attempt)
    environment = HouseholdEnvironment().make()
    environment.reset(TASK, 0)
    best = next_action(TASK, environment.snapshot())
    other = do(made, attempt, attempt.turns[0].node.id, edit={"replace": best}, after="replay")
    assert texts(made, other.arm.attempts[0])[1] == best
    assert texts(made, other.arm.attempts[0])[3] == texts(made, attempt)[3]


@pytest.mark.slow
def test_banning_the_first_token_with_the_engine(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, tiny_model())
        attempt = first(made)
        node = attempt.turns[0].node
        assert node.tokens is not None
        sampled = int(node.tokens[1])
        result = do(made, attempt, node.id, n=16, edit={"ban_tokens": [sampled]})
        opened = [made.trees[attempt.tree].nodes[a.turns[0].node.id] for a in result.arm.attempts]
        assert all(int(n.tokens[n.sampled][0]) != sampled for n in opened)
        assert {run.provenance(str(n.provenance)).settings["ban_first"][0] for n in opened} == {sampled}
        kept = do(made, attempt, node.id, 2, edit={"append_tokens": [sampled]}, after="keep")
        assert kept.kept_logprob is not None
        assert np.isfinite(kept.kept_logprob)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"append_tokens": [99_999]}, "token 99999 is out of range"),
        ({"ban_tokens": [99_999]}, "holds token 99999"),
        ({"state": {"layer": 9, "vector": [0.5]}}, "layer 9 does not exist"),
        ({"state": {"layer": 1, "vector": [0.5]}}, "the model's width is 32"),
    ],
)
def test_an_edit_that_the_model_refuses_leaves_nothing(tmp_path: Path, edit: Any, says: str) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, tiny_model())
        attempt = first(made)
        before = [len(list(run.each(kind))) for kind in (Node, Provenance, Score)]
        with pytest.raises(UserError, match=says):
            do(made, attempt, attempt.turns[1].node.id, n=2, edit=edit)
        with pytest.raises(UserError, match=says):
            asyncio.run(compare(made, attempt.tree, TASK, attempt.turns[1].node.id, {"good": {"append": "go"}, "bad": edit}, n=2))
        assert [len(list(run.each(kind))) for kind in (Node, Provenance, Score)] == before


def test_an_edit_is_kept_where_the_model_fails_behind_it(tmp_path: Path) -> None:
    calls = []

    def fails_later(messages: Sequence[Message], key: int) -> str:
        calls.append(key)
        if len(calls) > 1:
            raise InfrastructureError("provider", "gone")
        return "look"

    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, ScriptedModel(fails_later, tokens=False), policy=FailurePolicy({}))
        attempt = first(made)
        assert len(attempt.turns) == 1
        result = do(made, attempt, attempt.turns[0].answer.id, n=1, edit={"replace": "It is dark."})
        assert [a.failure for a in result.arm.attempts] == ["provider: gone"]
        assert run.node(result.arm.attempts[0].leaf).text == "It is dark."


def test_a_token_that_the_tokenizer_cannot_spell_is_one_sentence(made: Episodes) -> None:
    attempt = first(made)
    with pytest.raises(UserError, match="edit 'append_tokens' holds a token that"):
        do(made, attempt, attempt.turns[0].node.id, edit={"append_tokens": [(1 << 31) - 1]})


def test_forks_share_the_prefix(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        model = tiny_model()
        needs_tiles(model.exactness)
        made = episodes(run, model)
        attempt = first(made)
        node = attempt.turns[-1].node
        prefix = len(made.trees[attempt.tree].path(node.id).upto(1).tokens)
        before = model.stats.forward_rows
        result = do(made, attempt, node.id, n=64)
        fresh = sum(a.sampled_tokens + len(a.turns[0].answer.tokens) for a in result.arm.attempts)
        assert model.stats.forward_rows - before <= 1.3 * (prefix + fresh)


def test_text_only_agents_fork_at_messages(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, ScriptedModel(wander, tokens=False))
        attempt = first(made)
        result = do(made, attempt, attempt.turns[1].node.id, n=2, edit={"replace": "wait"})
        assert texts(made, result.arm.attempts[0])[3] == "wait"
        with pytest.raises(NeedsError, match="tokens"):
            do(made, attempt, attempt.turns[1].node.id, 1)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"apend": "x"}, "did you mean 'append'"),
        ({}, "one key"),
        ([1], "one JSON object"),
        ({"append": ""}, "non-empty text"),
        ({"append_tokens": ["a"]}, "token ids"),
        ({"append": "a", "ban": ["b"]}, "one key"),
        ({"replace": "a\ud800"}, "not valid text"),
        ({"ban": ["a", "\ud800"]}, "not valid text"),
        ({"ban": ["a", ""]}, "takes a non-empty list of non-empty texts"),
        ({"state": {"layer": 0, "vector": [10**400]}}, "the field 'vector' cannot be"),
    ],
)
def test_bad_edits_are_one_sentence(edit: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_edit(edit)


def test_bad_places_are_one_sentence(made: Episodes) -> None:
    attempt = first(made)
    node = attempt.turns[0].node
    for args, options, says in (
        ((node.id, 99), {}, "outside node"),
        (("feed",), {}, "no node 'feed'"),
        ((node.id,), {"n": 0}, "at least 1"),
        ((node.id,), {"after": "resmaple"}, "not one of"),
        ((attempt.turns[0].answer.id, 1), {}, "not inside it"),
        ((attempt.turns[0].answer.id,), {"edit": {"append": "x"}}, "is an observation"),
    ):
        with pytest.raises(UserError, match=says):
            do(made, attempt, *args, **options)
