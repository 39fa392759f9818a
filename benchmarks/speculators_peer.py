"""The side of ``speculators`` in the benchmarks; runs in an interpreter of its own that holds it (its pins clash with ours).

    PYTHON benchmarks/speculators_peer.py logits DRAFTER INPUTS OUTPUT     logits of the drafter's own class on given inputs
    PYTHON benchmarks/speculators_peer.py make CONFIG TARGET DRAFTER       a drafter of random weights of a config.json
    PYTHON benchmarks/speculators_peer.py train DRAFTER TEXT JSON OUTPUT   the drafter trained by speculators' trainer
    PYTHON benchmarks/speculators_peer.py validate DRAFTER TEXT JSON FILE  what its validation says
    PYTHON benchmarks/speculators_peer.py serve                            these by turns, a JSON list of words a line

INPUTS holds ``tokens`` int64 (1, T) and ``features`` float32 (1, T, mD); OUTPUT gets ``logits`` and, of a drafter of blocks,
``anchors`` and ``confidence``. TEXT holds rows end to end: ``lengths``, ``tokens``, ``mask`` and the target's ``states``
(T, m + 1, D), of which the last one is what enters its final norm; JSON has the settings of a training.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.models.dspark import DSparkDraftModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train import distributed
from speculators.train.data import BaseDataset
from speculators.train.dataloader import _setup_dataloader
from speculators.train.trainer import Trainer, TrainerConfig


def opened(folder: str, attention: str = "eager") -> Any:
    """The drafter as speculators' own class loads it, with attention that runs on a processor."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = attention
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


class KeptText(BaseDataset):  # type: ignore[misc]
    """The rows of a TEXT."""

    def __init__(self, file: str) -> None:
        self.text = load_file(file)
        self.ends = self.text["lengths"].cumsum(0).tolist()
        super().__init__(0, torch.float32)

    def _compute_approx_lengths(self) -> list[int]:
        return [int(length) for length in self.text["lengths"]]

    def __len__(self) -> int:
        return len(self.ends)

    def _get_raw_data(self, index: int) -> dict[str, Any]:
        own = slice(self.ends[index] - self.approx_lengths[index], self.ends[index])
        states = self.text["states"][own].float()
        return {
            "hidden_states": states[:, :-1].flatten(1),
            "input_ids": self.text["tokens"][own],
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": self.text["mask"][own],
        }


def trainer(folder: str, text: str, given: dict[str, Any], output: str) -> Trainer:
    """Its trainer of the drafter. It takes an accelerator for granted, but for two things it needs none."""
    distributed._local_rank = torch.device("cpu")
    torch.accelerator.synchronize = lambda *_: None
    torch.set_num_threads(1)
    torch.manual_seed(given["seed"])
    model = opened(folder, "sdpa")
    model.load_verifier_weights()
    shift = shift_batch if isinstance(model, Eagle3DraftModel) else None
    size = {"num_workers": 0, "num_target_layers": len(model.target_layer_ids), "preprocess": shift, "seed": given["seed"]}
    loader = _setup_dataloader(KeptText(text), given["tokens"], model.hidden_size, **size)
    calls, _ = type(model).get_trainer_kwargs(loss_implementation="eager", **given["loss"])
    config = TrainerConfig(
        num_epochs=-(-given["steps"] // len(loader)),
        save_path=output,
        train_call_kwargs=calls,
        val_call_kwargs=calls,
        save_best=True,  # the last weights are saved here
        hidden_states_dtype=torch.float32,
        log_freq=given["steps"] + 1,
        max_steps=given["steps"],
        **given["optimizer"],
    )
    return Trainer(model, config, loader, loader)


def train(folder: str, text: str, given: str, output: str) -> None:
    """Write the drafter that its trainer makes of another one, and the median of the processor seconds of a step."""
    made, at = trainer(folder, text, json.loads(given), output + "-state"), list[float]()
    made.val_loader = None
    made.model.register_forward_pre_hook(lambda *_: at.append(time.process_time()))
    made.run_training()
    made.model.save_pretrained(output)
    steps = torch.tensor(at).diff()
    (Path(output) / "took.json").write_text(json.dumps({"step": float(steps.median()), "steps": len(at)}), encoding="utf-8")


def validate(folder: str, text: str, given: str, output: str) -> None:
    """Write what its validation says of a drafter on all of the text."""
    found = trainer(folder, text, json.loads(given), output + "-state").val_epoch(0)
    Path(output).write_text(json.dumps(found), encoding="utf-8")


def serve() -> None:
    """Do what each line of the input says; a line "done" follows."""
    for line in sys.stdin:
        verb, *words = json.loads(line)
        VERBS[verb](*words)
        print("\ndone", flush=True)


VERBS: dict[str, Callable[..., None]] = {"logits": logits, "make": make, "train": train, "validate": validate, "serve": serve}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
