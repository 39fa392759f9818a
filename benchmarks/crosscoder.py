"""Training of a dictionary beside a peer's at equal parameters on the same data, and collecting two models beside one.

    python benchmarks/crosscoder.py --peer PEER_PYTHON [--repeats 7] [--save]
    python benchmarks/crosscoder.py --peer PEER_PYTHON --residual

The second compares the share of variance that stays unexplained after equal training (steps, batch, learning rate, k, features)
on the same states: those of the reproduction's tiny pair (a minute to train), seed 100,
both models side by side, in the joint normaliser's units.

PEER_PYTHON is the interpreter of an environment with sae-lens 6.54 (``pip install sae-lens``): dictionary-learning 0.1.0, the
peer one would rather name, does not import beside today's transformers. Each repeat trains both for the same steps on the same
rows, one after the other in turns, each in a process that stays; tokens are rows of states. The peer's TopK autoencoder sees the
states of both models side by side (d_in = 2 x width), so weights and biases are as many as the crosscoder's.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
from common import save, spread

WIDTH, FEATURES, K, BATCH, ROWS = 256, 4096, 32, 1024, 16_384

PEER = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.saes.sae import TrainStepInput
x = torch.from_numpy(np.load(sys.argv[1])).flatten(1)
width, features, k, batch = map(int, sys.argv[2:6])
torch.manual_seed(0)
sae = TopKTrainingSAE(TopKTrainingSAEConfig(d_in=2 * width, d_sae=features, k=k, device="cpu"))
optimizer = torch.optim.Adam(sae.parameters(), lr=1e-4, fused=True)
dead = torch.zeros(features, dtype=torch.bool)
print(json.dumps(sum(w.numel() for w in sae.parameters())), flush=True)
n = 0
for line in sys.stdin:
    start = time.process_time()
    for _ in range(int(line)):
        rows = x[torch.arange(n * batch, (n + 1) * batch) % len(x)]
        step = TrainStepInput(sae_in=rows, coefficients={}, dead_neuron_mask=dead, n_training_steps=n, is_logging_step=False)
        out = sae.training_forward_pass(step)
        optimizer.zero_grad(set_to_none=True)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(sae.parameters(), 1.0)
        optimizer.step()
        n += 1
    print(json.dumps(time.process_time() - start), flush=True)
"""


