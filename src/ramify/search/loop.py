"""The one search loop: choose, expand, absorb. What to choose and what a result means are functions passed in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

State = TypeVar("State")
Pick = TypeVar("Pick")
Result = TypeVar("Result")


async def search(
    state: State,
    select: Callable[[State], Pick | None],
    expand: Callable[[Pick], Awaitable[Result]],
    absorb: Callable[[State, Pick, Result], State],
    *,
    width: int = 1,
    tau: int | None = None,
) -> State:
    """Search until ``select`` returns None and nothing is in flight; returns the last state.

    At most ``width`` expansions are in flight, and a choice is made on statistics that miss at most ``tau`` results (default
    ``width``); ``tau=0`` is the sequential algorithm at any width. Results are absorbed in the order in which they were chosen, so
    the outcome does not depend on the order in which they arrive. An error of one expansion cancels the others and is raised.
    """
    window = min(width, (width if tau is None else tau) + 1)
    if window < 1:
        raise ValueError(f"width {width} and tau {tau} allow no expansion")
    flying: deque[tuple[Pick, asyncio.Future[Result]]] = deque()
    try:
        while True:
            while len(flying) < window and (pick := select(state)) is not None:
                flying.append((pick, asyncio.ensure_future(expand(pick))))
            if not flying:
                return state
            pick, future = flying[0]
            result = await future
            flying.popleft()
            state = absorb(state, pick, result)
    finally:
        for _, future in flying:
            future.cancel()
        await asyncio.gather(*(future for _, future in flying), return_exceptions=True)
