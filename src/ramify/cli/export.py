"""``ramify export``: write a run for other tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.kit import RunArgument, Verbs, argument, find_run, option
from ramify.render.result import Result, Section

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.formats import Writer

app = Verbs("export")


def _formats() -> str:
    lines = ["Formats:"]
    for writer in formats().values():
        endings = f" ({', '.join(writer.suffixes)})" if writer.suffixes else ""
        lines.append(f"  {writer.name}{endings}\n        {writer.help}")
        lines += [f"        --{_flag(name)}: {text}" for name, text in writer.settings.items()]
    return "\n".join(lines)


def _more() -> dict[str, str]:
    """The settings of all formats: name -> the formats that have it, and its help there."""
    by_option: dict[str, dict[str, list[str]]] = {}
    for writer in formats().values():
        for name, text in writer.settings.items():
            by_option.setdefault(name, {}).setdefault(text.rstrip("."), []).append(writer.name)
    return {name: "; ".join(f"{', '.join(of)}: {text}" for text, of in texts.items()) for name, texts in by_option.items()}


@dataclass(frozen=True)
class ExportedRun(Result):
    """A run in the format of another tool; ``not_written`` counts what that format has no place for."""

    run: str
    format: str
    out: str
    rows: int
    not_written: Mapping[str, int]
    loss: str = field(metadata={"json": False})
    """The same as a clause."""

    def sections(self) -> Iterable[Section]:
        """Where it is, and what is not in it."""
        yield Section.of("", f"wrote {self.out}{f'; {self.format} has no place for {self.loss}' if self.loss else ''}")


@app.itself(more=_more, epilogue=_formats)
def export(
    run: RunArgument,
    out: Annotated[Path, argument(metavar="OUT", help="File to write.")],
    to: Annotated[str | None, option(metavar="FORMAT", help="The format; by default it follows from OUT's ending.")] = None,
    more: Mapping[str, str] | None = None,
) -> ExportedRun:
    """Write a run for other tools. Each format has its own options, listed below."""
    folder = find_run(run)
    known = formats()
    writer = _choose(out, to, known)
    for name in more or {}:
        if name not in writer.settings:
            raise UserError(f"--{_flag(name)} goes with --to {' or '.join(w.name for w in known.values() if name in w.settings)}")
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    from ramify.trace.db import Run
    from ramify.trace.notes import noting
    from ramify.trace.schema import stored

    with Run.open(folder) as opened, noting() as notes:
        rows = stored(writer.write)(opened, out, **(more or {}))
    return ExportedRun(str(folder), writer.name, str(out), rows, dict(notes.unwritten), notes.loss())


def formats() -> dict[str, Writer]:
    """The registered writers, and the report, which web makes."""
    from ramify.trace.formats import Writer, writers

    return writers() | {"html": Writer("html", "the report, as one self-contained page", _write_html, (".html", ".htm"), _HTML)}


_HTML = {
    "scorer": "the scorer that decides which attempts succeeded (default: env, the imported reward, or the only one there is)"
}


def _write_html(run: Run, out: Path, scorer: str | None = None) -> int:
    from ramify.web.pages import report_html

    write_whole(out, report_html(run, scorer=scorer))
    return 1


def _choose(out: Path, to: str | None, known: Mapping[str, Writer]) -> Writer:
    if to is not None:
        if to not in known:
            raise UserError(f"--to: unknown format '{to}' ({nearest(to, known)})")
        return known[to]
    fitting = [writer for writer in known.values() if out.suffix.lower() in writer.suffixes]
    if len(fitting) != 1:
        raise UserError(
            f"cannot determine the format of {out}: name one with --to ({', '.join(w.name for w in fitting) or ', '.join(known)})"
        )
    return fitting[0]


def _flag(name: str) -> str:
    return name.replace("_", "-")
