"""What a verb found, and how it is shown: a frozen :class:`Result` with ``sections()`` of text, tables and pictures.

The verb states fields and sections; the terminal's text, ``--json``, Markdown, the page and the notebook are made of them here
and nowhere else. Sections are data, so a run keeps them, and a page shows what any method found without loading the method.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from ramify.base import codec, notebook
from ramify.base.errors import EXIT_DONE
from ramify.render.numbers import cell

MOST_ROWS = 100
"""Rows of one table on a page, and texts to unfold of one section."""
Cell = str | bool | int | float | None
"""Of a table: text, a number (:func:`ramify.render.numbers.number`), yes or no, None for nothing."""

CALL: Mapping[str, Any] = {"kept": False}
"""Metadata of a field that is about this call alone, such as what it spent: ``--json`` has it, a run does not keep it."""


@dataclass(frozen=True)
class Grid:
    """Rows of cells under a head; a title above where it needs one of its own."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Verbatim:
    """Text that is shown letter for letter: a program, a prompt, a log."""

    text: str
    language: str = ""
    kind: Literal["code"] = "code"


@dataclass(frozen=True)
class Folded:
    """A text under its title that a reader unfolds. The terminal leaves it out."""

    title: str
    text: str
    kind: Literal["folded"] = "folded"


@dataclass(frozen=True)
class CurveLine:
    """One curve of :class:`Curves`: x and y of equal length, and optionally the ends of an interval at each x."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    line: bool = True
    """Without it: open circles."""


@dataclass(frozen=True)
class Curves:
    """A picture: curves over one x axis. The terminal leaves it out."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[CurveLine, ...]
    percent: bool = True
    """y are shares, on an axis from 0 to 100."""
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True)
class Bar:
    """A picture: one bar divided into (name, size, size as people read it). The terminal leaves it out."""

    title: str
    parts: tuple[tuple[str, float, str], ...]
    kind: Literal["bar"] = "bar"


Part = str | Grid | Verbatim | Folded | Curves | Bar
"""A string is a paragraph; what stands in backquotes in it is a command."""


@dataclass(frozen=True)
class Section:
    """Parts under a title; "" where the result is one thing. Every text is shown as it is, never as markup."""

    title: str
    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, title: str, *parts: Part | None) -> Section:
        """A section of the parts that there are: None, empty texts and tables without rows are left out."""
        return cls(title, tuple(part for part in parts if part and not (isinstance(part, Grid) and not part.rows)))


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> Grid:
    """A :class:`Grid`. Raises ValueError when a row's length differs from the head's."""
    cells = tuple(tuple(row) for row in rows)
    if any(len(row) != len(head) for row in cells):
        raise ValueError(f"every row needs {len(head)} cells")
    return Grid(tuple(head), cells, title)


def numbers(values: Mapping[str, Cell], title: str = "") -> Grid:
    """A table of names and their values."""
    return table(("number", "value"), values.items(), title)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of what verbs return. A subclass is a frozen dataclass with typed fields, which are its ``--json``, and says its
    sections."""

    KEPT: ClassVar[bool] = True
    """Whether a run keeps it."""
    PART: ClassVar[str] = ""
    """Which of several things that its verb finds: a run keeps the newest of each."""
    caveats: tuple[str, ...] = field(default=(), repr=False)
    """What a reader must know before trusting it, a sentence each."""

    def sections(self) -> Iterable[Section]:
        """What a reader sees of it."""
        raise NotImplementedError

    @property
    def part(self) -> str:
        """:data:`PART`, of a result whose verb finds as many things as it is asked."""
        return self.PART

    @property
    def exit_code(self) -> int:
        """What the verb ends with: see :mod:`ramify.base.errors`."""
        return EXIT_DONE

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON."""
        record: dict[str, Any] = codec.to_json(self)
        return record

    def to_keep(self) -> dict[str, Any]:
        """The same without what is about this call alone (:data:`CALL`)."""
        passing = {attribute.name for attribute in fields(self) if not attribute.metadata.get("kept", True)}
        return {name: value for name, value in self.to_json().items() if name not in passing}

    def as_kept(self) -> tuple[dict[str, Any], list[Any]]:
        """Fields and sections as a run keeps them, with what is about this call alone as by default."""
        passing: dict[str, Any] = {
            member.name: member.default if member.default_factory is MISSING else member.default_factory()
            for member in fields(self)
            if not member.metadata.get("kept", True) and (member.default, member.default_factory) != (MISSING, MISSING)
        }
        return self.to_keep(), to_data(replace(self, **passing).sections())

    def __str__(self) -> str:
        return to_text(self.sections())

    def _repr_html_(self) -> str:
        return notebook.html(self)


@dataclass(frozen=True)
class Planned(Result):
    """What ``--dry-run`` says: the settings, and what the work takes at most."""

    KEPT = False
    settings: Mapping[str, Any]
    cost_estimate: Mapping[str, Cell]

    def sections(self) -> Iterable[Section]:
        """Both, the cost first."""
        yield Section.of("", table(("cost estimate", "at most"), self.cost_estimate.items()))
        yield Section.of("", table(("setting", "value"), _flat(codec.to_json(self.settings))))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Cell]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else value


