"""Every kind of edit changes one thing: what is shown, what is said, or a hidden state; the rest stays, and the diff says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.env.builtin.household import Household, HouseholdEnvironment
from ramify.env.protocol import Observation
from ramify.model.protocol import Prefix
from ramify.model.scripted import ScriptedModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.edits import check_edit, diff_sent, sending
from ramify.rollout.fork import Fork, compare, fork
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.segment import sentence_offsets, sentences
from tests.rollout.test_run import TASKS, episodes, play, tiny_model, wander

TASK = TASKS[0]


class Ruled(HouseholdEnvironment):
    """Its agent has a rule."""

    def make(self) -> Household:
        env = super().make()
        env.system = "Be quick.\nNever open a chest."
        return env


def obedient(messages: Any, key: int) -> str:
    """Repeats every rule and the last thing it was told, then moves."""
    rules = [m.text for m in messages if m.role == "system"]
    told = [m.text for m in messages if m.role == "user"]
    return f"{'|'.join(rules)} + {told[0][:12]} + {told[-1][:20]}\n{wander([m for m in messages if 'exits ' in m.text], key)}"


@pytest.fixture(params=[True, False], ids=["tokens", "messages"])
def made(tmp_path: Path, request: Any) -> Any:
    with Run.create(tmp_path / "run", {}) as run:
        model = ScriptedModel(obedient, tokens=request.param)
        made = episodes(run, model, Ruled())
        object.__setattr__(made.agent.sampling, "max_tokens", 400)
        yield made


def first(made: Episodes) -> Attempt:
    return play(made, attempts=1)[0]


def do(made: Episodes, attempt: Attempt, node: str, *args: Any, **options: Any) -> Fork:
    return asyncio.run(fork(made, attempt.tree, TASK, node, *args, **options))


def said(made: Episodes, attempt: Attempt) -> str:
    return attempt.turns[0].node.text


def test_a_rule_is_changed_for_what_is_shown_and_not_in_the_history(made: Episodes) -> None:
    attempt = first(made)
    node = attempt.turns[1].node
    for rule, shows in (
        ("Be kind.", "Be kind. +"),
        ({"add": "Sing."}, "Be quick.\nNever open a chest.\nSing. +"),
        ({"remove": "\nNever open a chest."}, "Be quick. +"),
        ({"replace": ["Never", "Always"]}, "Be quick.\nAlways open a chest. +"),
    ):
        forked = do(made, attempt, node.id, n=2, edit={"rule": rule})
        assert [said(made, a).startswith(shows) for a in forked.arm.attempts] == [True, True]
        assert said(made, forked.arm.attempts[0]) in made.run.node(forked.arm.attempts[0].turns[0].node.id).text
        assert forked.control is not None
        assert said(made, forked.control.attempts[0]).startswith("Be quick.\nNever open a chest. +")
        path = made.trees[attempt.tree].path(forked.arm.attempts[0].leaf).messages()
        assert path[0].text == "Be quick.\nNever open a chest.", "the history keeps the rule that stood"
        shown = made.run.shown(forked.arm.attempts[0].turns[0].node.id)
        assert [m.role for m in shown.messages if m.text] == ["system", "user", "assistant", "user"]
        changed = [line for line in forked.diff.splitlines()[3:] if line[0] in "+-"]
        assert changed
        assert all("[" not in line for line in changed), "the rendered diff touches only the rule"
    later = forked.arm.attempts[0].turns[1].node
    assert "Always" in made.run.shown(later.id).messages[0].text, "the rule stays changed"


def test_a_rule_where_there_was_none_and_one_taken_away(tmp_path: Path) -> None:
    for tokens in (True, False):
        with Run.create(tmp_path / f"run{tokens}", {}) as run:
            made = episodes(run, ScriptedModel(obedient, tokens=tokens))
            object.__setattr__(made.agent.sampling, "max_tokens", 400)
            attempt = first(made)
            forked = do(made, attempt, attempt.turns[0].node.id, n=1, edit={"rule": {"add": "Sing."}})
            assert said(made, forked.arm.attempts[0]).startswith("Sing. + Goal")
            with pytest.raises(UserError, match="the system message does not hold 'x'"):
                do(made, attempt, attempt.turns[0].node.id, n=1, edit={"rule": {"remove": "x"}})


def test_a_message_more(made: Episodes) -> None:
    attempt = first(made)
    edit = {"insert": {"role": "user", "text": "Somebody is watching."}}
    for node in (attempt.turns[0].answer, attempt.turns[1].node):
        forked = do(made, attempt, node.id, n=1, edit=edit)
        assert "+ Somebody is watching" in said(made, forked.arm.attempts[0])
        assert "Somebody" not in said(made, forked.control.attempts[0])  # type: ignore[union-attr]
        assert [line for line in forked.diff.splitlines()[3:] if line[0] in "+-"] == ["+[user]", "+Somebody is watching."]
        again = do(made, attempt, forked.arm.attempts[0].turns[0].node.id, n=1)
        assert "+ Somebody is watching" in said(made, again.arm.attempts[0]), "one can fork behind an inserted message"


def test_an_earlier_message_reads_otherwise(made: Episodes) -> None:
    attempt = first(made)
    node = attempt.turns[1].node
    forked = do(made, attempt, node.id, n=1, edit={"history": {"message": 1, "replace": ["Goal: take", "Wish: have"]}})
    assert "+ Wish: have" in said(made, forked.arm.attempts[0])
    forked = do(made, attempt, node.id, n=1, edit={"history": {"message": 2, "text": None}})
    shown = made.run.shown(forked.arm.attempts[0].turns[0].node.id)
    assert [m.role for m in shown.messages if m.text] == ["system", "user", "user"]
    with pytest.raises(UserError, match="message 9 of the prompt cannot be changed: it has messages 0 to 3"):
        do(made, attempt, node.id, n=1, edit={"history": {"message": 9, "text": "x"}})
    with pytest.raises(UserError, match="the last stays"):
        do(made, attempt, node.id, n=1, edit={"history": {"message": 3, "text": None}})


def test_one_text_for_another_wherever_it_is_shown(made: Episodes) -> None:
    attempt = first(made)
    told = next(m.text for m in made.prompts.at(made.load(attempt.tree).node(attempt.start)).messages if m.role == "user")
    forked = do(made, attempt, attempt.turns[1].node.id, n=1, edit={"shown": {"replace": [told[:12], "Elsewhere is"]}})
    assert f"+Elsewhere is{told[12:20]}" in forked.diff
    replies = [turn.node.text for turn in forked.arm.attempts[0].turns]
    assert "+ Elsewhere is +" in replies[0]
    assert f"+ {told[:12]} +" in said(made, attempt)
    with pytest.raises(UserError, match="'shown' changes nothing of what the agent is shown"):
        do(made, attempt, attempt.turns[1].node.id, n=1, edit={"shown": {"replace": ["not there at all", "x"]}})


def test_a_tools_description_and_a_sent_system_prompt() -> None:
    openai = {"type": "function", "function": {"name": "pay", "description": "Pays.", "parameters": {}}}
    plain, other = {"name": "pay", "description": "Pays.", "input_schema": {}}, {"name": "look", "description": "Looks."}
    sent = {"role": "system", "content": [{"type": "text", "text": "Be quick."}]}
    prefix = Prefix(
        messages=(
            Message("system", "Be quick.", sent=sent),
            Message("tool", '{"note": "One\\ntwo."}'),
            Message("assistant", "One\ntwo."),
        ),
        tools=(plain, other),
        asked={"tools": [openai, {"type": "web_search"}], "temperature": 0},
    )
    changed = sending({"tool": {"name": "pay", "description": "Pays at once."}})(prefix)
    assert [tool["description"] for tool in changed.tools] == ["Pays at once.", "Looks."]
    assert changed.asked["tools"][0]["function"]["description"] == "Pays at once."
    assert changed.asked["tools"][1:] == [{"type": "web_search"}]
    assert "+Pays at once." in diff_sent(prefix, changed)
    assert sending({"tool": {"name": "none", "description": "x"}})(prefix).tools == prefix.tools
    swapped = sending({"shown": {"replace": ["One\ntwo.", "Three."]}})(prefix).messages
    assert [message.text for message in swapped] == ["Be quick.", '{"note": "Three."}', "One\ntwo."]  # not what the agent said
    rules = {"add": "Be quick.\nAsk.", "first": "Ask.\nBe quick."}
    for how, text in rules.items():
        ruled = sending({"rule": {how: "Ask."}})(prefix).messages
        assert (ruled[0].text, ruled[0].sent, len(ruled)) == (text, None, 3)
    assert sending({"rule": {"remove": "Be quick."}})(prefix).messages == prefix.messages[1:]
    assert sending({"rule": {"remove": "Be slow."}})(prefix).messages == prefix.messages
    assert sending({"rule": "Ask."})(Prefix(messages=prefix.messages[1:])).messages[0] == Message("system", "Ask.")


def test_a_tool_needs_a_model_of_messages(made: Episodes) -> None:
    attempt = first(made)
    edit = {"tool": {"name": "none", "description": "x"}}
    if made.agent.template is None:
        forked = do(made, attempt, attempt.turns[1].node.id, n=1, edit=edit)  # nothing is offered, so nothing is missed
        assert forked.diff == ""
        return
    with pytest.raises(NeedsError, match="the template of this one renders the tools"):
        do(made, attempt, attempt.turns[1].node.id, n=1, edit=edit)


def test_forks_with_a_start_of_their_own_are_read_again(made: Episodes) -> None:
    attempt = first(made)
    node = attempt.turns[0].node
    one, two = (do(made, attempt, node.id, n=3, edit={"rule": "Sing."}, start=1000) for _ in range(2))
    assert [a.leaf for a in one.arm.attempts] == [a.leaf for a in two.arm.attempts]


def test_a_fork_without_an_edit_at_the_parents_index_is_the_parent(made: Episodes) -> None:
    attempt = first(made)
    same = asyncio.run(made.edited(attempt.tree, TASK, attempt.turns[1].node.id, 0, 0, purpose="rollout"))
    assert same.leaf == attempt.leaf
    other = asyncio.run(made.edited(attempt.tree, TASK, attempt.turns[1].node.id, 0, 0))
    assert other.turns[0].node.id != attempt.turns[1].node.id, "a fork at that index is another sample"


def test_several_edits_share_one_control_and_one_correction(made: Episodes) -> None:
    attempt = first(made)
    edits = {"kind": {"rule": "Be kind."}, "watched": {"insert": {"role": "user", "text": "Watched."}}}
    forks, rows = asyncio.run(compare(made, attempt.tree, TASK, attempt.turns[0].node.id, edits, n=2))
    assert [f.control is None for f in forks] == [False, True]
    assert [row.intervention for row in rows] == ["kind", "watched"]
    record = forks[0].told.to_json()
    assert record["evidence"]["p"] == 1.0
    assert record["diff"]


def test_sentences(tmp_path: Path) -> None:
    text = "It is huge. Nobody looks!\nSo what? Then e.g. stop"
    assert [text[a:b] for a, b in sentences(text, "stops")] == [
        "It is huge.",
        " Nobody looks!\n",
        "So what?",
        " Then e.g.",
        " stop",
    ]
    assert [text[a:b] for a, b in sentences(text, "lines")] == ["It is huge. Nobody looks!\n", "So what? Then e.g. stop"]
    assert sentences(" \n ", "stops") == []
    spans = sentences(text, "stops")
    assert "".join(text[a:b] for a, b in spans) == text
    model = ScriptedModel(lambda messages, key: "It is huge. Nobody looks! go hall")
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, model)
        object.__setattr__(made.agent.sampling, "max_tokens", 99)
        attempt = first(made)
        node = attempt.turns[0].node
        offsets = sentence_offsets(node, "stops", 1)
        assert [node.text[: int(node.ends[o - 1])] for o in offsets] == [  # type: ignore[index]
            "",
            "It is huge.",
            "It is huge. Nobody looks!",
            "It is huge. Nobody looks! go hall",
        ]
        said_so = {"sentence": {"at": 1, "text": " All look.", "by": "stops"}}
        forked = do(made, attempt, node.id, n=1, edit=said_so)
        path = made.trees[attempt.tree].path(forked.arm.attempts[0].turns[0].node.id).messages()
        assert path[-1].text.startswith("It is huge. All look.")
        assert "+It is huge. All look." in forked.diff
        with pytest.raises(UserError, match="has 3 sentences, so there is no position before sentence 7"):
            do(made, attempt, node.id, n=1, edit={"sentence": {"at": 7, "by": "stops"}})
        apart = {"one": said_so, "two": {"sentence": {"at": 2, "text": " None.", "by": "stops"}}}
        with pytest.raises(
            UserError, match=r"one position in node \w+, not one at token \d+, two at token \d+: fork each separately"
        ):
            asyncio.run(compare(made, attempt.tree, TASK, node.id, apart, n=1))
        same = {"one": said_so, "two": {"sentence": {"at": 1, "text": " None.", "by": "stops"}}}
        assert len(asyncio.run(compare(made, attempt.tree, TASK, node.id, same, n=1))[1]) == 2


def test_prose_knows_abbreviations() -> None:
    pytest.importorskip("syntok")
    text = "Fix e.g. the first one. Dr. Who agrees."
    assert [text[a:b].strip() for a, b in sentences(text)] == ["Fix e.g. the first one.", "Dr. Who agrees."]


@pytest.mark.slow
def test_a_hidden_state_moves_the_sample(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        model = tiny_model()
        made = episodes(run, model)
        attempt = first(made)
        node = attempt.turns[0].node
        edit = {"state": {"layer": 2, "vector": (np.random.default_rng(0).normal(size=32) * 30).tolist(), "start": -1, "stop": 0}}
        forked = do(made, attempt, node.id, n=4, edit=edit)
        stored = run.provenance(str(forked.arm.attempts[0].turns[0].node.provenance)).edit
        assert stored is not None
        assert stored["layer"] == 2
        assert isinstance(stored["vector"], str)
        second = forked.arm.attempts[0].turns[1].node
        assert run.provenance(str(second.provenance)).edit is None, "the edit holds for the reply sampled there"
        kept = do(made, attempt, node.id, edit=edit, after="keep")
        assert kept.kept_logprob is not None
        assert kept.kept_logprob != 0
        zero = {"state": {"layer": 2, "vector": [0.0] * 32}}
        assert do(made, attempt, node.id, edit=zero, after="keep").kept_logprob == pytest.approx(0, abs=1e-4)
        ruled = do(made, attempt, node.id, edit={"rule": "Be kind."}, after="keep")
        assert ruled.kept_logprob is not None
        with pytest.raises(UserError, match="width"):
            do(made, attempt, node.id, n=1, edit={"state": {"layer": 1, "vector": [1.0]}})


def test_a_hidden_state_needs_a_model_that_has_one(made: Episodes) -> None:
    attempt = first(made)
    with pytest.raises(NeedsError, match="taps"):
        do(made, attempt, attempt.turns[0].node.id, n=1, edit={"state": {"layer": 1, "vector": [1.0]}})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"rule": {}}, "an object with add, first, remove, replace"),
        ({"rule": {"ad": "x"}}, "did you mean 'add'"),
        ({"rule": {"add": "x", "remove": "y"}}, "takes one of add, first, remove, replace"),
        ({"rule": {"replace": ["a"]}}, "the field 'replace' cannot be"),
        ({"insert": {"role": "user"}}, "lacks the field 'text'"),
        ({"insert": {"role": "assistant", "text": "x"}}, "the field 'role' cannot be"),
        ({"history": {"message": -1, "text": "x"}}, "the field 'message' cannot be -1"),
        ({"history": {"message": 1}}, "takes one of text, replace"),
        ({"state": {"layer": 1}}, "lacks the field 'vector'"),
        ({"state": {"layer": 1, "vector": ["a"]}}, "the field 'vector' cannot be"),
        ({"state": {"layer": 1, "vector": [float("nan")]}}, "the field 'vector' cannot be"),
        ({"append_tokens": [-1]}, "takes a non-empty list of token ids"),
        ({"append_tokens": [1 << 40]}, "takes a non-empty list of token ids"),
        ({"ban_tokens": [1.0]}, "takes a non-empty list of token ids"),
        ({"sentence": {"at": True}}, "the field 'at' cannot be true"),
        ({"insert": "x"}, "an object with role, text"),
    ],
)
def test_bad_edits_are_one_sentence(edit: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        check_edit(edit)
    assert "\n" not in str(caught.value)


class Shaky(HouseholdEnvironment):
    """Fails once, at the third step."""

    failing = True

    def make(self) -> Household:
        env, environment, count = super().make(), self, [0]
        step = env.step

        def shaky(action: str) -> Observation:
            count[0] += 1
            if environment.failing and count[0] == 3:
                raise InfrastructureError("env", "the lights went out")
            return step(action)

        env.step = shaky  # type: ignore[method-assign]
        return env


def test_a_failed_attempt_that_continues_leaves_no_failure_behind(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        environment = Shaky()
        made = episodes(run, environment=environment)
        failed = asyncio.run(made.attempt("t", TASK, 0))
        other = asyncio.run(made.attempt("t", TASK, 1))
        assert "lights" in str(failed.failure)
        assert {(one.index, one.failure, one.success) for one in run.attempts()} == {
            (0, failed.failure, None), (1, other.failure, None)}  # fmt: skip
        assert run.scores() == []
        environment.failing = False
        done = asyncio.run(made.attempt("t", TASK, 0))
        assert done.failure is None
        assert {(one.leaf, one.failure) for one in run.attempts()} == {(done.leaf, None), (other.leaf, other.failure)}
        assert [(v.node, v.value) for v in run.scores()] == [(done.leaf, 0.0)]
