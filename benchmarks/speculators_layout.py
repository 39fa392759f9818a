"""Whether ``speculators`` and ramify mean the same by a drafter's folder, in both directions.

    python benchmarks/speculators_layout.py --peer PYTHON [--out repro/dspark-outside.json]

``PYTHON`` is an interpreter of an environment of its own that holds speculators 0.9 (``pip install speculators==0.9.0``). A
drafter that is written here is loaded by speculators' own class; one that it makes after a published ``config.json`` (scaled
down) is loaded here. Both say what they draft on the same tokens and features of the target; the largest difference of their
logits is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.dspark.drafter_files import for_target, load_drafter, save_drafter
from ramify.methods.dspark.drafters import Qwen3Drafter

PEER = Path(__file__).with_name("speculators_peer.py")
TARGET = TinyConfig(
    vocab=320, width=64, layers=8, heads=4, kv_heads=2, head_size=16, ffn=96, context=128, tied=False, qk_norm=True
)
KINDS: dict[str, dict[str, Any]] = {
    "dspark": {"kind": "dspark", "layers": 3, "block": 5, "rank": 12},
    "dspark, 90 of 320 tokens": {"kind": "dspark", "layers": 2, "block": 5, "rank": 12, "drafted": range(7, 97)},
    "eagle3": {"kind": "eagle3", "block": 4},
    "eagle3, 90 of 320 tokens": {"kind": "eagle3", "block": 4, "drafted": range(7, 97)},
}
PUBLISHED: dict[str, Any] = {
    "speculators_model_type": "dspark",
    "block_size": 16,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "draft_vocab_size": 154880,
    "mask_token_id": 154856,
    "max_anchors": 1024,
    "tie_word_embeddings": False,
    "aux_hidden_state_layer_ids": [8, 23, 39, 55, 70],
    "speculators_config": {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 15}],
        "verifier": {"name_or_path": "", "architectures": []},
    },
    "transformer_layer_config": {
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 64,
        "intermediate_size": 12288,
        "rms_norm_eps": 1e-05,
        "vocab_size": 154880,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    },
}
"""Fields of a published drafter (RedHatAI's for GLM-5.2), as other servers' tests have them; :func:`small` scales it down."""


def small(config: dict[str, Any]) -> dict[str, Any]:
    """A published ``config.json`` at the size of TARGET; what it says of kinds, heads and layers stays."""
    hf = TARGET.to_hf()
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    shape = {**config["transformer_layer_config"], **{name: hf[name] for name in names}}
    layers = [1, 3, 4, 5, 6][: len(config["aux_hidden_state_layer_ids"])]
    sizes = {"draft_vocab_size": TARGET.vocab, "mask_token_id": TARGET.vocab - 1, "markov_rank": 16}
    return {**config, **sizes, "aux_hidden_state_layer_ids": layers, "transformer_layer_config": shape}


def said(drafter: Qwen3Drafter, given: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, float]:
    """The largest differences of logits and confidences."""
    T, block = given["tokens"].shape[1], drafter.config.block
    with torch.no_grad():
        if drafter.config.kind == "eagle3":
            ours = torch.stack([one[0] for one in drafter(given["tokens"], given["features"])])
            keep = T - block - 1  # later columns read past the end, which each pads in its own way
            return {"logits": float((ours[:, :keep] - theirs["logits"][:, :keep]).abs().max())}
        logits, confidence = drafter(given["tokens"], given["features"], theirs["anchors"][None])
    return {
        "logits": float((logits[0] - theirs["logits"]).abs().max()),
        "confidence": float((confidence[0] - theirs["confidence"]).abs().max()),
    }


def main() -> None:
    """Both directions, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    target, rows = TinyLM(TARGET, seed=1), []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        target.save(place / "target")

        def peer(*words: object) -> None:
            subprocess.run([options.peer, str(PEER), *map(str, words)], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

        def compared(name: str, drafter: Qwen3Drafter, at: Path) -> None:
            torch.manual_seed(2)
            width = len(drafter.config.target_layers) * TARGET.width
            given = {"tokens": torch.randint(TARGET.vocab, (1, 40)), "features": torch.randn(1, 40, width)}
            save_file(given, place / "given.safetensors")
            peer("logits", at, place / "given.safetensors", place / "said.safetensors")
            apart = said(drafter, given, load_file(place / "said.safetensors"))
            rows.append([name, f"logits equal to {max(apart.values()):.0e}"])
            print(*rows[-1], sep=": ", flush=True)

        (place / "config.json").write_text(json.dumps(small(PUBLISHED)), encoding="utf-8")
        peer("make", place / "config.json", place / "target", place / "theirs" / "drafter")
        at = place / "theirs" / "drafter"
        compared("dspark after a published config.json, written by speculators 0.9 and loaded here", load_drafter(at, target), at)
        for name, shape in KINDS.items():
            drafter = for_target(target, seed=3, **shape)
            with torch.no_grad():
                for weight in drafter.parameters():
                    weight.normal_(1.0, 0.2) if weight.ndim == 1 else weight.normal_(0.0, 0.1)
            at = place / name.partition(",")[0] / str(len(rows))
            save_drafter(drafter, at, place / "target")
            compared(f"{name}, written here and loaded by speculators 0.9", load_drafter(at, target), at)
    if options.out:
        keep(rows, options.out, lambda what: " trained by " not in what)


def keep(rows: list[list[str]], out: Path, own: Callable[[str], bool]) -> None:
    """Write ``rows`` in the place of those of former runs, which ``own`` knows by their names; others stay."""
    others = [row for row in json.loads(out.read_text(encoding="utf-8"))["rows"] if not own(row[0])] if out.is_file() else []
    out.write_text(json.dumps({"rows": [*others, *rows]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
