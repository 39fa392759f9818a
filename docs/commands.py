"""Write docs/reference/commands.md from the command line itself: python docs/commands.py. A test holds that the page is up to date."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ramify.base import registry
from ramify.cli.main import VERBS, command_line
from ramify.kit import OPTIONS, Verb, Verbs

PAGE = Path(__file__).with_name("reference") / "commands.md"
HEAD = """# Every verb and option

Written by `python docs/commands.py` from the command line itself. Exit codes everywhere: 0 done, 1 failed, 2 usage or bad input, 3 budget
spent (results kept), 4 needs not met, 130 interrupted (resumable).
"""


def commands() -> Iterator[tuple[str, Verbs]]:
    """(words after ``ramify``, application of the verb) of every verb, and of every verb of every method."""
    root = command_line()
    for name in [*VERBS, *registry.builtin_methods()]:
        verbs = [] if isinstance(root[name].default_command, Verb) else sorted(verb for verb in root[name] if verb[0] != "-")
        yield from ((f"{name} {verb}", root[name][verb]) for verb in verbs) if verbs else [(name, root[name])]


def options(verb: Verbs) -> Iterator[tuple[str, str]]:
    """(how an argument or option is written, its help) of one verb, basic settings before advanced ones."""
    for one in verb.assemble_argument_collection():
        mark = one.parameter
        if mark.show is False and mark.group == (OPTIONS,):  # hidden
            continue
        default = mark.show_default if isinstance(mark.show_default, str) else one.field_info.default
        hidden = mark.show_default is False or default in (None, False, "", inspect.Parameter.empty)
        helped = " ".join((mark.help or "").split()) + ("" if hidden else f" [{default}]")
        if one.index is not None:
            yield mark.metavar or one.name, helped
        else:
            switch = one.hint in (bool, bool | None)
            yield "/".join(one.names) + ("" if switch else f" {mark.metavar or _type(one.hint)}"), helped


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    methods = set(registry.builtin_methods())
    for name, command in commands():
        level = "###" if name.split()[0] in methods else "##"
        if level == "###" and not any(f"## ramify {name.split()[0]}\n" in part for part in parts):
            parts.append(f"## ramify {name.split()[0]}\n")
        text = command.help.strip()
        parts.append(f"{level} ramify {name}\n\n{text}\n")
        rows = [f"| `{_cell(written)}` | {_cell(helped)} |" for written, helped in options(command)]
        if rows:
            parts.append("| option | what it does |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    kinds = [_type(member) for member in get_args(hint) if member is not type(None)]
    return kinds[0] if kinds else {str: "text", Path: "PATH", int: "int", float: "number"}.get(hint, "VALUE")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
