"""What holds for large models: on a small one that counts as large, and, where it is installed, on SmolLM2."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.base.errors import NeedsError
from ramify.engine import forward, products, tiny
from ramify.engine.checkpoints import adapter_of, copy_of, save_model
from ramify.engine.core import EngineCore
from ramify.engine.gguf import smollm2_file
from ramify.engine.local import LocalModel
from ramify.engine.named import find_model
from ramify.engine.sampling import PIECE, WIDE, inverse_cdf, pick
from ramify.engine.tiny import TinyConfig, TinyLM, weights_hash
from ramify.model.protocol import Prefix, Sampling

from .helpers import VOCAB, sample, tokens
from .kernels import needs_tiles
from .test_determinism import bits

SHAPE = TinyConfig(vocab=VOCAB, width=64, layers=3, heads=4, kv_heads=2, head_size=16, ffn=128, context=128)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a checkpoint that counts as large."""
    for module in (products, tiny, forward):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path / "cache"))
    TinyLM(SHAPE, seed=1).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_large_model_is_the_same_model(large: Path) -> None:
    small = TinyLM(SHAPE, seed=1).eval()
    model = LocalModel.load(large)
    assert isinstance(model.module, TinyLM)
    assert not model.module.model.layers[0].mlp.down_proj.weight.is_contiguous()  # type: ignore[union-attr,operator,index]
    assert model.identity.weights == weights_hash(small)
    row = tokens(40)
    with torch.inference_mode():
        logits = small(torch.from_numpy(row[None]).long())[0]
    expected = logits.log_softmax(-1)[torch.arange(39), torch.from_numpy(row[1:]).long()].numpy()
    (scores,) = asyncio.run(model.logprobs([row]))
    np.testing.assert_allclose(scores.logprobs[1:], expected, atol=1e-4)
    (reply,) = sample(model, row, [3], max_tokens=8)
    assert reply.logprobs is not None
    whole = np.concatenate((row, reply.tokens))
    (again,) = asyncio.run(model.logprobs([whole]))
    np.testing.assert_allclose(again.logprobs[40:], reply.logprobs, atol=1e-4)


def test_a_sample_of_a_large_model_does_not_depend_on_its_batch(large: Path) -> None:
    model = LocalModel.load(large, cache_bytes=0)
    needs_tiles(model.exactness)
    together = [sample(model, tokens(length), range(3), max_tokens=20) for length in (5, 33, 70)]

    async def all_at_once() -> list[object]:
        asked = (model.sample(Prefix(tokens(length)), 3, Sampling(max_tokens=20), range(3)) for length in (5, 33, 70))
        return [bits(reply) for replies in await asyncio.gather(*asked) for reply in replies]

    assert asyncio.run(all_at_once()) == [bits(reply) for replies in together for reply in replies]
    (alone,) = sample(model, tokens(33), [1], max_tokens=20)
    assert bits(alone) == bits(together[1][1])


def test_a_large_model_trains_in_place_and_samples_what_it_became(large: Path) -> None:
    model = LocalModel.load(large)
    before = model.identity.weights
    loss = model.module(torch.from_numpy(tokens(20)[None]).long()).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in model.module.parameters():
            assert weight.grad is not None
            weight -= weight.grad
    model.refresh()
    assert model.identity.weights != before
    fresh = LocalModel(TinyLM(SHAPE), name="fresh")
    fresh.module.load_state_dict(model.module.state_dict())
    fresh.refresh()
    assert [r.text for r in sample(fresh, tokens(9), [1], max_tokens=9)] == [
        r.text for r in sample(model, tokens(9), [1], max_tokens=9)
    ]


