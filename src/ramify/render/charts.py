"""Curves with interval bands, and one stacked bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramify.render.svg import flow, frame, label, number, tag, text_width, words

# Okabe and Ito's palette (2008), in an order that also differs in lightness; dashes tell curves apart without any colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_DASHES = (None, "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 3")
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 20.0, 34.0, 46.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: equal-length x, y, and optionally the ends of an interval at each x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    line: bool = True
    """Without it: open circles, which leave a curve below them visible."""


def curves_svg(
    curves: Sequence[Curve],
    title: str,
    x_name: str,
    y_name: str,
    percent: bool = True,
    width: float = 560,
    height: float = 280,
    x_text: Callable[[float], str] = "{:g}".format,
    top: float | None = None,
) -> str:
    """Curves over one x axis. ``percent`` shows shares as percentages on an axis from 0 to 100; ``x_text`` writes a place on the
    axis. What is above ``top`` is drawn there: ends of estimates beyond what is possible.

    Points that are not finite break a curve. An empty picture says that there is nothing to show.
    """
    points = [(x, y) for c in curves for x, y in zip(c.x, c.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return frame(width, 60, title, "no data", label(16, 34, "No data yet.", "soft"))
    ends = [v for c in curves for side in (c.low, c.high) for v in (side or ()) if math.isfinite(v)]
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points), 6, float(all(x == int(x) for x, _ in points)))
    y_ticks = (
        [0.0, 0.25, 0.5, 0.75, 1.0]
        if percent
        else _ticks(min([y for _, y in points] + ends), min(top or math.inf, max([y for _, y in points] + ends)), 5)
    )
    x_low, x_high = min(min(x for x, _ in points), x_ticks[0]), max(max(x for x, _ in points), x_ticks[-1])
    y_low, y_high = y_ticks[0], y_ticks[-1]
    right, bottom = width - _RIGHT, height - _BOTTOM

    def px(x: float) -> float:
        return _LEFT + (right - _LEFT) * ((x - x_low) / (x_high - x_low) if x_high > x_low else 0.5)

    def py(y: float) -> float:
        return bottom - (bottom - _TOP) * ((min(max(y, y_low), y_high) - y_low) / (y_high - y_low))

    grid = "".join(
        tag("path", d=f"M{number(_LEFT)} {number(py(t))}H{number(right)}", class_="grid")
        + label(_LEFT - 8, py(t) + 4, f"{100 * t:.0f} %" if percent else f"{t:g}", "soft end num")
        for t in y_ticks
    )
    grid += "".join(label(px(t), bottom + 17, x_text(t), "soft mid num") for t in x_ticks if x_low <= t <= x_high)
    names = label((_LEFT + right) / 2, bottom + 35, x_name, "soft mid") + label(_LEFT - 36, 16, y_name, "soft")
    body = "".join(_curve(curve, i, px, py) for i, curve in enumerate(curves))
    legend, last = "", height
    if len(curves) > 1:
        legend, last = flow([_key(c, i) for i, c in enumerate(curves)], _LEFT, height + 8, right - _LEFT)
    description = "; ".join(f"{c.name}: {_value(c.y[0], percent)} to {_value(c.y[-1], percent)}" for c in curves if len(c.y))
    return frame(
        width, last + (12 if legend else 0), title, f"{y_name} over {x_name}. {description}.", grid + names + body + legend
    )


def _curve(curve: Curve, index: int, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    colour = COLOURS[index % len(COLOURS)]
    hollow = {} if curve.line else {"fill": "none", "stroke": colour, "stroke_width": 1.6}
    band = ""
    if curve.low is not None and curve.high is not None and len(curve.x) > 1:
        upper = [f"{number(px(x))} {number(py(y))}" for x, y in zip(curve.x, curve.high, strict=True)]
        lower = [f"{number(px(x))} {number(py(y))}" for x, y in zip(curve.x, curve.low, strict=True)]
        band = tag("path", d="M" + "L".join(upper + lower[::-1]) + "Z", fill=colour, fill_opacity=0.16, stroke="none")
    pieces, pen = [], "M"
    for x, y in zip(curve.x, curve.y, strict=True):
        if math.isfinite(x) and math.isfinite(y):
            pieces.append(f"{pen}{number(px(x))} {number(py(y))}")
            pen = "L"
        else:
            pen = "M"
    line = "" if not curve.line else tag(
        "path", d="".join(pieces), fill="none", stroke=colour, stroke_width=2.2, stroke_linejoin="round", stroke_linecap="round",
        stroke_dasharray=_DASHES[index % len(_DASHES)],
    )  # fmt: skip
    dots = "".join(
        tag(
            "circle",
            tag("title", words(f"{curve.name}: {x:g}, {y:.3g}")),
            cx=px(x),
            cy=py(y),
            r=(2.8 if len(curve.x) <= 40 else 1.6) + 2 * (not curve.line),
            **({"fill": colour} | hollow),
        )
        for x, y in zip(curve.x, curve.y, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    )
    return band + line + dots


def _key(curve: Curve, index: int) -> tuple[str, float]:
    colour = COLOURS[index % len(COLOURS)]
    if curve.line:
        sign = tag("path", d="M0 -4h22", stroke=colour, stroke_width=2.2, stroke_dasharray=_DASHES[index % len(_DASHES)])
    else:
        sign = tag("circle", cx=11, cy=-4, r=4.8, fill="none", stroke=colour, stroke_width=1.6)
    return sign + label(28, 0, curve.name), 28 + text_width(curve.name)


def _value(value: float, percent: bool) -> str:
    return f"{100 * value:.0f} %" if percent else f"{value:.3g}"


def _ticks(low: float, high: float, count: int, least: float = 0.0) -> list[float]:
    """About ``count`` round values that cover low to high, at least ``least`` apart."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    raw = max((high - low) / count, least)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of a whole: its size, and the size as people read it (``412k tokens``)."""

    name: str
    size: float
    text: str


def bar_svg(parts: Sequence[Slice], title: str, width: float = 560) -> str:
    """One horizontal bar, divided by the parts' sizes, with the parts named below it. Parts without size are left out."""
    shown = [part for part in parts if part.size > 0]
    total = sum(part.size for part in shown)
    if not shown:
        return frame(width, 60, title, "nothing spent", label(16, 34, "Nothing was spent.", "soft"))
    x, body = 0.0, []
    for i, part in enumerate(shown):
        share = part.size / total
        hover = tag("title", words(f"{part.name}: {part.text}, {100 * share:.1f} %"))
        body.append(
            tag("rect", hover, x=x, y=8, width=max(0.5, share * width - 1.5), height=26, rx=2, fill=COLOURS[i % len(COLOURS)])
        )
        x += share * width
    keys = []
    for i, part in enumerate(shown):
        text = f"{part.name} · {part.text} · {100 * part.size / total:.0f} %"
        square = tag("rect", x=0, y=-10, width=11, height=11, rx=2, fill=COLOURS[i % len(COLOURS)])
        keys.append((square + label(18, 0, text, ""), 18 + text_width(text)))
    legend, last = flow(keys, 0, 58, width)
    description = ", ".join(f"{part.name} {100 * part.size / total:.0f} %" for part in shown)
    return frame(width, last + 12, title, description, "".join(body) + legend)
