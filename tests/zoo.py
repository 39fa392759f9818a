"""Small random checkpoints of many kinds, as transformers itself saves them, with a tokenizer made here and a chat template."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

from ramify.env.protocol import Observation, Task, TaskSet

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 272
"""Of every checkpoint: more than the tokenizer's 259 tokens, as in most published ones."""
END = SPECIAL.index("<|im_end|>")
CONTEXT = 1024

_WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_WIDTHS, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
_LLAMA3 = {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}),
    "llama": ("llama", {**_GROUPED, "tie_word_embeddings": False}),
    "llama-tied": ("llama", {**_GROUPED, "tie_word_embeddings": True}),
    "llama3": (
        "llama",
        {
            **_GROUPED,
            "tie_word_embeddings": True,
            "rope_parameters": {**_LLAMA3, "original_max_position_embeddings": CONTEXT // 8},
        },
    ),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 8}),
    "qwen2": ("qwen2", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 8, "tie_word_embeddings": True}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": None}),
    "gpt-neox": ("gpt_neox", {**_WIDTHS, "max_position_embeddings": CONTEXT}),
    "olmo2": ("olmo2", _GROUPED),
}


@cache
def _tokenizer_json() -> str:
    """A byte-level tokenizer without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL))
    return str(raw.to_str())


def save_tokenizer(folder: Path) -> None:
    """Leave ``tokenizer.json``, ``tokenizer_config.json`` and the chat template in ``folder``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer.from_str(_tokenizer_json())
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def make_module(name: str, **changes: Any) -> Any:
    """A random float32 model of a kind in :data:`KINDS`, or of a model type of transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, shape = KINDS.get(name, (name, _GROUPED))
    ids = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **{"vocab_size": VOCAB, **ids, **shape, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():  # weights large enough that distributions are far from flat
            for weight in module.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    return module.eval()


def save_checkpoint(folder: Path, name: str, generation: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Save a model of that kind with its tokenizer, and return it; ``generation`` goes into ``generation_config.json``."""
    module = make_module(name, **changes)
    module.save_pretrained(folder)
    save_tokenizer(folder)
    if generation is not None:
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | generation), encoding="utf-8")
    return module


class Parity:
    """One reply an episode, which succeeds where its code points have an even sum: about every second one of a random model.

    As an environment, ``factory:zoo:Parity``. INTERRUPT names a file;
    the reply that finds one byte left in it is interrupted as by Ctrl-C.
    """

    name = "parity"
    max_turns = 1
    system = "Answer."

    def make(self) -> Parity:
        return Parity()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of(Task(f"{split}-{seed}-{i}", {"question": i}) for i in range(n))

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(f"What is {task.data['question']}?")

    def step(self, action: str) -> Observation:
        if name := os.environ.get("INTERRUPT"):
            left = Path(name).read_bytes()
            Path(name).write_bytes(left[1:])
            if len(left) == 1:
                signal.raise_signal(signal.SIGINT)
        even = sum(map(ord, action)) % 2 == 0
        return Observation("", float(even), terminated=True, outcome=even)

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: Any) -> None:
        return

    def key(self) -> str | None:
        return None
