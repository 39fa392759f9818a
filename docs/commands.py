"""Write docs/reference/commands.md and a page per verb beside it from the command line itself: python docs/commands.py. A test
holds that they are up to date."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ramify.base import registry
from ramify.cli.main import VERBS, command_line
from ramify.kit import Verb, Verbs

PAGE = Path(__file__).with_name("reference") / "commands.md"
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
HEAD = """# Every verb

Written by `python docs/commands.py` from the command line itself; each verb has its page with all options. Exit codes everywhere:
0 done, 1 failed, 2 usage or bad input, 3 budget spent (results kept), 4 needs not met, 130 interrupted (resumable).
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
        default = mark.show_default if isinstance(mark.show_default, str) else one.field_info.default
        hidden = mark.show_default is False or default in (None, False, "", inspect.Parameter.empty)
        helped = " ".join((mark.help or "").split()) + ("" if hidden else f" [{default}]")
        if one.index is not None:
            yield mark.metavar or one.name, helped
        else:
            switch = one.hint in (bool, bool | None)
            yield "/".join(one.names) + ("" if switch else f" {mark.metavar or _type(one.hint)}"), helped


def pages() -> dict[Path, str]:
    """Every page of the reference: the list of all verbs, and one page for each verb or method."""
    listed: dict[str, list[str]] = {"verbs": [], "methods": []}
    found: dict[Path, str] = {}
    methods = set(registry.builtin_methods())
    for name, command in commands():
        first = name.split()[0]
        path = PAGE.with_name("verbs") / f"{first}.md"
        if path not in found:
            found[path] = f"# ramify {first}\n" if first != name else ""
        text = command.help.strip()
        found[path] += f"\n## {name}\n\n{text}\n" if first != name else f"# ramify {name}\n\n{text}\n"
        rows = [f"| `{_cell(written)}` | {_cell(helped)} |" for written, helped in options(command)]
        if rows:
            found[path] += "\n| option | what it does |\n|---|---|\n" + "\n".join(rows) + "\n"
        anchor = f"#{name.replace(' ', '-')}" if first != name else ""
        first_words = " ".join(text.partition("\n\n")[0].split())
        row = f"| [`{name}`](verbs/{first}.md{anchor}) | {_cell(first_words)} |"
        listed["methods" if first in methods else "verbs"].append(row)
    head = "| verb | what it does |\n|---|---|\n"
    found[PAGE] = (
        f"{HEAD}\n{head}"
        + "\n".join(listed["verbs"])
        + f"\n\n## Verbs of the methods\n\n{head}"
        + "\n".join(listed["methods"])
        + f"\n\n{_renamed()}"
    )
    return found


def _renamed() -> str:
    """The changelog's table of verbs that had another name."""
    text = CHANGELOG.read_text(encoding="utf-8")
    start = text.index("### Verbs that have another name")
    return text[start + 1 :].partition("\n#")[0].strip() + "\n"


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    kinds = [_type(member) for member in get_args(hint) if member is not type(None)]
    return kinds[0] if kinds else {str: "text", Path: "PATH", int: "int", float: "number"}.get(hint, "VALUE")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n").replace("<", "&lt;")


if __name__ == "__main__":
    written = pages()
    for old in set(PAGE.with_name("verbs").glob("*.md")) - set(written):
        old.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE} and {len(written) - 1} pages beside it")
