"""Training a pretrained model on a CPU beside TRL's GRPO: tokens trained in a processor second, and peak memory.

    OMP_NUM_THREADS=1 python benchmarks/training_real.py [--model smollm2] [--pairs 3] [--save]

Rows are the model's own attempts: "sums" (four short replies to each of eight two-digit sums, which share their prompts) and
"stories" (one reply of up to 96 tokens to each of eight word problems, which share little). One step is gradients of the clipped
policy gradient on all rows and an AdamW step; an adapter has rank 8 on every linear layer but the head, for both. Both take turns
in one process, on one thread, with equal weights; TRL gets rows in order of length, four at a time, without checkpointing. Memory
is the peak of processes of their own, of two steps.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, quartiles, save, spread

import ramify.engine  # noqa: F401  (pins the matrix kernels before torch first uses them)
from ramify.engine.checkpoints import adapter_of, load_model, model_folder
from ramify.model.chat import JinjaTemplate
from ramify.model.protocol import Prefix, Sampling
from ramify.train.batch import Row
from ramify.train.loop import TrainConfig, Trainer

RANK, RATE, ROWS = 8, 1e-5, 4
KINDS = {"sums": (8, 4, 24), "stories": (8, 1, 96)}
"""Tasks, attempts at each, longest reply."""
TITLE = "Training a pretrained model of 135 M weights"
THINGS = ("apples", "books", "stamps", "shells", "marbles", "pencils", "coins", "cards")
Step = Callable[[], Any]


def questions(kind: str, n: int) -> list[str]:
    rng = np.random.default_rng(1)
    pairs = rng.integers(10, 99, (n, 2)).tolist()
    if kind == "sums":
        return [f"Compute {a} + {b}. Answer with the number only." for a, b in pairs]
    return [
        f"Mary had {a + b} {THINGS[i % 8]}. She gave {a} of them to her brother on Monday and bought {b} more on Tuesday. "
        f"How many {THINGS[i % 8]} does she have now? Explain each step."
        for i, (a, b) in enumerate(pairs)
    ]


def sampled(folder: Path, kind: str) -> list[Row]:
    """The rows of attempts at tasks of a kind, with the sampler's log-probs and random credit."""
    model, template = load_model(folder)
    tasks, attempts, longest = KINDS[kind]
    settings = Sampling(max_tokens=longest, stop_tokens=template.stop_tokens)
    assert isinstance(template, JinjaTemplate)
    assert model.tokenizer is not None
    asked = [model.tokenizer.raw.encode(template.whole([{"role": "user", "content": text}])) for text in questions(kind, tasks)]
    prompts = [np.array(encoded.ids, np.int32) for encoded in asked]

    async def replies() -> list[Any]:
        keys = [range(i * attempts, (i + 1) * attempts) for i in range(tasks)]
        return await asyncio.gather(*(model.sample(Prefix(p), attempts, settings, k) for p, k in zip(prompts, keys, strict=True)))

    rng, rows = np.random.default_rng(2), []
    for prompt, group in zip(prompts, asyncio.run(replies()), strict=True):
        for reply in group:
            mask = np.arange(len(prompt) + len(reply.tokens)) >= len(prompt)
            logprobs = np.concatenate((np.zeros(len(prompt), np.float32), reply.logprobs))
            values = {"logprobs": logprobs, "advantage": (mask * rng.normal()).astype(np.float32)}
            rows.append(Row(np.concatenate((prompt, reply.tokens)), mask, values))
    return rows


def kept(rows: Sequence[Row], file: Path) -> None:
    named: dict[str, Any] = {f"{i}-{name}": a for i, row in enumerate(rows) for name, a in arrays(row).items()}
    np.savez(file, **named)


def arrays(row: Row) -> dict[str, np.ndarray]:
    return {"tokens": row.tokens, "mask": row.mask, **row.token_values}


def rows_in(file: Path) -> list[Row]:
    with np.load(file) as found:
        by_row: dict[int, dict[str, np.ndarray]] = {}
        for key in found.files:
            number, _, name = key.partition("-")
            by_row.setdefault(int(number), {})[name] = found[key]
    return [Row(r.pop("tokens"), r.pop("mask"), r) for r in (by_row[i] for i in sorted(by_row))]


def ours(folder: Path, rows: Sequence[Row], adapter: bool) -> Step:
    model, _ = load_model(folder)
    trainer = Trainer(model.module, TrainConfig(lr=RATE), 0, adapter_of(model, folder, RANK if adapter else 0, 0))
    return lambda: trainer.update(rows, {"policy_gradient": 1.0})


