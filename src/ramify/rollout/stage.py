"""The environment of an episode: open, step, and restore it to an earlier state (from a snapshot, or by
replaying the recorded actions and checking its answers). Its failures are data."""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from inspect import isawaitable
from typing import Any, TypeVar

from ramify.base.errors import InfrastructureError, RamifyError
from ramify.base.ids import canonical_json
from ramify.env.protocol import Env, Environment, Observation, Snapshot, Task, Volatile, chat_of, close
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
    run: Run | None,
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

    Where both say what of them counts (``request`` in :func:`ramify.env.protocol.chat_of`), that is compared and not the text.
    Raises InfrastructureError("env") where they differ, or the one that the answer ends with.
    Space around the text does not count: chat templates trim it.
    """
    if now.failure:
        raise InfrastructureError(*now.failure.split(": ", 1))
    was, text = recorded.text, now.text
    over = "over" if recorded.stop == "terminated" else "not over"
    is_over = "over" if now.terminated else "not over"
    before, after = chat_of(recorded.data).get("request"), chat_of(now.data).get("request")
    keyed = before is not None and after is not None
    if was.strip() != text.strip() and not (keyed and before == after):
        difference = f"recorded {_short(was)}, now {_short(text)}"
    elif recorded.reward is not None and recorded.reward != now.reward:
        difference = f"after {_short(was)} the recorded reward is {recorded.reward:g}, now {now.reward:g}"
    elif over != is_over or (now.truncated and not recorded.stop):
        is_over = "cut off" if now.truncated else is_over
        difference = f"after {_short(was)} the recorded episode is {over}, now {is_over}"
    elif keyed and before != after:
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


def _snapshot(node: Node, run: Run | None, volatile: Mapping[str, Volatile]) -> Snapshot:
    if node.snapshot is None or run is None:
        return volatile[node.id]
    return run.get_blob(node.snapshot[5:]) if node.snapshot.startswith("blob:") else json.loads(node.snapshot)


def _short(text: str, limit: int = 400) -> str:
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"


VOLATILE = 256
"""Snapshots that cannot be stored are kept for this many of the newest messages."""
T = TypeVar("T")


class Stage:
    """Episodes of one environment. Whatever a third party's environment raises becomes InfrastructureError("env")."""

    def __init__(self, environment: Environment, run: Run | None = None) -> None:
        self.environment, self.run = environment, run
        self.volatile: OrderedDict[str, Volatile] = OrderedDict()
        """Snapshots that cannot be stored, by node."""
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    def gate(self) -> AbstractAsyncContextManager[Any]:
        """Held while an episode is open, where the environment limits how many may be."""
        limit = getattr(self.environment, "at_once", None)
        if limit is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates = {loop: asyncio.Semaphore(limit)}
        return self._gates[loop]

    def make(self) -> Env:
        """One episode, not reset yet."""
        return _guard(f"making the environment '{self.environment.name}'", self.environment.make)

    async def reset(self, env: Env, task: Task, seed: int, recorded: Sequence[Message] = ()) -> Observation:
        """Bring an episode to the start of ``task``; ``recorded`` is the start of the attempt that is branched."""
        recall(env, recorded)
        return await self._seen(f"reset of task '{task.id}'", lambda: env.reset(task, seed))

    async def step(self, env: Env, message: Message, stop: str, recorded: Sequence[Message] = ()) -> Observation:
        """Let the environment act on what the agent said; ``recorded`` is how it answered this step before."""
        whole = getattr(env, "reply", None)
        recall(env, recorded)
        return await self._seen("step", lambda: env.step(message.written()) if whole is None else whole(message, stop))

    def branch(self, env: Env, node: Node, tree: Tree) -> None:
        """Say that what follows continues a recorded attempt, where the environment wants to know."""
        if (told := getattr(env, "branch", None)) is not None:
            own, others = observed(tree, node)
            told(own, others)

    async def close(self, env: Env) -> None:
        """End an episode; errors while the environment closes do not affect the attempt."""
        with suppress(InfrastructureError):
            await self._ask("close", lambda: close(env))

    def state(self, env: Env) -> tuple[Snapshot | None, str | None]:
        """The environment's state now, where it reports one: a snapshot, and the state's key."""
        return _guard("snapshot", lambda: (env.snapshot(), env.key()))

    def keep(self, node_id: str, snapshot: Volatile) -> None:
        """Keep a snapshot that cannot be stored; the oldest of more than :data:`VOLATILE` goes."""
        self.volatile[node_id] = snapshot
        while len(self.volatile) > VOLATILE:
            self.volatile.popitem(last=False)

    async def restore(self, env: Env, task: Task, node: Node, tree: Tree) -> int:
        """Bring an episode that was just reset to its state after ``node``; the number of steps that were replayed.

        Raises InfrastructureError("env") where a replay differs from what is recorded.
        """

        async def step(message: Message, stop: str, recorded: Sequence[Message]) -> Observation:
            return await self.step(env, message, stop, recorded)

        def back(snapshot: Snapshot) -> None:
            _guard("restore", lambda: env.restore(snapshot))

        return await restore(back, step, task, node, tree, self.run, self.volatile)

    async def _seen(self, what: str, action: Callable[[], Any]) -> Observation:
        """The environment's answer, awaited where needed."""
        answer = await self._ask(what, action)
        if isawaitable(answer):
            try:
                answer = await answer
            except RamifyError:
                raise
            except Exception as error:
                raise _failed(what, error) from error
        return _guard(what, lambda: _checked(answer))

    async def _ask(self, what: str, action: Callable[[], T]) -> T:
        """Call the environment, in a thread where it blocks."""
        if getattr(self.environment, "blocking", False):
            return await asyncio.to_thread(_guard, what, action)
        return _guard(what, action)


def _checked(seen: Any) -> Observation:
    """The environment's answer, checked to be an observation that can be stored. Raises TypeError or ValueError."""
    if not isinstance(seen, Observation):
        raise TypeError(f"an Observation was wanted, not {type(seen).__name__}")
    if not isinstance(seen.text, str) or not isinstance(seen.role, str) or not isinstance(seen.data, Mapping):
        raise TypeError("an observation's text and role are texts, its data a mapping")
    seen.text.encode()
    if not math.isfinite(float(seen.reward)):
        raise ValueError(f"a reward must be finite, not {seen.reward}")
    if seen.data:
        canonical_json(dict(seen.data))
    return seen


def _guard(what: str, action: Callable[[], T]) -> T:
    """Whatever a third-party environment raises becomes an infrastructure failure; ramify's own errors keep their kind."""
    try:
        return action()
    except RamifyError:
        raise
    except (Exception, SystemExit) as error:  # exit() of one environment must not end all the others
        raise _failed(what, error) from error


def _failed(what: str, error: BaseException) -> InfrastructureError:
    return InfrastructureError("env", f"{what} failed: {type(error).__name__}: {error}")