RESIDUAL = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from sae_lens.config import LoggingConfig, SAETrainerConfig
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig
from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.training.sae_trainer import SAETrainer
y = torch.from_numpy(np.load(sys.argv[1])).flatten(1)
features, k, steps, batch = map(int, sys.argv[2:6])
def rows():
    samples = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(y), generator=samples)
        yield from (y[order[i * batch : (i + 1) * batch]] for i in range(len(y) // batch))
found = {}
for name, shape, kind in (
    ("TopK", TopKTrainingSAEConfig, TopKTrainingSAE),
    ("BatchTopK", BatchTopKTrainingSAEConfig, BatchTopKTrainingSAE),
):
    torch.manual_seed(0)
    sae = kind(shape(d_in=y.shape[1], d_sae=features, k=k, device="cpu"))
    config = SAETrainerConfig(total_training_samples=steps * batch, train_batch_size_samples=batch, lr=2e-3, lr_end=2e-4,
                              device="cpu", dead_feature_window=100, logger=LoggingConfig(log_to_wandb=False))
    SAETrainer(config, sae, rows()).fit()
    with torch.no_grad():
        back = sae.decode(sae.encode_with_hidden_pre(y)[0])
    found[name] = float((y - back).square().sum() / (y - y.mean(dim=0)).square().sum())
print(json.dumps(found))
"""


def residual(peer: str) -> None:
    """Print the unexplained share of variance of ramify's dictionaries and the peer's on the same states."""
    from ramify.methods.crosscoder.dictionary import Dictionary, fit, moments, quality
    from ramify.methods.crosscoder.settings import DictionaryConfig, FitConfig
    from ramify_experiments.crosscoder.repro import SHAPE, make_base, plain_prompts, states_of, tool_prompts, tune

    seed, (features, k, steps, batch) = 100, (256, 12, 900, 256)
    base = make_base(seed, 900)
    pair = (tune(base, seed)[0], base)
    x = np.concatenate([states_of(pair, tool_prompts(seed, "rows", 4000)[0]), states_of(pair, plain_prompts(seed, "rows", 4000))])
    found = {}
    for name, shape, loss in (
        ("ramify, partitioned", {"exclusive": 0.1}, {}),
        ("ramify, plain", {"exclusive": 0.0}, {}),
        ("ramify, plain, no L1", {"exclusive": 0.0}, {"l1_shared": 0.0}),
        ("ramify, plain, no L1, TopK of a row", {"exclusive": 0.0, "topk": "row"}, {"l1_shared": 0.0}),
    ):
        d = Dictionary(DictionaryConfig(width=SHAPE.width, features=features, k=k, **shape), seed)
        fit(d, x, FitConfig(steps=steps, batch=batch, lr=2e-3, **loss), seed)
        found[name] = 1 - float(np.mean(quality(d, x).fve))
    mean, scale = moments(x)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", ((x - mean) / scale).astype(np.float32))
        command = [peer, "-c", RESIDUAL, str(Path(folder) / "x.npy"), *map(str, (features, k, steps, batch))]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    found |= {f"sae-lens, {name}": value for name, value in json.loads(told.splitlines()[-1]).items()}
    for name, value in found.items():
        print(f"{name:40s} {value:.5f}")


def ours(x: np.ndarray) -> tuple[Any, int]:
    """A function of steps that trains and returns CPU-seconds, and the number of parameters."""
    import torch

    from ramify.methods.crosscoder.dictionary import Dictionary, _step
    from ramify.methods.crosscoder.settings import DictionaryConfig, FitConfig

    torch.set_num_threads(1)
    made = Dictionary(DictionaryConfig(width=WIDTH, features=FEATURES, k=K, exclusive=0.1))
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-4, fused=True)
    silent, config, at = torch.zeros(FEATURES, dtype=torch.long), FitConfig(), [0]

    def train(steps: int) -> float:
        start = time.process_time()
        for _ in range(steps):
            rows = np.arange(at[0] * BATCH, (at[0] + 1) * BATCH) % len(x)
            _step(made, made.normalised(torch.from_numpy(x[rows])), silent, optimizer, config)
            at[0] += 1
        return time.process_time() - start

    return train, sum(weight.numel() for weight in made.parameters())


def collecting(repeats: int) -> list[float]:
    """CPU-seconds of two models' states over one's, in turns."""
    from ramify.engine.hidden import collect
    from ramify.engine.local import LocalModel
    from ramify.engine.tiny import TinyConfig, TinyLM
    from ramify.methods.crosscoder.run import Checkpoints, capture

    shape = TinyConfig(vocab=2000, width=256, layers=6, heads=4, kv_heads=4, head_size=64, ffn=768, context=512)
    models = Checkpoints(LocalModel(TinyLM(shape, 0)), LocalModel(TinyLM(shape, 1)), 4)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 2000, n) for n in rng.integers(40, 200, 64)]
    ratios = []
    for _ in range(repeats + 1):
        times = []
        for work in (lambda: collect(models.tuned, rows, [-1], [4]), lambda: capture(models, rows)):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        ratios.append(times[1] / times[0])
    return ratios[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="python of an environment with sae-lens")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--residual", action="store_true", help="compare what stays unexplained instead of speed")
    args = parser.parse_args()
    if args.residual:
        residual(args.peer)
        return
    x = np.random.default_rng(0).normal(size=(ROWS, 2, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        command = [args.peer, "-c", PEER, str(Path(folder) / "x.npy"), *map(str, (WIDTH, FEATURES, K, BATCH))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            train, parameters = ours(x)
            theirs = json.loads(peer.stdout.readline())

            def there(steps: int) -> float:
                print(steps, file=peer.stdin, flush=True)
                return float(json.loads(peer.stdout.readline()))

            train(2), there(2)
            pairs = [(train(args.steps), there(args.steps)) for _ in range(args.repeats)]
            peer.stdin.close()
    rate = [args.steps * BATCH / pair[0] for pair in pairs], [args.steps * BATCH / pair[1] for pair in pairs]
    rows = [
        ["ramify crosscoder", f"{parameters:,}", spread(rate[0], 0), spread([a / b for a, b in zip(*rate, strict=True)])],
        ["sae-lens TopK, both models side by side", f"{theirs:,}", spread(rate[1], 0), "1"],
        ["collecting two models / one", "", "", spread(collecting(args.repeats))],
    ]
    columns = ["training", "parameters", "tokens per CPU-s", "ratio"]
    note = (
        f"Width {WIDTH} x 2, {FEATURES} features, k {K}, batch {BATCH}, one core; median [quartiles] of {args.repeats} turns in "
        "one run."
    )
    for row in rows:
        print("  ".join(f"{cell!s:40s}" for cell in row))
    if args.save:
        save("crosscoder", "A dictionary of two models compared with sae-lens' of one", columns, rows, note)


if __name__ == "__main__":
    main()
