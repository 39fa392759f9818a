"""Draw the pictures of docs/methods/cliffs.md: python docs/cliffs_pictures.py [SEED PROBLEM].

The potential over one reply of a reproduction's model, and the drops by class from repro/cliffs-cpu.json.
"""

from __future__ import annotations

import asyncio
import sys

from picture_files import IMAGES, Checks, dots, read_checks

from ramify.methods.cliffs.report import picture
from ramify.methods.cliffs.run import ScanConfig, Scanned, scan
from ramify.render.potential import potential_svg
from ramify_experiments.cliffs.repro import FRESH, ForkLab

CLASSES = ("deterministic", "uncertain", "sampled_off")


def drops(checks: Checks) -> str:
    """Mean drop by class, as it was detected and as it is (the exact process) or as fresh forks measure it (the model)."""
    rows = [
        (f"{where}: {name.replace('_', '-')}", [checks[f"{where}: {name}, mean {which} drop"] for which in ("detected", true)])
        for where, true in (("exact process", "true"), ("model", "fresh"))
        for name in CLASSES
    ]
    series = ["drop as detected", "true drop, or drop of fresh forks"]
    return dots("What is left of a detected drop, by class", "mean drop of the potential", rows, series, (0, 0.2, 0.4, 0.6, 0.8))


async def reply(lab: ForkLab, index: int) -> Scanned:
    """The faithful scan, with confirmation, of the reply to one problem of the reproduction."""
    forks = lab.forks(0)
    traces = await forks.sample([lab.problems("eval", 25)[index]])
    return (await scan(traces, forks, ScanConfig(faithful=True, confirm=FRESH))).scanned[0]


def main() -> None:
    """Write both pictures."""
    seed, index = map(int, sys.argv[1:3] or (0, 9))
    (IMAGES / "cliffs-drops.svg").write_text(drops(read_checks("cliffs")), encoding="utf-8")
    lab = ForkLab({}, seed)  # trains where no event loop runs
    scanned = asyncio.run(reply(lab, index))
    texts = [lab.tokenizer.decode([token]) + " " for token in scanned.trace.response_ids]
    (IMAGES / "cliffs-potential.svg").write_text(potential_svg(picture(scanned, texts)), encoding="utf-8")
    print([(cliff.t, cliff.facts.kind, cliff.status) for cliff in scanned.cliffs])


if __name__ == "__main__":
    main()
