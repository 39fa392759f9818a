"""The gain of the default job, `ramify improve` without settings, over seeds and processors.

    python benchmarks/demo.py [--seeds 0 1 2] [--runs RUN ...] [--save]

One row a seed on this processor with these kernels and as many threads: training's sums, and so a seed's result, depend on all
three. ``--save`` puts them beside the rows of other processors in ``repro/improve-processors.json``, in place of its own earlier
ones; ``python docs/tables.py`` makes the table. ``--runs`` takes finished runs of ``ramify improve`` that were made here in place
of playing (some minutes each). Another choice of kernels stands for another processor:
``ATEN_CPU_CAPABILITY=avx2 python benchmarks/demo.py --save``. The interval is Student's over all rows: over seeds and processors.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ramify
from ramify.base import codec
from ramify.base.config import check
from ramify.base.words import plural
from ramify.engine.devices import kernels
from ramify.engine.profile import machine_name
from ramify.jobs.improve import ImproveConfig, improve
from ramify.jobs.improve import finished as job_result
from ramify.jobs.results import Improved
from ramify.trace.db import Run
from ramify_experiments.lab import Checks

FILE = Path(__file__).resolve().parents[1] / "repro" / "improve-processors.json"


def played(seed: int) -> Improved:
    """The default job's result with ``seed``."""
    with tempfile.TemporaryDirectory() as folder:
        return improve(check(ImproveConfig, {"seed": seed}), Path(folder) / "run")


def finished(folder: Path) -> tuple[int, Improved]:
    """Seed and result of a finished run with default settings."""
    with Run.open(folder) as run:
        config = check(ImproveConfig, run.meta["config"])
        result = job_result(run)
    plain = check(ImproveConfig, {"seed": config.seed}).to_json()
    if result is None or config.to_json() | {"concurrency": 0, "backend": ""} != plain | {"concurrency": 0, "backend": ""}:
        raise SystemExit(f"{folder} is not a finished run of the default job")
    return config.seed, result


def row(seed: int, result: Improved) -> dict[str, Any]:
    """What is kept of one job."""
    gain = result.gain
    return {
        "processor": machine_name(),
        "kernels": kernels(),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "before": result.before.success,
        "after": result.after.success,
        "gain": gain.success,
        "interval": list(gain.interval),
        "episodes": result.before.n,
        "version": ramify.__version__,
    }


def checks(rows: Sequence[dict[str, Any]]) -> Checks:
    """The headline over all rows, then the rows."""
    seeds = tuple(sorted({one["seed"] for one in rows}))
    places = sorted({(one["processor"], one["kernels"], one["threads"]) for one in rows})
    sets = len({place[:2] for place in places})
    found = Checks(seeds)
    for name in ("before", "after", "gain"):
        found.mean(f"default job: {name}, over {len(seeds)} seeds and {sets} kernels", [one[name] for one in rows])
    low, high = found[-1].interval or (found[-1].value,) * 2
    found.value("default job: gain over seeds and kernels, lower 95 % bound", low, len(rows), ">", 0.1, (low, high))
    for place in places:
        mine = [one for one in rows if (one["processor"], one["kernels"], one["threads"]) == place]
        where = f"{place[0]} ({place[1]}), {plural(place[2], 'thread')}"
        here = Checks([one["seed"] for one in mine])
        here.mean(f"{where}: gain", [one["gain"] for one in mine])
        found += here
        for one in mine:
            alone = Checks((one["seed"],))
            alone.value(f"{where}: seed {one['seed']}", one["gain"], one["episodes"], interval=tuple(one["interval"]))
            found += alone
    return found


def save(new: Sequence[dict[str, Any]]) -> None:
    """Put rows into the file, in place of earlier ones of the same seed, processor, kernels and threads."""
    keys = ("processor", "kernels", "threads", "seed")
    rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.exists() else []
    kept = {tuple(one[key] for key in keys): one for one in [*rows, *new]}
    rows = [kept[key] for key in sorted(kept)]
    found = checks(rows)
    record = {
        "slug": "improve",
        "size": "processors",
        "command": "python benchmarks/demo.py --save",
        "seeds": sorted({one["seed"] for one in rows}),
        "passed": all(one.status != "miss" for one in found),
        "checks": codec.to_json(found),
        "rows": rows,
    }
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")


def main() -> None:
    """Play or read, print, and save where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, nargs="+", help="finished runs that were made here, in place of playing")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    done = [finished(folder) for folder in options.runs] if options.runs else [(seed, played(seed)) for seed in options.seeds]
    rows = [row(seed, result) for seed, result in done]
    for one in rows:
        print(
            f"seed {one['seed']}: {one['before']:.1%} -> {one['after']:.1%}, gain {100 * one['gain']:+.1f} points, "
            f"{one['kernels']}"
        )
    if options.save:
        save(rows)


if __name__ == "__main__":
    main()
