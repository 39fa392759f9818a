"""How a battery runs its checks: each is a function of one probe, which holds the component and how it is tried, and yields a
sentence for every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

from ramify.base.errors import NeedsError
from ramify.base.problem import Problem

P = TypeVar("P")


def name_of(check: Callable[..., Any]) -> str:
    """A check is named after its function."""
    return check.__name__.removeprefix("_")


def run_checks(
    checks: Sequence[Callable[[P], Iterable[str]]],
    probe: P,
    begins: Callable[[int], None] = lambda number: None,
    ends: Callable[[], Iterable[str]] = tuple,
) -> list[Problem]:
    """Run every check on ``probe``. An exception is a fault, too.

    ``begins`` is told the number of the check that begins; what ``ends`` yields after it are faults of that check.
    """
    problems: list[Problem] = []
    for number, check in enumerate(checks):
        begins(number)
        messages: dict[str, None] = {}
        try:
            for message in check(probe):
                messages[message] = None
        except Exception as error:  # a third-party part may raise anything; that is the finding
            messages[_raised(error)] = None
        messages |= dict.fromkeys(ends())
        problems += [Problem(name_of(check), message) for message in messages]
    return problems


async def await_checks(checks: Sequence[Callable[[P], AsyncIterator[str]]], probe: P, together: bool = False) -> list[Problem]:
    """:func:`run_checks` for checks that wait; ``together``: all at once. Raises NeedsError where it cannot run here."""

    async def run(check: Callable[[P], AsyncIterator[str]]) -> list[Problem]:
        messages: dict[str, None] = {}
        try:
            async for message in check(probe):
                messages[message] = None
        except NeedsError:
            raise
        except Exception as error:  # a third-party part may raise anything; that is the finding
            messages[_raised(error)] = None
        return [Problem(name_of(check), message) for message in messages]

    every = await asyncio.gather(*map(run, checks)) if together else [await run(check) for check in checks]
    return [problem for problems in every for problem in problems]


def _raised(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {error}"
