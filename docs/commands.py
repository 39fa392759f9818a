"""Write docs/reference/commands.md from the command line itself: python docs/commands.py. A test holds that the page is up to date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ramify.base import registry
from ramify.base.command import SettingsCommand
from ramify.base.config import describe
from ramify.cli.export import ExportCommand, formats
from ramify.cli.main import app

PAGE = Path(__file__).with_name("reference") / "commands.md"
HEAD = """# Every verb and option

Written by `python docs/commands.py` from the command line itself. Exit codes everywhere: 0 done, 1 failed, 2 usage or bad input, 3 budget
spent (results kept), 4 needs not met, 130 interrupted (resumable).
"""


def commands() -> Iterator[tuple[str, Any]]:
    """(words after ``ramify``, command) of every verb, and of every verb of every method."""
    root = typer.main.get_group(app)
    context = root.make_context("ramify", [], resilient_parsing=True)
    for name in root.list_commands(context):
        _, command, _ = root.resolve_command(context, [name])
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            for verb in sorted(inner):
                yield f"{name} {verb}", inner[verb]


def options(command: Any) -> Iterator[tuple[str, str]]:
    """(how an argument or option is written, its help) of one command, settings of its configuration included."""
    for parameter in command.params:
        if parameter.name == "help":
            continue
        helped = " ".join((getattr(parameter, "help", None) or "").split())
        if parameter.param_type_name == "argument":
            yield parameter.metavar or str(parameter.name).upper(), helped
        else:
            given = "" if parameter.is_flag else f" {parameter.metavar or _type(parameter)}"
            default = parameter.default
            shown = "" if default in (None, False, "", ()) or callable(default) else f" [{default}]"
            yield "/".join([*parameter.opts, *parameter.secondary_opts]) + given, helped + shown
    if isinstance(command, ExportCommand):
        for writer in formats().values():
            for name, text in writer.settings.items():
                yield f"--{name.replace('_', '-')} VALUE", f"{writer.name}: {text}"
    if isinstance(command, SettingsCommand):
        for setting in describe(command.settings()):
            default = f" [{setting.default}]" if setting.default else ""
            yield f"--{setting.name.replace('_', '-')} {setting.type}", setting.help + default


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    methods = set(registry.builtin_methods())
    for name, command in commands():
        level = "###" if name.split()[0] in methods else "##"
        if level == "###" and not any(f"## ramify {name.split()[0]}\n" in part for part in parts):
            parts.append(f"## ramify {name.split()[0]}\n")
        text = re.sub(r"\n\s*\n", "\n\n", (command.help or "").strip())
        parts.append(f"{level} ramify {name}\n\n{text}\n")
        rows = [f"| `{_cell(written)}` | {_cell(helped)} |" for written, helped in options(command)]
        if rows:
            parts.append("| option | what it does |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _type(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    return {"str": "TEXT", "Path": "PATH", "int": "INTEGER", "float": "NUMBER"}.get(getattr(kind, "__name__", ""), "VALUE")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
