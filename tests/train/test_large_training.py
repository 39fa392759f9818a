"""Training a large model or an adapter gives the gradients of the plain way: products, loss in pieces, blocks computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from ramify.base.errors import NeedsError
from ramify.engine.adapters import Adapter
from ramify.engine.generic import HfForward
from ramify.engine.products import by_columns
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.train import checkpoint, large
from ramify.train.batch import Row
from ramify.train.loop import TrainConfig, Trainer

SHAPE: dict[str, Any] = {
    "vocab": 19,
    "width": 32,
    "layers": 3,
    "heads": 2,
    "kv_heads": 1,
    "head_size": 16,
    "ffn": 64,
    "context": 64,
}
LOSSES = {"policy_gradient": 1.0, "reference_kl": 0.3, "cross_entropy": 0.1, "preference": 0.2}


def tiny(tied: bool) -> nn.Module:
    return TinyLM(TinyConfig(**SHAPE, tied=tied), seed=3)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    shape = {"vocab_size": 19, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return HfForward(LlamaForCausalLM(config)).module


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return HfForward(GPT2LMHeadModel(GPT2Config(vocab_size=19, n_embd=32, n_layer=2, n_head=2, n_positions=64))).module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": lambda: tiny(True),
    "untied": lambda: tiny(False),
    "llama": llama,
    "gpt2": gpt2,
}


def rows(prompt: int) -> list[Row]:
    """Rows of unequal length that begin alike for ``prompt`` tokens, with all that the losses ask for."""
    rng = np.random.default_rng(0)
    shown, built = rng.integers(0, 19, prompt), []
    for _ in range(7):
        length = prompt + int(rng.integers(3, 20))
        values = {
            "advantage": rng.normal(size=length),
            "logprobs": rng.normal(-2.9, 0.3, length),
            "rival": rng.integers(0, 19, length),
        }
        values |= {name: rng.normal(-2.9, 0.3, length) for name in ("reference", "rival_reference")}
        tokens = np.concatenate((shown, rng.integers(0, 19, length - prompt))).astype(np.int32)
        floats = {name: array.astype(np.float32) for name, array in values.items()}
        built.append(Row(tokens, (np.arange(length) >= prompt) & (rng.random(length) < 0.7), floats))
    return built


def gradients(module: nn.Module, given: list[Row], adapter: Adapter | None = None) -> dict[str, Tensor]:
    config = TrainConfig(lr=0.0, clip_norm=1e9)
    trainer = Trainer(module, config, adapter=adapter)
    trainer.update(given, LOSSES)
    if adapter is None:
        return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}
    parts = {f"{name} {i}": half.grad for name, pair in adapter.parts.items() for i, half in enumerate(pair)}
    return {name: grad.clone() for name, grad in parts.items() if grad is not None}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    size = max(float(grad.norm()) for grad in wanted.values())
    for name, grad in wanted.items():
        assert float((found[name] - grad).norm()) < 1e-5 * size, name


def as_large(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 28) -> None:
    """Every model counts as a large one, and pieces hold few logits."""
    for name, value in {"LARGE": 1, "HEAD": 0, "PIECE": 5 * 19, "LEAST_ROOM": room, "ROOM": 0}.items():
        monkeypatch.setattr(large, name, value)


@pytest.mark.parametrize("prompt", [2, 20], ids=["apart", "shared"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_all_weights_are_the_plain_ones(kind: str, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = MODELS[kind](), rows(prompt)
    plain = gradients(module, given)
    as_large(monkeypatch)
    same(gradients(module, given), plain)
    as_large(monkeypatch, room=1)  # one row a pass, and every block computed again
    same(gradients(module, given), plain)
    assert all("forward" not in vars(layer) for layer in module.modules())


@pytest.mark.parametrize("prompt", [2, 20], ids=["apart", "shared"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_an_adapter_are_those_of_the_chain_rule(kind: str, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = MODELS[kind](), rows(prompt)
    adapter = Adapter.new(module, 3, 0, Path())
    generator = torch.Generator().manual_seed(5)
    if kind == "untied":  # an adapter that others made may change the head, too
        name = "lm_head.weight"
        adapter.parts[name] = torch.randn(3, 32, generator=generator), torch.zeros(19, 3)
        adapter.base[name] = module.get_parameter(name).detach().clone()
    for _, up in adapter.parts.values():
        up.normal_(0, 0.1, generator=generator)
    adapter.merge_into(module)
    wanted = {}
    for name, whole in gradients(module, given).items():
        if name in adapter.parts:
            down, up = adapter.parts[name]
            whole = whole.T if kind == "gpt2" else whole
            wanted |= {f"{name} 0": adapter.scale * up.T @ whole, f"{name} 1": adapter.scale * whole @ down.T}
    module.zero_grad()
    same(gradients(module, given, adapter), wanted)
    assert all(weight.grad is None and not weight.requires_grad for weight in module.parameters())
    as_large(monkeypatch)
    same(gradients(module, given, adapter), wanted)
    as_large(monkeypatch, room=1)
    same(gradients(module, given, adapter), wanted)


def test_steps_of_a_large_model_are_torch_s_and_go_on_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for restarts in (False, False, True):
        module = tiny(True)
        for part in module.modules():
            if isinstance(part, nn.Linear) and weights:  # as the engine lays out a large model
                part.weight.data = by_columns(part.weight.shape).copy_(part.weight.data)
        trainer = Trainer(module, TrainConfig(lr=1e-2, weight_decay=0.1, epochs=3))
        trainer.update(rows(4), LOSSES)
        if restarts:
            blob = checkpoint.pack(*trainer.state())
            trainer.update(rows(2), LOSSES)
            trainer.restore(*checkpoint.unpack(blob))
        trainer.update(rows(6), LOSSES)
        weights.append(torch.cat([weight.detach().flatten() for weight in module.parameters()]))
        as_large(monkeypatch)
    assert float((weights[0] - weights[1]).norm() / weights[0].norm()) < 1e-4
    assert torch.equal(weights[1], weights[2])


def test_a_checkpoint_is_what_safetensors_reads() -> None:
    given = {
        "a": torch.randn(3, 5).t(),
        "b": torch.zeros(0),
        "c": torch.tensor(2.5),
        "d": torch.arange(3),
        "e": torch.ones(3) > 0,
    }
    found = load(bytes(checkpoint.pack(given, {"steps": 3})))
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], value) for name, value in given.items())


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
def test_log_probabilities_in_bfloat16_are_taken_in_float32(pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        as_large(monkeypatch)
    hidden = torch.randn(23, 32, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    head = torch.randn(19, 32, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    targets = torch.arange(46).view(2, 23) % 19
    torch.testing.assert_close(large.chosen_logprobs(hidden, head, targets), _plain(hidden, head, targets))
    for with_head in (True, False):
        given = (hidden, head) if with_head else (hidden,)
        head.requires_grad_(with_head)
        grads = [torch.autograd.grad(made(hidden, head, targets).sum(), given) for made in (large.chosen_logprobs, _plain)]
        for got, want in zip(*grads, strict=True):
            assert float((got - want).norm()) < 0.02 * float(want.norm())


def _plain(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.linear(hidden, head).float().log_softmax(1).gather(1, targets.t()).t()


def test_an_adapter_for_what_is_not_a_linear_layer_is_refused() -> None:
    module = tiny(True)
    weight = module.get_parameter("model.embed_tokens.weight").detach()
    adapter = Adapter(
        {"r": 1, "lora_alpha": 1}, {"model.embed_tokens.weight": (torch.zeros(1, 32), torch.zeros(19, 1))}, {"": weight}
    )
    with pytest.raises(NeedsError, match=r"'model\.embed_tokens\.weight', which is not a linear layer's"):
        Trainer(module, TrainConfig(), adapter=adapter)


def test_merging_an_adapter_adds_the_product_of_its_parts() -> None:
    module = nn.Linear(5, 3, bias=False)
    base, down, up = module.weight.detach().clone(), torch.randn(2, 5), torch.randn(3, 2)
    Adapter({"r": 2, "lora_alpha": 6}, {"weight": (down, up)}, {"weight": base}).merge_into(module)
    torch.testing.assert_close(module.weight.detach(), base + 3 * up @ down)
