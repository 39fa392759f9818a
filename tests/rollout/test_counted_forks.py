"""One class counts forks: what a path, a position and continuing are is a function's business."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from ramify.base.errors import UserError
from ramify.rollout.potential import Fixed, ForkEnd, Forks, UntilLost, potential
from ramify.stats.drops import Counts

ENDS: dict[str, Callable[[random.Random], ForkEnd]] = {
    "fair": lambda rng: ForkEnd(rng.random() < 0.5, sampled_tokens=3),
    "cut": lambda rng: ForkEnd(True, truncated=True, turns=2),
    "gone": lambda rng: ForkEnd(None, failure="no memory"),
    "known": lambda rng: ForkEnd(False, played=False),
}


async def play(path: str, place: str, numbers: range, purpose: str) -> list[ForkEnd]:
    return [ENDS[place](random.Random(f"{path} {place} {purpose} {i}")) for i in numbers]


def test_any_position_is_counted_by_its_function() -> None:
    forks = Forks(play)
    counts, _ = asyncio.run(potential(forks, "a", list(ENDS), Fixed(20)))
    assert 0 < counts["fair"].k < counts["fair"].n == 20
    assert [counts[place] for place in ("cut", "gone", "known")] == [Counts(0, 0, truncated=20), Counts(0, 0, 20), Counts(0, 20)]
    assert asyncio.run(Forks(play, "graded").count("a", "cut", 20, "scan")) == Counts(20, 20)
    assert forks.first_failure == "no memory"
    spent = forks.spent()
    assert (spent.forks, spent.sampled_tokens, spent.turns) == (60, 60, 40), "what is known costs nothing"
    assert spent.by_purpose["scan"]["forks"] == 60
    _, lost = asyncio.run(potential(forks, "a", ["fair", "known", "fair"], UntilLost(8, 1)))
    assert lost == "known"


def test_counts_add_up_by_index_and_a_purpose_has_its_own() -> None:
    async def counted(n: int, start: int = 0, purpose: str = "scan") -> Counts:
        return await Forks(play).count("a", "fair", n, purpose, start)

    assert asyncio.run(counted(64)) == asyncio.run(counted(16)) + asyncio.run(counted(48, 16))
    assert asyncio.run(counted(500)) != asyncio.run(counted(500, purpose="confirm"))
    for n, start in ((0, 0), (4, -1)):
        with pytest.raises(UserError, match="at least one from 0 on"):
            asyncio.run(counted(n, start))
