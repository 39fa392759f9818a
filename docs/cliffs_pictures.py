"""Draw the pictures of docs/methods/cliffs.md: python docs/cliffs_pictures.py [SEED PROBLEM].

The potential over one reply of a reproduction's model, and the drops by class from repro/cliffs-cpu.json.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from picture_files import IMAGES, read_checks

from ramify.methods.cliffs.report import picture
from ramify.methods.cliffs.run import ScanConfig, Scanned, scan
from ramify.render.charts import COLOURS
from ramify.render.potential import potential_svg
from ramify.render.svg import frame, label, tag
from ramify_experiments.cliffs.repro import FRESH, ForkLab

CLASSES = ("deterministic", "uncertain", "sampled_off")
LEFT, WIDTH, LINE, MOST = 190.0, 640.0, 26.0, 0.7


def drops(checks: dict[str, dict[str, Any]]) -> str:
    """Mean drop by class, as it was detected and as it is (the exact process) or as fresh forks measure it (the model)."""

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 30) * min(max(value, 0.0), MOST) / MOST

    rows = [
        (f"{where}: {name}", where, name, true)
        for where, true in (("exact process", "true"), ("model", "fresh"))
        for name in CLASSES
    ]
    bottom = 34 + LINE * len(rows)
    body = []
    for mark in (0.0, 0.2, 0.4, 0.6):
        body.append(tag("line", x1=x(mark), x2=x(mark), y1=28, y2=bottom, class_="grid"))
        body.append(label(x(mark), bottom + 16, f"{mark:g}", "soft mid"))
    for i, (text, where, name, true) in enumerate(rows):
        y = 46 + LINE * i
        body.append(label(LEFT - 10, y + 4, text.replace("_", "-"), "end"))
        for j, which in enumerate(("detected", true)):
            check = checks[f"{where}: {name}, mean {which} drop"]
            at, ink = y - 4 + 8 * j, COLOURS[j]
            if check["interval"] is not None:
                body.append(tag("line", x1=x(check["interval"][0]), x2=x(check["interval"][1]), y1=at, y2=at, stroke=ink))
            if check["value"] is not None:
                body.append(tag("circle", cx=x(check["value"]), cy=at, r=4.0, stroke=ink, fill=ink if j else "none"))
    for j, text in enumerate(("drop as detected", "true drop, or drop of fresh forks")):
        body.append(tag("circle", cx=LEFT + 170 * j, cy=14, r=4.0, stroke=COLOURS[j], fill=COLOURS[j] if j else "none"))
        body.append(label(LEFT + 10 + 170 * j, 18, text, ""))
    body.append(label(x(MOST / 2), bottom + 34, "mean drop of the potential", "soft mid"))
    title = "What is left of a detected drop, by class"
    return frame(WIDTH, bottom + 44, title, "mean drop of the potential at detected cliffs, with 95 % intervals", "".join(body))


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
