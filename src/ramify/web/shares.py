"""The shares of an attempt's steps, as a picture: one line a step, its share with its interval, filled where it gets credit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ramify.render.charts import COLOURS
from ramify.render.svg import clip, frame, label, tag

MOST = 24
"""Steps that are drawn: those with credit and the largest shares, in order."""
_LEFT, _WIDTH, _LINE = 250.0, 640.0, 22.0


def share_picture(evidence: Any) -> str:
    """SVG of what ``ramify why --share`` stored in the evidence of its finding; "" where there is none, or it is no record."""
    share = evidence.get("share") if isinstance(evidence, Mapping) else None
    steps = share.get("steps") if isinstance(share, Mapping) else None
    rows = [row for i, one in enumerate(steps, 1) if (row := _row(i, one))] if isinstance(steps, Sequence) else []
    if not rows:
        return ""
    kept = sorted(sorted(rows, key=lambda row: (not row[4], -abs(row[2])))[:MOST])
    low, high = min(-0.1, *(row[3][0] for row in kept)), max(0.1, *(row[3][1] for row in kept))

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 30) * (value - low) / (high - low)

    bottom = 16 + _LINE * len(kept)
    body = [tag("line", x1=x(0), x2=x(0), y1=8, y2=bottom, class_="grid")]
    step = 0.25 if high - low > 0.5 else 0.1
    for mark in range(math.ceil(low / step), math.floor(high / step) + 1):
        body.append(label(x(step * mark), bottom + 16, f"{100 * step * mark:+.0f}" if mark else "0", "soft mid"))
    for at, (number, action, value, (first, last), credited) in enumerate(kept):
        y = 20 + _LINE * at
        body.append(label(_LEFT - 12, y + 4, f"{number}  {clip(action, 30)}", "end" if credited else "soft end"))
        body.append(tag("line", x1=x(first), x2=x(last), y1=y, y2=y, stroke=COLOURS[0], stroke_width=1.6))
        fill = COLOURS[0] if credited else "none"
        body.append(tag("circle", cx=x(value), cy=y, r=4.5, stroke=COLOURS[0], stroke_width=1.6, fill=fill))
    body.append(
        label(x((low + high) / 2), bottom + 36, "share of the change of success, in points; filled: gets credit", "soft mid")
    )
    return frame(_WIDTH, bottom + 46, "Shares of the steps", "The share of each step with its interval", "".join(body))


def _row(number: int, one: Any) -> tuple[int, str, float, tuple[float, float], bool] | None:
    """Number, action, share, interval, and whether it gets credit; None of a step that has none."""
    if not isinstance(one, Mapping) or not isinstance(one.get("action"), str):
        return None
    ends = one.get("interval")
    values = [one.get("value"), *(ends if isinstance(ends, list | tuple) else ())]
    if len(values) != 3 or not all(type(v) in (int, float) and abs(v) <= 1.001 for v in values):
        return None
    return number, one["action"], float(values[0]), (float(values[1]), float(values[2])), one.get("credited") is True
