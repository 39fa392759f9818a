"""A drafter that ramify trains beside one that ``speculators`` trains: the same weights to begin with, the same text and states
of one small target, as many steps of as many tokens, the learning rate of each the best of the same few.

    python benchmarks/speculators_training.py --peer PYTHON [--kind eagle3] [--seeds 5] [--out repro/dspark-outside.json]

``PYTHON`` is an interpreter of an environment of its own that holds speculators 0.9 (``pip install speculators==0.9.0``). The
target is that of ``ramify repro dspark`` (seed 0). A seed has a text, a drafter's first weights and an order of batches of its
own. Both drafters then speculate in ramify's engine on the same prompts, of which neither text nor the choice of the learning
rate knows. Each side has its own loss and schedule; an ``eagle3`` is unrolled for as many steps as it drafts. The peer's
optimiser is Muon, its default; ramify runs with AdamW, its default, and with Muon at the peer's rate. The sides take turns;
seconds are processor time on one thread, the peer's without the fused losses and block-sparse attention that it has for a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from speculators_layout import PEER, keep

from ramify.base.waiting import wait_for
from ramify.methods.dspark.drafter_files import load_drafter, save_drafter
from ramify.methods.dspark.drafters import Qwen3Drafter
from ramify.methods.dspark.recorder import record
from ramify.methods.dspark.rounds import accepted_length
from ramify.methods.dspark.run import Target, make
from ramify.methods.dspark.settings import TrainOptions
from ramify.methods.dspark.training import regenerate, train_drafter
from ramify.model.protocol import Sampling
from ramify.stats.intervals import mean_t, paired_t
from ramify.train.batch import Row
from ramify_experiments.dspark import domains
from ramify_experiments.dspark.lab import GIVEN, START, DrafterLab
from ramify_experiments.dspark.repro import SIZES

RATES = (3e-3, 1e-2, 3e-2)
TUNING = 100
"""The seed of text and weights on which the rates are chosen."""
LENGTH, ROWS, BLOCK, SEQUENCES = 96, 4, 4, 600
"""Tokens of a row, rows of a step, drafts of a round, rows of a text."""
SIDES = ("ramify, AdamW", "ramify, Muon", "speculators, Muon")
THEIRS = SIDES[-1]
LOSS: dict[str, dict[str, Any]] = {
    "eagle3": {"loss_fn": "kl_div", "ttt_step_loss_decay": 1.0},
    "dspark": {"loss_fn": '{"ce": 0.1, "tv": 0.9}'},
}
"""Of speculators: its default of an eagle3, and what its example has for a dspark."""


class Bench:
    """The target, a place for files, and both sides."""

    def __init__(self, peer: str, place: Path, kind: Any, steps: int) -> None:
        self.place, self.kind, self.steps = place, kind, steps
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.peer = subprocess.Popen([peer, str(PEER), "serve"], env=os.environ | {"HF_HUB_OFFLINE": "1"}, **pipes)
        lab = DrafterLab(SIZES["cpu"], 0)
        self.target, self.model = Target(f"hf:{lab.folder}", lab.model, None), lab.model

    def text(self, seed: int, part: str, count: int) -> list[Row]:
        """What the target writes, without the few rows in which it wrote the mask token."""
        each = [domains.prompts(domain, count // 3, START, seed, part) for domain in domains.DOMAINS]
        starts = [prompt for three in zip(*each, strict=True) for prompt in three]
        rows = wait_for(regenerate(self.model, starts, Sampling(max_tokens=LENGTH), seed, LENGTH))
        return [row for row in rows if domains.ID[domains.MASK] not in row.tokens]

    @torch.no_grad()
    def written(self, rows: list[Row], drafter: Qwen3Drafter, file: Path) -> Path:
        """The rows and the target's states, as the peer reads them."""
        forward, states = self.model.forward, []
        wanted = [*(layer + 1 for layer in drafter.config.target_layers), forward.layers]
        for row in rows:
            seen: dict[int, torch.Tensor] = {}
            forward.full(torch.from_numpy(row.tokens.astype(np.int64))[None], lambda layer, x: seen.setdefault(layer, x))  # noqa: B023
            states.append(torch.stack([seen[layer][0] for layer in wanted], 1).half())
        text = {"states": torch.cat(states), "lengths": torch.tensor([len(row.tokens) for row in rows])}
        text["tokens"] = torch.from_numpy(np.concatenate([row.tokens for row in rows])).long()
        save_file(text | {"mask": torch.from_numpy(np.concatenate([row.mask for row in rows]))}, file)
        return file

    def options(self, seed: int = 0, rate: float = 0.0, side: str = THEIRS) -> TrainOptions:
        optimizer: Any = side.split(", ")[1].lower()
        return TrainOptions(kind=self.kind, seed=seed, lr=rate, optimizer=optimizer, steps=self.steps, rows=ROWS, block=BLOCK)

    def trained(self, side: str, rows: list[Row], text: Path, seed: int, rate: float) -> tuple[Qwen3Drafter, float]:
        """The drafter of a side, and the median of the seconds of its steps."""
        options, at = self.options(seed, rate, side), list[float]()
        drafter = make(self.target, options, domains.ID[domains.MASK])
        if side != THEIRS:
            drafter.register_forward_pre_hook(lambda *_: at.append(time.process_time()))
            train_drafter(drafter, self.model, rows, options.training())
            return drafter, float(np.median(np.diff(at)))
        begin, end = self.place / "begin", self.place / "end"
        save_drafter(drafter, begin, self.target.folder)
        self.call("train", begin, text, self.settings(seed, rate), end)
        return load_drafter(end, self.model.module), json.loads((end / "took.json").read_text(encoding="utf-8"))["step"]

    def settings(self, seed: int = 0, rate: float = 0.0) -> str:
        """What the peer's trainer is told."""
        loss = LOSS[self.kind] | {"ttt_steps": BLOCK, "max_anchors": ROWS * self.options().anchors}
        rates = {"lr": rate, "muon_lr": rate, "optimizer": self.options().optimizer}
        return json.dumps({"seed": seed, "steps": self.steps, "tokens": ROWS * LENGTH, "loss": loss, "optimizer": rates})

    def call(self, *words: object) -> None:
        """Let the peer do something."""
        assert self.peer.stdin is not None
        assert self.peer.stdout is not None
        self.peer.stdin.write(json.dumps([*map(str, words)]) + "\n")
        self.peer.stdin.flush()
        if "done\n" not in self.peer.stdout:
            raise SystemExit("the peer has failed")

    def length(self, drafter: Qwen3Drafter, part: str, count: int) -> float:
        """Tokens a pass on ``count`` prompts of each domain, the mean over the domains."""
        starts = [domains.prompts(domain, count, GIVEN, 0, part) for domain in domains.DOMAINS]
        return float(np.mean([accepted_length(record(self.model, drafter, some, Sampling(max_tokens=64))) for some in starts]))

    def loss(self, drafter: Qwen3Drafter, text: Path) -> float:
        """What the peer's validation says of it."""
        save_drafter(drafter, self.place / "judged", self.target.folder)
        self.call("validate", self.place / "judged", text, self.settings(), self.place / "said.json")
        return float(json.loads((self.place / "said.json").read_text(encoding="utf-8"))["loss_epoch"])


