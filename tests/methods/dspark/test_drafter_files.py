"""Drafters for a target, and on disk in DeepSpec's layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ramify.base.errors import NeedsError, UserError
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.dspark.drafter_files import auto_layers, for_target, layout, load_drafter, save_drafter
from ramify.methods.dspark.drafters import Qwen3Drafter


def target(**changes: Any) -> TinyLM:
    shape = TinyConfig(vocab=40, width=16, layers=4, heads=4, kv_heads=2, head_size=8, ffn=32, context=64, tied=False)
    return TinyLM(dataclasses.replace(shape, **changes), seed=1)


def made(kind: str = "dspark", **changes: Any) -> Qwen3Drafter:
    return for_target(target(), kind, **{"layers": 2, "block": 3, "rank": 6, "seed": 4, **changes})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dspark", {}),
        ("dspark", {"head": "gated"}),
        ("dspark", {"head": "rnn", "target_layers": [1], "mask_token": 7}),
        ("dspark", {"confidence": False}),
        ("dspark", {"rank": 0}),
        ("dflash", {}),
        ("eagle3", {}),
        ("dspark", {"drafted": [3, 5, 38]}),
        ("eagle3", {"drafted": [0, 1, 2, 30]}),
    ],
)
def test_a_drafter_comes_back_bit_for_bit(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    drafter = made(kind, **changes)
    if drafter.config.confidence:
        drafter.temperatures = torch.tensor([0.5, 1.25, 3.0])
    save_drafter(drafter, tmp_path / "d")
    again = load_drafter(tmp_path / "d", target())
    assert again.config == drafter.config
    assert type(again) is type(drafter)
    assert torch.equal(again.temperatures, drafter.temperatures)
    own = drafter.state_dict()
    assert own.keys() == again.state_dict().keys()
    assert all(torch.equal(own[name], value) for name, value in again.state_dict().items())
    assert torch.equal(again.embedding, target().model.embed_tokens.weight)
    assert torch.equal(again.head, target().head[changes.get("drafted", ...)])


def test_a_vocabulary_that_names_no_tokens_is_refused(tmp_path: Path) -> None:
    save_drafter(made(drafted=[3, 5, 38]), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for wrong in (torch.tensor([3, 4]), torch.tensor([3, 4, 40]), torch.tensor([3, 1, 2])):
        save_file(tensors | {"d2t": wrong}, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match="'d2t' does not name the 3 tokens that are drafted"):
            load_drafter(tmp_path, target())


def test_names_and_fields_are_deepspecs(tmp_path: Path) -> None:
    save_drafter(made(), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    layer = [
        *(f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
        *(f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")),
        *("input_layernorm.weight", "post_attention_layernorm.weight"),
    ]
    assert names == {
        *(f"layers.{i}.{name}" for i in range(2) for name in layer),
        *("embed_tokens.weight", "lm_head.weight", "norm.weight", "fc.weight", "hidden_norm.weight"),
        *("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"),
        *("confidence_head.proj.weight", "confidence_head.proj.bias"),
    }
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["architectures"] == ["Qwen3DSparkModel"]
    expected = {
        "block_size": 3,
        "mask_token_id": 39,
        "target_layer_ids": [0, 1, 2],
        "num_target_layers": 4,
        "num_hidden_layers": 2,
        "markov_rank": 6,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "num_anchors": 512,
    }
    assert {name: record[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("block_size", 0, "config.json: drafter: block is 0"),
        ("target_layer_ids", [0, 3], "is the last"),
        ("target_layer_ids", [0, 9], "the target has layers 0 to 3"),
        ("markov_rank", None, "describes no drafter"),
        ("mask_token_id", None, "describes no drafter"),
        ("block_size", "missing", "field 'block_size' is missing"),
        ("vocab_size", 41, "for a target with vocab 41; this target has 40"),
        ("num_target_layers", 9, "for a target with target_depth 9"),
        ("architectures", ["LlamaForCausalLM"], "is not a drafter known here"),
        ("confidence_temperatures", [1.0, 0.0, 1.0], "3 positive numbers"),
        ("markov_rank", 5, "expected"),
        ("num_hidden_layers", 3, "tensor 'layers.2.input_layernorm.weight' is missing"),
        ("enable_confidence_head", False, "not one this drafter has"),
    ],
)
def test_a_wrong_field_is_one_sentence(field: str, value: Any, said: str, tmp_path: Path) -> None:
    save_drafter(made(), tmp_path)
    file = tmp_path / "config.json"
    record = json.loads(file.read_text()) | {field: value}
    if value == "missing":
        del record[field]
    file.write_text(json.dumps(record))
    with pytest.raises(UserError) as caught:
        load_drafter(tmp_path, target())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no drafter folder"):
        load_drafter(tmp_path / "nothing", target())
    with pytest.raises(UserError, match=r"holds no drafter: no config\.json"):
        load_drafter(tmp_path, target())
    (tmp_path / "training").mkdir()
    with pytest.raises(UserError, match="its training has not ended"):
        load_drafter(tmp_path, target())
    save_drafter(made(), tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for broken in (b"", whole[:5], whole[:100], whole[:-10], b"\x80\x04" + whole[2:]):
        file.write_bytes(broken)
        with pytest.raises(UserError, match="cannot read the drafter's weights") as caught:
            load_drafter(tmp_path, target())
        assert "\n" not in str(caught.value)
    file.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(UserError, match=r"holds no model\.safetensors"):
        load_drafter(tmp_path, target())


def test_weights_that_are_numbers_of_another_type_are_taken_and_broken_ones_named(tmp_path: Path) -> None:
    save_drafter(made(), tmp_path)
    weights = {name: value.bfloat16() for name, value in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert load_drafter(tmp_path, target()).fc.weight.dtype == torch.float32
    weights["fc.weight"] = weights["fc.weight"][:, :-1].contiguous()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"tensor 'fc.weight' is \(16, 47\), expected \(16, 48\)"):
        load_drafter(tmp_path, target())


def test_layers_are_spaced_as_the_papers() -> None:
    assert auto_layers(36) == (1, 9, 17, 25, 33)
    assert auto_layers(40) == (1, 10, 19, 28, 37)
    assert auto_layers(4) == (0, 1, 2)
    assert auto_layers(2) == (0,)
    assert all(auto_layers(depth)[-1] < depth - 1 for depth in range(2, 64))
    with pytest.raises(UserError, match="this target has 1"):
        auto_layers(1)


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'dspark'"):
        made("dspar")
    with pytest.raises(UserError, match="give layer numbers or 'auto'"):
        made(target_layers="all")


def test_a_drafter_for_a_transformers_model() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    module = LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2, rope_theta=5e5, rms_norm_eps=1e-5))
    c = for_target(module, layers=1, rank=4).config
    assert (c.vocab, c.width, c.heads, c.kv_heads, c.head_size, c.ffn, c.target_depth) == (40, 16, 4, 2, 4, 32, 3)
    assert (c.rope_theta, c.norm_eps, c.target_layers) == (5e5, 1e-5, (0, 1))
    module.config.final_logit_softcapping = 30.0
    with pytest.raises(NeedsError, match="no drafter for 'llama' here: its embedding or logits use final_logit_softcapping"):
        for_target(module)


# -- the layout of speculators

PUBLISHED: dict[str, Any] = {
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"": "config.DSparkSpeculatorConfig"},
    "speculators_model_type": "dspark",
    "speculators_version": "0.9.0",
    "block_size": 3,
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "draft_vocab_size": 40,
    "mask_token_id": 39,
    "max_anchors": 1024,
    "target_hidden_size": None,
    "aux_hidden_state_layer_ids": [1, 3],
    "speculators_config": {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/model", "architectures": ["Qwen3ForCausalLM"]},
    },
    "transformer_layer_config": {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "rms_norm_eps": 1e-05,
        "vocab_size": 40,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    },
}
"""The fields of RedHatAI's drafter for GLM-5.2, with sizes of a target here."""


