"""Reads a checkout of KernelBench: how many of its problems become tasks on a processor, and whether each passes its own wall.

``python -m ramify_experiments.kernel_search.kernelbench FOLDER [--every 5] [--tried 10]``: FOLDER holds level1, level2 and
level3. Every fifth problem is read at its own sizes, else with a batch of 2, else with every constant from 128 on divided by 8
and by 64; of every tenth the original is its own candidate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from ramify.base.errors import RamifyError
from ramify.methods.kernel_search.kernelbench import constants_of, from_kernelbench
from ramify.methods.kernel_search.wall import Wall
from ramify.render.terminal import say


def read(path: Path, tried: bool) -> dict[str, Any]:
    """What came of one problem."""
    known = {
        name: int(value) for name, (_, value) in constants_of(path.read_text(encoding="utf-8")).items() if value == int(value)
    }
    batch = {name: 2 for name in known if "batch" in name}
    steps: list[dict[str, float]] = [{}, {**batch}]
    steps += [{**{name: value // by for name, value in known.items() if value >= 128}, **batch} for by in (8, 64)]
    why = ""
    for step, sizes in enumerate(steps):
        try:
            task = from_kernelbench(path, sizes)
        except RamifyError as error:
            why = str(error)
            continue
        found = {"problem": f"{path.parent.name}/{path.stem}", "read": True, "step": step, "sizes": sizes}
        if tried:
            wall = Wall(task, pairs=4, batch_seconds=0.01)
            try:
                trial = asyncio.run(wall.trial(wall.original))
                found |= {"refused": trial.refused, "checked": trial.checked, "gains": bool(trial.gain and trial.gain.gains)}
            except RamifyError as error:
                found |= {"refused": str(error)}
        return found
    return {"problem": f"{path.parent.name}/{path.stem}", "read": False, "why": why}


def main() -> None:
    """Print one line of JSON a problem, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--tried", type=int, default=10)
    options = parser.parse_args()
    files = sorted(one for level in (1, 2, 3) for one in (options.folder / f"level{level}").glob("*.py"))
    rows = []
    for number, path in enumerate(files[:: options.every]):
        rows.append(read(path, number % options.tried == 0))
        say(json.dumps(rows[-1]))
    wall = [row for row in rows if "refused" in row]
    say(
        json.dumps(
            {
                "problems": len(rows),
                "read": sum(row["read"] for row in rows),
                "at their own sizes": sum(row.get("step") == 0 for row in rows),
                "tried as their own candidate": len(wall),
                "passed": sum(not row["refused"] for row in wall),
                "said to be faster": sum(row.get("gains", False) for row in wall),
            }
        )
    )


if __name__ == "__main__":
    main()
