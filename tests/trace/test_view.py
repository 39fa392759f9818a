"""A path read once: messages with their tokens, steps with what was shown before each and what was paid for it, and how attempts
ended."""

from __future__ import annotations

from pathlib import Path as File
from typing import Any

import numpy as np
from hypothesis import given
from trace_cases import trees

from ramify.base.errors import NeedsError
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord, Insert, Node, Score, make_node
from ramify.trace.outcome import paid
from ramify.trace.path import Path
from ramify.trace.tree import Tree
from ramify.trace.view import HowEnded, SeenSoFar, messages_of, opening_of, seen_after, steps_of, token_messages, views, walk

CALL = {"id": "1", "type": "function", "function": {"name": "go", "arguments": '{"way": "up"}'}}


def hang(*messages: tuple[str, str, dict[str, Any]]) -> list[Node]:
    """A chain of nodes of one tree below an empty root."""
    nodes = [make_node("t", None, 0, "root", "")]
    for role, text, fields in messages:
        at = fields.pop("offset", len(nodes[-1]))
        nodes.append(make_node("t", nodes[-1].id, at, role, text, **fields))
    return nodes


def test_steps_of_a_chat_with_tools() -> None:
    path = Path.of(
        hang(
            ("system", "Play.", {}),
            ("user", "hall", {"state_key": "h"}),
            ("assistant", "up", {"data": {"tool_calls": [CALL, CALL]}}),
            ("tool", "attic", {"reward": 0.5, "data": {"valid": False}}),
            ("tool", "dark", {"state_key": "a"}),
            ("assistant", "wait", {}),
            ("assistant", "down", {}),
            ("user", "hall", {"reward": 1.0}),
        )
    )
    messages = messages_of(path)
    assert [m.text for m in opening_of(messages)] == ["Play."]
    up, wait, down = steps_of(messages)
    assert (up.observation, up.state_key, up.reward, up.valid) == ("hall", "h", 0.5, False)
    assert up.action == 'up\ngo({"way": "up"})\ngo({"way": "up"})'
    assert (wait.observation, wait.state_key, wait.reward) == ("attic\ndark", "a", 0.0)
    assert ([m.text for m in wait.shown], down.shown) == (["attic", "dark"], ())
    assert (down.observation, down.reward, down.valid) == ("attic\ndark", 1.0, True), "two replies in a row saw the same"
    assert [step.span for step in (up, wait, down)] == [(2, 3), (5, 6), (6, 7)]


def test_a_reply_forked_inside_is_one_step_with_its_tokens() -> None:
    sampled = {"tokens": [8, 9, 10], "sampled": [0, 1, 1], "ends": [0, 2, 4]}
    path = Path.of(
        hang(
            ("user", "hi", {"tokens": [1, 2], "ends": [1, 2]}),
            ("assistant", "abcd", sampled),
            ("assistant", "XY", {"tokens": [11], "ends": [2], "opens": False, "offset": 2}),
            ("assistant", "z", {"tokens": [12], "sampled": [1], "ends": [1], "opens": False}),
        )
    )
    (step,) = steps_of(messages_of(path))
    assert (step.reply.text, step.span) == ("abXYz", (2, 6))
    assert step.reply.tokens is not None
    assert step.reply.ends is not None
    assert step.reply.sampled is not None
    np.testing.assert_array_equal(step.reply.tokens, path.tokens[slice(*step.span)])
    assert step.reply.ends.tolist() == [0, 2, 4, 5]
    assert step.reply.sampled.tolist() == [False, True, False, True]
    assert step.node == path.segments[-1][0].id


def test_messages_of_a_context_that_shows_less_than_the_path() -> None:
    root, first, reply = hang(
        ("user", "long story", {"tokens": [1, 2, 3], "ends": [4, 5, 10]}), ("assistant", "ok", {"tokens": [4], "ends": [2]})
    )
    shown = token_messages([(root, 0, 0), Insert("so far:", (7, 8), "user"), (first, 1, 3), (reply, 0, 1)])
    assert [(m.role, m.text, m.start) for m in shown] == [("user", "so far: story", 0), ("assistant", "ok", 4)]
    assert shown[0].tokens is not None
    assert shown[0].tokens.tolist() == [7, 8, 2, 3]
    assert shown[0].ends is None, "nobody knows where the inserted tokens end"


