"""The protocol of scorers: a path in, Verdicts or Streams out. Graders, judges and credit rules are one family.

A scorer that fails raises BoundaryError("scorer"); :func:`score_path` turns that into a verdict without a value: an unscored path
is never a failed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ramify.base.errors import BoundaryError, UserError
from ramify.env.protocol import Task
from ramify.trace.node import Stream, Verdict
from ramify.trace.path import Path


@runtime_checkable
class Scorer(Protocol):
    """Judges the path from a root to a node."""

    name: str
    """Name of the scorer, as stored with its verdicts."""

    @property
    def judge(self) -> str:
        """Stable hash of all that can change a judgement: code version, prompt, model, settings. Verdicts name it under ``name``."""
        ...

    async def score(self, path: Path, task: Task) -> Sequence[Verdict | Stream]:
        """Judge ``path``, an attempt at ``task``. Verdicts point at its last node, streams at nodes on it.

        Raises UserError when the task lacks what the scorer needs, BoundaryError("scorer") when judging itself fails.
        """
        ...


async def score_path(scorer: Scorer, path: Path, task: Task) -> Sequence[Verdict | Stream]:
    """Score, and turn any failure of the scorer but a UserError into one verdict without a value that says what happened."""
    try:
        return await scorer.score(path, task)
    except UserError:
        raise
    except Exception as error:  # a stranger's scorer: its failure is data, siblings go on
        return _failed(scorer, path, error)


async def score_paths(scorer: Scorer, paths: Sequence[Path], tasks: Sequence[Task]) -> list[Sequence[Verdict | Stream]]:
    """:func:`score_path` of many attempts; together where the scorer has ``score_many(paths, tasks)``, which gives errors in place."""
    many = getattr(scorer, "score_many", None)
    if many is None:
        return list(await asyncio.gather(*(score_path(scorer, p, t) for p, t in zip(paths, tasks, strict=True))))
    try:
        found = await many(paths, tasks)
    except BoundaryError as error:
        found = [error] * len(paths)
    return [_failed(scorer, p, one) if isinstance(one, Exception) else one for p, one in zip(paths, found, strict=True)]


def _failed(scorer: Scorer, path: Path, error: Exception) -> list[Verdict | Stream]:
    reason = error.message if isinstance(error, BoundaryError) else f"{type(error).__name__}: {error}"
    node = path.segments[-1][0].id
    return [Verdict(node, scorer.name, None, evidence={"failure": reason}, judges={scorer.name: scorer.judge})]
