"""Drafters inside transformers' own generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ramify.base.errors import NeedsError, UserError
from ramify.methods.dspark.drafter_files import for_target
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.transformers_drafter import generate


def target(vocab: int = 40, **changes: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=True,
        **changes,
    )
    module = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    return module.eval()


def drafter_of(module: Any, kind: str = "dspark", **changes: Any) -> Qwen3Drafter:
    return for_target(module, kind, layers=1, block=3, **{"rank": 4, **changes})


def count_forwards(module: Any) -> list[int]:
    seen: list[int] = []
    module.register_forward_hook(lambda _, __, kwargs, ___: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    return seen


@pytest.mark.parametrize("kind", ["dspark", "dflash", "eagle3"])
def test_greedy_is_token_for_token_that_of_generate(kind: str) -> None:
    module = target()
    prompt = torch.randint(40, (1, 7), generator=torch.Generator().manual_seed(1))
    expected = module.generate(prompt, max_new_tokens=24, do_sample=False)
    seen = count_forwards(module)
    assert torch.equal(generate(module, drafter_of(module, kind), prompt, max_new_tokens=24, do_sample=False), expected)
    assert seen[0] == 7
    assert max(seen[1:]) == 4  # an anchor and three drafts in one pass
    assert "_get_candidate_generator" not in vars(module)


def test_no_draft_is_legal() -> None:
    """A threshold above every confidence: no candidates and no logits, and plain generation comes out."""
    module = target()
    prompt = torch.randint(40, (1, 5), generator=torch.Generator().manual_seed(1))
    expected = module.generate(prompt, max_new_tokens=9, do_sample=False)
    seen = count_forwards(module)
    found = generate(module, drafter_of(module), prompt, threshold=1.1, max_new_tokens=9, do_sample=False)
    assert torch.equal(found, expected)
    assert seen[1:] == [1] * 8
    sampled = generate(module, drafter_of(module), prompt, threshold=1.1, max_new_tokens=9, do_sample=True)
    assert sampled.shape == (1, 14)


def test_processors_bind_both_sides() -> None:
    """With all but one token cut away, what is sampled is what is most likely,
    so drafts are sampled from the cut distribution, too."""
    module = target()
    prompt = torch.randint(40, (1, 5), generator=torch.Generator().manual_seed(1))
    expected = module.generate(prompt, max_new_tokens=12, do_sample=False)
    assert torch.equal(generate(module, drafter_of(module), prompt, max_new_tokens=12, do_sample=True, top_k=1), expected)


def test_it_stops_at_the_end_of_text_and_at_the_length() -> None:
    module = target()
    prompt = torch.randint(40, (1, 5), generator=torch.Generator().manual_seed(1))
    plain = module.generate(prompt, max_new_tokens=20, do_sample=False)
    end = int(plain[0, 12])
    expected = module.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=0)
    found = generate(module, drafter_of(module), prompt, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=0)
    assert torch.equal(found, expected)
    for length in (1, 2, 3):
        assert generate(module, drafter_of(module), prompt, max_new_tokens=length, do_sample=False).shape == (1, 5 + length)


def test_what_it_cannot_do_is_refused() -> None:
    module = target()
    drafter = drafter_of(module)
    with pytest.raises(UserError, match="one sequence"):
        generate(module, drafter, torch.ones((2, 3), dtype=torch.long), max_new_tokens=4)
    with pytest.raises(NeedsError, match="no padded prompt"):
        generate(
            module, drafter, torch.ones((1, 3), dtype=torch.long), attention_mask=torch.tensor([[0, 1, 1]]), max_new_tokens=4
        )
    cache = module(torch.ones((1, 3), dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(NeedsError, match="no cache from before"):
        generate(module, drafter, torch.ones((1, 4), dtype=torch.long), past_key_values=cache, max_new_tokens=4)
    module._is_stateful = True
    with pytest.raises(NeedsError, match="cannot be rolled back"):
        generate(module, drafter, torch.ones((1, 3), dtype=torch.long), max_new_tokens=4)


@pytest.mark.slow
def test_what_is_sampled_has_the_targets_distribution() -> None:
    """Chi-square over two-token outputs of a small vocabulary, against the distribution by enumeration."""
    from scipy.stats import chisquare

    module = target(vocab=4)
    prompt = torch.tensor([[1, 2, 0]])
    drafter = drafter_of(module)
    with torch.no_grad():
        first = module(prompt).logits[0, -1].double().softmax(-1)
        distribution = torch.stack(
            [p * module(torch.tensor([[1, 2, 0, a]])).logits[0, -1].double().softmax(-1) for a, p in enumerate(first)]
        )
    torch.manual_seed(0)
    counts = torch.zeros((4, 4))
    completions = 1500
    for _ in range(completions):
        out = generate(module, drafter, prompt, max_new_tokens=3, do_sample=True, top_k=0)
        counts[out[0, 3], out[0, 4]] += 1
    assert chisquare(counts.flatten().numpy(), (distribution * completions).flatten().numpy()).pvalue > 1e-3
