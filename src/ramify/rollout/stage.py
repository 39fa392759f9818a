"""The environment of an episode: open, step, and restore it to an earlier state. Its failures are data."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from inspect import isawaitable
from typing import Any, TypeVar

from ramify.base.errors import InfrastructureError, RamifyError
from ramify.base.ids import canonical_json
from ramify.env.protocol import Env, Environment, Observation, Snapshot, Task, Volatile, close
from ramify.rollout.replay import observed, recall, restore
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from ramify.trace.tree import Tree

VOLATILE = 256
"""Snapshots that cannot be stored are kept for this many of the newest messages."""
T = TypeVar("T")


class Stage:
    """Episodes of one environment. Whatever a third party's environment raises becomes InfrastructureError("env")."""

    def __init__(self, environment: Environment, run: Run) -> None:
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
