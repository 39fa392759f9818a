"""Weights in int8: exact sums in any batch, a stated distance from float32, refused where weights are trained or saved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.base.errors import NeedsError, UserError
from ramify.engine import devices, products
from ramify.engine.checkpoints import model_folder, save_model
from ramify.engine.devices import placement
from ramify.engine.forward import Exactness
from ramify.engine.generic import HfForward, to_int8
from ramify.engine.gguf import smollm2_file
from ramify.engine.local import LocalModel
from ramify.engine.products import SCALED, Int8, side_by_side, sums_exactly
from ramify.engine.tiny import TinyLM
from ramify.jobs.keep_texts import TEXTS
from ramify.jobs.play import fork_run, play
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.components import find_environment
from ramify.train.fidelity import GeneralTexts

from .helpers import tiny, tokens
from .test_generic import module_of

pytestmark = pytest.mark.skipif(
    not sums_exactly(), reason="int8 is refused here: this processor's kernels do not sum bytes exactly"
)


@pytest.mark.parametrize("shape", [(40, 64), (33, 100), (7, 1536), (5, 3)])
def test_a_product_is_that_of_the_rounded_matrix_and_the_same_bits_in_any_batch(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator)
    layer = Int8(weight, torch.randn(shape[0], generator=generator))
    side_by_side(torch.nn.Sequential(layer))
    x = torch.randn(21, shape[1], generator=generator) * torch.rand(21, 1, generator=generator)
    x[3], x[5, 1], x[6] = 0.0, 1e4, x[6] * 1e-20
    whole = layer(x)
    rounded = layer.rounded.double() * layer.scale.double()[:, None]
    assert ((rounded - weight).abs() <= 0.5001 * layer.scale[:, None]).all()
    exact = x.double() @ rounded.t() + layer.bias
    step = x.abs().amax(1, True).double() / SCALED
    room = step / 2 * rounded.abs().sum(1) + 1e-6 * exact.abs() + 1e-30  # half a step of every input, and float32
    assert ((whole - exact).abs() <= room).all()
    assert torch.equal(whole[3], layer.bias)
    for rows in (0, 1, 2, 4, 7):
        for at in range(21 - rows):
            assert torch.equal(layer(x[at : at + rows]), whole[at : at + rows])


def test_a_draw_in_int8_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = model_folder("builtin")
    exact, model = LocalModel.load(folder), LocalModel.load(folder, dtype="int8", cache_bytes=0)
    assert model.exactness is not Exactness.UNPROVEN
    assert model.placed["dtype"] == "int8"
    assert model.capabilities == exact.capabilities - {"train"}
    assert model.identity.name == f"{exact.identity.name}-int8"
    assert model.identity.weights not in (exact.identity.weights, "")
    rows = [tokens(length, seed=length, vocab=300) for length in (3, 70, 20, 9)]
    settings = Sampling(max_tokens=12, ban=model.eos)

    async def together() -> list[Any]:
        return await asyncio.gather(*(model.sample(Prefix(row), 2, settings, [at, at + 50]) for at, row in enumerate(rows)))

    crowd = asyncio.run(together())
    for at, row in enumerate(rows):
        for key, shared in zip((at, at + 50), crowd[at], strict=True):
            (alone,) = asyncio.run(model.sample(Prefix(row), 1, settings, [key]))
            assert np.array_equal(alone.tokens, shared.tokens)
            assert np.array_equal(alone.logprobs, shared.logprobs)
    whole = np.concatenate((rows[1], crowd[1][0].tokens))
    (scores,) = asyncio.run(model.logprobs([whole]))
    np.testing.assert_allclose(scores.logprobs[70:], crowd[1][0].model_logprobs, atol=2e-3)
    (other,) = asyncio.run(exact.logprobs([whole]))
    assert 0 < np.abs(other.logprobs - scores.logprobs).mean() < 0.05


@pytest.mark.parametrize(("kind", "matrices"), [("llama", 7), ("gpt2", 4)])
def test_transformers_models_run_in_int8(kind: str, matrices: int) -> None:
    module = module_of(kind, tie_word_embeddings=False)
    row = torch.arange(20)[None]
    with torch.inference_mode():
        before = HfForward(module)
        exact = before.logits(before.full(row)).log_softmax(-1)
        to_int8(module)
        near = HfForward(module)  # compares its batches with the module itself
        apart = (near.logits(near.full(row)).log_softmax(-1) - exact).abs()
    assert near.weights == before.weights
    assert near.shape != before.shape
    assert 0 < apart.mean() < 0.1
    assert sum(isinstance(part, Int8) for part in module.modules()) == 1 + near.layers * matrices


def test_a_run_in_int8_is_continued_in_int8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tasks = find_environment("household").task_set("eval", 1)
    monkeypatch.setenv("RAMIFY_DTYPE", "int8")
    steps = {"int8": play("builtin", "household", tasks, out=tmp_path / "int8")[0].turns[-1].node}
    monkeypatch.delenv("RAMIFY_DTYPE")
    steps["float32"] = play("builtin", "household", tasks, out=tmp_path / "float32")[0].turns[-1].node
    forked = {name: fork_run(tmp_path / name, step.id, n=1).arm.attempts[0].turns[0].node for name, step in steps.items()}
    assert {name: node.provenance for name, node in forked.items()} == {name: step.provenance for name, step in steps.items()}
    other = fork_run(tmp_path / "int8", steps["int8"].id, n=1, model="builtin").arm.attempts[0].turns[0].node
    assert other.provenance != steps["int8"].provenance


def test_what_int8_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = LocalModel.load(model_folder("builtin"), dtype="int8")
    with pytest.raises(UserError, match="int8, of which nothing is trained, added or saved"):
        save_model(model, None, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert not any(weight.requires_grad for weight in model.module.parameters())
    with pytest.raises(UserError, match="there is no gradient"):
        model.module.model.layers[0](torch.randn(1, 3, model.forward.width, requires_grad=True), model.module.tables(3), None)
    with pytest.raises(UserError, match="a drafter goes with float32, and the weights of 'household-int8' are int8"):
        LocalModel.load(model_folder("builtin"), dtype="int8", drafter=tmp_path)
    monkeypatch.setattr(devices, "available", lambda: ["cpu", "cuda:0"])
    with pytest.raises(UserError, match="int8 is for CPUs"):
        placement("cuda", "int8")
    monkeypatch.setattr(products, "sums_exactly", lambda: False)
    with pytest.raises(NeedsError, match="int8 needs a processor whose matrix kernels sum bytes exactly"):
        LocalModel.load(model_folder("builtin"), dtype="int8")


def test_an_untied_head_and_biases_are_rounded_too() -> None:
    module = tiny(tied=False, qk_norm=False, qkv_bias=True)
    row = torch.arange(30)[None]
    with torch.inference_mode():
        exact = module(row).log_softmax(-1)
        module.to_int8()
        apart = (module(row).log_softmax(-1) - exact).abs()
    assert 0 < apart.mean() < 0.1
    assert isinstance(module, TinyLM)
    with pytest.raises(UserError, match="the model's weights are int8"):
        _ = module.head
    assert sum(isinstance(part, Int8) for part in module.modules()) == 1 + 4 * len(module.model.layers)


@pytest.mark.slow
def test_how_far_int8_is_from_float32_on_smollm2() -> None:
    """The distance that docs/howto/checkpoints.md states."""
    try:
        smollm2_file()
    except NeedsError as error:
        pytest.skip(str(error))
    folder = model_folder("smollm2")
    exact, model = LocalModel.load(folder, cache_bytes=1 << 24), LocalModel.load(folder, cache_bytes=1 << 24, dtype="int8")
    texts = GeneralTexts(exact, TEXTS)
    assert texts.measured(exact.module).kl == 0
    now = texts.measured(model.module)
    assert 1e-4 < now.kl < 0.01
    assert abs(now.perplexity / texts.start.perplexity - 1) < 0.01
    rows = [row.numpy().astype(np.int32) for row in texts.rows]
    before, after = (asyncio.run(opened.chosen_logprobs(rows)) for opened in (exact, model))
    apart = np.abs(np.concatenate(before) - np.concatenate(after))
    assert apart.mean() < 0.1
    assert apart.max() < 1
    settings = Sampling(max_tokens=8)

    async def together() -> list[Any]:
        return await asyncio.gather(*(model.sample(Prefix(row[:40]), 1, settings, [at]) for at, row in enumerate(rows[:8])))

    for at, (shared,) in enumerate(asyncio.run(together())):
        if at % 4 == 0:
            model.refresh()
            (alone,) = asyncio.run(model.sample(Prefix(rows[at][:40]), 1, settings, [at]))
            assert np.array_equal(alone.tokens, shared.tokens)
            assert np.array_equal(alone.logprobs, shared.logprobs)
