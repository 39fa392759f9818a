"""The protocol of scorers: a path in, Verdicts or Streams out. Graders, judges and credit rules are one family.

A scorer that fails raises BoundaryError("scorer"); :func:`score_path` turns that into a verdict without a value: an unscored path
is never a failed one.
"""

from __future__ import annotations

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
    except BoundaryError as error:
        reason = error.message
    except Exception as error:  # a stranger's scorer: its failure is data, siblings go on
        reason = f"{type(error).__name__}: {error}"
    node = path.segments[-1][0].id
    return [Verdict(node, scorer.name, None, evidence={"failure": reason}, judges={scorer.name: scorer.judge})]
