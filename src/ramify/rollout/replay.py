"""Restore an environment's earlier state: from a snapshot, or by replaying the recorded actions and checking its answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ramify.base.errors import InfrastructureError
from ramify.env.protocol import Env, Observation, Snapshot, Task, Volatile, chat_of
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from ramify.trace.path import message_of
from ramify.trace.tree import Tree


async def restore(
    back: Callable[[Snapshot], None],
    step: Callable[[Message, str, Sequence[Message]], Awaitable[Observation]],
    task: Task,
    node: Node,
    tree: Tree,
    run: Run,
    volatile: Mapping[str, Volatile],
) -> int:
    """Bring an environment, just reset to ``task``, to its state after ``node``; returns how many steps were replayed.

    It goes ``back`` to the nearest message above whose snapshot is stored or in ``volatile`` (by node id), else stays at the
    start, and takes the recorded actions from there with ``step``. Raises InfrastructureError("env") naming the first step whose
    answer is not the recorded one.
    """
    segments = tree.path(node.id).segments
    start = 0
    for at in range(len(segments) - 1, -1, -1):
        known = segments[at][0]
        if known.snapshot is not None or known.id in volatile:
            back(_snapshot(known, run, volatile))
            start = at + 1
            break
    turns = sum(n.role == "assistant" and n.opens for n, _ in segments[:start])
    replayed, reply = 0, list[tuple[Node, int]]()
    for at, (seen, kept) in enumerate(segments[start:], start):
        if seen.role == "assistant":
            reply.append((seen, kept))
        elif reply:
            turns, replayed = turns + 1, replayed + 1
            message = message_of([(part, 0, length) for part, length in reply])
            answer = [_original(seen, tree)]
            for more, _ in segments[at + 1 :]:  # a recording has one message for each tool call
                if more.role != "tool" or seen.role != "tool":
                    break
                answer.append(more)
            now = await step(message, reply[-1][0].stop, [one.message for one in answer])
            recorded = answer[0] if len(answer) == 1 else replace(answer[-1], text="\n".join(one.text for one in answer))
            check(task, turns, recorded, now)
            reply = []
    return replayed


def recall(env: Env, recorded: Sequence[Message]) -> None:
    """Tell the environment how its next step was answered before, where it wants to know and there is anything."""
    told = getattr(env, "recall", None)
    if told is not None and recorded:
        told(recorded)


def observed(tree: Tree, node: Node) -> tuple[Iterator[Message], Iterator[Message]]:
    """The observations on the path to ``node`` and below it, and all others of the tree, each in order. Their ``tool_results``
    have the ``arguments`` of the calls, too.
    """
    own = {one.id for one, _ in tree.path(node.id).segments}
    below = [node.id]
    while below:
        found = tree.children(below.pop())
        own |= {one.id for one in found}
        below += [one.id for one in found]
    answers = [one for one in tree.nodes.values() if one.role not in ("assistant", "system", "root")]
    return (_answer(tree, one) for one in answers if one.id in own), (_answer(tree, one) for one in answers if one.id not in own)


def _answer(tree: Tree, seen: Node) -> Message:
    """An observation with the arguments of the calls that it answers, which stand in the reply before it."""
    message, parts = seen.message, list[tuple[Node, int, int]]()
    shown = message.data.get("tool_results")
    if not shown:
        return message
    child = seen
    while child.parent is not None and (reply := tree.nodes[child.parent]).role == "assistant":
        parts.append((reply, 0, child.offset))
        child = reply
        if reply.opens:
            break
    calls = message_of(parts[::-1]).calls if parts else []
    results = [{**one, "arguments": dict(call.arguments)} for call, one in zip(calls, shown, strict=False)]
    return replace(message, data={**message.data, "tool_results": results})


def check(task: Task, step: int, recorded: Node, now: Observation) -> None:
    """Compare the environment's answer at ``step`` (0: its start) with the recorded one: text, reward, and whether it ended.

    Raises InfrastructureError("env") where they differ, or the one that the answer ends with.
    Space around the text does not count: chat templates trim it.
    """
    if now.failure:
        raise InfrastructureError(*now.failure.split(": ", 1))
    was, text = recorded.text, now.text
    over = "over" if recorded.stop == "terminated" else "not over"
    is_over = "over" if now.terminated else "not over"
    if was != text and was.strip() != text.strip():
        difference = f"recorded {_short(was)}, now {_short(text)}"
    elif recorded.reward is not None and recorded.reward != now.reward:
        difference = f"after {_short(was)} the recorded reward is {recorded.reward:g}, now {now.reward:g}"
    elif over != is_over or (now.truncated and not recorded.stop):
        is_over = "cut off" if now.truncated else is_over
        difference = f"after {_short(was)} the recorded episode is {over}, now {is_over}"
    elif (
        None not in (before := chat_of(recorded.data).get("request"), after := chat_of(now.data).get("request"))
        and before != after
    ):
        difference = f"at {_short(was)} the agent shows or offers its model something else than was recorded"
    else:
        return
    raise InfrastructureError("env", f"replay of task '{task.id}' differs at step {step}: {difference}")


def _original(node: Node, tree: Tree) -> Node:
    """The answer the environment gave where ``node`` is one that was edited."""
    if "edit" not in node.data or node.parent is None:
        return node
    siblings = tree.children(node.parent)
    return next((other for other in siblings if other.role == node.role and "edit" not in other.data), node)


def _snapshot(node: Node, run: Run, volatile: Mapping[str, Volatile]) -> Snapshot:
    if node.snapshot is None:
        return volatile[node.id]
    return run.get_blob(node.snapshot[5:]) if node.snapshot.startswith("blob:") else json.loads(node.snapshot)


def _short(text: str, limit: int = 400) -> str:
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"
