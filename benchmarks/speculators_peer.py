"""The side of ``speculators`` in the benchmarks; runs in an interpreter of its own that holds it (its pins clash with ours).

    PYTHON benchmarks/speculators_peer.py logits DRAFTER INPUTS OUTPUT     logits of the drafter's own class on given inputs
    PYTHON benchmarks/speculators_peer.py make CONFIG TARGET DRAFTER       a drafter of random weights of a config.json

INPUTS holds ``tokens`` int64 (1, T) and ``features`` float32 (1, T, mD); OUTPUT gets ``logits`` and, of a drafter of blocks,
``anchors`` and ``confidence``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.models.dspark import DSparkDraftModel
from speculators.models.eagle3 import Eagle3DraftModel


def opened(folder: str) -> Any:
    """The drafter as speculators' own class loads it, with attention that runs on a processor."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return SpeculatorModel.from_pretrained(folder, config=config).eval()


@torch.no_grad()
def logits(folder: str, inputs: str, output: str) -> None:
    """Write what the drafter says."""
    given, model = load_file(inputs), opened(folder)
    tokens, features = given["tokens"], given["features"]
    T = tokens.shape[1]
    documents = torch.zeros(1, T, dtype=torch.long)
    if hasattr(model, "block_size"):
        count = T - model.block_size
        last = torch.zeros(1, T, model.hidden_size)
        hidden, said, _, _, places = model._backbone_forward(
            features, tokens, torch.ones(1, T), last, documents, max_anchors=count
        )
        block = model.block_size
        previous, states = tokens[0, places].view(count, block), hidden.view(count, block, -1)
        said = said.view(count, block, -1)
        embedded = model.markov_head.prev_embeddings(previous)
        said = said + model.markov_head.block_bias(prev_token_ids=previous, hidden_states=states, prev_emb=embedded)
        sure = model.confidence_head(torch.cat([states, embedded], -1))
        made = {"logits": said, "confidence": sure, "anchors": places.view(count, block)[:, 0]}
    else:
        seen: list[torch.Tensor] = []
        model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out[0]))
        shifted = torch.cat([tokens[:, 1:], tokens[:, -1:]], 1)  # as its loader has it: a column reads the token after it
        steps = model.config.speculators_config.proposal_methods[0].speculative_tokens
        model(features, shifted, documents, ttt_steps=steps)
        made = {"logits": torch.stack(seen)}
    save_file({name: value.contiguous() for name, value in made.items()}, output)


def make(config: str, target: str, folder: str) -> None:
    """Write a drafter of random weights; norms are drawn too, so that their places count."""
    record = json.loads(Path(config).read_text(encoding="utf-8"))
    record["speculators_config"]["verifier"]["name_or_path"] = target
    (Path(folder).parent / "given").mkdir(parents=True)
    (Path(folder).parent / "given" / "config.json").write_text(json.dumps(record), encoding="utf-8")
    shape_ = SpeculatorModelConfig.from_pretrained(str(Path(folder).parent / "given"))
    shape_.transformer_layer_config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = {"dspark": DSparkDraftModel, "eagle3": Eagle3DraftModel}[record["speculators_model_type"]](shape_)
    model.load_verifier_weights()
    for weight in model.parameters():
        if weight.requires_grad and weight.ndim == 1:
            torch.nn.init.normal_(weight, 1.0, 0.2)
    model.save_pretrained(folder)


if __name__ == "__main__":
    {"logits": logits, "make": make}[sys.argv[1]](*sys.argv[2:])
