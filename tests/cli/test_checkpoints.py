"""Checkpoints as transformers saves them, each through all that is done with an agent:
load, sample, score, fork, train, save, resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import KINDS, VOCAB, save_checkpoint

from ramify.engine.local import LocalModel
from ramify.engine.products import sums_exactly
from ramify.model.protocol import Prefix, Sampling
from ramify.trace.db import Run

SMALL = ("--updates", 2, "--tokens", 120, "--tasks-per-update", 2, "--train-tasks", 4, "--eval-episodes", 6, "--max-reply", 6)
REPLIES = 30
"""After so many replies the runs here are interrupted: past the trial and the first evaluation, inside the training."""


def improve(verb: Any, folder: Path, run: Path, *more: object) -> Any:
    last = ("--keep.checkpoint", "last", "--keep.perplexity", "off")  # too small to gain: what was trained is wanted all the same
    what = () if "--lora" in more or (folder / "adapter_config.json").exists() else ("--all-weights",)
    given = ("--env", "factory:zoo:Parity", *SMALL, *last, *what, "--temperature", 1)  # given, or a trial would choose it
    return verb("improve", "--model", f"hf:{folder}", *given, "--out", run, "--json", *more)


def end_of(result: dict[str, Any]) -> list[Any]:
    return [{**result["before"], "seconds": 0}, {**result["after"], "seconds": 0}, result["gain"], result["tokens"]]


def plain_logits(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Of transformers' own model, as it is loaded without ramify."""
    import torch
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return module(torch.from_numpy(rows).long()).logits.numpy()


def sampled(model: LocalModel, length: int = 12) -> np.ndarray:
    """A row of a prompt and what the model continues it with."""
    prompt = np.arange(3, 10, dtype=np.int32)
    (reply,) = asyncio.run(model.sample(Prefix(prompt), 1, Sampling(max_tokens=length), [7]))
    assert reply.tokens is not None
    return np.concatenate((prompt, reply.tokens))


