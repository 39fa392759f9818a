"""CPU seconds (user + system, children included) to start: the bare interpreter, ``import ramify``, ``ramify --help``.

Each command runs ROUNDS times, alternating; the median is reported as one JSON line. Targets: import 0.15, --help 0.35.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 15
RAMIFY = str(Path(sys.executable).with_name("ramify"))
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import ramify"],
    "help": [RAMIFY, "--help"],
    "list": [RAMIFY, "list"],
}


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    spent: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        cpu_seconds(command)  # the first start compiles bytecode
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            spent[name].append(cpu_seconds(command))
    print(json.dumps({name: round(statistics.median(values), 3) for name, values in spent.items()}))


if __name__ == "__main__":
    main()