def measured(bench: Bench, seeds: int) -> tuple[dict[str, float], dict[str, list[tuple[float, float, float]]]]:
    """The rate of each side, and what it comes to by seed: tokens a pass, loss under the peer's validation, seconds of a step."""
    like, rates = make(bench.target, bench.options(), domains.ID[domains.MASK]), dict[str, float]()
    held = bench.written(bench.text(0, "test", 24), like, bench.place / "held.safetensors")
    found: dict[str, list[tuple[float, float, float]]] = {side: [] for side in SIDES}
    for seed in (TUNING, *range(seeds)):
        rows = bench.text(seed, "train", SEQUENCES)
        text = bench.written(rows, like, bench.place / "text.safetensors")
        if seed == TUNING:
            for side in SIDES[::2]:
                lengths = {rate: bench.length(bench.trained(side, rows, text, seed, rate)[0], "calibrate", 30) for rate in RATES}
                rates[side] = max(lengths, key=lengths.__getitem__)
                print(side, lengths, flush=True)
            rates["ramify, Muon"] = rates[THEIRS]
            continue
        for side in SIDES if seed % 2 else SIDES[::-1]:
            drafter, step = bench.trained(side, rows, text, seed, rates[side])
            found[side].append((bench.length(drafter, "test", 40), bench.loss(drafter, held), step))
            print(seed, side, found[side][-1], flush=True)
    return rates, found


def told(kind: str, rates: dict[str, float], found: dict[str, list[tuple[float, float, float]]]) -> list[list[str]]:
    """Rows (what, found)."""
    rows, theirs = [], np.array(found[THEIRS])
    for side in SIDES[:-1]:
        ours = np.array(found[side])
        what = f"{kind}, trained by {side} (rate {rates[side]:g}) and by {THEIRS.replace(',', ' 0.9,')} (rate {rates[THEIRS]:g})"
        for i, name in enumerate(("tokens a pass", "loss under the peer's validation")):
            low, high = paired_t(ours[:, i], theirs[:, i])
            means = f"{ours[:, i].mean():.2f} and {theirs[:, i].mean():.2f}"
            apart = f"difference {(ours - theirs)[:, i].mean():+.2f} ({low:+.2f} to {high:+.2f}; {len(ours)} seeds)"
            rows.append([f"{what}: {name}", f"{means}; {apart}"])
        seconds = np.log(theirs[:, 2] / ours[:, 2])
        ratio, low, high = np.exp([seconds.mean(), *mean_t(seconds)])
        rows.append([f"{what}: processor seconds of a step, the peer's over ours", f"{ratio:.1f} ({low:.1f} to {high:.1f})"])
    return rows


def main() -> None:
    """Train, measure, and put the rows with those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--kind", choices=list(LOSS), default="eagle3")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = told(options.kind, *measured(Bench(options.peer, Path(folder), options.kind, options.steps), options.seeds))
    for what, came in rows:
        print(f"{what}: {came}")
    if options.out:
        keep(rows, options.out, lambda what: what.startswith(f"{options.kind}, trained by "))


if __name__ == "__main__":
    main()
