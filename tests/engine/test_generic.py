"""Transformers models run on the engine's own cache."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ramify.base.errors import NeedsError
from ramify.engine.local import LocalModel
from ramify.model.protocol import Prefix, Sampling

from .helpers import VOCAB, byte_tokenizer, sample, tiny, tokens
from .test_determinism import bits
from .test_local import greedy_of

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def module_of(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, **changes}), dtype=torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt_neox", "olmo2"])
def test_greedy_equals_transformers(kind: str) -> None:
    grouped = {} if kind == "gpt_neox" else {"num_key_value_heads": 2}
    module = module_of(kind, **grouped)
    expected = [greedy_of(module, tokens(length, seed=length), 30) for length in (1, 7, 40)]
    model = LocalModel(module)
    for length, row in zip((1, 7, 40), expected, strict=True):
        found = sample(model, tokens(length, seed=length), [0], max_tokens=30, temperature=0)[0]
        assert found.tokens is not None
        assert found.tokens.tolist() == row
    assert greedy_of(module, tokens(7, seed=7), 30) == expected[1]  # the module continues working outside the engine
    assert "batch_invariant" in model.capabilities

    async def together() -> list[Any]:
        rows = [tokens(length) for length in (3, 30, 31)]
        return await asyncio.gather(*(model.sample(Prefix(row), 3, Sampling(max_tokens=20), [1, 2, 3]) for row in rows))

    alone = sample(LocalModel(module, max_sequences=1, cache_bytes=0), tokens(30), [1, 2, 3], max_tokens=20)
    assert [bits(d) for d in asyncio.run(together())[1]] == [bits(d) for d in alone]
    scores = asyncio.run(
        model.logprobs([np.concatenate((tokens(30), alone[0].tokens)) if alone[0].tokens is not None else tokens(1)])
    )
    np.testing.assert_allclose(scores[0].logprobs[30:], alone[0].model_logprobs, atol=2e-5)


def test_the_fast_path_and_the_generic_path_agree(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tiny(eos=(3,)).save(tmp_path, byte_tokenizer())
    fast = LocalModel.load(tmp_path)
    slow = LocalModel(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), fast.tokenizer)
    assert fast.eos == slow.eos == (3,)
    for a, b in zip(*(sample(m, tokens(20), range(5), max_tokens=30) for m in (fast, slow)), strict=True):
        assert a.tokens is not None
        assert b.tokens is not None
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.model_logprobs, b.model_logprobs, atol=1e-4)


def test_other_models_are_loaded_from_their_folder(tmp_path: Path) -> None:
    module_of("gpt_neox").save_pretrained(tmp_path)
    model = LocalModel.load(tmp_path)
    assert model.tokenizer is None
    assert len(sample(model, tokens(4), [1], max_tokens=3)) == 1


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("mamba", {"state_size": 4}, "linear_attention cache cannot be forked"),
        ("gemma2", {"num_key_value_heads": 2, "head_dim": 8}, "softcap"),
        ("bloom", {"n_head": 4}, "attention interface"),
    ],
)
def test_caches_that_cannot_be_forked_are_refused(kind: str, changes: dict[str, Any], said: str) -> None:
    module = module_of(kind, **changes)
    with pytest.raises(NeedsError, match=said):
        LocalModel(module)
