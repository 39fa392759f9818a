from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.engine.local import LocalModel
from ramify.model.protocol import Model, Prefix, Sampling, require

from .helpers import VOCAB, byte_tokenizer, sample, tiny, tokens
from .kernels import needs_tiles


def greedy_of(other: Any, prefix: np.ndarray, new: int) -> list[int]:
    row = torch.from_numpy(prefix.astype(np.int64))[None]
    out = other.generate(
        row, attention_mask=torch.ones_like(row), max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return out[0, len(prefix) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_greedy_equals_transformers(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    tiny(qk_norm=kind == "qwen3").save(tmp_path)
    model = LocalModel.load(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for length in (1, 7, 40, 100):
        found = sample(model, tokens(length, seed=length), [0], max_tokens=50, temperature=0)[0]
        assert found.tokens is not None
        assert found.tokens.tolist() == greedy_of(other, tokens(length, seed=length), 50)
        assert found.stop == "length"
        assert found.logprobs is not None
        assert not found.logprobs.any()  # greedy: the sampler puts all mass on one token


def test_it_is_a_model() -> None:
    model = LocalModel(tiny(), byte_tokenizer())
    assert isinstance(model, Model)
    require(
        model,
        ["tokens", "continue", "logprobs", "prompt_logprobs", "entropy", "seeds", "batch_invariant", "taps", "train"],
        "test",
    )
    assert model.identity == LocalModel(tiny(), byte_tokenizer()).identity


def test_log_probs_of_samples_agree_with_scoring() -> None:
    model = LocalModel(tiny())
    sampled = sample(model, tokens(20), [1, 2, 3], max_tokens=30, temperature=0.8, top_k=20)
    rows = [np.concatenate((tokens(20), d.tokens)) for d in sampled if d.tokens is not None]
    scores = asyncio.run(model.logprobs([*rows, tokens(1)], top_k=5))
    for d, s in zip(sampled, scores[:3], strict=True):
        assert d.model_logprobs is not None
        assert d.entropy is not None
        assert s.entropy is not None
        assert s.top_logprobs is not None
        assert s.top_tokens is not None
        assert s.logprobs[0] == 0
        np.testing.assert_allclose(d.model_logprobs, s.logprobs[20:], atol=2e-5)
        np.testing.assert_allclose(d.entropy, s.entropy[20:], atol=2e-5)
        assert s.top_tokens.shape == (50, 5)
        assert (np.diff(s.top_logprobs[1:], axis=1) <= 0).all()
    assert scores[3].logprobs.tolist() == [0.0]
    with torch.no_grad():
        exact = model.module(torch.from_numpy(rows[0].astype(np.int64))[None])[0].log_softmax(-1)
    np.testing.assert_allclose(scores[0].logprobs[1:], exact[range(49), rows[0][1:].tolist()], atol=1e-5)


def test_log_probs_are_shared_when_settings_change_nothing() -> None:
    model = LocalModel(tiny())
    same, other = sample(model, tokens(3), [1], max_tokens=4)[0], sample(model, tokens(3), [1], max_tokens=4, top_k=3)[0]
    assert same.logprobs is same.model_logprobs
    assert other.logprobs is not other.model_logprobs


def test_forks_share_their_prefix() -> None:
    """64 forks cost at most 1.3 times one prefix and 64 suffixes, counted in rows with padding; so do 200, in waves."""
    needs_tiles(LocalModel(tiny()).exactness)
    for prefix, n, new in ((200, 64, 20), (100, 64, 5), (37, 64, 50), (150, 200, 8)):
        model = LocalModel(tiny())
        sampled = sample(model, tokens(prefix), range(n), max_tokens=new)
        assert len({d.tokens.tobytes() for d in sampled if d.tokens is not None}) > n // 2
        assert model.stats.forward_rows <= 1.3 * (prefix + n * new)
        assert model.stats.sampled_tokens == n * new

    async def apart(model: LocalModel) -> None:
        await asyncio.gather(*(model.sample(Prefix(tokens(200)), 1, Sampling(max_tokens=20), [k]) for k in range(64)))

    model = LocalModel(tiny())
    asyncio.run(apart(model))  # 64 requests of one sample each are one group too
    assert model.stats.forward_rows <= 1.3 * (200 + 64 * 20)


def test_concurrent_prompts_share_what_they_have_in_common() -> None:
    model = LocalModel(tiny())
    rows = [np.concatenate((tokens(120), tokens(8, seed=i))) for i in range(1, 17)]

    async def run() -> None:
        await asyncio.gather(*(model.sample(Prefix(row), 1, Sampling(max_tokens=3), [0]) for row in rows))

    asyncio.run(run())
    assert model.stats.prompt_tokens <= 120 + 16 * 12


def test_a_small_cache_stays_within_its_budget() -> None:
    model = LocalModel(tiny(), cache_bytes=30_000)
    for i in range(20):
        sample(model, tokens(30, seed=i), [0], max_tokens=20)
        assert 0 < model._scheduler.cache.prefixes.bytes <= 30_000
    none = LocalModel(tiny(), cache_bytes=0)
    sample(none, tokens(30), [0], max_tokens=5)
    assert len(none._scheduler.cache.prefixes) == 0


def test_stops() -> None:
    tokenizer = byte_tokenizer()
    size = tokenizer.size
    module = tiny(vocab=size)
    free = sample(LocalModel(module, tokenizer, eos=()), tokens(5), [3], max_tokens=40)[0]
    assert free.tokens is not None
    sampled = free.tokens.tolist()
    assert free.stop == "length"
    assert free.text == tokenizer.decode(sampled)
    assert free.ends is not None
    assert free.ends[-1] == len(free.text)

    at = 6
    first = sampled.index(sampled[at])
    stopped = sample(LocalModel(module, tokenizer, eos=(sampled[at],)), tokens(5), [3], max_tokens=40)[0]
    assert stopped.stop == "eos"
    assert stopped.tokens is not None
    assert stopped.tokens.tolist() == sampled[: first + 1]
    model = LocalModel(module, tokenizer, eos=())
    stopped = sample(model, tokens(5), [3], max_tokens=40, stop_tokens=(sampled[at],))[0]
    assert (stopped.stop, stopped.tokens.tolist()) == ("stop", sampled[: first + 1])  # type: ignore[union-attr]
    piece = free.text[int(free.ends[9]) : int(free.ends[11])]
    stopped = sample(model, tokens(5), [3], max_tokens=40, stop_texts=("never there", piece))[0]
    assert stopped.stop == "stop"
    assert piece in stopped.text
    assert stopped.tokens is not None
    assert piece not in tokenizer.decode(stopped.tokens[:-1].tolist())
    assert free.text.startswith(stopped.text)
    stopped = sample(model, tokens(5), [3], max_tokens=40, until=lambda row: len(row) == 4)[0]
    assert (stopped.stop, stopped.tokens.tolist()) == ("stop", sampled[:4])  # type: ignore[union-attr]


def test_a_sample_ends_at_the_end_of_the_context() -> None:
    found = sample(LocalModel(tiny(context=32)), tokens(30), [0], max_tokens=100)[0]
    assert found.stop == "length"
    assert found.tokens is not None
    assert len(found.tokens) == 2


def test_an_error_in_until_fails_its_own_sample_only() -> None:
    model = LocalModel(tiny())

    def broken(_: np.ndarray) -> bool:
        raise ZeroDivisionError("mine")

    async def run() -> list[Any]:
        bad = model.sample(Prefix(tokens(3)), 2, Sampling(max_tokens=20, until=broken), [1, 2])
        good = model.sample(Prefix(tokens(3)), 2, Sampling(max_tokens=20), [1, 2])
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = asyncio.run(run())
    assert isinstance(bad, ZeroDivisionError)
    assert len(good) == 2
    assert not model._scheduler.busy


def test_cancelling_frees_rows_and_leaves_others_alone() -> None:
    model = LocalModel(tiny(), max_sequences=4)
    alone = sample(LocalModel(tiny()), tokens(9), [5], max_tokens=60)[0]

    async def run() -> Any:
        doomed = asyncio.create_task(model.sample(Prefix(tokens(4)), 9, Sampling(max_tokens=200), list(range(9))))
        kept = asyncio.create_task(model.sample(Prefix(tokens(9)), 1, Sampling(max_tokens=60), [5]))
        while len(model._scheduler.running) < 4:
            await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert len(model._scheduler.running) <= 1
        return (await kept)[0]

    found = asyncio.run(run())
    assert found.tokens is not None
    assert found.tokens.tobytes() == alone.tokens.tobytes()  # type: ignore[union-attr]
    assert not model._scheduler.busy


def test_cancelling_moves_later_rows_of_an_arena_that_grew() -> None:
    model = LocalModel(tiny(), max_sequences=8)
    alone = sample(LocalModel(tiny()), tokens(9), [5], max_tokens=80)[0]

    async def run() -> Any:
        doomed = asyncio.create_task(model.sample(Prefix(tokens(4)), 5, Sampling(max_tokens=200), list(range(5))))
        kept = asyncio.create_task(model.sample(Prefix(tokens(9)), 1, Sampling(max_tokens=80), [5]))
        while len(model._scheduler.running) < 6:  # more than a KV cache begins with: it grew while it was stepped
            await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return (await kept)[0]

    found = asyncio.run(run())
    assert found.tokens.tobytes() == alone.tokens.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prefix", "keys", "settings", "said"),
    [
        (None, [1], {}, "the prefix has none"),
        (np.array([], np.int32), [1], {}, "empty"),
        (np.array([3, VOCAB], np.int32), [1], {}, f"token {VOCAB} is out of range"),
        (np.array([-1], np.int32), [1], {}, "token -1 is out of range"),
        (np.array([1], np.int32), [], {}, "at least one"),
        (np.array([1], np.int32), [1], {"temperature": -1.0}, "temperature"),
        (np.array([1], np.int32), [1], {"temperature": float("nan")}, "temperature"),
        (np.array([1], np.int32), [1], {"top_p": 0.0}, "top_p"),
        (np.array([1], np.int32), [1], {"top_k": -1}, "top_k"),
        (np.array([1], np.int32), [1], {"max_tokens": 0}, "max_tokens"),
        (np.array([1], np.int32), [1], {"ban": (VOCAB,)}, f"ban holds token {VOCAB}"),
        (np.array([1], np.int32), [1], {"ban": tuple(range(VOCAB))}, "leave no token"),
        (np.array([1], np.int32), [1], {"stop_texts": ("x",)}, "need a tokenizer"),
    ],
)
def test_bad_input_is_one_sentence(prefix: Any, keys: list[int], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        asyncio.run(LocalModel(tiny()).sample(Prefix(prefix), len(keys), Sampling(**settings), keys))


def test_too_long_a_prefix_is_a_failure_at_the_engine() -> None:
    with pytest.raises(InfrastructureError, match="engine: 256 tokens do not fit the context of 256"):
        sample(LocalModel(tiny()), tokens(256), [1])
    with pytest.raises(InfrastructureError, match="engine"):
        asyncio.run(LocalModel(tiny()).logprobs([tokens(257)]))


def test_refresh_takes_over_new_weights() -> None:
    module = tiny()
    model = LocalModel(module)
    before = sample(model, tokens(20), [1], max_tokens=10, temperature=0)[0]
    was = model.identity
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(-0.9)
    model.refresh()
    assert model.identity.weights != was.weights
    after = sample(model, tokens(20), [1], max_tokens=10, temperature=0)[0]
    fresh = sample(LocalModel(module), tokens(20), [1], max_tokens=10, temperature=0)[0]
    assert after.model_logprobs is not None
    assert before.model_logprobs is not None
    assert fresh.model_logprobs is not None
    assert after.model_logprobs.tobytes() == fresh.model_logprobs.tobytes() != before.model_logprobs.tobytes()

    async def run() -> None:
        task = asyncio.create_task(model.sample(Prefix(tokens(4)), 1, Sampling(max_tokens=100), [0]))
        await asyncio.sleep(0)
        with pytest.raises(UserError, match="while it is sampling"):
            model.refresh()
        await task

    asyncio.run(run())


def test_an_engine_failure_reaches_every_waiting_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalModel(tiny())

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model.forward, "hidden", broken)

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(model.sample(Prefix(tokens(i)), 2, Sampling(), [1, 2]) for i in (3, 4)), return_exceptions=True
        )

    for error in asyncio.run(run()):
        assert isinstance(error, InfrastructureError)
        assert error.message == "out of memory"
    monkeypatch.undo()
    assert len(sample(model, tokens(3), [1], max_tokens=4)) == 1


def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        LocalModel.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(NeedsError, match="transformers cannot open"):
        LocalModel.load(tmp_path)


def test_scores_under_sampling_settings_agree_with_samples() -> None:
    model = LocalModel(tiny())
    settings = Sampling(temperature=0.7, top_p=0.9, top_k=20, ban=(3,), max_tokens=30)
    sampled = asyncio.run(model.sample(Prefix(tokens(20)), 3, settings, [1, 2, 3]))
    rows = [np.concatenate((tokens(20), d.tokens)) for d in sampled if d.tokens is not None]
    for d, s in zip(sampled, asyncio.run(model.logprobs(rows, settings=settings)), strict=True):
        assert s.sampler_logprobs is not None
        assert np.allclose(s.sampler_logprobs[20:], d.logprobs, atol=1e-4)
        assert s.sampler_logprobs[0] == 0
        assert np.isneginf(s.sampler_logprobs[1:20]).any()  # given tokens that the settings cut
    assert asyncio.run(model.logprobs(rows[:1]))[0].sampler_logprobs is None


def test_a_model_can_be_trained_after_it_was_used() -> None:
    """Scoring and sampling run in inference mode; nothing made there may be left in the module."""
    module = tiny()
    model = LocalModel(module)
    asyncio.run(model.logprobs([tokens(30)]))
    sample(model, tokens(20), [1], max_tokens=4)
    module(torch.from_numpy(tokens(25).astype(np.int64))[None]).sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())


def test_rows_are_scored_together_as_alone_and_certainty_is_the_divergence_from_uniform() -> None:
    model = LocalModel(tiny())
    rows = [tokens(9), tokens(1), tokens(30)]
    together = asyncio.run(model.logprobs(rows, top_k=3))
    for row, scores in zip(rows, together, strict=True):
        (alone,) = asyncio.run(model.logprobs([row], top_k=3))
        assert scores.certainty is not None
        assert alone.certainty is not None
        assert scores.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        assert scores.certainty == pytest.approx(alone.certainty, abs=1e-5)
        assert len(scores.certainty) == len(row)
        assert asyncio.run(model.chosen_logprobs([row]))[0].tobytes() == alone.logprobs.tobytes()
    with torch.no_grad():
        p = torch.softmax(model.module(torch.from_numpy(rows[0].astype(np.int64))[None])[0].double(), -1)
    uniform = 1 / p.shape[-1]
    wanted = (uniform * (uniform / p[:-1]).log()).sum(-1)
    assert together[0].certainty[1:] == pytest.approx(wanted.numpy(), abs=1e-5)  # type: ignore[index]


def test_a_step_that_is_broken_off_leaves_no_sample_waiting() -> None:
    """Ctrl-C is not an Exception: it ends the loop, and who waits for a sample is told, too."""
    model = LocalModel(tiny())

    def step() -> bool:
        raise KeyboardInterrupt

    model._core.step = step  # type: ignore[method-assign]
    with asyncio.Runner() as runner:
        waiting = runner.get_loop().create_task(model.sample(Prefix(tokens(4)), 2, Sampling(max_tokens=4), [1, 2]))
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(waiting)
        with pytest.raises(InfrastructureError, match="KeyboardInterrupt"):
            runner.get_loop().run_until_complete(waiting)
    assert model._driver is not None
    assert isinstance(model._driver.exception(), KeyboardInterrupt)
