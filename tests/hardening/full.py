"""The full counts of the hardening tests, by hand: ``nice .venv/bin/python tests/hardening/full.py``; writes repro/hardening.json.

200 kills, every write call of every small job struck by every fault (every fifth of the main job), 10,000 broken files and runs.
Parts named on the command line (kills, faults, fuzz) are done anew; the figures of the others stay. Takes about half an hour on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from test_faults import build_shim, strike

from ramify.cli import cells

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "repro" / "hardening.json"
KILLS, KILL_SEED = 200, 2026
FILES, CHUNK, FUZZ_SEED = 10_000, 1000, 1000
JOBS = ("store", "import", "export-jsonl", "export-parquet", "export-dot", "export-html", "checkpoint", "rollout", "fork")
FAULTS = ("full", "io", "io-ever", "kill")
WORKERS = 2


def harness(script: str, *words: object) -> dict[str, Any]:
    """The figures a harness prints; ends here with its words where it found a fault."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([sys.executable, HERE / script, *map(str, words)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{script} {words}: {done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def kills(root: Path) -> dict[str, Any]:
    """200 kills in runs of every kind."""
    return harness("kills.py", root / "kills", KILLS, KILL_SEED)


def faults(root: Path) -> list[dict[str, Any]]:
    """Every call of every job, every fault."""
    shim = build_shim(root)
    todo = [(job, fault, 1) for job in JOBS for fault in FAULTS] + [("improve", fault, 5) for fault in ("full", "kill")]

    def one(item: tuple[str, str, int]) -> dict[str, Any]:
        folder = root / "-".join(map(str, item))
        folder.mkdir()
        return strike(shim, folder, *item)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(one, todo))


def fuzz(root: Path) -> dict[str, Any]:
    """10,000 broken files and runs, in chunks of their own seeds."""
    with ThreadPoolExecutor(WORKERS) as pool:
        seeds = range(FUZZ_SEED, FUZZ_SEED + FILES // CHUNK)
        chunks = list(pool.map(lambda seed: harness("fuzz.py", root / f"fuzz-{seed}", CHUNK, seed), seeds))
    formats: dict[str, dict[str, int]] = {}
    for chunk in chunks:
        for form, counts in chunk["formats"].items():
            total = formats.setdefault(form, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                total[name] += count
    most = max(chunk["most memory, MiB"] for chunk in chunks)
    return {
        "files": sum(c["files"] for c in chunks),
        "seeds": [seeds[0], seeds[-1]],
        "most memory, MiB": most,
        "formats": formats,
    }


def main(names: list[str]) -> None:
    record = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name, part in (("kills", kills), ("faults", faults), ("fuzz", fuzz)):
        if names and name not in names:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            figures = part(Path(folder))
        where = {
            "seconds": round(time.monotonic() - began),
            "commit": cells.commit(),
            "versions": cells.versions(),
            "machine": cells.machine(),
        }
        record[name] = {"problems": 0, "figures": figures, **where}
        OUT.write_text(json.dumps({"command": "python tests/hardening/full.py", **record}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
