"""Many clients on little memory: who gets a row, who gives one back, and that none of it changes a bit of what is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import BusyError, InfrastructureError, UserError
from ramify.engine import local
from ramify.engine.local import LocalModel
from ramify.engine.taps import Edit, Read, Taps
from ramify.model.protocol import CLIENT, Completion, Prefix, Sampling

from .helpers import sample, tiny, tokens
from .speculating import Shadow
from .test_determinism import bits

PLACE = 4 * 2 * 32
"""Bytes of one position of the tiny model: two layers of 32 numbers."""
LENGTHS = (3, 20, 40, 90, 180)


@cache
def module() -> Any:
    return tiny()


@cache
def alone(length: int, key: int, new: int) -> tuple[bytes, ...]:
    model = LocalModel(module(), max_sequences=1, cache_bytes=0, eos=())
    return bits(sample(model, tokens(length), [key], max_tokens=new)[0])


async def ask(model: LocalModel, owner: str, length: int, keys: Sequence[int], new: int) -> list[Completion]:
    """Samples in the name of a client."""
    CLIENT.set(owner)
    return await model.sample(Prefix(tokens(length)), len(keys), Sampling(max_tokens=new), keys)


def watch(model: LocalModel) -> list[tuple[int, int]]:
    """(active rows, bytes of the cache) after each step from now on."""
    seen: list[tuple[int, int]] = []
    step, cache = model._core.step, model._scheduler.cache

    def watched() -> bool:
        finished = step()
        seen.append((len(model._scheduler.running), cache.kv.nbytes))
        return finished

    model._core.step = watched  # type: ignore[method-assign]
    return seen


REQUEST = st.tuples(
    st.sampled_from("ab"), st.sampled_from(LENGTHS), st.lists(st.integers(0, 2), min_size=1, max_size=4), st.sampled_from([4, 20])
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=7),
    max_sequences=st.sampled_from([1, 3, 8]),
    places=st.sampled_from([256 + 256, 1024, None]),
    cache_bytes=st.sampled_from([0, 20_000, 1 << 24]),
    quantum=st.sampled_from([1, 7, 100]),
    speculate=st.sampled_from([False, False, True]),
)
def test_load_changes_no_bit(
    requests: list[tuple[str, int, list[int], int]],
    max_sequences: int,
    places: int | None,
    cache_bytes: int,
    quantum: int,
    speculate: bool,
) -> None:
    options: dict[str, Any] = {}
    if speculate:
        options = {"drafter": Shadow(module(), block=3), "schedule": "fixed:3"}
    kv_bytes = None if places is None else places * PLACE * (3 if speculate else 2) // 2
    model = LocalModel(
        module(), max_sequences=max_sequences, cache_bytes=cache_bytes, kv_bytes=kv_bytes, quantum=quantum, eos=(), **options
    )
    seen = watch(model)

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(*(ask(model, *request) for request in requests))

    if places == 512 and any(length + new > model.context for _, length, _, new in requests):
        requests = [request for request in requests if request[1] + request[3] <= model.context]
    for (_, length, keys, new), completions in zip(requests, asyncio.run(run()), strict=True):
        assert [bits(d) for d in completions] == [alone(length, key, new) for key in keys]
    assert not model._scheduler.busy
    assert model._scheduler.waiting.count == 0
    assert model._scheduler.cache.prefixes.bytes <= cache_bytes
    assert kv_bytes is None or max((size for _, size in seen), default=0) <= kv_bytes


def test_rows_that_do_not_fit_wait_and_nothing_is_run_twice() -> None:
    model = LocalModel(module(), kv_bytes=512 * PLACE, cache_bytes=1 << 24, eos=())
    seen = watch(model)

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(*(ask(model, "", 20, [key], 60) for key in range(8)))

    completions = asyncio.run(run())
    assert [bits(d[0]) for d in completions] == [alone(20, key, 60) for key in range(8)]
    assert max(rows for rows, _ in seen) == 8  # all while they were short
    assert max(size for _, size in seen) <= 512 * PLACE
    stats = model.stats
    assert stats.preempted > 0
    assert stats.again_tokens == 0
    assert stats.forward_rows - stats.padded_rows <= 20 + 8 * 60  # the shared prefix once, every sampled token once
    poor = LocalModel(module(), kv_bytes=512 * PLACE, cache_bytes=0, eos=())
    found = asyncio.run(poor.sample(Prefix(tokens(20)), 8, Sampling(max_tokens=60), range(8)))
    assert [bits(d) for d in found] == [bits(d[0]) for d in completions]
    assert poor.stats.again_tokens > 0  # what was evicted, and that alone
    extra = poor.stats.forward_rows - poor.stats.padded_rows - (stats.forward_rows - stats.padded_rows)
    assert extra <= poor.stats.again_tokens + 20 * 8


def test_short_rows_that_begin_cut_no_longer_one() -> None:
    model = LocalModel(module(), kv_bytes=1024 * PLACE, cache_bytes=0, eos=())

    async def long_then_short() -> list[Completion]:
        await ask(model, "", 180, [1], 2)  # leaves slots that are longer than anything needs
        return await ask(model, "", 3, range(6), 20)

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(ask(model, "", 90, [0], 25), long_then_short())

    (middle,), short = asyncio.run(run())
    assert bits(middle) == alone(90, 0, 25)
    assert [bits(completion) for completion in short] == [alone(3, key, 20) for key in range(6)]


def test_a_long_row_takes_no_memory_for_rows_that_ended() -> None:
    model = LocalModel(module(), cache_bytes=0, eos=())
    seen = watch(model)

    async def run() -> None:
        await asyncio.gather(ask(model, "", 20, range(16), 4), ask(model, "", 60, [16], 100))

    asyncio.run(run())
    assert max(size for _, size in seen) == 32 * 128 * PLACE  # 17 rows while all are short, 4 at the end, not 32 x 256
    assert seen[-2][1] == 4 * 256 * PLACE


def test_one_row_alone_may_take_what_there_is() -> None:
    model = LocalModel(module(), kv_bytes=512 * PLACE, eos=())
    assert model.context == 128 - 4
    found = sample(model, tokens(100), [1, 2], max_tokens=100)
    assert [(d.stop, len(d.tokens)) for d in found if d.tokens is not None] == [("length", 24)] * 2
    with pytest.raises(InfrastructureError, match="do not fit the context of 124"):
        sample(model, tokens(124), [1])
    assert len(asyncio.run(model.logprobs([tokens(200)]))[0].logprobs) == 200
    with pytest.raises(UserError, match="kv_bytes is 1000; the smallest cache of 'local' has 65536"):
        LocalModel(module(), kv_bytes=1000)


@pytest.mark.parametrize("greedy_completions", [1, 1000])
def test_a_client_with_many_samples_does_not_starve_another(greedy_completions: int) -> None:
    """Counted in steps: the second client's four samples take as long beside a thousand samples as beside one, but for its first
    wait."""
    model = LocalModel(module(), max_sequences=8, eos=())
    seen = watch(model)
    ended = {}

    async def one(owner: str, keys: Sequence[int], wait: int) -> None:
        while len(seen) < wait:
            await asyncio.sleep(0)
        await ask(model, owner, 4, keys, 20)
        ended[owner] = len(seen)

    async def run() -> None:
        many = asyncio.create_task(one("many", range(greedy_completions), 0))
        await one("few", range(4), 1 if greedy_completions > 1 else 0)
        many.cancel()
        await asyncio.gather(many, return_exceptions=True)

    asyncio.run(run())
    assert ended["few"] <= 20 + 20 + 20 + 4  # rows of the other end within 20 steps; half of them are then its own


@pytest.mark.parametrize("turn", [local.TURN, 60.0])
def test_long_rows_give_way_after_their_quantum(turn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps a turn of the event loop has time for."""
    monkeypatch.setattr(local, "TURN", turn)
    model = LocalModel(module(), max_sequences=4, quantum=10, cache_bytes=1 << 24, eos=())
    seen = watch(model)
    ended = {}

    async def one(owner: str, keys: Sequence[int], new: int) -> list[Completion]:
        found = await ask(model, owner, 4 + len(owner), keys, new)
        ended[owner] = len(seen)
        return found

    async def run() -> list[list[Completion]]:
        long = asyncio.create_task(one("long", range(4), 60))
        while len(seen) < 5:
            await asyncio.sleep(0)
        return [*await asyncio.gather(*(one(f"s{i:02}", [i], 5) for i in range(3))), await long]

    *short, long = asyncio.run(run())
    assert max(ended[f"s{i:02}"] for i in range(3)) <= 5 + 10 + 3 * 5 + 10  # not 60
    assert model.stats.preempted >= 1
    assert model.stats.again_tokens == 0
    assert [bits(d) for d in long] == [alone(8, key, 60) for key in range(4)]
    assert [bits(d[0]) for d in short] == [alone(7, i, 5) for i in range(3)]


