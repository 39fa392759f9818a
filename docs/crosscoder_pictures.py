"""Draw the pictures of docs/methods/crosscoder.md: python docs/crosscoder_pictures.py (from repro/crosscoder-cpu.json)."""

from __future__ import annotations

from typing import Any

from picture_files import read_checks, save

from ramify.render.charts import COLOURS
from ramify.render.svg import frame, label, tag


def bars(title: str, axis: str, about: str, rows: list[tuple[str, dict[str, Any], int]], low: float, high: float) -> str:
    """One bar a row (label, check, colour) from 0, with its interval, on the named axis from ``low`` to ``high``."""
    left, span, height = 300.0, 320.0, 26.0

    def x(value: float) -> float:
        return left + span * (min(high, max(low, value)) - low) / (high - low)

    body = [label(left - 24, 18, axis, "soft end")]
    marks = [low + (high - low) * i / 4 for i in range(5)]
    for mark in (m for m in marks if m >= 0 or m == low):
        body.append(tag("line", x1=x(mark), x2=x(mark), y1=24, y2=30 + height * len(rows), class_="grid"))
        body.append(label(x(mark), 18, f"{100 * mark:+.0f}" if low < 0 else f"{100 * mark:.0f} %", "soft mid"))
    for i, (name, check, colour) in enumerate(rows):
        y, value = 46 + height * i, check["value"]
        ends = sorted((x(0), x(value)))
        body.append(label(left - 10, y + 4, name, "end"))
        body.append(tag("rect", x=ends[0], y=y - 8, width=max(1.0, ends[1] - ends[0]), height=16, fill=COLOURS[colour], rx=2))
        if check["interval"] is not None:
            one, other = (x(end) for end in check["interval"])
            body.append(tag("line", x1=one, x2=other, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
    return frame(int(left + span + 30), int(44 + height * len(rows)), title, about, "".join(body))


def steering(checks: dict[str, dict[str, Any]]) -> str:
    """What the best single feature adds to right calls, beside everything as long."""
    wanted = (
        ("best single feature, held-out lift", "best single feature"),
        ("average feature under the same clamp, lift", "average feature, same clamp"),
        ("random directions of the same length, mean lift", "random directions, mean of 20"),
        ("random directions of the same length, best lift", "random directions, best of 20"),
        ("tool - plain at the same length, lift", "tool - plain, same length"),
        ("tuned - base at the same length, lift", "tuned - base, same length"),
    )
    rows = [
        (f"{kind}: {name}", checks[f"{kind}: {check}"], i)
        for i, kind in enumerate(("partitioned", "plain"))
        for check, name in wanted
    ]
    title = "Right calls, points above the clean tuned model"
    return bars(
        title, "right calls above the clean model's", "Mean and 95 % interval over five pairs, held-out prompts", rows, 0, 1
    )


def reconstruction(checks: dict[str, dict[str, Any]]) -> str:
    """Right calls of the tuned model after reconstruction by a dictionary with either normaliser."""
    rows = [
        (f"{kind}, within {window} tokens", checks[f"tuned, {kind}: right tool within {window} tokens"], i)
        for window in (2, 4, 8)
        for i, kind in enumerate(("clean", "matched", "mismatched"))
    ]
    return bars(
        "Right tool named by the tuned model",
        "right tool named",
        "Clean, and reconstructed with the normaliser matched or not",
        rows,
        0,
        1,
    )


def main() -> None:
    """Write the pictures."""
    checks = read_checks("crosscoder")
    save("crosscoder", {"steering": steering(checks), "reconstruction": reconstruction(checks)})


if __name__ == "__main__":
    main()
