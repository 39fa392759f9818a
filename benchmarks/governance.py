"""What the benchmark of rules and a pin cost: CPU seconds of 1,000 graded episodes, tokens of a pin beyond its rule's own text.

    python benchmarks/governance.py [--save] [--tokenizer FILE.json ...]

Episodes are played by the made-up reader, so no model's time is in them: what is left is filler, compaction, survival, grading
and rows. Tokens are counted with a byte-level BPE of 32,000 tokens that is trained, here and now, on this repository's documents
and source, in the manner of today's tokenizers; --tokenizer adds others (a tokenizer.json of your own model).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from common import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ramify.methods.governance import Bench, BenchConfig, Pins
from ramify.methods.governance.run import NamedModel
from ramify.methods.governance.standing_rules import reader, scenarios
from ramify.rollout.compact import approximate_tokens

ROOT = Path(__file__).parent.parent


def trained() -> Tokenizer:
    """A byte-level BPE of the repository's own text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "README.md"])
    trainer = trainers.BpeTrainer(vocab_size=32_000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((path.read_text(encoding="utf-8") for path in texts), trainer)
    return tokenizer


def cost(count: Callable[[str], int]) -> list[object]:
    """Largest and median overhead over the 27 rules of the benchmark, pinned alone;
    of the nine English ones together, a rule; hardened."""
    rules = [s.policy for s in scenarios(languages=("en", "zh", "es"))]
    alone = [Pins([rule]).overhead(count) for rule in rules]
    together = Pins(rules[:9]).overhead(count) / 9
    hardened = max(Pins([rule], provenance=True).overhead(count) for rule in rules)
    return [max(alone), statistics.median(alone), f"{together:.1f}", hardened]


def episodes(reps: int) -> tuple[int, float, float]:
    """(episodes, CPU seconds, wall seconds) of the seven conditions."""
    bench = Bench(BenchConfig(reps=reps, allowed="none"), [NamedModel("reader", reader())])
    asyncio.run(
        Bench(BenchConfig(reps=1, tasks=("language",)), [NamedModel("reader", reader())]).run()
    )  # what is loaded once is not counted
    cpu, wall = time.process_time(), time.perf_counter()
    rows = asyncio.run(bench.run())
    return len(rows), time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=16)
    parser.add_argument("--tokenizer", type=Path, action="append", default=[])
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    counts: dict[str, Callable[[str], int]] = {}
    for name, tokenizer in {
        "BPE of this repository": trained(),
        **{p.name: Tokenizer.from_file(str(p)) for p in args.tokenizer},
    }.items():
        counts[name] = lambda text, tokenizer=tokenizer: len(tokenizer.encode(text, add_special_tokens=False).ids)
    counts["a quarter of the bytes"] = approximate_tokens
    rows = [[name, *cost(count)] for name, count in counts.items()]
    for row in rows:
        print(row)
    n, cpu, wall = episodes(args.reps)
    print(f"{n} episodes: {cpu:.1f} CPU s, {wall:.1f} s; 1,000 episodes {1000 * cpu / n:.1f} CPU s")
    if args.save:
        columns = ["tokenizer", "one pin, most", "one pin, median", "nine pins, each", "hardened wording, most"]
        note = (
            "Tokens beyond the rules' own text; target: at most 20 for a pin. "
            f"Graded episodes: {n} in {cpu:.1f} CPU seconds, which is {1000 * cpu / n:.1f} for 1,000; target: under 60 s on two "
            "cores."
        )
        save("governance", "Rules under compaction", columns, rows, note)


if __name__ == "__main__":
    main()