def test_clients_with_as_many_rows_take_turns() -> None:
    """One row, three clients with long samples: none waits for another's end."""
    model = LocalModel(module(), max_sequences=1, quantum=8, cache_bytes=1 << 24, eos=())
    first: dict[str, int] = {}
    seen = watch(model)

    async def one(owner: str) -> list[Completion]:
        CLIENT.set(owner)

        def until(row: np.ndarray) -> bool:
            first.setdefault(owner, len(seen))
            return False

        return await model.sample(Prefix(tokens(5)), 1, Sampling(max_tokens=30, until=until), [ord(owner)])

    async def run() -> list[list[Completion]]:
        return await asyncio.gather(*(one(owner) for owner in "abc"))

    completions = asyncio.run(run())
    assert max(first.values()) <= 3 * 8
    assert model.stats.again_tokens == 0
    assert [bits(d[0]) for d in completions] == [alone(5, ord(owner), 30) for owner in "abc"]


def test_a_full_queue_says_so() -> None:
    model = LocalModel(module(), max_sequences=2, max_waiting=3, eos=())

    async def run() -> None:
        kept = asyncio.create_task(model.sample(Prefix(tokens(5)), 5, Sampling(max_tokens=10), range(5)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="5 samples wait already; the queue holds 3"):
            await model.sample(Prefix(tokens(6)), 1, Sampling(max_tokens=10), [0])
        assert len(await kept) == 5
        assert len(await model.sample(Prefix(tokens(6)), 4, Sampling(max_tokens=10), range(4))) == 4

    asyncio.run(run())


@pytest.mark.parametrize("active", [True, False])
def test_cancelling_frees_rows_memory_and_places_at_once(active: bool) -> None:
    """In the middle of speculation, with rows parked and samples waiting."""
    target = module()
    drafter = Shadow(target, block=3)
    model = LocalModel(
        target,
        max_sequences=3,
        quantum=2,
        drafter=drafter,
        schedule="fixed:3",
        kv_bytes=1024 * 3 * PLACE // 2,
        cache_bytes=0,
        eos=(),
    )
    seen = watch(model)

    async def run() -> list[Completion]:
        doomed = [asyncio.create_task(ask(model, owner, 4, range(5), 200)) for owner in "ab"]
        if active:
            while not model.stats.preempted:
                await asyncio.sleep(0)
            assert any(group.preempted for queue in model._scheduler.waiting.queues.values() for group in queue)
        else:
            await asyncio.sleep(0)
        kept = asyncio.create_task(ask(model, "c", 9, [5], 60))
        await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        scheduler = model._scheduler
        assert {seq.request.client for seq in scheduler.running} <= {"c"}
        assert set(scheduler.waiting.queues) <= {"c"}
        assert scheduler.waiting.count <= 1
        return await kept

    (found,) = asyncio.run(run())
    assert found.tokens is not None
    assert bits(found) == alone(9, 5, 60)
    assert seen
    assert model._scheduler.cache.bytes == 0  # nothing to keep, nothing kept
    assert not model._scheduler.fairness._active
    assert not model._scheduler.fairness._served


def test_rows_under_taps_survive_preemption() -> None:
    """Their states and patches are made again from the first tap on, with the same bits."""
    taps = Taps(reads=(Read(1, 3, 30),), edits=(Edit(1, 6, np.full(32, 0.3, np.float32)),))

    def run(model: LocalModel) -> Any:
        async def both() -> Any:
            CLIENT.set("tapped")
            tapped = asyncio.create_task(model.sample_tapped(Prefix(tokens(5)), 2, Sampling(max_tokens=40), [1, 2], taps))
            await asyncio.sleep(0)
            other = asyncio.create_task(ask(model, "other", 4, range(4), 10))
            return await tapped, await other

        return asyncio.run(both())[0]

    calm, pressed = LocalModel(module(), eos=()), LocalModel(module(), max_sequences=1, quantum=3, eos=())
    for a, b in zip(run(calm), run(pressed), strict=True):
        assert bits(a.completion) == bits(b.completion)
        assert a.states.keys() == b.states.keys()
        for layer in a.states:
            assert a.states[layer].keys() == b.states[layer].keys()
            assert all(np.array_equal(a.states[layer][p], b.states[layer][p]) for p in a.states[layer])
    assert pressed.stats.preempted > 0
