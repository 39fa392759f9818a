"""Merged references, adapters added to weights (beside PEFT's own), pairs by name, and which pairs are refused."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ramify.base.errors import NeedsError, UserError
from ramify.engine.adapters import adapter_base
from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.engine.merged import merge, merged_model
from ramify.engine.pairs import open_pair, pair_template
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.model.pair import IncompatiblePairError, Pair, Side, same_tokenizer
from ramify.model.tokenizer import HfTokenizer

SHAPE = TinyConfig(vocab=40, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=48, context=64)
ROW = np.arange(12, dtype=np.int32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    for name, seed in (("policy", 1), ("reference", 2)):
        TinyLM(SHAPE, seed).save(base / name)
    return base / "policy", base / "reference"


def test_merging_in_closed_form() -> None:
    start, end = {"w": torch.tensor([0.0, 1, 2, 3, 4])}, {"w": torch.tensor([1.0, 1, 0, 3, 14])}
    assert merge(start, end, 0.5)["w"].tolist() == [0.5, 1, 1, 3, 9]
    assert merge(start, end, 0.5, "ties", density=0.4)["w"].tolist() == [0, 1, 1, 3, 9]
    assert torch.equal(merge(start, end, 0.5, "dare", density=1.0)["w"], merge(start, end, 0.5)["w"])
    assert torch.equal(merge(start, end, 0.0, "dare")["w"], start["w"])
    assert torch.equal(merge(start, end, 1.0)["w"], end["w"])


def test_dare_keeps_its_share_and_its_mean() -> None:
    start, end = {"w": torch.zeros(20_000)}, {"w": torch.ones(20_000)}
    moved = merge(start, end, 1.0, "dare", density=0.2)["w"]
    assert sorted(set(moved.tolist())) == [0, 5]
    assert float(moved.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(moved, merge(start, end, 1.0, "dare", density=0.2)["w"])


def test_a_smaller_vocabulary_is_filled_with_its_last_row() -> None:
    found = merge({"e": torch.tensor([[1.0], [2]])}, {"e": torch.tensor([[1.0], [2], [6]])}, 0.5)["e"]
    assert found.tolist() == [[1], [2], [4]]


@pytest.mark.parametrize(
    ("start", "end", "options", "said"),
    [
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, {}, "only one of them has the weight 'a'"),
        ({"a": torch.zeros(1, 2)}, {"a": torch.zeros(1, 3)}, {}, r"'a' is \(1, 2\) in one"),
        ({}, {}, {"alpha": 1.5}, "alpha must lie"),
        ({}, {}, {"method": "emr"}, "unknown way to merge 'emr'"),
    ],
)
def test_what_cannot_be_merged_is_said(start: Any, end: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        merge(start, end, **({"alpha": 0.5} | options))
    assert caught.value.exit_code == (2 if options else 3)  # another architecture is a pair that does not fit


def test_a_merged_reference_lies_between(folders: tuple[Path, Path]) -> None:
    policy, reference = folders
    middle = merged_model(reference, policy, 0.4)
    weight = "model.layers.0.mlp.up_proj.weight"
    one, other = (TinyLM.load(f).state_dict()[weight] for f in (reference, policy))
    assert torch.allclose(middle.module.state_dict()[weight], 0.6 * one + 0.4 * other, atol=1e-7)
    pair = open_pair(str(policy), str(reference), alpha=1.0)
    p, r = asyncio.run(pair.logprobs([ROW]))
    assert p[0] == pytest.approx(r[0], abs=1e-5)


def lora(folder: Path, base: Path, config: dict[str, Any] | None = None, rank: int = 2) -> Path:
    """An adapter as PEFT writes it."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "base_model_name_or_path": str(base), "task_type": "CAUSAL_LM"}
    settings |= {"target_modules": ["q_proj", "up_proj"], "use_dora": False, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | (config or {})))
    shapes = {name: w.shape for name, w in TinyLM.load(base).state_dict().items() if "q_proj" in name or "up_proj" in name}
    g = torch.Generator().manual_seed(0)
    parts = {}
    for name, (out, into) in shapes.items():
        stem = "base_model.model." + name.removesuffix(".weight")
        parts[stem + ".lora_A.weight"] = torch.randn(rank, into, generator=g) * 0.1
        parts[stem + ".lora_B.weight"] = torch.randn(out, rank, generator=g) * 0.1
    save_file(parts, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_is_added_to_the_weights_it_names(folders: tuple[Path, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    adapter = lora(tmp_path / "adapter", folders[1])
    parts, name = load_file(adapter / "adapter_model.safetensors"), "model.layers.1.self_attn.q_proj"
    added = LocalModel.load(adapter, base=folders[1]).module.state_dict()
    wanted = TinyLM.load(folders[1]).state_dict()
    low = parts[f"base_model.model.{name}.lora_B.weight"] @ parts[f"base_model.model.{name}.lora_A.weight"]
    assert torch.allclose(added[f"{name}.weight"], wanted[f"{name}.weight"] + 4 * low)
    assert torch.equal(added["model.embed_tokens.weight"], wanted["model.embed_tokens.weight"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_switched_off_is_the_reference(folders: tuple[Path, Path], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    adapter = lora(tmp_path / "adapter", folders[1])
    assert adapter_base(adapter) == folders[1]
    p, r = asyncio.run(open_pair(str(adapter)).logprobs([ROW]))
    module = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folders[1]), adapter).eval()
    tokens = torch.from_numpy(ROW.astype(np.int64))[None]
    with torch.no_grad():
        on = torch.log_softmax(module(tokens).logits[0], -1)
        with module.disable_adapter():
            off = torch.log_softmax(module(tokens).logits[0], -1)
    for ours, theirs in ((p, on), (r, off)):
        assert ours[0][1:] == pytest.approx(theirs[np.arange(11), ROW[1:]].numpy(), abs=1e-4)
    assert np.abs(p[0] - r[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"peft_type": "IA3"}, NeedsError, "of type IA3"),
        ({"use_dora": True}, NeedsError, "'use_dora'"),
        ({"base_model_name_or_path": "org/model"}, UserError, "for 'org/model', which is not a folder"),
        ({"lora_alpha": None}, UserError, "'lora_alpha' must be a number, and it is missing"),
        ({"r": 0}, UserError, "'r' is 0"),
        ({"r": 3}, UserError, "not of rank 3"),
    ],
)
def test_adapters_that_cannot_be_read_are_refused(
    folders: tuple[Path, Path], tmp_path: Path, config: dict[str, Any], error: type[Exception], said: str
) -> None:
    adapter = lora(tmp_path / "adapter", folders[1], config)
    with pytest.raises(error, match=said):
        LocalModel.load(adapter)


def test_an_adapter_of_another_model_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    adapter = lora(tmp_path / "adapter", folders[1])
    TinyLM(TinyConfig(vocab=40, width=16, layers=2, heads=1, kv_heads=1, head_size=16, ffn=48)).save(tmp_path / "small")
    with pytest.raises(UserError, match="does not fit the weight"):
        LocalModel.load(adapter, base=tmp_path / "small")


def test_half_an_adapter_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    adapter = lora(tmp_path / "adapter", folders[1])
    file = adapter / "adapter_model.safetensors"
    parts = load_file(file)
    for lost in sorted(parts)[:2]:
        save_file({name: part for name, part in parts.items() if name != lost}, file)
        with pytest.raises(UserError, match=f"has no other half '{lost}'"):
            LocalModel.load(adapter, base=folders[1])


# -- pairs


def test_log_probs_are_kept_by_weights_and_tokens(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pair = open_pair(*map(str, folders), cache=tmp_path / "cache")
    first = asyncio.run(pair.logprobs([ROW, ROW[:5]]))
    files = sorted((tmp_path / "cache").glob("*.f32"))
    assert len(files) == 4
    again = open_pair(*map(str, folders), cache=tmp_path / "cache")
    opened = counted(again)
    for old, new in zip(first, asyncio.run(again.logprobs([ROW, ROW[:5]], again=2)), strict=True):
        for a, b in zip(old, new, strict=True):
            assert a.tobytes() == b.tobytes()
    assert opened == []  # everything was kept, so no weights were read
    kept = {file: file.read_bytes() for file in files}
    for file in files:
        file.write_bytes(b"\0" * len(kept[file]))
    assert not np.any(asyncio.run(again.logprobs([ROW]))[0])  # it is the kept file that is read
    for file in files:
        file.write_bytes(kept[file][:-3])
    asyncio.run(again.logprobs([ROW, ROW[:5]]))
    assert {file: file.read_bytes() for file in files} == kept  # cut short: made anew
    TinyLM(SHAPE, 5).save(tmp_path / "policy")
    changing = open_pair(str(tmp_path / "policy"), str(folders[1]), cache=tmp_path / "cache")
    old = asyncio.run(changing.logprobs([ROW]))[0][0]
    TinyLM(SHAPE, 6).save(tmp_path / "policy")
    changing = open_pair(str(tmp_path / "policy"), str(folders[1]), cache=tmp_path / "cache")
    assert np.abs(asyncio.run(changing.logprobs([ROW]))[0][0] - old).max() > 1e-3


def counted(pair: Pair) -> list[str]:
    """Names of the sides in the order in which they are opened, and whether the other one is held meanwhile."""
    opened: list[str] = []
    for side, other in ((pair.policy, pair.reference), (pair.reference, pair.policy)):

        def opens(load: Callable[[], Any] = side.open, side: Side = side, other: Side = other) -> Any:
            opened.append(side.name + (" beside the other" if other._model is not None else ""))
            return load()

        side.open = opens
    return opened


def test_one_model_is_in_memory_at_a_time(folders: tuple[Path, Path]) -> None:
    pair = open_pair(*map(str, folders))
    opened = counted(pair)
    asyncio.run(pair.logprobs([ROW]))
    assert opened == ["policy", "reference"]
    assert pair.policy._model is None
    assert pair.reference._model is None


def test_a_row_that_a_model_refuses_costs_no_other_row_and_no_other_load(folders: tuple[Path, Path]) -> None:
    pair = open_pair(*map(str, folders))
    opened, done = counted(pair), []
    rows = [ROW, np.zeros(65, np.int32), ROW[:5], np.array([1, 40], np.int32), ROW + 1]
    found = asyncio.run(pair.each(rows, progress=done.append))
    assert opened == ["policy", "reference"]
    assert [type(row).__name__ for row in found] == ["tuple", "InfrastructureError", "tuple", "UserError", "tuple"]
    assert sum(done) == 2 * len(rows)
    for row, tokens in zip(found, rows, strict=True):
        if isinstance(row, tuple):
            for score, alone in zip(row, asyncio.run(pair.logprobs([tokens])), strict=True):
                assert score.logprobs == pytest.approx(alone[0], abs=1e-5)
    assert pair.noise is None  # nothing was scored twice


def test_an_adapter_is_added_to_its_own_base_whatever_the_reference(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, older = map(str, folders)
    adapter, other = str(lora(tmp_path / "adapter", folders[0])), str(lora(tmp_path / "other", folders[0], rank=3))
    own = asyncio.run(open_pair(adapter).logprobs([ROW]))
    with_older = asyncio.run(open_pair(adapter, older).logprobs([ROW]))
    assert with_older[0][0] == pytest.approx(own[0][0], abs=1e-6)
    assert with_older[1][0] == pytest.approx(asyncio.run(open_pair(older, base).logprobs([ROW]))[0][0], abs=1e-6)
    two = asyncio.run(open_pair(adapter, other).logprobs([ROW]))  # two adapters of one base
    assert two[0][0] == pytest.approx(own[0][0], abs=1e-6)
    assert np.abs(two[1][0] - own[1][0]).max() > 1e-4
    with pytest.raises(UserError, match="whole models"):
        open_pair(older, adapter, alpha=0.5)
    lost = str(lora(tmp_path / "lost", folders[0], {"base_model_name_or_path": "org/model"}))
    assert asyncio.run(open_pair(lost, base).logprobs([ROW]))[0][0] == pytest.approx(own[0][0], abs=1e-6)
    with pytest.raises(UserError, match="for 'org/model'"):
        open_pair(lost, adapter)
    held = open_pair(*map(str, folders), together=True)
    asyncio.run(held.logprobs([ROW]))
    assert held.policy._model is not None


def changed(edit: Callable[[dict[str, Any]], None]) -> HfTokenizer:
    from tokenizers import Tokenizer

    record = json.loads(HfTokenizer.load(model_folder("builtin")).to_json())
    edit(record)
    return HfTokenizer(Tokenizer.from_str(json.dumps(record)))


def swap_merges(record: dict[str, Any]) -> None:
    merges = record["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]


def swap_tokens(record: dict[str, Any]) -> None:
    vocab = record["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def ignore_merges(record: dict[str, Any]) -> None:
    record["model"]["ignore_merges"] = True


@pytest.mark.parametrize(
    ("edit", "said"), [(swap_merges, "merge 3 is"), (swap_tokens, "'a' is token"), (ignore_merges, "'ignore_merges' differs")]
)
def test_tokenizers_that_only_look_alike_are_refused(edit: Callable[[dict[str, Any]], None], said: str) -> None:
    one = Side(lambda: None, "one", HfTokenizer.load(model_folder("builtin")))  # type: ignore[arg-type, return-value]
    other = Side(lambda: None, "other", changed(edit))  # type: ignore[arg-type, return-value]
    with pytest.raises(IncompatiblePairError, match=said) as caught:
        same_tokenizer(one, other)
    assert caught.value.exit_code == 3
    assert "one and other do not share a tokenizer" in str(caught.value)


def test_other_padding_settings_are_the_same_tokenizer() -> None:
    def pad(record: dict[str, Any]) -> None:
        record["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}

    one = Side(lambda: None, "one", HfTokenizer.load(model_folder("builtin")))  # type: ignore[arg-type, return-value]
    other = Side(lambda: None, "other", changed(pad))  # type: ignore[arg-type, return-value]
    assert one.tokenizer.hash != other.tokenizer.hash
    same_tokenizer(one, other)


def test_pairs_that_make_no_sense_are_refused(folders: tuple[Path, Path]) -> None:
    policy, reference = map(str, folders)
    with pytest.raises(IncompatiblePairError, match="chat endpoint gives no log-probs"):
        open_pair("chat:m@http://127.0.0.1:1/v1", reference)
    with pytest.raises(UserError, match="is not a LoRA adapter"):
        open_pair(policy)
    with pytest.raises(UserError, match="there is no folder"):
        open_pair("nowhere", reference)
    with pytest.raises(UserError, match="two checkpoint folders"):
        open_pair("completions:m@http://127.0.0.1:1/v1?tokenizer=" + str(model_folder("builtin")), reference, alpha=0.5)


def test_a_reference_of_another_shape_is_no_ancestor(folders: tuple[Path, Path], tmp_path: Path) -> None:
    TinyLM(TinyConfig(vocab=40, width=16, layers=2, heads=1, kv_heads=1, head_size=16, ffn=48)).save(tmp_path / "small")
    TinyLM(SHAPE).save(tmp_path / "reads", HfTokenizer.load(model_folder("builtin")))
    assert "has no tokenizer" in open_pair(str(tmp_path / "reads"), str(folders[1])).warnings[0]
    assert "not an ancestor" in open_pair(str(folders[0]), str(tmp_path / "small")).warnings[0]
    assert open_pair(*map(str, folders)).warnings == []


@pytest.mark.slow
def test_a_server_that_scores_given_tokens_is_half_of_a_pair(folders: tuple[Path, Path], tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
    from model_server import NAME, ModelServer, serving

    tokens = LocalModel.load(model_folder("builtin"))
    with serving(ModelServer(tokens=tokens).app) as url:
        server = f"completions:{NAME}@{url}?tokenizer={model_folder('builtin')}"
        pair = open_pair(server, "builtin", cache=tmp_path / "cache")
        p, r = asyncio.run(pair.logprobs([ROW, ROW[:7]], again=1))
    assert p[0] == pytest.approx(r[0], abs=1e-4)
    assert (pair.noise or 0.0) < 1e-4
    assert len(list((tmp_path / "cache").glob("*.f32"))) == 2  # what a server said is never kept


def test_open_models_make_a_pair_and_bring_a_template() -> None:
    model = LocalModel.load(model_folder("builtin"))
    pair = Pair(model, model)
    assert pair.special
    assert pair_template("builtin") is not None