def trl(folder: Path, rows: Sequence[Row], adapter: bool) -> Step:
    import datasets
    import peft
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = {"per_device_train_batch_size": ROWS, "num_generations": 2, "generation_batch_size": ROWS}
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        learning_rate=RATE,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        **batch,
    )
    lora = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM") if adapter else None
    trainer = GRPOTrainer(
        model=module,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * ROWS),
        processing_class=tokenizer,
        peft_config=lora,
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    batches = [inputs(ordered[i : i + ROWS]) for i in range(0, len(rows), ROWS)]
    weights = [w for w in trainer.model.parameters() if w.requires_grad]

    def step() -> None:
        trainer.model.train()
        for batch in batches:
            (trainer._compute_loss(trainer.model, batch) / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def inputs(rows: Sequence[Row]) -> dict[str, Any]:
    """What TRL's loss takes: prompts padded on the left, replies on the right."""
    import torch

    starts = [int(np.flatnonzero(row.mask)[0]) for row in rows]
    ahead, wide = max(starts), max(len(row.tokens) - at for row, at in zip(rows, starts, strict=True))
    prompt, completion = np.zeros((2, len(rows), ahead), np.int64), np.zeros((2, len(rows), wide), np.int64)
    values = np.zeros((2, len(rows), wide), np.float32)
    for i, (row, at) in enumerate(zip(rows, starts, strict=True)):
        prompt[0, i, ahead - at :], prompt[1, i, ahead - at :] = row.tokens[:at], 1
        n = len(row.tokens) - at
        completion[0, i, :n], completion[1, i, :n] = row.tokens[at:], 1
        values[0, i, :n], values[1, i, :n] = row.token_values["advantage"][at:], row.token_values["logprobs"][at:]
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "old_per_token_logps")
    tensors = [torch.from_numpy(a) for a in (*prompt, *completion, *values)]
    return dict(zip(names, tensors, strict=True)) | {"num_items_in_batch": torch.tensor(sum(int(row.mask.sum()) for row in rows))}


SIDES = {"ours": ours, "trl": trl}


def compare(folder: Path, rows: Sequence[Row], adapter: bool, pairs: int) -> dict[str, Any]:
    """Tokens trained a processor second of both, and the ratios of pairs; who goes first alternates."""
    steps = {name: make(folder, rows, adapter) for name, make in SIDES.items()}
    trained = sum(int(row.mask[1:].sum()) for row in rows)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-1, pairs):
        for name in list(steps) if number % 2 else list(steps)[::-1]:
            began = time.process_time()
            steps[name]()
            if number >= 0:
                seconds[name].append(time.process_time() - began)
    steps.clear()
    gc.collect()
    speeds = {name: quartiles([trained / s for s in spent])[0] for name, spent in seconds.items()}
    return speeds | {"ratios": [theirs / mine for mine, theirs in zip(seconds["ours"], seconds["trl"], strict=True)]}


def peak(side: str, folder: Path, file: Path, adapter: bool) -> float:
    """Peak memory of two steps in a process of its own, without what Python and torch take, in multiples of the weights."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--rows", str(file)]
    done = subprocess.run([*command, *(["--adapter"] if adapter else [])], check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def one_side(side: str, folder: Path, rows: Sequence[Row], adapter: bool) -> float:
    def most() -> int:  # not ru_maxrss, which a new process inherits from its parent
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024

    if side == "trl":
        import peft  # noqa: F401
        from trl import GRPOTrainer  # noqa: F401
    base = most()
    step = SIDES[side](folder, rows, adapter)
    for _ in range(2):
        step()
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return (most() - base) / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--weights", choices=("adapter", "all weights"), action="append")
    parser.add_argument("--save", action="store_true", help="keep the table for docs/performance.md")
    for hidden in ("--side", "--folder", "--rows"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--adapter", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.side:
        print(one_side(given.side, Path(given.folder), rows_in(Path(given.rows)), given.adapter))
        return
    folder, table = model_folder(given.model), []
    with tempfile.TemporaryDirectory() as scratch:
        for kind in given.kind or KINDS:
            file = Path(scratch) / f"{kind}.npz"
            kept(sampled(folder, kind), file)
            rows = rows_in(file)
            for weights in given.weights or ("adapter", "all weights"):
                adapter = weights == "adapter"
                r = compare(folder, rows, adapter, given.pairs)
                memory = [peak(side, folder, file, adapter) for side in SIDES]
                distinct = sum(int(row.mask[1:].sum()) for row in rows), sum(len(row.tokens) for row in rows)
                what = f"{kind}, {'adapter' if adapter else 'all weights'}"
                line = [
                    what,
                    *distinct,
                    f"{r['ours']:.0f}",
                    f"{r['trl']:.0f}",
                    spread(r["ratios"]),
                    *(f"{m:.1f}" for m in memory),
                ]
                table.append(line)
                print(*line, sep="  ", flush=True)
    if given.save:
        known = json.loads(file.read_text())["rows"] if (file := RESULTS / "training_real.json").is_file() else []
        fresh = {line[0] for line in table}  # what was measured before and not again stays
        table = sorted([line for line in known if line[0] not in fresh] + table)
        columns = ("rows", "tokens trained", "tokens in rows", "ours, trained tokens a CPU s", "TRL", "ratio")
        note = (
            f"Model {folder.name}, rank {RANK}, one thread, {given.pairs} pairs; peaks without what importing takes. The loss is "
            "the clipped policy gradient for both; TRL also counts entropies for its log, as it does by default."
        )
        save("training_real", TITLE, (*columns, "peak, times the weights", "TRL"), table, note)


if __name__ == "__main__":
    main()
