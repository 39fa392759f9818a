"""Start cost of the process sandbox over a bare interpreter, and how late after its limit a command is gone.

    python benchmarks/sandbox.py [--rounds 200] [--save]

The bare interpreter and the sandboxed one run ``pass`` in turn; the difference within each pair counts. The second table gives
wall-clock milliseconds from the limit to the moment nothing of the command is left, for commands that try to stay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from common import quartiles, save, spread

from ramify.sandbox.process import ProcessSandbox
from ramify.sandbox.protocol import Command, Limits

BARE, BOXED = [sys.executable, "-c", "pass"], ["python", "-c", "pass"]
STAYERS = {
    "sleeps": "import time; time.sleep(600)",
    "ignores signals, leaves its session": (
        "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nif os.fork() == 0:\n    os.setsid(); "
        "os.fork()\ntime.sleep(600)"
    ),
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fills memory": "x = []\nwhile True:\n    try: x.append(bytes(1 << 20))\n    except MemoryError: pass",
}


async def milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return 1e3 * (time.perf_counter() - begun)


async def bare() -> None:
    await (await asyncio.create_subprocess_exec(*BARE)).wait()


async def measure(rounds: int) -> dict[str, list[float]]:
    sandbox = ProcessSandbox()
    found: dict[str, list[float]] = {"bare": [], "sandbox": [], "call": [], "difference": []}

    async def boxed() -> None:
        assert (await sandbox.run(BOXED)).ok

    async with sandbox.session() as session:
        for number in range(rounds + 5):
            order = [("bare", bare), ("sandbox", boxed)]
            now = {name: await milliseconds(work) for name, work in (order if number % 2 else order[::-1])}
            now["call"] = await milliseconds(lambda: session.execute("pass"))
            if number >= 5:
                for name, value in now.items():
                    found[name].append(value)
                found["difference"].append(now["sandbox"] - now["bare"])
    limits = Limits(seconds=0.3, memory_bytes=64 << 20)
    for name, code in STAYERS.items():
        late = [
            await milliseconds(lambda code=code: sandbox.run(["python", "-S", "-c", code], limits=limits)) - 300
            for _ in range(15)
        ]
        found[name] = late
    begun = time.perf_counter()
    await sandbox.run_many([Command(["true"])] * 200)
    found["batch"] = [200 / (time.perf_counter() - begun)]
    return found


def interval(values: list[float], rounds: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    import numpy as np

    samples = np.median(np.random.default_rng(0).choice(values, (rounds, len(values))), axis=1)
    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(measure(args.rounds))
    low, high = interval(found["difference"])
    rows = [
        ["bare interpreter, ms", spread(found["bare"], 1)],
        ["interpreter in a fresh sandbox, ms", spread(found["sandbox"], 1)],
        ["difference within a pair, ms", spread(found["difference"], 1)],
        ["95 % interval of its median, ms", f"{low:.1f} to {high:.1f}"],
        ["call of a session's Python, ms", spread(found["call"], 2)],
        ["commands a second in a batch", f"{found['batch'][0]:.0f}"],
        *([f"gone after its limit, {name}: ms", f"{spread(found[name], 0)}, worst {max(found[name]):.0f}"] for name in STAYERS),
    ]
    for row in rows:
        print("  ".join(f"{cell:60}" for cell in row))
    median, _, _ = quartiles(found["difference"])
    worst = max(max(found[name]) for name in STAYERS)
    print(
        json.dumps(
            {
                "added_ms": round(median, 2),
                "interval": [round(low, 2), round(high, 2)],
                "call_ms": round(statistics.median(found["call"]), 3),
                "worst_late_ms": round(worst),
            }
        )
    )
    if args.save:
        note = (
            f"Medians with quartiles over {args.rounds} pairs run in turn. Targets: at most 20 ms added; gone within 1000 ms of "
            "the limit."
        )
        save("sandbox", "The process sandbox", ["", "measured"], rows, note)


if __name__ == "__main__":
    main()
