"""The shares of an attempt's steps, as a picture: one line a step, its share with its interval, filled where it gets credit."""

from __future__ import annotations

import math

from ramify.jobs.why.records import Share
from ramify.render.charts import COLOURS
from ramify.render.svg import clip, frame, label, tag

MOST = 24
"""Steps that are drawn: those with credit and the largest shares, in order."""
_LEFT, _WIDTH, _LINE = 250.0, 640.0, 22.0


def share_picture(share: Share | None) -> str:
    """SVG of the shares that ``ramify why --share`` found; "" where it was not asked for them or finished no walk."""
    steps = () if share is None else share.steps
    rows = [
        (number, one.action, one.share, one.interval, one.credited)
        for number, one in enumerate(steps, 1)
        if one.share is not None and one.interval is not None
    ]
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
