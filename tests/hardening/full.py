"""The full counts of the hardening tests, by hand: ``nice .venv/bin/python tests/hardening/full.py``; writes
repro/hardening.json.

260 kills over every command that writes, every write call of every small job struck by every fault (every fifth of the main job),
10,000 broken files and runs. Parts named on the command line (kills, faults, fuzz) are done anew;
the figures of the others stay. Takes about half an hour on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kills import KINDS
from test_faults import build_shim, environment, strike

from ramify_experiments import verbs

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "repro" / "hardening.json"
KILLS, KILL_SEED, PARTS = 260, 2026, 4
FILES, CHUNK, FUZZ_SEED = 10_000, 1000, 1000
JOBS = ("store", "import", "export-jsonl", "export-parquet", "export-dot", "export-html", "checkpoint", "rollout", "fork")
FAULTS = ("full", "io", "io-ever", "kill")
WORKERS = 2


def harness(script: str, *words: object, shim: Path | None = None) -> dict[str, Any]:
    """The figures a harness prints; ends here with its words where it found a fault."""
    done = subprocess.run(
        [sys.executable, HERE / script, *map(str, words)], capture_output=True, text=True, env=environment(shim)
    )
    if done.returncode:
        raise SystemExit(f"{script} {words}: {done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def kills(root: Path) -> dict[str, Any]:
    """260 kills, over every command that writes."""
    shim = build_shim(root)

    def some(i: int) -> dict[str, Any]:
        return harness("kills.py", root / f"kills-{i}", KILLS // PARTS, KILL_SEED + i, *KINDS[i::PARTS], shim=shim)

    with ThreadPoolExecutor(PARTS) as pool:
        found = list(pool.map(some, range(PARTS)))
    by_kind = {name: sum(part["by kind"].get(name, 0) for part in found) for name in KINDS}
    total = {name: sum(part[name] for part in found) for name in found[0] if name not in ("by kind", "seed")}
    return {**total, "by kind": by_kind, "seeds": [part["seed"] for part in found]}


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
        where = {"commit": verbs.commit(), "versions": verbs.versions(), "machine": verbs.machine()}
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            figures = part(Path(folder))
        seconds = round(time.monotonic() - began)
        record[name] = {"problems": 0, "figures": figures, "seconds": seconds, **where}
        OUT.write_text(json.dumps({"command": "python tests/hardening/full.py", **record}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