# -- the forms -----------------------------------------------------------------------------------------------------------------


def to_text(sections: Iterable[Section]) -> str:
    """For the terminal: tables, paragraphs and code."""
    from ramify.render.text import table as grid

    blocks: list[str] = []
    for section in sections:
        title = section.title
        for part in section.parts:
            if isinstance(part, str):
                block = part
            elif isinstance(part, Verbatim):
                block = part.text
            elif isinstance(part, Grid):
                heading, title = ": ".join(filter(None, (title, part.title))), ""
                block = grid(part.head, part.rows, heading)
            else:
                continue
            blocks.append(f"{title}\n{block}" if title else block)
            title = ""
    return "\n\n".join(blocks)


def shortened(sections: Iterable[Section], most: int, widest: int) -> Iterable[Section]:
    """The same with at most ``most`` rows of a table and ``widest`` characters of a cell."""
    for section in sections:
        parts: list[Part] = []
        for part in section.parts:
            if isinstance(part, Grid):
                rows = tuple(tuple(_cut(value, widest) for value in row) for row in part.rows[:most])
                parts += [replace(part, rows=rows), *([f"and {len(part.rows) - most} more"] if len(part.rows) > most else [])]
            else:
                parts.append(part)
        yield Section(section.title, tuple(parts))


def _cut(value: Cell, widest: int) -> Cell:
    return value if not isinstance(value, str) or len(value) <= widest else f"{value[: widest - 3]}..."


def to_markdown(sections: Iterable[Section]) -> str:
    """For a file, or a comment on a pull request."""
    from ramify.render.markdown import fenced, markdown

    blocks: list[str] = []
    for section in sections:
        blocks += [f"## {section.title}"] if section.title else []
        for part in section.parts:
            if isinstance(part, Grid):
                blocks += [f"**{part.title}**"] if part.title else []
                blocks.append("\n".join(markdown(part.head, part.rows)))
            elif isinstance(part, (Verbatim, Folded)):
                blocks += [f"**{part.title}**"] if isinstance(part, Folded) else []
                blocks.append(fenced(part.text, part.language if isinstance(part, Verbatim) else ""))
            elif isinstance(part, str):
                blocks.append(part)
    return "\n\n".join(blocks) + "\n"


def to_document(title: str, result: Result) -> str:
    """A result as a Markdown file of its own: the title, what a reader must know first, the sections."""
    return "\n\n".join([f"# {title}", *(f"**{caveat}**" for caveat in result.caveats), to_markdown(result.sections())])


def to_html(sections: Iterable[Section], name: str = "") -> str:
    """For a page or a notebook's cell: one ``<section>`` each, every text escaped. ``name`` heads a section without a title."""
    from ramify.render.escape import escape

    return "\n".join(
        f"<section>\n<h2>{escape(section.title or name)}</h2>\n" + "\n".join(_parts_html(section.parts)) + "\n</section>"
        for section in sections
    )


def _parts_html(parts: Sequence[Part]) -> Iterable[str]:
    from ramify.render.charts import Curve, Slice, bar_svg, curves_svg
    from ramify.render.escape import escape

    folded = 0
    for part in parts:
        if isinstance(part, str):
            yield "".join(f"<p>{_commands(paragraph)}</p>" for paragraph in part.split("\n") if paragraph.strip())
        elif isinstance(part, Verbatim):
            yield f"<pre>{escape(part.text)}</pre>"
        elif isinstance(part, Folded):
            folded += 1
            if folded <= MOST_ROWS:
                yield f"<details><summary>{escape(part.title)}</summary><pre>{escape(part.text)}</pre></details>"
        elif isinstance(part, Grid):
            yield _table_html(part)
        elif isinstance(part, Bar):
            yield bar_svg([Slice(*part_number) for part_number in part.parts], part.title)
        else:
            curves = [
                Curve(line.name, line.x, [float("nan") if y is None else y for y in line.y], line.low, line.high, line.line)
                for line in part.lines
            ]
            yield curves_svg(curves, part.title, part.x_name, part.y_name, part.percent)


def _commands(text: str) -> str:
    from ramify.render.escape import escape

    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _table_html(part: Grid) -> str:
    from ramify.render.escape import escape

    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.head)
    rows = ["".join(f"<td>{escape(cell(value))}</td>" for value in row) for row in part.rows[:MOST_ROWS]]
    title = f"<h3>{escape(part.title)}</h3>\n" if part.title else ""
    left = len(part.rows) - MOST_ROWS
    return (
        f'{title}<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(f"<tr>{row}</tr>" for row in rows)
        + "\n</tbody>\n</table></div>"
        + (f'\n<p class="soft">And {left} more.</p>' if left > 0 else "")
    )


# -- in a run ------------------------------------------------------------------------------------------------------------------


def to_data(sections: Iterable[Section]) -> list[Any]:
    """Sections as JSON, as a run keeps them."""
    records: list[Any] = codec.to_json(list(sections))
    return records


def from_data(data: Any, where: str) -> tuple[Section, ...]:
    """Inverse of :func:`to_data`. Raises UserError that names ``where`` on anything else."""
    return codec.from_json(tuple[Section, ...], data, where)
