"""Coroutines called from code that is none."""

from __future__ import annotations

import asyncio

import pytest

from ramify.base.waiting import complete, wait_for


class Written:
    """Notes that somebody wrote it out."""

    count = 0

    def __repr__(self) -> str:
        Written.count += 1
        return "much"


async def made() -> Written:
    await asyncio.sleep(0)
    return Written()


def test_what_a_coroutine_returns_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Written, "count", 0)
    with asyncio.Runner() as loop:
        assert isinstance(wait_for(made()), Written)
        assert isinstance(wait_for(made(), loop), Written)
    assert Written.count == 0


def test_what_a_coroutine_raises_is_raised() -> None:
    async def failing() -> None:
        raise LookupError("it")

    for call in (lambda: wait_for(failing()), lambda: wait_for(failing)):
        with pytest.raises(LookupError, match="it"):
            call()


def test_another_loop_may_wait() -> None:
    async def inside() -> Written:
        return wait_for(made)

    assert isinstance(asyncio.run(inside()), Written)
