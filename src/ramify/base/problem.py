"""A conformance battery's findings, and how its checks are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a component: the check that found it, and one sentence."""

    check: str
    message: str


def run_checks(checks: Sequence[Callable[[P], Iterable[str]]], probe: P) -> list[Problem]:
    """Run every check on ``probe``: each yields one sentence per fault and is named after its function.
    An exception is a fault, too."""
    problems = []
    for check in checks:
        name = check.__name__.removeprefix("_")
        messages: dict[str, None] = {}
        try:
            for message in check(probe):
                messages[message] = None
        except Exception as error:  # a third-party part may raise anything; that is the finding
            messages[f"it raised {type(error).__name__}: {error}"] = None
        problems += [Problem(name, message) for message in messages]
    return problems
