from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramify
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.model.streaming import Detokenizer, Piece, Report, gathered, reported, stream, whole
from ramify.model.tokenizer import HfTokenizer

HOUSEHOLD = HfTokenizer.load(Path(ramify.__file__).parent / "assets" / "household")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, HOUSEHOLD.size - 1), max_size=24), st.lists(st.integers(1, 5), min_size=24, max_size=24))
def test_any_tokens_pushed_in_any_portions_spell_what_all_of_them_spell(tokens: list[int], portions: list[int]) -> None:
    spelled, text, ends, at = Detokenizer(HOUSEHOLD), "", list[int](), 0
    for portion in portions:
        new, new_ends = spelled.push(tokens[at : at + portion])
        at += portion
        text += new
        ends += new_ends.tolist()
    whole_text = HOUSEHOLD.decode(tokens)
    assert whole_text.startswith(text)
    assert len(tokens) - len(ends) <= 3
    assert ends == HOUSEHOLD.ends(tokens)[: len(ends)].tolist()
    if not whole_text.endswith("\ufffd"):
        assert text == whole_text


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=12))
def test_a_character_of_several_tokens_is_never_cut(said: str) -> None:
    spelled, pieces = Detokenizer(HOUSEHOLD), list[str]()
    for token in HOUSEHOLD.encode(said):
        pieces.append(spelled.push([token])[0])
    text = HOUSEHOLD.decode(HOUSEHOLD.encode(said))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_model_that_cannot_stream_gives_its_sample_as_one_piece() -> None:
    model = ScriptedModel(["hello"])
    prefix = Prefix(np.array(model.tokenizer.encode("x"), np.int32))

    async def run() -> list[Piece]:
        return [piece async for piece in stream(model, prefix, Sampling(), 1)]

    (piece,) = asyncio.run(run())
    assert (piece.text, piece.completion and piece.completion.text) == ("hello", "hello")
    assert asyncio.run(gathered(stream(model, prefix, Sampling(), 1))).text == "hello"


def test_pieces_put_together_are_the_sample() -> None:
    tokens = HOUSEHOLD.encode("go to the hall: \u20ac\U0001f600 and on")
    logprobs = -np.arange(len(tokens), dtype=np.float32)
    made = Completion(
        HOUSEHOLD.decode(tokens), "eos", np.array(tokens, np.int32), logprobs, logprobs - 1, None, HOUSEHOLD.ends(tokens)
    )

    async def start(report: Report) -> Completion:
        for token, logprob in zip(tokens, logprobs.tolist(), strict=True):
            report([token], [logprob], [logprob - 1])
            await asyncio.sleep(0)
        return made

    async def run() -> list[Piece]:
        return [piece async for piece in reported(start, HOUSEHOLD)]

    pieces = asyncio.run(run())
    assert len(pieces) > 5
    assert [piece.completion for piece in pieces] == [None] * (len(pieces) - 1) + [made]
    assert "".join(piece.text for piece in pieces) == made.text
    for name in ("tokens", "logprobs", "model_logprobs", "ends"):
        joined = np.concatenate([getattr(piece, name) for piece in pieces])
        assert np.array_equal(joined, getattr(made, name)), name


def test_a_reader_that_stops_cancels_the_sample_and_a_failure_reaches_it() -> None:
    ended: list[str] = []

    async def endless(report: Report) -> Completion:
        try:
            while True:
                report([5], [0.0], [0.0])
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def failing(report: Report) -> Completion:
        report([5], [0.0], [0.0])
        await asyncio.sleep(0)
        raise OSError("gone")

    async def run() -> None:
        async with aclosing(reported(endless, HOUSEHOLD)) as pieces:
            async for _ in pieces:
                break
        assert ended == ["cancelled"]
        with pytest.raises(OSError, match="gone"):
            await gathered(reported(failing, None))

    asyncio.run(run())
    assert whole(Completion("x", "eos")).text == "x"
