"""Errors and exit codes. A user's mistake is one sentence; an infrastructure failure becomes data on the tree."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_BUDGET, EXIT_NEEDS, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


class RamifyError(Exception):
    """Base of every error ramify raises on purpose. ``exit_code`` is what the command line returns."""

    exit_code = EXIT_FAILED


class UserError(RamifyError):
    """Bad input, usage or configuration: one sentence that names the file, line, field or node (exit code 2)."""

    exit_code = EXIT_USAGE


class BudgetSpentError(RamifyError):
    """A budget ran out; finished work is kept (exit code 3)."""

    exit_code = EXIT_BUDGET


class InterruptedRunError(RamifyError):
    """Ctrl-C; the sentence says what was kept and how to continue (exit code 130)."""

    exit_code = EXIT_INTERRUPTED


class NeedsError(RamifyError):
    """A component lacks a capability that the work needs; raised before anything runs (exit code 4)."""

    exit_code = EXIT_NEEDS


class CellError(RamifyError):
    """The function of an experiment's cell raised; the message names the cell's key. Finished cells stay cached."""


class BusyError(RamifyError):
    """A queue is full; nothing was started. Retry later."""


class InfrastructureError(RamifyError):
    """A failure of the infrastructure, not of the agent. The rollout records it on the tree; sibling attempts continue.

    ``boundary`` is one of provider, engine, env, tool, sandbox, scorer, compactor, template. It names the component that failed.
    ``kind`` is a finer name where that component has one; ``final`` is True where a retry is pointless or was done already.
    Secrets are redacted from ``message``, which may quote third-party code or a server."""

    kind: str = ""
    final: bool = False

    def __init__(self, boundary: str, message: str) -> None:
        from ramify.base.secrets import redact

        message = redact(message)
        super().__init__(f"{boundary}: {message}")
        self.boundary = boundary
        self.message = message


def nearest(name: str, options: Iterable[str]) -> str:
    """A clause that suggests the nearest of ``options``, or lists them when none is near: ``did you mean 'x'?``"""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + (", ".join(known[:12]) + (", ..." if len(known) > 12 else "") if known else "none")