@pytest.mark.parametrize("kind", [kind if kind == "llama" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_a_checkpoint_through_its_whole_life(kind: str, verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, run, whole = tmp_path / "start", tmp_path / "run", tmp_path / "whole"
    save_checkpoint(start, kind)
    model = LocalModel.load(start)
    row = sampled(model)
    logits = plain_logits(start, row[None])[0]
    expected = logits[np.arange(len(row) - 1), row[1:]] - np.logaddexp.reduce(logits[:-1], axis=-1)
    (scores,) = asyncio.run(model.logprobs([row]))
    np.testing.assert_allclose(scores.logprobs[1:], expected, atol=1e-4)

    undisturbed = improve(verb, start, whole)
    assert undisturbed.code == 0, undisturbed.err
    assert "shards" not in undisturbed.err
    assert "Loading" not in undisturbed.err
    monkeypatch.setenv("INTERRUPT", str(tmp_path / "left"))
    (tmp_path / "left").write_bytes(bytes(REPLIES))
    stopped = improve(verb, start, run)
    assert stopped.code == 130, stopped.err
    assert not (run / "agent").exists()
    resumed = verb("resume", run, "--json")
    assert resumed.code == 0, resumed.err
    assert end_of(resumed.json) == end_of(undisturbed.json)

    agent = LocalModel.load(run / "agent")
    assert agent.identity.weights == LocalModel.load(whole / "agent").identity.weights != model.identity.weights
    np.testing.assert_allclose(plain_logits(run / "agent", row[None])[0], module_logits(agent, row), atol=1e-5)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (start, run / "agent"))
    assert {**before, "transformers_version": 0} == {**after, "transformers_version": 0}
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (run / "agent" / name).read_bytes() == (start / name).read_bytes()
    assert tied(run / "agent") == tied(start)

    with Run.open(run) as stored:
        node = next(n for n in stored.nodes(stored.trees()[0].name) if n.sampled_tokens > 1)
    forked = verb("fork", run, f"{node.id}:{int(node.sampled.argmax()) + 1}", "--n", 3, "--json")
    assert forked.code == 0, forked.err
    assert forked.json["fork"]["n"] == 3


def module_logits(model: LocalModel, row: np.ndarray) -> np.ndarray:
    import torch

    with torch.inference_mode():
        return model.forward.logits(model.forward.full(torch.from_numpy(row[None]).long()))[0].numpy()


def tied(folder: Path) -> bool:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder)
    return module.get_input_embeddings().weight is module.get_output_embeddings().weight


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_workers_play_the_same_and_take_trained_weights(kind: str, verb: Any, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "start", kind)
    here = improve(verb, tmp_path / "start", tmp_path / "here")
    there = improve(verb, tmp_path / "start", tmp_path / "there", "--backend", "processes:2")
    assert there.code == here.code == 0, there.err
    assert end_of(there.json) == end_of(here.json)


@pytest.mark.parametrize(("name", "kept"), [("gemma3_text", 64), ("mistral", 64)])
def test_a_sliding_window_bounds_the_context(name: str, kept: int, verb: Any, tmp_path: Path) -> None:
    """Within its window a row attends to all before it, so the engine is exact there; beyond, it says what is the matter."""
    start = tmp_path / "start"
    grouped = {"head_dim": 8} if name == "gemma3_text" else {}
    save_checkpoint(start, name, sliding_window=kept, **grouped)
    model = LocalModel.load(start)
    assert model.context == kept
    row = sampled(model, kept - 8)
    (scores,) = asyncio.run(model.logprobs([row]))
    logits = plain_logits(start, row[None])[0]
    expected = logits[np.arange(len(row) - 1), row[1:]] - np.logaddexp.reduce(logits[:-1], axis=-1)
    np.testing.assert_allclose(scores.logprobs[1:], expected, atol=1e-4)
    long = verb("rollout", "--model", f"hf:{start}", "--env", "household", "--out", tmp_path / "run", "--json")
    assert long.code == 1
    assert f"the context of {kept} of 'start' (the sliding window of its attention" in long.out


def test_stretched_rotary_positions_bound_the_context(tmp_path: Path) -> None:
    """Where the factors depend on the longest row of a batch, what a short row samples would, too."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    rope |= {"original_max_position_embeddings": 32, "partial_rotary_factor": 1.0}
    save_checkpoint(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=32)
    assert LocalModel.load(tmp_path).context == 32


def test_shards_with_the_tied_head_beside_them(verb: Any, tmp_path: Path) -> None:
    """As some published checkpoints are: tied, in several files, one of which repeats the head."""
    from safetensors.torch import load_file, save_file

    start = tmp_path / "start"
    save_checkpoint(start, "qwen3")
    weights = load_file(start / "model.safetensors")
    (start / "model.safetensors").unlink()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    names = sorted(weights)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, start / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
    (start / "model.safetensors.index.json").write_text(json.dumps(index))
    made = improve(verb, start, tmp_path / "run")
    assert made.code == 0, made.err
    assert tied(tmp_path / "run" / "agent")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama-tied", "gpt2"])
def test_a_checkpoint_in_bfloat16_is_run_and_saved_in_float32(kind: str, verb: Any, tmp_path: Path) -> None:
    import torch

    start = tmp_path / "start"
    save_checkpoint(start, kind).to(torch.bfloat16).save_pretrained(start)
    made = improve(verb, start, tmp_path / "run")
    assert made.code == 0, made.err
    assert json.loads((tmp_path / "run" / "agent" / "config.json").read_text())["dtype"] == "float32"
    row = np.arange(3, 20, dtype=np.int32)
    agent = LocalModel.load(tmp_path / "run" / "agent")
    np.testing.assert_allclose(plain_logits(tmp_path / "run" / "agent", row[None])[0], module_logits(agent, row), atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt-neox"])
def test_pickled_weights_are_refused_with_what_to_do(kind: str, verb: Any, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "start", kind)
    (tmp_path / "start" / "model.safetensors").rename(tmp_path / "start" / "pytorch_model.bin")
    message = verb.refused("improve", "--model", f"hf:{tmp_path / 'start'}", "--out", tmp_path / "run")
    assert "pytorch_model.bin, a pickle" in message
    assert "save them as safetensors" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["llama", "gpt-neox"])
def test_a_checkpoint_without_one_of_its_weights_is_refused(kind: str, verb: Any, tmp_path: Path) -> None:
    """transformers would fill it with random numbers."""
    from safetensors.torch import load_file, save_file

    start = tmp_path / "start"
    save_checkpoint(start, kind)
    weights = load_file(start / "model.safetensors")
    name = next(name for name in sorted(weights) if "mlp" in name)
    del weights[name]
    save_file(weights, start / "model.safetensors", metadata={"format": "pt"})
    assert f"weight '{name}' is missing" in verb.refused("rollout", "--model", f"hf:{start}", "--out", tmp_path / "run")


def test_tokens_that_the_tokenizer_does_not_know_are_sampled_and_kept(tmp_path: Path) -> None:
    """A model's vocabulary is often padded beyond its tokenizer's: such a token has no text and is a token all the same."""
    save_checkpoint(tmp_path, "llama")
    model = LocalModel.load(tmp_path)
    assert model.tokenizer is not None
    assert model.tokenizer.size < VOCAB
    known = tuple(range(model.tokenizer.size))
    (reply,) = asyncio.run(model.sample(Prefix(np.arange(3, 9, dtype=np.int32)), 1, Sampling(max_tokens=5, ban=known), [1]))
    assert reply.tokens is not None
    assert reply.ends is not None
    assert min(reply.tokens) >= model.tokenizer.size
    assert (reply.text, list(reply.ends)) == ("", [0] * 5)


# -- adapters


def save_adapter(folder: Path, base: Path, name: str, rank: int = 2, **settings: Any) -> np.ndarray:
    """A LoRA adapter of one weight in PEFT's layout; returns what it adds to that weight, [out, in]."""
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    out, into = load_file(base / "model.safetensors")[f"{name}.weight"].shape
    if settings.get("fan_in_fan_out"):
        out, into = into, out
    rng = np.random.default_rng(0)
    down, up = (rng.normal(0, 0.3, shape).astype(np.float32) for shape in ((rank, into), (out, rank)))
    save_file(
        {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up},
        folder / "adapter_model.safetensors",
    )
    record = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 6, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(record | settings))
    return 6 / rank * up @ down


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn", {"fan_in_fan_out": True}),
        ("qwen3", "model.layers.0.self_attn.q_proj", {}),
        ("olmo2", "model.layers.0.mlp.up_proj", {}),
    ],
)
def test_an_adapter_is_a_model(kind: str, name: str, settings: dict[str, Any], verb: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    save_checkpoint(tmp_path / "base", kind)
    change = save_adapter(tmp_path / "adapter", tmp_path / "base", name, **settings)
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    row = np.arange(3, 20, dtype=np.int32)
    with torch.inference_mode():
        weight = module.get_parameter(f"{name}.weight")
        weight += torch.from_numpy(change.T if settings else change)
        expected = module(torch.from_numpy(row[None]).long()).logits[0].numpy()
    np.testing.assert_allclose(module_logits(LocalModel.load(tmp_path / "adapter"), row), expected, atol=1e-4)

    made = improve(verb, tmp_path / "adapter", tmp_path / "run")
    assert made.code == 0, made.err
    saved = tmp_path / "run" / "agent"
    assert not list(saved.glob("model*")), "only the adapter is trained and saved"
    trained, start = (LocalModel.load(folder).module.state_dict() for folder in (saved, tmp_path / "base"))
    assert [one for one in start if not torch.equal(start[one], trained[one])] == [f"{name}.weight"]
    assert (saved / "chat_template.jinja").read_bytes() == (tmp_path / "base" / "chat_template.jinja").read_bytes()


@pytest.mark.parametrize("kind", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_a_new_adapter_is_trained_saved_and_trained_on(
    kind: str, verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, with the base as it was; a stopped run ends as the undisturbed one; the saved adapter goes on in another run."""
    base, whole, cut = (tmp_path / name for name in ("base", "whole", "cut"))
    save_checkpoint(base, kind)
    weights = (base / "model.safetensors").read_bytes()
    undisturbed = improve(verb, base, whole, "--lora", 2)
    assert undisturbed.code == 0, undisturbed.err
    monkeypatch.setenv("INTERRUPT", str(tmp_path / "left"))
    (tmp_path / "left").write_bytes(bytes(REPLIES))
    assert improve(verb, base, cut, "--lora", 2).code == 130
    monkeypatch.delenv("INTERRUPT")
    resumed = verb("resume", cut, "--json")
    assert resumed.code == 0, resumed.err
    assert end_of(resumed.json) == end_of(undisturbed.json)
    assert (base / "model.safetensors").read_bytes() == weights

    files = {folder: sorted(file.name for file in (folder / "agent").iterdir()) for folder in (whole, cut)}
    assert files[whole] == files[cut]
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {*files[whole]}
    assert "model.safetensors" not in files[whole]
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (whole / "agent" / name).read_bytes() == (cut / "agent" / name).read_bytes()
    first = LocalModel.load(whole / "agent").identity.weights
    assert first != LocalModel.load(base).identity.weights

    on = improve(verb, whole / "agent", tmp_path / "on")
    assert on.code == 0, on.err
    with Run.open(tmp_path / "on") as run:
        assert run.meta["parts"]["weights"] == first, "it began where the other ended, bit for bit"
    assert json.loads((tmp_path / "on/agent/adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    assert LocalModel.load(tmp_path / "on" / "agent").identity.weights != first
    refused = verb.refused("improve", "--model", f"hf:{whole / 'agent'}", "--env", "factory:zoo:Parity", "--lora", "3")
    assert "is an adapter of rank 2, which goes on as it is: leave --lora 3 out" in refused


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library's own
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_peft_loads_what_was_trained(kind: str, verb: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    peft = pytest.importorskip("peft")
    save_checkpoint(tmp_path / "base", kind)
    assert improve(verb, tmp_path / "base", tmp_path / "run", "--lora", 2, "--train.lr", 0.05).code == 0
    saved, row = tmp_path / "run" / "agent", np.arange(3, 20, dtype=np.int32)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    made = peft.PeftModel.from_pretrained(base, saved).eval()
    with torch.inference_mode():
        expected = made(torch.from_numpy(row[None]).long()).logits[0].numpy()
    np.testing.assert_allclose(module_logits(LocalModel.load(saved), row), expected, atol=1e-4)
    assert np.abs(plain_logits(tmp_path / "base", row[None])[0] - expected).max() > 1e-3


def test_an_adapter_whose_base_is_a_name_on_a_hub(verb: Any, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "base", "llama")
    save_adapter(tmp_path / "adapter", tmp_path / "base", "lm_head", base_model_name_or_path="org/model-7b")
    message = verb.refused("rollout", "--model", f"hf:{tmp_path / 'adapter'}", "--out", tmp_path / "run")
    assert "is for 'org/model-7b', which is not a folder with a model here" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library's own
@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_an_adapter_saved_by_peft_computes_what_peft_computes(kind: str, tmp_path: Path) -> None:
    import torch

    peft = pytest.importorskip("peft")
    module = save_checkpoint(tmp_path / "base", kind)
    module.config._name_or_path = module.name_or_path = str(tmp_path / "base")
    targets = ["c_attn", "c_proj"] if kind == "gpt2" else "all-linear"
    made = peft.get_peft_model(module, peft.LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=targets))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    made.eval().save_pretrained(tmp_path / "adapter")
    row = np.arange(3, 20, dtype=np.int32)
    with torch.inference_mode():
        expected = made(torch.from_numpy(row[None]).long()).logits[0].numpy()
    np.testing.assert_allclose(module_logits(LocalModel.load(tmp_path / "adapter"), row), expected, atol=1e-4)


# -- what the checkpoint says of sampling


def test_sampling_defaults_come_from_the_checkpoint(verb: Any, tmp_path: Path) -> None:
    start, run = tmp_path / "start", tmp_path / "run"
    save_checkpoint(start, "qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 7})
    words = ("rollout", "--model", f"hf:{start}", "--env", "factory:zoo:Parity", "--count", 4, "--max-reply", 12, "--json")
    assert verb(*words, "--out", run, "--temperature", 0.9).code == 0
    with Run.open(run) as stored:
        used, config = stored.meta["config"]["sampling"], stored.meta["config"]
        sampled_by = [stored.provenance(n.provenance) for n in stored.nodes(stored.trees()[0].name) if n.provenance is not None]
    assert (used["temperature"], used["top_p"], used["top_k"], used["max_tokens"]) == (0.9, 0.95, 20, 12)
    assert (config["temperature"], config["top_p"], config["top_k"]) == (0.9, 0.95, 20)
    assert {(p.settings["temperature"], p.settings["top_k"]) for p in sampled_by if p.settings} == {(0.9, 20)}
    assert verb("resume", run, "--json").json["missing"] == 0
    cost_estimate = verb(*words, "--top-k", 0, "--dry-run").json
    assert (cost_estimate["settings"]["temperature"], cost_estimate["settings"]["top_k"]) == (0.6, 0)
    assert "temperature was 0.9, is 0.6" in verb.refused(*words, "--out", run)
    (start / "generation_config.json").write_text('{"temperature": "hot"}')
    assert "generation_config.json: 'temperature' is 'hot'" in verb.refused(*words, "--out", tmp_path / "other")


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_dry_runs_count_and_say_memory_without_reading_a_weight(
    verb: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    module = save_checkpoint(tmp_path / "start", kind)
    start, log, prompts = f"hf:{tmp_path / 'start'}", tmp_path / "log.jsonl", tmp_path / "prompts.txt"
    said = [("user", "A room."), ("assistant", "look"), ("user", "a lamp and a door")]
    log.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")
    prompts.write_text("Hello.\n")

    def read(*_: object, **__: object) -> None:
        raise AssertionError("the weights are read")

    monkeypatch.setattr("ramify.engine.tiny._fill", read)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    new = tmp_path / "new"
    for words in (
        ("rollout", "--model", start, "--env", "factory:zoo:Parity", "--out", new),
        ("rollout", "--tree", "--model", start, "--env", "factory:zoo:Parity", "--out", new),
        ("dspark", "train", start, "--prompts", prompts, "--out", new),
        ("world-model", "train", log, "--model", start, "--out", new),
        ("world-model", "train", log, "--model", start, "--lora", 4, "--out", new),
    ):
        costs = verb(*words, "--dry-run", "--json").json["cost_estimate"]
        assert 0 < costs["GiB of memory, about"] < 8, words
        assert any("seconds" in name for name in costs), words
        if "weights" in costs:
            assert costs["weights"] == sum(weight.numel() for weight in module.parameters())
        assert not new.exists()


def test_the_checkpoints_penalty_is_applied_stored_and_can_be_turned_off(verb: Any, tmp_path: Path) -> None:
    """``min_p`` 1 leaves the likeliest token, as temperature 0 does."""
    start = tmp_path / "start"
    save_checkpoint(start, "qwen3", {"min_p": 1.0, "repetition_penalty": 3.0})
    words = ("rollout", "--model", f"hf:{start}", "--env", "factory:zoo:Parity", "--count", 4, "--max-reply", 12, "--json")

    def replies(name: str, *more: object) -> list[list[int]]:
        assert verb(*words, "--out", tmp_path / name, *more).code == 0
        with Run.open(tmp_path / name) as run:
            return [n.tokens.tolist() for tree in run.trees() for n in run.nodes(tree.name) if n.provenance is not None]

    own = replies("own")
    with Run.open(tmp_path / "own") as run:
        assert (run.config["min_p"], run.config["repetition_penalty"]) == (1.0, 3.0)
    assert replies("greedy", "--temperature", 0, "--min-p", 0) == own
    assert replies("bare", "--temperature", 0, "--min-p", 0, "--repetition-penalty", 1) != own
    assert verb("resume", tmp_path / "own", "--json").json["missing"] == 0
    (start / "generation_config.json").write_text('{"repetition_penalty": 0}')
    assert "'repetition_penalty' is 0" in verb.refused(*words, "--out", tmp_path / "other")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # the fast path and the generic one
def test_the_tokens_that_end_a_turn_come_from_the_checkpoint(kind: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, kind, {"eos_token_id": [2, *range(3, VOCAB)]})
    model = LocalModel.load(tmp_path)
    (reply,) = asyncio.run(model.sample(Prefix(np.arange(3, 9, dtype=np.int32)), 1, Sampling(ban=(0, 1)), [1]))
    assert reply.tokens is not None
    assert (reply.stop, len(reply.tokens)) == ("eos", 1)


# -- where it runs


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--device", "cuda:97"], 4, "there is no device 'cuda:97' here"),
        (["--device", "mps"], 4, "there is no device 'mps' here"),
        (["--device", "gpu"], 2, "'gpu' names no device"),
        (["--device", "cpu", "--dtype", "bfloat16"], 2, "bfloat16 is for accelerators"),
        (["--dtype", "float16"], 2, "--dtype"),
        (["--model", "factory:zoo:Parity", "--device", "cpu"], 2, "'factory' names a model that it does not run"),
        (["--model", "chat:m@http://127.0.0.1:9/v1", "--device", "cuda"], 2, "'chat' names a model that it does not run"),
    ],
)
def test_devices_and_dtypes_that_cannot_be_had(words: list[str], code: int, message: str, verb: Any, tmp_path: Path) -> None:
    found = verb("rollout", *words, "--out", tmp_path / "run")
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert found.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_environment_names_the_device_where_no_option_does(
    verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_DEVICE", "cuda:97")
    assert "no device 'cuda:97'" in verb("improve", "--out", tmp_path / "run").err
    assert verb("rollout", "--device", "cpu", "--count", 1, "--out", tmp_path / "other").code == 0


def test_a_rollout_in_int8_repeats_at_any_concurrency_and_nothing_is_trained_in_it(
    verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sums_exactly():
        pytest.skip("this processor's kernels for bytes do not sum exactly")
    words = ("rollout", "--env", "household", "--count", 3, "--dtype", "int8", "--json")
    trees = []
    for n in (1, 8):
        played = verb(*words, "--concurrency", n, "--out", tmp_path / f"run{n}")
        assert played.code == 0, played.err
        with Run.open(tmp_path / f"run{n}") as run:
            nodes = [node for info in run.trees() for node in run.nodes(info.name)]
            trees.append({node.id: node.tokens.tolist() for node in nodes if node.tokens is not None})
    assert trees[0]
    assert trees[0] == trees[1]
    monkeypatch.setenv("RAMIFY_DTYPE", "int8")
    refused = verb("improve", "--env", "household", "--out", tmp_path / "improved")
    assert (refused.code, refused.out, refused.err.count("\n")) == (4, "", 1)
    assert "ramify improve needs a model with train" in refused.err
    assert "'household-int8' does not offer" in refused.err


def test_in_bfloat16_the_cache_is_too_and_nothing_is_promised(tmp_path: Path) -> None:
    """What ``--dtype bfloat16`` runs on an accelerator, here on the processor, where that option is refused."""
    import torch

    module = save_checkpoint(tmp_path, "llama")
    exact = LocalModel.load(tmp_path)
    half = LocalModel(module.to(torch.bfloat16), exact.tokenizer)
    assert half.placed["dtype"] == "bfloat16"
    assert not half.capabilities & {"batch_invariant", "seeds", "train"}
    row = sampled(exact, 40)
    (a,), (b,) = (asyncio.run(model.logprobs([row])) for model in (exact, half))
    np.testing.assert_allclose(b.logprobs, a.logprobs, atol=0.2)
    (reply,) = asyncio.run(half.sample(Prefix(row[:9]), 1, Sampling(max_tokens=20, top_p=0.9), [3]))
    assert reply.tokens is not None
    (again,) = asyncio.run(half.logprobs([np.concatenate((row[:9], reply.tokens))]))
    assert reply.model_logprobs is not None
    np.testing.assert_allclose(reply.model_logprobs, again.logprobs[9:], atol=0.2)
    asyncio.run(exact.sample(Prefix(row[:9]), 1, Sampling(max_tokens=20, top_p=0.9), [3]))
    assert 0 < half.gauges["memory_bytes"] < exact.gauges["memory_bytes"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_rollout_on_an_accelerator(kind: str, dtype: str, verb: Any, tmp_path: Path) -> None:
    import torch

    if not torch.accelerator.is_available():
        pytest.skip("no accelerator that torch can use")
    save_checkpoint(tmp_path / "start", kind)
    words = ("--model", f"hf:{tmp_path / 'start'}", "--env", "factory:zoo:Parity", "--device", "cuda", "--json")
    played = verb("rollout", *words, "--dtype", dtype, "--out", tmp_path / "run")
    assert (played.code, played.json["n"]) == (0, 8), played.err
    if dtype == "float32":
        made = verb("improve", *words, *SMALL, "--out", tmp_path / "improved")
        assert made.code == 0, made.err
