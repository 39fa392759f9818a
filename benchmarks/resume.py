"""How long it takes until an interrupted collection of 200,000 rollouts samples again.

    python benchmarks/resume.py [--rollouts 200000] [--save]

The run is made with the scripted model and stopped by its budget 64 attempts short; then ``ramify rollout`` continues in a new
process. Seconds count from the start of that process: imports, opening the run, reading what is done,
planning what is missing, the first new attempt stored.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import save

from ramify.jobs.collect import Collection, RolloutConfig, RunLimits
from ramify.rollout.components import find_environment

PER_TASK, SHORT = 8, 64
GO_ON = """
import time
import sys, json
class Clock:
    def begin(self, total, done): self.told = time.time()
    def at(self, done, note=""):
        print(json.dumps([self.told - float(sys.argv[2]), time.time() - float(sys.argv[2]), sys.argv[3]]), flush=True)
        sys.exit()
from ramify.jobs.collect import Collection, RolloutConfig
Collection(RolloutConfig.model_validate(json.loads(sys.argv[3]))).collect(__import__("pathlib").Path(sys.argv[1]), Clock())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, tasks = Path(scratch) / "run", Path(scratch) / "tasks.jsonl"
        task_set = find_environment("chain").task_set("train", args.rollouts // PER_TASK)
        tasks.write_text("".join(json.dumps({"id": task.id, **task.data}) + "\n" for task in task_set), encoding="utf-8")
        config = RolloutConfig(model="scripted", env="chain", tasks=str(tasks), attempts=PER_TASK)
        begun = time.perf_counter()
        short = config.model_copy(update={"budget": RunLimits(calls=args.rollouts - SHORT)})
        made = Collection(short).collect(folder)
        print(f"made {made.n:,} rollouts in {time.perf_counter() - begun:.0f} s, {made.missing} are missing")
        times = []
        for _ in range(args.rounds):
            command = [sys.executable, "-c", GO_ON, str(folder), str(time.time()), json.dumps(config.to_json())]
            out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            times.append(json.loads(out.splitlines()[-1])[:2])
            print(times[-1])
    planned, first = (statistics.median(t[i] for t in times) for i in (0, 1))
    if args.save:
        columns = ["rollouts in the run", "s until it knows what is missing", "s until the first new one is stored"]
        note = "Wall seconds from the start of the process, median of five. Target: under 2 s at 200,000."
        save("resume", "Continuing with a large run", columns, [[f"{args.rollouts:,}", f"{planned:.2f}", f"{first:.2f}"]], note)


if __name__ == "__main__":
    main()
