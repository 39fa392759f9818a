"""Scan: fork over many positions of one path, with a shared stopping rule, and count successes (k of n) at each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.rollout.fork import fork
from ramify.rollout.run import Episodes
from ramify.stats.intervals import wilson


@dataclass(frozen=True)
class ScanPoint:
    """Success counts of continuations from one place."""

    node: str
    offset: int
    successes: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the success probability from here."""
        return wilson(self.successes, self.n) if self.n else (0.0, 1.0)


def turn_starts(episodes: Episodes, tree: str, leaf: str) -> list[tuple[str, int | None]]:
    """Places before each of the agent's messages on the path to ``leaf``."""
    return [(node.id, None) for node, _ in episodes.load(tree).path(leaf).segments if node.role == "assistant" and node.opens]


async def scan(
    episodes: Episodes,
    tree: str,
    task: Task,
    positions: Iterable[tuple[str, int | None]],
    n: int = 32,
    chunk: int = 8,
    stop: Callable[[int, int], bool] | None = None,
) -> list[ScanPoint]:
    """Up to ``n`` continuations from every position, ``chunk`` at a time; ``stop(successes, tries)`` ends a position early.

    Positions are (node id, offset) as in :func:`fork`; all of them run at once and share cached prefixes.
    """
    if n < 1 or chunk < 1:
        raise UserError("a scan needs n and chunk of at least 1")

    async def one(node: str, offset: int | None) -> ScanPoint:
        successes = tries = 0
        where = offset or 0
        while tries < n and not (stop and tries and stop(successes, tries)):
            result = await fork(episodes, tree, task, node, offset, min(chunk, n - tries))
            successes, tries, where = successes + result.arm.successes, tries + result.arm.scored, result.offset
            if not result.arm.scored:  # every continuation failed at a boundary: more of them would, too
                break
        return ScanPoint(node, where, successes, tries)

    return list(await asyncio.gather(*(one(node, offset) for node, offset in positions)))
