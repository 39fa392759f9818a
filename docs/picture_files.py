"""What the scripts of the pages' pictures share: where they read results, how they draw dots,
where they write pictures and tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.render.charts import COLOURS, Curve
from ramify.render.svg import frame, label, tag

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
METHODS = ROOT / "docs" / "methods"
Checks = dict[str, dict[str, Any]]


def read_checks(*names: str) -> Checks:
    """The committed checks of repro/NAME-cpu.json by name; of those that several files have, the first."""
    found: Checks = {}
    for name in names:
        report = json.loads((ROOT / "repro" / f"{name}-cpu.json").read_text(encoding="utf-8"))
        for check in report["checks"]:
            found.setdefault(check["name"], check)
    return found


def save(slug: str, pictures: Mapping[str, str]) -> None:
    """Write pictures (name -> SVG) as docs/images/SLUG-NAME.svg, and say so."""
    for name, picture in pictures.items():
        (IMAGES / f"{slug}-{name}.svg").write_text(picture + "\n", encoding="utf-8")
    print(f"wrote {', '.join(f'{slug}-{name}.svg' for name in pictures)}")


def curve(name: str, x: Sequence[float], checks: Sequence[dict[str, Any]], times: float = 1, least: float = -math.inf) -> Curve:
    """A curve through the values of ``checks``, with their intervals, cut at ``least``, where there are any."""
    y = [times * check["value"] for check in checks]
    if not any(check["interval"] for check in checks):
        return Curve(name, x, y)
    ends = [check["interval"] or (check["value"],) * 2 for check in checks]
    return Curve(name, x, y, [max(least, times * low) for low, _ in ends], [times * high for _, high in ends])


def grid(x: Callable[[float], float], marks: Sequence[float], top: float, bottom: float, form: str = "{:g}") -> list[str]:
    """A line from top to bottom at each mark, which is named below it."""
    drawn = []
    for mark in marks:
        drawn.append(tag("line", x1=x(mark), x2=x(mark), y1=top, y2=bottom, class_="grid"))
        drawn.append(label(x(mark), bottom + 16, form.format(mark), "soft mid"))
    return drawn


def bars(
    title: str,
    axis: str,
    about: str,
    rows: Sequence[tuple[str, dict[str, Any], str]],
    marks: Sequence[float],
    form: str = "{:g}",
    left: float = 300.0,
) -> str:
    """One bar a row (name, check, colour) from the first mark, with its interval. The axis goes to the last mark."""
    width, line = left + 420.0, 26.0
    first, last = marks[0], marks[-1]

    def x(value: float) -> float:
        return left + 350 * (min(max(value, first), last) - first) / (last - first)

    bottom = 14.0 + line * len(rows)
    body = grid(x, marks, 8, bottom, form)
    for i, (name, check, ink) in enumerate(rows):
        y = 26.0 + line * i
        body.append(label(left - 10, y + 4, name, "end"))
        body.append(tag("rect", x=left, y=y - 8, width=max(1.0, x(check["value"]) - left), height=16, fill=ink, rx=2))
        low, high = map(x, check["interval"] or (first, first))
        if check["interval"]:
            body.append(tag("line", x1=low, x2=high, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
        shown = f"{100 * check['value']:.1f} %" if "%" in form else f"{check['value']:.3g}"
        body.append(label(max(x(check["value"]), high) + 6, y + 4, shown, "soft num"))
    body.append(label(left + 175, bottom + 34, axis, "soft mid"))
    return frame(width, bottom + 44, title, about, "".join(body))


def two_bars(
    title: str,
    about: str,
    rows: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    heads: Sequence[str],
    inks: Sequence[str],
    starts: Sequence[float],
) -> str:
    """Two shares a row (name, checks), each as a bar with its interval under its head."""
    bottom = 40 + 26.0 * len(rows)
    body = [label(start, 18, head) for start, head in zip(starts, heads, strict=True)]
    for start in starts:
        body += [tag("line", x1=start + 200 * m, x2=start + 200 * m, y1=26, y2=bottom, class_="grid") for m in (0, 0.5, 1)]
    for i, (name, checks) in enumerate(rows):
        y = 46 + 26.0 * i
        body.append(label(starts[0] - 10, y + 4, name, "end"))
        for start, check, ink in zip(starts, checks, inks, strict=True):
            low, high = (start + 200 * min(1.0, max(0.0, end)) for end in check["interval"])
            body.append(tag("rect", x=start, y=y - 7, width=max(1.0, 200 * check["value"]), height=14, fill=ink, rx=2))
            body.append(tag("line", x1=low, x2=high, y1=y, y2=y, stroke="#1b2333", stroke_width=2))
            body.append(label(start + 208, y + 4, f"{100 * check['value']:.1f}", "soft num"))
    return frame(starts[1] + 260, bottom + 8, title, about, "".join(body))


def dots(
    title: str,
    axis: str,
    rows: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    series: Sequence[str],
    marks: Sequence[float],
) -> str:
    """One line a row, one dot with its interval a series. The axis goes from the first mark to the last."""
    left, width, line = 280.0, 720.0, 28.0
    first, last = marks[0], marks[-1]

    def x(value: float) -> float:
        return left + (width - left - 24) * (min(max(value, first), last) - first) / (last - first)

    top, bottom = 34.0, 34.0 + line * len(rows)
    body = grid(x, marks, top - 6, bottom)
    for i, (name, checks) in enumerate(rows):
        y = top + 14 + line * i
        body.append(label(left - 12, y + 4, name, "end"))
        for j, check in enumerate(checks):
            at, ink = y + (7 * j - 3.5 * (len(checks) - 1)), COLOURS[j] if len(checks) == max(1, len(series)) else "#777"
            if check["interval"]:
                ends = [x(end) for end in check["interval"]]
                body.append(tag("line", x1=ends[0], x2=ends[1], y1=at, y2=at, stroke=ink, stroke_width=1.6))
            if check["value"] is not None:
                body.append(tag("circle", cx=x(check["value"]), cy=at, r=4.0, stroke=ink, fill=ink, stroke_width=1.6))
    for j, name in enumerate(series):
        at = left + (width - left) / len(series) * j
        body += [tag("circle", cx=at, cy=12, r=4.0, stroke=COLOURS[j], fill=COLOURS[j]), label(at + 10, 16, name, "")]
    body.append(label(x((first + last) / 2), bottom + 34, axis, "soft mid"))
    return frame(width, bottom + 44, title, f"{axis}, mean and 95 % interval over seeds", "".join(body))


def table(checks: Iterable[dict[str, Any]], digits: int = 3) -> str:
    """A Markdown table of figures: value, interval, n, what was wanted, whether it was met."""
    rows = ["| | value | 95 % interval | n | wanted | |", "|---|---|---|---|---|---|"]
    for check in checks:
        span = "" if check["interval"] is None else " to ".join(f"{end:.{digits}f}" for end in check["interval"])
        wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
        value = (
            f"{check['value']:.{digits}f}"
            if check["value"] == 0 or abs(check["value"]) >= 0.5 / 10**digits
            else f"{check['value']:.2g}"
        )
        status = "" if check["op"] == "report" else check["status"].replace("_", " ")
        rows.append(f"| {check['name']} | {value} | {span} | {check['n']} | {wanted} | {status} |")
    return "\n".join(rows)


def rows(head: str, found: Iterable[Iterable[str]]) -> str:
    """A Markdown table with that head."""
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *(f"| {' | '.join(row)} |" for row in found)])


def alike(checks: Checks, starts: Mapping[str, str | tuple[str, ...]], digits: int = 3) -> dict[str, str]:
    """A table by name of the figures whose names begin with the ``starts`` of that name."""
    return {name: table((one for key, one in checks.items() if key.startswith(start)), digits) for name, start in starts.items()}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table (name -> Markdown) between its marks ``<!-- table: NAME -->`` and ``<!-- end -->``. KeyError: an
    unknown name."""
    found = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return found.sub(lambda one: f"{one[1]}{tables[one[2]]}\n{one[3]}", page)


def write(
    slug: str, page: Path, pictures: Callable[[Checks], dict[str, str]], tables: Callable[[Checks], dict[str, str]], *names: str
) -> None:
    """Write a method's pictures, and its tables into its page, from the checks of ``names``, by default its own."""
    checks = read_checks(*(names or (slug,)))
    save(slug, pictures(checks))
    page.write_text(filled(page.read_text(encoding="utf-8"), tables(checks)), encoding="utf-8")
