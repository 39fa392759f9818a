"""``ramify new``: the skeleton of a component or a method of your own, as a small package that passes ``ramify check``."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.files import folder_aside, refusal
from ramify.kit import Verbs, argument, option
from ramify.render.result import Result, Section, Verbatim
from ramify.testing import conformance

app = Verbs("new")

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
METHOD = "method"
_FILES = ("init", "algorithm", "verbs", "experiment")
"""Modules of a method's package."""


@dataclass(frozen=True)
class WrittenSkeleton(Result):
    """The files of a new component."""

    kind: str
    name: str
    folder: str
    files: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The files, and the commands that try them."""
        part = Path(self.folder) / "src" / f"{_module(self.name)}.py"
        method = self.kind == METHOD
        first = f"pytest {self.folder}" if method else f"ramify check {self.kind} {part}:{_part(self.kind, self.name)}"
        last = f"\nramify check method {self.name} --quick" if method else ""
        written = f"wrote {self.folder}: {', '.join(self.files)}"
        yield Section.of("", written, Verbatim(f"{first}\npip install -e {self.folder}{last}", "sh"))


@app.itself()
def new(
    kind: Annotated[
        str,
        argument(
            metavar="KIND",
            help="model, drafter, env, judge, credit, searcher, loss, compactor, sandbox, middleware, reader or method.",
        ),
    ],
    name: Annotated[str, argument(metavar="NAME", help="Its name: lower case, words joined by '-'.")],
    out: Annotated[Path | None, option(metavar="DIR", help="Folder to make; default: ./NAME.")] = None,
) -> WrittenSkeleton:
    """Write a small package with one working component, its test and its plug-in entry;
    a method also gets its page and its experiment."""
    kind = kind if kind == METHOD else conformance.known_kind(kind)
    check_name(kind, name)
    folder = out or Path(name)
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already: choose another --out")
    if not folder.parent.is_dir():
        raise UserError(f"cannot make {folder}: there is no folder {folder.parent}")
    files = skeleton(kind, name)
    _write(folder, files)
    return WrittenSkeleton(kind, name, str(folder), tuple(files))


def check_name(kind: str, name: str) -> None:
    """Raises UserError on a name that a package, a module and a component cannot all have."""
    if not _NAME.fullmatch(name) or len(name) > LONGEST:
        raise UserError(
            f"'{name}' is not a name for a component: at most {LONGEST} lower-case letters and digits, a letter first, words "
            "joined by '-'"
        )
    from ramify.cli.main import VERBS

    if name in registry.names(kind) or (kind == METHOD and name in VERBS):
        raise UserError(f"the {kind} '{name}' exists already")
    module = _module(name)
    if keyword.iskeyword(module) or keyword.issoftkeyword(module) or importlib.util.find_spec(module) is not None:
        raise UserError(f"'{name}' is taken: '{module}' is a keyword or an installed Python module")


def skeleton(kind: str, name: str) -> dict[str, str]:
    """The files of the package: path -> text."""
    module, part = _module(name), _part(kind, name)
    made_by = part if kind in (*registry.AS_THEY_ARE, "reader") else f"{part}()"
    words = {"NAME": name, "MODULE": module, "CLASS": _class(name), "PART": part, "KIND": kind, "MADE": made_by}
    sources = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"src/{module}.py": f"{kind}.py.txt",
        f"tests/test_{module}.py": "test.py.txt",
    }
    if kind == METHOD:
        inside = {f"src/{module}/{'__init__' if file == 'init' else file}.py": f"{file}.py.txt" for file in _FILES}
        sources = {path: source for path, source in sources.items() if path != f"src/{module}.py"} | inside
        sources = {path: f"method/{source}" for path, source in sources.items()} | {f"docs/{name}.md": "method/page.md.txt"}
    templates = resources.files("ramify") / "assets" / "new"
    files = {}
    for path, template in sources.items():
        text = (templates / template).read_text(encoding="utf-8")
        files[path] = re.sub("@([A-Z]+)@", lambda match: words[match[1]], text)
    return files


def _module(name: str) -> str:
    return name.replace("-", "_")


def _class(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _part(kind: str, name: str) -> str:
    return _module(name) if kind in ("loss", "reader") else _class(name)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Make the folder whole or not at all."""
    try:
        with folder_aside(folder.parent) as building:
            for path, text in files.items():
                (building / path).parent.mkdir(parents=True, exist_ok=True)
                (building / path).write_text(text, encoding="utf-8")
            building.chmod(0o755)
            building.rename(folder)
    except OSError as error:
        raise refusal(f"cannot make {folder}", error) from error
