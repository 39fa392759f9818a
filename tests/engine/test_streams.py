from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import numpy as np

import ramify
from ramify.engine.local import LocalModel
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.streaming import Piece, stream

from .helpers import tiny, tokens

HOUSEHOLD = Path(ramify.__file__).parent / "assets" / "household"


def read(model: LocalModel, prefix: Prefix, settings: Sampling, key: int) -> list[Piece]:
    async def run() -> list[Piece]:
        async with aclosing(stream(model, prefix, settings, key)) as pieces:
            return [piece async for piece in pieces]

    return asyncio.run(run())


def test_a_stream_is_the_sample_that_sample_makes() -> None:
    model = LocalModel.load(HOUSEHOLD)
    assert model.tokenizer is not None
    given = np.array([1, *model.tokenizer.encode("go to the hall"), 4, 2], np.int32)
    prefix = Prefix(given)
    settings = Sampling(temperature=3.0, max_tokens=40, ban=(4,))
    pieces = read(model, prefix, settings, 5)
    (completion,) = asyncio.run(model.sample(prefix, 1, settings, [5]))
    assert len(pieces) > 2
    made = pieces[-1].completion
    assert isinstance(made, Completion)
    assert "".join(piece.text for piece in pieces) == completion.text == made.text
    for name in ("tokens", "logprobs", "model_logprobs", "ends"):
        joined = np.concatenate([getattr(piece, name) for piece in pieces])
        assert np.array_equal(joined, getattr(completion, name)), name
    again = read(model, prefix, settings, 6)[-1].completion
    assert made.data == {"usage": {"prompt_tokens": len(given), "completion_tokens": 40, "cached_tokens": 0}}
    assert again is not None
    assert again.data is not None
    assert again.data["usage"]["cached_tokens"] > 0


def test_a_closed_stream_frees_its_row() -> None:
    model = LocalModel(tiny(), eos=())

    async def run() -> None:
        async with aclosing(stream(model, Prefix(tokens(5)), Sampling(max_tokens=200), 1)) as pieces:
            async for _ in pieces:
                assert model.gauges["rows"] == 1
                break
        assert (model.gauges["rows"], model.gauges["rows_waiting"]) == (0, 0)

    asyncio.run(run())
