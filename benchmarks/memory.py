"""Retrieval of earned-code-memory at 10^5 entries, recall and record of a memory on disk, and opening it.

    python benchmarks/memory.py [--entries 100000] [--save]

Words of entries are sampled with chances 1/rank from 20,000, 25 words an entry, so that frequent words have lists as long as in
real text; requests are 8 words of an entry each. CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
from common import save

from ramify.base.seeds import generator
from ramify.methods.earned_code_memory import Memory


def texts(count: int) -> list[str]:
    """Entries of 25 words."""
    rng = generator(0, "memory", "words")
    chances = 1 / np.arange(1, 20_001)
    rows = rng.choice(20_000, size=(count, 25), p=chances / chances.sum())
    return [" ".join(f"w{word:x}q" for word in row) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    listed, rows = texts(args.entries), []

    def timed(name: str, work: object, times: int, target: str = "") -> None:
        spent = []
        for i in range(times):
            began = time.process_time()
            work(i)
            spent.append(1000 * (time.process_time() - began))
        row = [name, times, f"{np.median(spent):.2f}", f"{np.quantile(spent, 0.95):.2f}", f"{max(spent):.2f}", target]
        rows.append(row)
        print(row, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.sqlite"
        with Memory(file) as memory:
            for start in range(0, len(listed), 10_000):
                with memory.store.writing() as write:
                    for i, text in enumerate(listed[start : start + 10_000], start):
                        entry = {"id": f"e{i}", "kind": "fact", "title": text[:30], "body": text}
                        write("add", {"entry": entry})
        timed("open and index", lambda i: Memory(file, create=False).state, 3)
        with Memory(file, create=False) as memory:
            rng = generator(1, "memory", "requests")
            asked = [" ".join(rng.permutation(listed[i].split())[:8]) for i in rng.integers(0, len(listed), 300)]
            memory.candidates(asked[0])
            timed("retrieve 20 texts and 10 tools", lambda i: memory.candidates(asked[i]), 300, "< 10")
            timed("select, logged", lambda i: asyncio.run(memory.select(asked[i])), 100)
            said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y" * 2000}]
            timed("record", lambda i: memory.record(asked[i], said, True), 100)
    if args.save:
        columns = ["what", "times", "median, CPU ms", "95 %", "most", "target"]
        save(
            "memory",
            f"A memory of {args.entries:,} entries",
            columns,
            rows,
            "25 words an entry, frequencies 1/rank; requests of 8 words.",
        )


if __name__ == "__main__":
    main()
