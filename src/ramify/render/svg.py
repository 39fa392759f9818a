"""SVG parts that every picture shares: elements, the page frame, the credit colours, legends. No script, deterministic text.

Pictures follow the reader's light or dark setting through CSS variables and never carry meaning by hue alone: credit runs from
vermilion through grey to blue (distinct for every common colour blindness), outcomes are shapes.
"""

from __future__ import annotations

import math

from ramify.base.ids import stable_hash
from ramify.render.escape import escape

NEGATIVE, NEUTRAL, POSITIVE = (213, 94, 0), (214, 217, 222), (0, 114, 178)
FONT = 12.0
_STYLE = (
    ".rf{--ink:#1b1f24;--soft:#59626e;--line:#aab2bd;--grid:#e6e9ed;--paper:#fff;"
    "font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink);background:var(--paper)}"
    ".rf .soft{fill:var(--soft)}.rf .edge{fill:none;stroke:var(--line)}.rf .grid{stroke:var(--grid)}"
    ".rf .rim{stroke:var(--soft);stroke-width:1}.rf .mark{fill:none;stroke:var(--ink);stroke-width:1.8;stroke-linecap:round;"
    "stroke-linejoin:round}.rf .hollow{fill:var(--paper)}.rf "
    ".halo{paint-order:stroke;stroke:var(--paper);stroke-width:3.5;stroke-linejoin:round}.rf .end{text-anchor:end}"
    ".rf .mid{text-anchor:middle}.rf .num{font-variant-numeric:tabular-nums}.rf a:hover .rim{stroke:var(--ink);stroke-width:2.5}"
    "@media(prefers-color-scheme:dark){.rf{--ink:#e8eaed;--soft:#a5aebb;--line:#5b6572;--grid:#2c323a;--paper:#15181d}}"
)


def tag(name: str, *children: str, **attributes: object) -> str:
    """One element. Children are SVG already (text goes through :func:`words`); attributes are escaped here.

    Attribute names swap ``_`` for ``-`` (``class_`` is ``class``); None leaves an attribute out; floats keep two decimals.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{shown}>{''.join(children)}</{name}>" if children else f"<{name}{shown}/>"


def words(text: object) -> str:
    """Text content of an element, escaped."""
    return escape(text)


def label(x: float, y: float, text: object, class_: str = "soft", **attributes: object) -> str:
    """A line of text with its baseline at y."""
    return tag("text", words(text), x=x, y=y, class_=class_, **attributes)


def number(value: float) -> str:
    """A coordinate: at most two decimals, no negative zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def frame(width: float, height: float, title: str, description: str, body: str) -> str:
    """The whole picture, named and described for a screen reader."""
    key = "f" + stable_hash(title, description, body)[:8]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rf" role="img" aria-labelledby="{key}t {key}d" '
        f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}">'
        f'<title id="{key}t">{words(title)}</title><desc '
        f'id="{key}d">{words(description)}</desc><style>{_STYLE}</style>{body}</svg>'
    )


def clip(text: str, length: int) -> str:
    """``text`` on one line, cut to ``length`` characters with an ellipsis."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: max(1, length - 1)].rstrip() + "…"


def text_width(text: str, size: float = FONT) -> float:
    """A generous estimate of a text's width in pixels (there is no font to measure with)."""
    return size * sum(
        1.0 if ord(c) > 0x2E80 else 0.34 if c in " .,:;|!'ijltfr()[]" else 0.9 if c in "mwMW%" else 0.61 for c in text
    )


def credit_colour(credit: float | None, scale: float) -> str:
    """The diverging colour of a credit; ``scale`` (positive) is where the colour saturates. No credit is ``none``."""
    if credit is None or not math.isfinite(credit):
        return "none"
    share = max(-1.0, min(1.0, credit / scale)) if scale > 0 else 0.0
    end = POSITIVE if share > 0 else NEGATIVE
    # The square root lifts small credits off the grey, so that their sign can be seen.
    mix = math.sqrt(abs(share))
    return "#" + "".join(f"{round(a + (b - a) * mix):02x}" for a, b in zip(NEUTRAL, end, strict=True))


def credit_legend(x: float, y: float, scale: float, name: str = "credit") -> tuple[str, float]:
    """The colour bar of :func:`credit_colour` with its ends named; returns (SVG, width)."""
    steps, cell, start = 21, 6.0, text_width(name) + 8
    low, high = signed(-scale), signed(scale)
    bar_x = x + start + text_width(low) + 6
    cells = "".join(
        tag(
            "rect",
            x=bar_x + i * cell,
            y=y - 9,
            width=cell + 0.5,
            height=10,
            fill=credit_colour((i / (steps - 1) * 2 - 1) * scale, scale),
        )
        for i in range(steps)
    )
    end = bar_x + steps * cell
    parts = [
        label(x, y, name),
        label(bar_x - 6, y, low, "soft end num"),
        cells,
        label(end + 6, y, high, "soft num"),
    ]
    return "".join(parts), end + 6 + text_width(high) - x


def outcome_mark(x: float, y: float, outcome: str) -> str:
    """The shape of an outcome, 9 px wide, centred: a tick for success, a cross for failure, a dash for cut off, nothing else."""
    paths = {
        "success": f"M{number(x - 4)} {number(y)}l3 3.5l5.5 -7",
        "failure": f"M{number(x - 3.5)} {number(y - 3.5)}l7 7m0 -7l-7 7",
        "cut": f"M{number(x - 4)} {number(y)}h8",
    }
    return tag("path", d=paths[outcome], class_="mark") if outcome in paths else ""


def signed(value: float) -> str:
    """A number with its sign, as people write it: +0.52, −1.3, 0."""
    text = f"{abs(value):.2g}" if abs(value) < 100 else f"{abs(value):.0f}"
    return "0" if float(text) == 0 else ("+" if value > 0 else "−") + text


def flow(items: list[tuple[str, float]], x: float, y: float, width: float, gap: float = 18, row: float = 20) -> tuple[str, float]:
    """Set legend items (SVG drawn at the origin, width) side by side from (x, y), breaking lines at ``width``; (SVG, last y)."""
    out, left, line = [], x, y
    for body, size in items:
        if left > x and left + size > x + width:
            left, line = x, line + row
        out.append(tag("g", body, transform=f"translate({number(left)} {number(line)})"))
        left += size + gap
    return "".join(out), line
