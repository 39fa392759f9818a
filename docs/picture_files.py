"""What the scripts of the pages' pictures share: where they read results, how they draw dots,
where they write pictures and tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.render.charts import COLOURS
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
    body = []
    for mark in marks:
        body += [
            tag("line", x1=x(mark), x2=x(mark), y1=top - 6, y2=bottom, class_="grid"),
            label(x(mark), bottom + 16, f"{mark:g}", "soft mid"),
        ]
    for i, (name, checks) in enumerate(rows):
        y = top + 14 + line * i
        body.append(label(left - 12, y + 4, name, "end"))
        for j, check in enumerate(checks):
            at, ink = y + (7 * j - 3.5 * (len(checks) - 1)), COLOURS[j] if len(checks) == max(1, len(series)) else "#777"
            if check["interval"]:
                ends = [x(end) for end in check["interval"]]
                body.append(tag("line", x1=ends[0], x2=ends[1], y1=at, y2=at, stroke=ink, stroke_width=1.6))
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


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table (name -> Markdown) between its marks ``<!-- table: NAME -->`` and ``<!-- end -->``. KeyError: an
    unknown name."""
    found = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return found.sub(lambda one: f"{one[1]}{tables[one[2]]}\n{one[3]}", page)


def write(slug: str, page: Path, pictures: Mapping[str, str], tables: Mapping[str, str]) -> None:
    """Write a method's pictures, and its tables into its page."""
    save(slug, pictures)
    page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
