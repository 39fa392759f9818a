from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ramify.base.errors import UserError
from ramify.engine.tiny import TinyConfig, TinyLM, weights_hash

SHAPE = {"vocab": 61, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn": 48, "context": 128}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_logits_equal_transformers(tmp_path: Path, kind: str, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    config = TinyConfig(**SHAPE, tied=tied, qk_norm=kind == "qwen3", qkv_bias=kind == "qwen2", eos=(3,))
    model = TinyLM(config, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    model.save(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(other).__name__.lower().startswith(kind)
    tokens = torch.randint(0, 61, (3, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours, theirs = model(tokens), other(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    other.save_pretrained(tmp_path / "again")
    again = TinyLM.load(tmp_path / "again")
    assert again.config == config
    assert weights_hash(again) == weights_hash(model)


def test_right_padding_and_mask_do_not_change_earlier_positions() -> None:
    model = TinyLM(TinyConfig(**SHAPE))
    tokens = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(3))
    padded = torch.cat((tokens, torch.zeros(2, 9, dtype=torch.long)), dim=1)
    with torch.no_grad():
        plain = model(tokens)
        assert torch.allclose(plain, model(padded)[:, :20], atol=1e-6)
        causal = torch.ones(20, 20, dtype=torch.bool).tril()
        assert torch.allclose(plain, model(tokens, causal), atol=1e-6)


def test_taps_see_and_replace_hidden_states() -> None:
    model = TinyLM(TinyConfig(**SHAPE))
    tokens = torch.randint(0, 61, (1, 6), generator=torch.Generator().manual_seed(3))
    seen: dict[int, torch.Tensor] = {}

    def read(layer: int, hidden: torch.Tensor) -> torch.Tensor:
        seen[layer] = hidden
        return hidden

    with torch.no_grad():
        plain = model(tokens)
        assert torch.equal(plain, model(tokens, tap=read))
        assert sorted(seen) == [0, 1, 2]
        moved = model(tokens, tap=lambda layer, x: x + 1.0 if layer == 1 else x)
    assert not torch.allclose(plain, moved)


def test_weights_hash_follows_content() -> None:
    model, same = TinyLM(TinyConfig(**SHAPE), seed=4), TinyLM(TinyConfig(**SHAPE), seed=4)
    assert weights_hash(model) == weights_hash(same)
    with torch.no_grad():
        same.model.norm.weight[0] += 1e-3
    assert weights_hash(model) != weights_hash(same)
    assert weights_hash(model) != weights_hash(TinyLM(TinyConfig(**{**SHAPE, "context": 64}), seed=4))


def test_bad_checkpoints_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        TinyLM.load(tmp_path)
    model = TinyLM(TinyConfig(**SHAPE))
    model.save(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**record, "intermediate_size": 40}))
    with pytest.raises(UserError, match=r"weight 'model.layers.0.mlp.gate_proj.weight' is \(48, 32\), expected \(40, 32\)"):
        TinyLM.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**record, "hidden_act": "gelu"}))
    with pytest.raises(UserError, match="not a plain Llama"):
        TinyLM.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(record))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot read the weights"):
        TinyLM.load(tmp_path)
    with pytest.raises(UserError, match="longer than the model's context of 128"):
        model(torch.zeros(1, 129, dtype=torch.long))


def test_a_model_that_scored_rows_can_be_trained() -> None:
    model, tokens = TinyLM(TinyConfig(**SHAPE), seed=1), torch.arange(12)[None]
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
