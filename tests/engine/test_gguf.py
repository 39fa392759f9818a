"""GGUF files as models: one written here, of a model that is known, and files that are none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.engine.checkpoints import model_folder, save_model
from ramify.engine.gguf import INSTALL, smollm2_file
from ramify.engine.local import LocalModel
from ramify.engine.named import check_model, find_model
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.chat import SPECIALS, TAG_JINJA, train_tokenizer

TEXTS = ["the cup is in the kitchen", "open the door of the kitchen and take the cup"] * 3
SHAPE = TinyConfig(vocab=320, width=64, layers=2, heads=4, kv_heads=2, head_size=16, ffn=96, context=128, qk_norm=False)
LAYERS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path / "cache"))


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{number}.{LAYERS[part]}.weight"


def write_gguf(file: Path, model: TinyLM, quantised: bool = False) -> None:
    """``model`` as llama.cpp's converter writes a Llama."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (scripts/install real): GGUF FILES ARE NOT TESTED")
    pytest.importorskip("accelerate", reason="accelerate is not installed: GGUF FILES ARE NOT TESTED")
    c, tokenizer = model.config, train_tokenizer(TEXTS, SHAPE.vocab)
    bpe = json.loads(tokenizer.to_json())["model"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("mine")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantised else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_rope_dimension_count(c.head_size)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    words = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    words += [f"unused{i}" for i in range(c.vocab - len(words))]
    writer.add_token_list(words)
    writer.add_token_types([3 if word in SPECIALS else 1 for word in words])
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(words.index("<|end|>") if "<|end|>" in words else 1)
    writer.add_chat_template(TAG_JINJA)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp pairs the halves that rotate together
            heads = c.heads if "q_proj" in name else c.kv_heads
            values = values.reshape(heads, 2, c.head_size // 2, c.width).swapaxes(1, 2).reshape(values.shape)
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_the_model_that_was_written_to_it(tmp_path: Path) -> None:
    module = TinyLM(SHAPE, seed=3).eval()
    file = tmp_path / "mine.gguf"
    write_gguf(file, module)
    check_model(f"gguf:{file}")
    model = find_model(f"gguf:{file}")[0]
    assert isinstance(model, LocalModel)
    assert model.identity.name.startswith("mine.F32-")
    assert model.pretrained
    mine, theirs = module.state_dict(), model.module.state_dict()
    assert all(np.array_equal(mine[name].numpy(), theirs[name].numpy()) for name in mine)
    assert model.template is not None
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode(TEXTS[0])) == TEXTS[0]

    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder" / "other.gguf")
    assert model_folder(f"hf:{tmp_path / 'folder'}") == model.folder
    assert LocalModel.load(tmp_path / "folder").identity == model.identity

    save_model(model, model.folder, tmp_path / "saved")
    saved = LocalModel.load(tmp_path / "saved")
    assert saved.identity.weights == model.identity.weights
    assert saved.pretrained
    assert "dequantised_from" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_the_quantisation_is_named_and_the_weights_are_near(tmp_path: Path) -> None:
    module = TinyLM(SHAPE, seed=3).eval()
    write_gguf(tmp_path / "mine.gguf", module, quantised=True)
    model = LocalModel.load(tmp_path / "mine.gguf")
    assert ".Q8_0-" in model.identity.name
    source = json.loads((model_folder(f"gguf:{tmp_path / 'mine.gguf'}") / "config.json").read_text())["dequantised_from"]
    assert source["quantisation"] == "Q8_0"
    theirs = model.module.state_dict()
    for name, weight in module.state_dict().items():
        np.testing.assert_allclose(theirs[name].numpy(), weight.numpy(), atol=float(weight.abs().max()) / 100)


def test_what_is_no_gguf_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no weights")
    (tmp_path / "two.gguf").write_text("no weights")
    for spec, said in (
        (f"gguf:{tmp_path / 'text.gguf'}", "is not a GGUF file"),
        (f"gguf:{tmp_path / 'absent.gguf'}", "is not a GGUF file, and there is none"),
        (f"hf:{tmp_path}", "holds 2 GGUF files: name one, such as gguf:"),
        ("gguf:", "is neither 'builtin' nor 'hf:PATH', 'gguf:FILE' or 'smollm2'"),
    ):
        with pytest.raises(UserError, match=said):
            model_folder(spec)


def test_a_damaged_gguf_file_is_refused_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf", TinyLM(SHAPE, seed=3))
    (tmp_path / "half.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:5000])
    with pytest.raises(NeedsError, match=r"transformers cannot open .*half\.gguf as a causal language model"):
        LocalModel.load(tmp_path / "half.gguf")
    assert not list((tmp_path / "cache").glob("gguf/*/*"))


def test_without_its_package_smollm2_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        return None

    monkeypatch.setattr("ramify.engine.gguf.find_spec", absent)
    with pytest.raises(NeedsError, match=re.escape(INSTALL)):
        smollm2_file()
