"""Commands of the command line whose further options are the settings of a :class:`ramify.base.config.Config`."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ramify.base.config import Config, describe

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


class SettingsCommand(TyperCommand):
    """A command that passes its unknown options on to :func:`ramify.base.config.load`; ``--help`` lists them. See :func:`takes`."""

    def settings(self) -> type[Config]:
        """The configuration class."""
        raise TypeError(f"'{self.name}' has no settings")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then one entry per setting with type, help text and default."""
        super().format_help(ctx, formatter)
        lines, indent = ["Settings (--NAME VALUE):"], " " * 8
        width = shutil.get_terminal_size().columns if os.isatty(1) else 10_000
        for setting in describe(self.settings()):
            default = f" [{setting.default}]" if setting.default else ""
            lines.append(f"  --{setting.name.replace('_', '-')} {setting.type}")
            lines.append(textwrap.fill(f"{setting.help}{default}", width, initial_indent=indent, subsequent_indent=indent))
        formatter.write("\n".join(lines))


def takes(options: type[Config] | Callable[[], type[Config]]) -> dict[str, Any]:
    """For ``@app.command(**takes(Options))``: the settings of ``Options`` arrive in ``context.args``.

    A function that returns the class puts off importing it until help is asked for.
    """
    found = staticmethod(lambda: options) if isinstance(options, type) else staticmethod(options)
    command = type("OptionsCommand", (SettingsCommand,), {"settings": found})
    return {"cls": command, "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}
