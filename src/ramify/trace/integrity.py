"""Integrity check of a run: its file, the content of every hash, and the references between records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ramify.base.errors import RamifyError, UserError
from ramify.base.problem import Problem
from ramify.trace.db import KINDS, Run

MOST = 20
"""Problems of one check that are listed; the rest are counted."""


def check_run(folder: Path) -> list[Problem]:
    """Read the whole run at ``folder`` and verify its hashes; no problem means undamaged.

    Data without a hash (log-probabilities, rewards, scores, settings) is checked for its form only. Raises UserError where
    ``folder`` holds no run.
    """
    problems: list[Problem] = []
    try:
        with Run.open(folder) as run:
            for name, check in _CHECKS.items():
                messages = list(check(run))
                problems += [Problem(name, message) for message in messages[:MOST]]
                if len(messages) > MOST:
                    problems.append(Problem(name, f"and {len(messages) - MOST} more"))
    except UserError:
        raise
    except RamifyError as error:
        problems.append(Problem("file", str(error)))
    return problems


def _file(run: Run) -> Iterator[str]:
    """SQLite's own check of pages, indexes and keys."""
    yield from run.faults()


def _records(run: Run) -> Iterator[str]:
    """Every record decodes; nodes, contexts and provenances have the content that their hash says."""
    for kind in KINDS:
        yield from run.unreadable(kind)


def _blobs(run: Run) -> Iterator[str]:
    """Every blob has the content that its name says, and every snapshot in one is there."""
    for name in run.blobs.names():
        try:
            run.get_blob(name)
        except RamifyError as error:
            yield str(error)
    for node, name in run.missing_blobs():
        yield f"node {node} has its snapshot in blob '{name}', which is missing"


_CHECKS: dict[str, Callable[[Run], Iterator[str]]] = {"file": _file, "records": _records, "blobs": _blobs}
CHECKS = list(_CHECKS)
"""Names of the checks, in order."""
