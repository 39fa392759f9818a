"""``ramify export``: write a run for other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ramify.base.command import Json
from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.cli.common import RunArgument, find_run

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.formats import Writer

app = typer.Typer(add_completion=False)


class ExportCommand(TyperCommand):
    """``ramify export``; its help lists the formats and the settings of each."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then one entry per format with its settings."""
        super().format_help(ctx, formatter)
        lines = ["Formats:"]
        for writer in formats().values():
            endings = f" ({', '.join(writer.suffixes)})" if writer.suffixes else ""
            lines.append(f"  {writer.name}{endings}\n        {writer.help}")
            lines += [f"        --{_flag(name)}: {text}" for name, text in writer.settings.items()]
        formatter.write("\n".join(lines))


@app.command(cls=ExportCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def export(
    context: typer.Context,
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    to: Annotated[str | None, typer.Option(metavar="FORMAT", help="The format; by default it follows from OUT's ending.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run for other tools. What a format can be told goes in options of its own, listed below."""
    folder = find_run(run)
    known = formats()
    writer = _choose(out, to, known)
    settings = _settings(context.args, writer, known)
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    from ramify.render import terminal
    from ramify.trace.db import Run
    from ramify.trace.schema import stored

    with Run.open(folder) as opened:
        rows = stored(writer.write)(opened, out, **settings)
    terminal.emit({"run": str(folder), "format": writer.name, "out": str(out), "rows": rows}, as_json, f"wrote {out}")


def formats() -> dict[str, Writer]:
    """The registered writers, and the report, which web makes."""
    from ramify.trace.formats import Writer, writers

    return writers() | {"html": Writer("html", "the report, as one self-contained page", _write_html, (".html", ".htm"), _HTML)}


_HTML = {"scorer": "whose verdicts say which attempts succeeded (default: env, the imported reward, or the only one there is)"}


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
            f"cannot tell the format of {out}: name one with --to ({', '.join(w.name for w in fitting) or ', '.join(known)})"
        )
    return fitting[0]


def _settings(words: Sequence[str], writer: Writer, known: Mapping[str, Writer]) -> dict[str, str]:
    """What ``--name value`` and ``--name=value`` set. Raises UserError on a word that sets nothing of this format."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or not name:
            raise UserError(f"unexpected argument '{flag}': options are written --name value")
        if name not in writer.settings:
            others = [other.name for other in known.values() if name in other.settings]
            if others:
                raise UserError(f"{flag} goes with --to {' or '.join(others)}")
            flags = ["--to", "--json", *("--" + _flag(setting) for setting in writer.settings)]
            raise UserError(f"unknown option {flag} ({nearest(flag, flags)})")
        if name in found:
            raise UserError(f"{flag} is given twice")
        if not equals and (not rest or rest[0].startswith("--")):
            raise UserError(f"{flag} needs a value: {writer.settings[name]}")
        found[name] = value if equals else rest.pop(0)
    return found


def _flag(name: str) -> str:
    return name.replace("_", "-")
