"""Retry policy for infrastructure failures. A failure that is not retried becomes data on the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ramify.base.errors import InfrastructureError

T = TypeVar("T")


@dataclass(frozen=True)
class FailurePolicy:
    """Retries per component (provider, engine, env, tool, sandbox, scorer),
    with exponential backoff; then the failure is recorded."""

    retries: Mapping[str, int] = field(default_factory=lambda: {"provider": 2})
    wait: float = 0.5
    """Seconds before the first retry; doubled for each further one."""

    async def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run ``action``, with the retries of the component that failed. Raises the last InfrastructureError."""
        tries = 0
        while True:
            try:
                return await action()
            except InfrastructureError as error:
                if error.final or tries >= self.retries.get(error.boundary, 0):
                    raise
                await asyncio.sleep(self.wait * 2**tries)
                tries += 1