def test_the_verdict_on_exactness_is_kept_and_read_again(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LocalModel.load(large)
    files = tmp_path / "cache" / "engine"
    assert not files.exists()  # nothing was sampled yet
    verdict = first.exactness
    (file,) = files.iterdir()
    assert file.read_text().strip() == verdict
    monkeypatch.setattr(forward, "probe", None)
    assert LocalModel.load(large).exactness is verdict
    file.write_text("damaged")
    monkeypatch.undo()


def test_logits_are_made_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalModel(TinyLM(SHAPE), eos=())
    rows: list[int] = []
    logits = EngineCore._logits

    def counted(core: EngineCore, hidden: list[torch.Tensor]) -> torch.Tensor:
        rows.append(sum(len(some) for some in hidden))
        return logits(core, hidden)

    monkeypatch.setattr(EngineCore, "_logits", counted)

    async def several() -> None:
        prompts = [tokens(length, seed) for seed, length in enumerate((3, 4, 4, 4))]
        await asyncio.gather(*(model.sample(Prefix(prompt), 1, Sampling(max_tokens=2), [0]) for prompt in prompts))

    asyncio.run(several())
    assert set(rows) == {4}
    assert model.stats.forward_rows >= sum(rows) + 8  # the given tokens ran in the same batches


def test_a_wide_row_is_sampled_as_one_sum_over_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = (torch.randn(7, WIDE + 100, generator=generator) * 3).exp()
    weights[:, 50:5000] = 0  # cut tokens are never found
    u = torch.rand(7, 1, dtype=torch.float64, generator=generator)
    cdf = weights.double().cumsum(-1)
    expected = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)[:, 0]
    assert torch.equal(inverse_cdf(weights, u), expected)
    assert inverse_cdf(weights, torch.zeros(7, 1, dtype=torch.float64)).tolist() == [0] * 7
    ends = inverse_cdf(weights, torch.full((7, 1), 1 - 2.0**-52, dtype=torch.float64))
    assert (weights.gather(1, ends[:, None]) > 0).all()


def test_rows_of_a_wide_vocabulary_are_sampled_alike_alone_and_in_pieces() -> None:
    logits = torch.randn(13, WIDE * 8, generator=torch.Generator().manual_seed(0))
    assert PIECE // logits.shape[1] < 13
    settings = [Sampling(temperature=t, top_k=k) for t, k in ((1, 0), (0, 0), (0.5, 20))] * 4 + [Sampling()]
    u = np.random.default_rng(0).random(13).tolist()
    whole = pick(logits, settings, [False] * 13, u)
    for i in range(13):
        (token,), *_ = (pick(logits[i : i + 1], settings[i : i + 1], [False], u[i : i + 1]).tokens, 0)
        assert token == whole.tokens[i]
    assert whole.tokens[1] == int(logits[1].argmax())


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france_in_any_batch() -> None:
    try:
        smollm2_file()
        model, template = find_model("smollm2")
    except NeedsError as error:
        pytest.skip(f"{error}: THE REAL MODEL IS NOT TESTED")
    assert isinstance(model, LocalModel)
    assert model.pretrained
    assert "Q4_1" in model.identity.name
    assert template is not None
    question = template.render("user", "What is the capital of France?", "")[0]
    prompt = np.array([*question, *template.open("assistant", "user")], np.int32)
    greedy = Sampling(max_tokens=12, temperature=0)
    (answer,) = asyncio.run(model.sample(Prefix(prompt), 1, greedy, [0]))
    assert "Paris" in answer.text
    needs_tiles(model.exactness)
    others = np.random.default_rng(0).integers(3, 40_000, 50).astype(np.int32)

    async def both() -> list[object]:
        some = model.sample(Prefix(prompt), 3, Sampling(max_tokens=12), [4, 5, 6])
        more = model.sample(Prefix(others), 4, Sampling(max_tokens=6), range(4))
        return [bits(reply) for reply in (await asyncio.gather(some, more))[0]]

    together = asyncio.run(both())
    for key, seen in zip((4, 5, 6), together, strict=True):
        (alone,) = asyncio.run(model.sample(Prefix(prompt), 1, Sampling(max_tokens=12), [key]))
        assert bits(alone) == seen


def test_an_adapter_of_a_large_model_is_added_in_place_and_saved(large: Path, tmp_path: Path) -> None:
    model = LocalModel.load(large)
    adapter = adapter_of(model, large, 2, 0)
    assert adapter is not None
    for _, up in adapter.parts.values():
        up.data.normal_(generator=torch.Generator().manual_seed(0))
    adapter.merge_into(model.module)
    model.refresh()
    save_model(model, large, tmp_path / "adapter", adapter)
    again = LocalModel.load(tmp_path / "adapter")
    assert again.identity.weights == model.identity.weights != LocalModel.load(large).identity.weights
    own, other = (sample(each, tokens(9), [1], max_tokens=9)[0] for each in (copy_of(model, "copy"), again))
    assert bits(own) == bits(other)
