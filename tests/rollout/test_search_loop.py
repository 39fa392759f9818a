"""The search loop: order of absorption, width, staleness, errors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.rollout.search import search


def run_search(total: int, width: int, tau: int | None, delays: list[int]) -> tuple[list[int], list[int], int]:
    """Picks 0..total-1; returns what was absorbed, how many results each choice missed, and the most in flight."""
    chosen: list[int] = []
    missed: list[int] = []
    absorbed: list[int] = []
    flying, most = 0, 0

    def select(state: list[int]) -> int | None:
        if len(chosen) == total:
            return None
        missed.append(len(chosen) - len(state))
        chosen.append(len(chosen))
        return chosen[-1]

    async def expand(pick: int) -> int:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        for _ in range(delays[pick % len(delays)]):
            await asyncio.sleep(0)
        flying -= 1
        return pick

    def absorb(state: list[int], pick: int, result: int) -> list[int]:
        assert pick == result
        absorbed.append(pick)
        return absorbed

    asyncio.run(search(absorbed, select, expand, absorb, width=width, tau=tau))
    return absorbed, missed, most


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 12),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 6)),
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
)
def test_absorbs_in_order_of_choice_within_staleness_and_width(
    total: int, width: int, tau: int | None, delays: list[int]
) -> None:
    absorbed, missed, most = run_search(total, width, tau, delays)
    assert absorbed == list(range(total))
    assert max(missed, default=0) <= (width if tau is None else tau)
    assert most <= width


@pytest.mark.parametrize("width", [1, 4])
def test_tau_0_is_sequential(width: int) -> None:
    _, missed, most = run_search(6, width, 0, [3, 0, 1])
    assert missed == [0] * 6
    assert most == 1


def test_an_error_cancels_the_rest_and_is_raised() -> None:
    cancelled = []

    async def expand(pick: int) -> int:
        if pick == 0:
            raise RuntimeError("boom")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(pick)
            raise
        return pick

    picks = iter(range(3))
    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(search(0, lambda _: next(picks, None), expand, lambda s, p, r: s, width=3))
    assert cancelled == [1, 2]


def test_no_room_is_refused() -> None:
    async def expand(pick: int) -> int:
        return pick

    with pytest.raises(ValueError, match="allow no expansion"):
        asyncio.run(search(0, lambda _: None, expand, lambda s, p, r: s, width=0))
