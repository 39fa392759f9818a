"""The potential of a reply over its text: estimates with intervals, cliffs and rebounds, as SVG and for a terminal."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ramify.base.words import plural
from ramify.render.svg import clip, flow, frame, label, number, tag, text_width, words

FALL, RISE, LINE = "#d55e00", "#0072b2", "#59626e"
_BLOCKS = "▁▂▃▄▅▆▇█"
_CHAR, _CHART, _ROW, _LEFT = 7.3, 46.0, 84.0, 50.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Potential at position ``t`` (after token t, 0 before the first) with the ends of its interval."""

    t: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Spot:
    """A token to point at: ``kind`` is cliff, doubtful (a cliff that fresh forks did not confirm) or rebound."""

    t: int
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Potential:
    """What is shown: the text of each token (T,), estimates by rising position, the spots."""

    tokens: Sequence[str]
    estimates: Sequence[Estimate]
    spots: Sequence[Spot] = ()
    title: str = "potential"


def potential_text(shown: Potential, width: int = 100) -> str:
    """For a terminal: over each line of the reply a line of bars, one after each measured token; under it ``^`` cliffs, ``?``
    doubtful ones, ``+`` rebounds."""
    rates = {e.t: e.rate for e in shown.estimates}
    signs = {spot.t: {"cliff": "^", "doubtful": "?", "rebound": "+"}[spot.kind] for spot in shown.spots}
    out = []
    if 0 in rates:
        out.append(f"{_bar(rates[0])} before the first token: {rates[0]:.2f}")
    for row in _rows(shown.tokens, width):
        bars = text = marks = ""
        for t, piece in row:
            bars += " " * (len(piece) - 1) + (_bar(rates[t]) if t in rates else "·")
            text += piece
            marks += (signs.get(t, " ") * len(piece)) if t in signs else " " * len(piece)
        out += [bars.rstrip(), text.rstrip()] + ([marks.rstrip()] if marks.strip() else [])
    return "\n".join(out)


def potential_svg(shown: Potential, width: float = 860) -> str:
    """The reply line by line, over each line its stretch of the curve. Estimates stand after the token they follow.

    The line joins measured positions; where tokens between two dots were not measured it is thin. Cliffs are vermilion with a
    solid bar, doubtful ones have a dashed bar, rebounds are blue.
    """
    if not shown.tokens:
        return frame(width, 60, shown.title, "no tokens", label(16, 34, "An empty reply.", "soft"))
    letters = max(10, int((width - _LEFT - 12) / _CHAR))
    spots = {spot.t: spot for spot in shown.spots}
    body, top = [], 18.0
    for row in _rows(shown.tokens, letters):
        body.append(_line(row, top, shown, spots, width))
        top += _ROW
    kinds = [("cliff", "a cliff"), ("doubtful", "a drop that fresh forks did not confirm"), ("rebound", "a rebound")]
    keys = [(_bar_of(kind, 5, -10, 4) + label(16, 0, name), 16 + text_width(name)) for kind, name in kinds]
    legend, last = flow(keys, _LEFT, top + 2, width - _LEFT)
    falls = [s for s in shown.spots if s.kind == "cliff"]
    summary = "; ".join(f"token {s.t} {clip(shown.tokens[s.t - 1], 20)!r}: {s.note}" for s in falls) or "no cliff"
    return frame(
        width, last + 14, shown.title, f"Potential over {plural(len(shown.tokens), 'token')}. {summary}.", "".join(body) + legend
    )


def _rows(tokens: Sequence[str], width: int) -> Iterator[list[tuple[int, str]]]:
    """Lines of (t, text): a line ends at a line break of the reply or where it is full; invisible characters are made visible."""
    row: list[tuple[int, str]] = []
    used = 0
    for t, token in enumerate(tokens, 1):
        piece = "".join("↵" if c == "\n" else c if c.isprintable() else "·" for c in token)[:width] or "·"
        if row and used + len(piece) > width:
            yield row
            row, used = [], 0
        row.append((t, piece))
        used += len(piece)
        if "\n" in token:
            yield row
            row, used = [], 0
    if row:
        yield row


def _bar(rate: float) -> str:
    return _BLOCKS[min(7, int(rate * 8))]


def _bar_of(kind: str, x: float, top: float, height: float) -> str:
    colour = RISE if kind == "rebound" else FALL
    dash = "2 2" if kind == "doubtful" else None
    return tag(
        "path",
        d=f"M{number(x)} {number(top)}v{number(height + 6)}",
        stroke=colour,
        stroke_width=3,
        stroke_dasharray=dash,
        fill="none",
    )


def _line(row: list[tuple[int, str]], top: float, shown: Potential, spots: dict[int, Spot], width: float) -> str:
    bottom, x = top + _CHART, _LEFT
    ends = {row[0][0] - 1: _LEFT}
    pieces, marks = [], []
    for t, piece in row:
        size = _CHAR * len(piece)
        spot = spots.get(t)
        if spot is not None:
            colour = RISE if spot.kind == "rebound" else FALL
            note = tag("title", words(f"token {t}: {spot.note}"))
            marks.append(tag("rect", note, x=x, y=top, width=size, height=_CHART + 22, fill=colour, fill_opacity=0.14))
            marks.append(_bar_of(spot.kind, x + size, top, _CHART - 6))
        pieces.append(
            tag(
                "text",
                words(piece),
                x=x,
                y=bottom + 16,
                style="font-family:ui-monospace,monospace;white-space:pre",
                textLength=size,
                lengthAdjust="spacingAndGlyphs",
            )
        )
        x += size
        ends[t] = x
    grid = "".join(
        tag("path", d=f"M{number(_LEFT)} {number(bottom - share * _CHART)}H{number(width - 12)}", class_="grid")
        + label(_LEFT - 6, bottom - share * _CHART + 4, f"{100 * share:.0f} %", "soft end num")
        for share in (0.0, 0.5, 1.0)
    )
    first, after = (bisect_left(shown.estimates, t, key=lambda e: e.t) for t in (row[0][0] - 1, row[-1][0] + 1))
    known, before = list(shown.estimates[first:after]), shown.estimates[first - 1] if first else None
    if before is not None and (not known or known[0].t > row[0][0] - 1):
        ends[before.t] = _LEFT  # the line comes in from the one above
        known.insert(0, before)

    def y(rate: float) -> float:
        return bottom - min(1.0, max(0.0, rate)) * _CHART

    curve = []
    for a, b in itertools.pairwise(known):
        curve.append(
            tag(
                "path",
                d=f"M{number(ends[a.t])} {number(y(a.rate))}L{number(ends[b.t])} {number(y(b.rate))}",
                stroke=LINE,
                stroke_width=2.0 if b.t == a.t + 1 else 0.9,
                fill="none",
            )
        )
    for e in known:
        if e is before:
            continue
        note = tag("title", words(f"after token {e.t}: {e.rate:.2f} [{e.low:.2f}, {e.high:.2f}]"))
        at = number(ends[e.t])
        curve.append(
            tag("path", d=f"M{at} {number(y(e.low))}V{number(y(e.high))}", stroke=LINE, stroke_opacity=0.45, stroke_width=1.2)
        )
        curve.append(tag("circle", note, cx=ends[e.t], cy=y(e.rate), r=2.4, fill=LINE))
    return grid + "".join(marks) + "".join(curve) + "".join(pieces)
