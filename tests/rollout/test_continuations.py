"""Sampling continuations: what an end in the middle leaves behind."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from ramify.model.protocol import Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.sampler import Sampler


def test_samples_cancelled_before_their_turn_leave_nothing_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    sampler = Sampler(ScriptedModel(["yes"] * 4))

    async def interrupted() -> None:
        task = asyncio.ensure_future(sampler.sample(Prefix(np.array([1, 2], np.int32)), 4, Sampling(max_tokens=2), ("here",)))
        await asyncio.sleep(0)  # the four are planned, none has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
