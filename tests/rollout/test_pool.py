"""The pool: who waits for whom, and workers that cannot be started."""

from __future__ import annotations

import asyncio
import sys

import pytest

from ramify.base.errors import RamifyError
from ramify.rollout.backends import Pool, ProcessWorker


def test_a_free_worker_is_not_kept_waiting_behind_one_that_is_tried_alone() -> None:
    async def main() -> None:
        pool = Pool(ProcessWorker.start, 2, 1, b"")
        first, second = await pool._take(False), await pool._take(False)
        other, alone = asyncio.ensure_future(pool._take(False)), asyncio.ensure_future(pool._take(True))
        await asyncio.sleep(0)
        await pool._give(first)
        await pool._give(second)
        for _ in range(20):
            await asyncio.sleep(0)
        assert alone.done()
        assert other.done(), "it waits although a worker is free"
        assert alone.result() is not other.result()

    asyncio.run(main())


def test_a_process_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = Pool(ProcessWorker.start, 1, 1, b"")
        with pytest.raises(RamifyError, match=r"worker 0 died 3 times .*no process can be started: No such file"):
            await pool.call(lambda: b"")
        await pool.close()

    monkeypatch.setattr(sys, "executable", "/no/such/python")
    asyncio.run(main())
