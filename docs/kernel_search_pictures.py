"""Draw the pictures and write the tables of docs/methods/kernel-search-evidence.md from repro/kernel-search-cpu.json: python
docs/kernel_search_pictures.py."""

from __future__ import annotations

import math

from picture_files import METHODS, Checks, alike, bars, grid, write

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag

PAGE = METHODS / "kernel-search-evidence.md"
TABLES = {
    "tools": ("tools: ",),
    "search": ("search: ",),
    "ranker": ("ranker: ",),
    "dip": ("matmul: ",),
    "wall": ("planted: ", "cheats "),
}


def dip(checks: Checks) -> str:
    """The matrix product's path: each step against ikj, on a logarithmic axis."""
    names = ("blocking alone", "packing alone", "blocking and registers", "all three")
    rows = [
        ("ikj, where the search begins", 1.0),
        *((name, float(checks[f"matmul: speed-up over ikj, {name}"]["value"])) for name in names),
    ]
    left, width, line, low, high = 220.0, 720.0, 30.0, 0.02, 8.0

    def x(value: float) -> float:
        return left + (width - left - 40) * math.log(min(max(value, low), high) / low) / math.log(high / low)

    bottom = 20.0 + line * len(rows)
    body = grid(x, (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 14, bottom)
    for i, (name, value) in enumerate(rows):
        y, ink = 32.0 + line * i, COLOURS[0] if value >= 1 else COLOURS[1]
        body += [
            label(left - 12, y + 4, name, "end"),
            tag("line", x1=x(1.0), x2=x(value), y1=y, y2=y, stroke=ink, stroke_width=6),
            tag("circle", cx=x(value), cy=y, r=5.0, stroke=ink, fill=ink),
            label(x(value) + (10 if value >= 1 else -10), y + 4, f"{value:.2f}", "" if value >= 1 else "end"),
        ]
    body.append(label(x(0.5), bottom + 34, "times as fast as ikj", "soft mid"))
    return frame(width, bottom + 44, "A path that dips", "Each single step loses; together they gain", "".join(body))


def ranker(checks: Checks) -> str:
    """What the same small ranker hits from nothing, raw metrics, and tools."""
    rows = [
        (name, checks[f"ranker: top-1 hit rate from {name}"], COLOURS[0 if name == "tools" else 1])
        for name in ("nothing", "raw metrics", "tools")
    ]
    title, about = "What helps to choose", "The same ridge regression from three sets of features"
    axis = "share of unseen kernels whose best transform is named first"
    return bars(title, axis, about, rows, (0.0, 0.25, 0.5, 0.75, 1.0), left=140.0)


def pictures(checks: Checks) -> dict[str, str]:
    """The pictures by name."""
    return {"dip": dip(checks), "ranker": ranker(checks)}


def tables(checks: Checks) -> dict[str, str]:
    """The tables by name: the figures whose names begin alike."""
    return alike(checks, TABLES)


if __name__ == "__main__":
    write("kernel-search", PAGE, pictures, tables)
