"""Where the recorder's memory goes: into the store's page cache, which is bounded, and nowhere else."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import psutil
import pytest

from ramify.model.protocol import Completion, Identity, Prefix, Sampling
from ramify.trace.message import Message
from ramify.web.exchange import Exchange
from ramify.web.recording import Recorder

pytestmark = pytest.mark.slow

MODEL = Identity("m", "w" * 32)


async def conversations(recorder: Recorder, first: int, end: int) -> None:
    """A conversation of one message each."""
    for at in range(first, end):
        prefix = Prefix(messages=(Message("user", f"question number {at} of many, about something or other"),))
        completion = Completion(
            "an answer of some words to that", "eos", data={"usage": {"prompt_tokens": 9, "completion_tokens": 7}}
        )
        await recorder(Exchange(f"chatcmpl-{at}", "chat", MODEL, (prefix,), Sampling(), ((at,),), ((completion,),)))


def test_nothing_of_a_conversation_stays_on_pythons_heap(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", {})
    try:
        asyncio.run(conversations(recorder, 0, 50))
        tracemalloc.start()
        asyncio.run(conversations(recorder, 50, 250))
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        recorder.close()
    assert kept < 100 << 10  # 200 conversations of 500 bytes and more each, would they stay


@pytest.mark.timeout(600)
def test_memory_is_flat_once_the_stores_page_cache_is_full(tmp_path: Path) -> None:
    recorder, sizes = Recorder(tmp_path / "run", {}), []
    try:
        for first, end in ((0, 100), (100, 9_000), (9_000, 12_000)):
            asyncio.run(conversations(recorder, first, end))
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss / (1 << 20))
    finally:
        recorder.close()
    start, full, later = sizes
    print(f"{full - start:.1f} MiB more after 9,000 conversations, {later - full:.1f} after 3,000 more")
    assert full - start < 14  # 8 MiB of pages, what SQLite keeps of each, and the index of its log
    assert later - full < 1
