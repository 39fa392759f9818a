"""Checkpoints as transformers saves them, each through all that is done with an agent: load, sample, score, fork, train, save, resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import KINDS, VOCAB, save_checkpoint

from ramify.engine.local import LocalModel
from ramify.model.protocol import Prefix, Sampling
from ramify.trace.db import Run

SMALL = ("--updates", 2, "--tokens", 120, "--tasks-per-update", 2, "--train-tasks", 4, "--eval-episodes", 6, "--max-reply", 6)
REPLIES = 10
"""After so many of about 30 replies the runs here are interrupted: past the first evaluation, inside the training."""


def improve(verb: Any, folder: Path, run: Path, *more: object) -> Any:
    return verb("improve", "--model", f"hf:{folder}", "--env", "factory:zoo:Parity", *SMALL, "--out", run, "--json", *more)


def end_of(result: dict[str, Any]) -> list[Any]:
    return [{**result["before"], "seconds": 0}, {**result["after"], "seconds": 0}, result["gain"], result["tokens"]]


def plain_logits(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Of transformers' own model, as it is loaded without ramify."""
    import torch
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return module(torch.from_numpy(rows).long()).logits.numpy()


def drawn(model: LocalModel, length: int = 12) -> np.ndarray:
    """A row of a prompt and what the model continues it with."""
    prompt = np.arange(3, 10, dtype=np.int32)
    (reply,) = asyncio.run(model.sample(Prefix(prompt), 1, Sampling(max_tokens=length), [7]))
    assert reply.tokens is not None
    return np.concatenate((prompt, reply.tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_through_its_whole_life(kind: str, verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, run, whole = tmp_path / "start", tmp_path / "run", tmp_path / "whole"
    save_checkpoint(start, kind)
    model = LocalModel.load(start)
    row = drawn(model)
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
        node = next(n for n in stored.nodes(stored.trees()[0].name) if n.drawn > 1)
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
    row = drawn(model, kept - 8)
    (scores,) = asyncio.run(model.logprobs([row]))
    logits = plain_logits(start, row[None])[0]
    expected = logits[np.arange(len(row) - 1), row[1:]] - np.logaddexp.reduce(logits[:-1], axis=-1)
    np.testing.assert_allclose(scores.logprobs[1:], expected, atol=1e-4)
    long = verb("rollout", "--model", f"hf:{start}", "--env", "household", "--out", tmp_path / "run", "--json")
    assert long.code == 1
    assert f"the context of {kept} of 'start' (the sliding window of its attention" in long.out


def test_stretched_rotary_positions_bound_the_context(tmp_path: Path) -> None:
    """Where the factors depend on the longest row of a batch, what a short row draws would, too."""
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
    said = verb.refused("improve", "--model", f"hf:{tmp_path / 'start'}", "--out", tmp_path / "run")
    assert "pytorch_model.bin, a pickle" in said
    assert "save them as safetensors" in said
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


def test_tokens_that_the_tokenizer_does_not_know_are_drawn_and_kept(tmp_path: Path) -> None:
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