def as_speculators(folder: Path, kind: str = "dspark", **changes: Any) -> Qwen3Drafter:
    drafter = made(kind, **changes)
    target().save(folder / "target")
    save_drafter(drafter, folder / "d", folder / "target")
    return drafter


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dspark", {}),
        ("dspark", {"confidence": False, "target_layers": [1]}),
        ("eagle3", {}),
        ("dspark", {"drafted": [3, 5, 38]}),
        ("eagle3", {"drafted": [0, 1, 2, 30]}),
    ],
)
def test_a_drafter_comes_back_from_the_layout_of_speculators(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    drafter = as_speculators(tmp_path, kind, **changes)
    again = load_drafter(tmp_path / "d", target())
    assert layout(tmp_path / "d") == "speculators"
    assert again.config == drafter.config
    own = drafter.state_dict()
    assert own.keys() == again.state_dict().keys()
    assert all(torch.equal(own[name], value) for name, value in again.state_dict().items())


def test_its_config_is_what_vllm_reads(tmp_path: Path) -> None:
    as_speculators(tmp_path, "eagle3")
    record = json.loads((tmp_path / "d" / "config.json").read_text())
    assert record["speculators_model_type"] == record["speculators_config"]["algorithm"] == "eagle3"
    assert record["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]  # by what enters them
    assert record["transformer_layer_config"]["num_hidden_layers"] == 1
    verifier = record["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": str((tmp_path / "target").resolve()), "architectures": ["Qwen3ForCausalLM"]}
    assert record["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    with safe_open(tmp_path / "d" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight"} <= names
    assert not any(name.startswith("midlayer") for name in names)


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("dflash", {}, "its DFlash samples no token at the anchor"),
        ("dspark", {"head": "rnn"}, "'rnn'"),
        ("dspark", {"rank": 0}, "rank 0"),
    ],
)
def test_what_vllm_cannot_load_is_not_written(kind: str, changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(NeedsError, match=why):
        as_speculators(tmp_path, kind, **changes)
    assert not (tmp_path / "d").exists()


def test_a_published_config_is_read(tmp_path: Path) -> None:
    drafter = as_speculators(tmp_path, target_layers=[0, 2])
    (tmp_path / "d" / "config.json").write_text(json.dumps(PUBLISHED))
    tensors = {name: value for name, value in load_file(tmp_path / "d" / "model.safetensors").items() if "embed" not in name}
    save_file({**tensors, "verifier_norm.weight": torch.ones(16)}, tmp_path / "d" / "model.safetensors")
    again = load_drafter(tmp_path / "d", target())
    changed = {"rope_theta": 8e6, "norm_eps": 1e-5, "anchors": 1024, "context": 2048}
    assert again.config == dataclasses.replace(drafter.config, **changed)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("speculators_model_type", "peagle", "a speculator of type 'peagle' is not a drafter known here; known: dspark, eagle3"),
        ("sample_from_anchor", False, "sample_from_anchor is False, and a drafter here has True"),
        ("aux_hidden_state_layer_ids", [1, 4], "is the last"),
        ("target_hidden_size", 32, "target_hidden_size is 32, and a drafter here has 16"),
        ("block_size", None, "describes no speculator"),
        ("mask_token_id", "missing", "field 'mask_token_id' is missing"),
        ("transformer_layer_config", "missing", "field 'transformer_layer_config' is missing"),
        ("model_type", "llama", "transformer_layer_config.model_type is 'llama', and a drafter here has 'qwen3'"),
        ("layer_types", ["sliding_attention"], "layer_types is 'sliding_attention'"),
        ("rope_parameters", {"rope_type": "yarn"}, "rope_type is 'yarn'"),
        ("vocab_size", 41, "for a target with vocab 41"),
    ],
)
def test_a_speculator_that_is_no_drafter_here_is_one_sentence(field: str, value: Any, said: str, tmp_path: Path) -> None:
    as_speculators(tmp_path, target_layers=[0, 2])
    record = json.loads(json.dumps(PUBLISHED))
    shape = record["transformer_layer_config"]
    where = record if field in record or field == "sample_from_anchor" else shape
    where[field] = value
    if field == "vocab_size":
        record["draft_vocab_size"] = value
    if value == "missing":
        del where[field]
    (tmp_path / "d" / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError) as caught:
        load_drafter(tmp_path / "d", target())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