def test_attempts_of_a_run_and_how_they_ended(tmp_path: File) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("up/t", {"id": "t"}, "up")
        root = make_node("up/t", None, 0, "root", "")
        asked = make_node("up/t", root.id, 0, "user", "?")
        won, lost, broken, left = (make_node("up/t", asked.id, 1, "assistant", f"reply {i}", index=i) for i in range(4))
        run.add(root, asked, won, lost, broken, left)
        run.add(Score(won.id, "env", 0.2), Score(lost.id, "env", 1.0))
        run.add(AttemptRecord(lost.id, "up/t", outcome=False, reward=1.0, truncated=True, index=1))
        run.add(AttemptRecord(broken.id, "up/t", failure="503", index=2))
        found = {view.leaf: view for view in views(run)}
        assert found.keys() == {won.id, lost.id, broken.id}
        assert views(run).__next__().leaf == min(found)
        assert [(found[n.id].reward, found[n.id].success, found[n.id].cut) for n in (won, lost)] == [
            (0.2, True, False), (1.0, False, True)]  # fmt: skip
        assert (found[broken.id].broken_off, found[broken.id].success) == ("503", None)
        assert {(view.task, view.cohort) for view in found.values()} == {("t", "up/t")}
        (more,) = (view for view in views(run, unjudged=True) if view.leaf not in found)
        assert (more.leaf, more.reward, more.success, more.failure) == (left.id, None, None, None)


@given(trees())
def test_a_walk_down_a_tree_reads_what_its_paths_say(nodes: list[Node]) -> None:
    def plain(seen: SeenSoFar) -> list[Any]:
        shown = [[(m.role, m.text, m.start, [n.id for n in m.nodes]) for m in part] for part in seen[:3]]
        return [*shown, dict(seen.before), dict(seen.said), seen.replies, seen.observation]

    tree = Tree("t", nodes)
    reached = {here.node.id: here for here in walk(tree)}
    assert reached.keys() == tree.nodes.keys()
    for node, here in reached.items():
        path = tree.path(node)
        assert here.paid == paid(path)
        try:
            messages = messages_of(path)
        except NeedsError:  # a path that cannot be cut has no view; a page shows what the last piece holds
            continue
        assert plain(here.seen) == plain(seen_after(messages))
        assert here.seen.replies == len(steps_of(messages))
        assert not here.parts or plain(here.above) == plain(seen_after(messages[:-1]))


def test_a_completion_is_a_reply_to_its_prompt() -> None:
    path = Path.of(
        hang(
            ("user", "One, two,", {"tokens": [1, 2], "ends": [4, 9]}),
            ("assistant", " three", {"tokens": [3], "sampled": [1], "ends": [6], "opens": False}),
            ("user", ", four,", {"tokens": [4], "ends": [7], "opens": False}),
            ("assistant", " five", {"tokens": [5], "sampled": [1], "ends": [5], "opens": False}),
        )
    )
    assert [(step.observation, step.action, step.span) for step in steps_of(messages_of(path))] == [
        ("One, two,", " three", (2, 3)),
        (", four,", " five", (4, 5)),
    ]


def test_an_end_in_one_word() -> None:
    failed, cut, plain = (make_node("t", None, 0, "user", "?", stop=stop) for stop in ("failed", "truncated", ""))
    assert [HowEnded(node, None, None, 1.0).word for node in (failed, cut, plain)] == ["done", "success", "success"]
    assert [HowEnded(node, None, None, 0.0).word for node in (failed, cut, plain)] == ["done", "cut", "failure"]
    assert HowEnded(plain).word == "done"
    assert HowEnded(plain, AttemptRecord(plain.id, "t", reward=2.0), None, 0.0).word == "success"
    assert HowEnded(plain, AttemptRecord(plain.id, "t", failure="503"), None, 1.0).word == "done"
