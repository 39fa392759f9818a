"""A command of the command line whose further options are the settings of a :class:`ramify.base.config.Config`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from ramify.base.config import Config, describe

#: For ``@app.command(cls=..., context_settings=TAKES_SETTINGS)``: the settings arrive in ``context.args``.
TAKES_SETTINGS: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


class SettingsCommand(TyperCommand):
    """A command that passes its unknown options on to :func:`ramify.base.config.load`; ``--help`` lists them."""

    def settings(self) -> type[Config]:
        """The configuration class; imported only when help is asked for."""
        raise TypeError(f"'{self.name}' has no settings")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then one entry per setting with type, help text and default."""
        super().format_help(ctx, formatter)
        lines = ["Settings (--NAME VALUE):"]
        for setting in describe(self.settings()):
            default = f" [{setting.default}]" if setting.default else ""
            lines.append(f"  --{setting.name.replace('_', '-')} {setting.type}\n        {setting.help}{default}")
        formatter.write("\n".join(lines))
