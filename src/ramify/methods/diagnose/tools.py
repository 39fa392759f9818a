"""The four tools (section 3.3): pure functions of a snapshot and their arguments, checked, bounded,
without shell and without writes.

The same call gives the same bytes. What a call displayed is in its observation, so a cited span can be told from one nobody saw.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from ramify.base.errors import nearest
from ramify.base.ids import stable_hash
from ramify.methods.diagnose.code import CodeMap
from ramify.methods.diagnose.snapshot import Snapshot

VIEW_LINES, WINDOW, WINDOWS, LISTED, TREE_LINES, WIDTH = 400, 20, 6, 60, 1500, 400
"""Most lines of a view, lines of a search's window, windows shown, matches listed, lines of a tree, characters of a line."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool replied."""

    text: str
    shown: tuple[tuple[str, int, int], ...] = ()
    """Spans that ``view_file`` displayed: file, first and last line."""
    ok: bool = True
    """False where the call was refused; the text then says why."""

    @property
    def digest(self) -> str:
        """A hash of the text."""
        return stable_hash(self.text)[:12]


def _schema(name: str, description: str, needed: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(needed), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS: tuple[dict[str, Any], ...] = (
    _schema(
        "view_file",
        "Show a file with line numbers, and which files it imports and is imported by. At most 400 lines at once.",
        ("path",),
        path={"type": "string", "description": "Path of the file, from the root of the repository."},
        view_range={
            "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
            "description": "First and last line to show, both included, from 1.",
        },
    ),
    _schema(
        "codebase_search",
        "Search every file for a literal text, upper and lower case alike. Returns files, line numbers and windows of 20 lines.",
        ("query",),
        query={"type": "string", "description": "The text to look for; no regular expression."},
    ),
    _schema("repo_tree", "The folders and files of the repository with the number of lines of each file."),
    _schema(
        "connected_tree",
        "Which files a file imports, and which files import it. Without a file: the most connected files.",
        file={"type": "string", "description": "Path of the file, from the root of the repository."},
    ),
)  # fmt: skip
"""The four tools as OpenAI's function schemas."""
NAMES = tuple(str(one["function"]["name"]) for one in SCHEMAS)


class RepoTools:
    """The four tools on one snapshot. ``without``: names of tools that are not offered."""

    def __init__(self, snapshot: Snapshot, without: Sequence[str] = ()) -> None:
        self.snapshot, self.code = snapshot, CodeMap(snapshot)
        self.schemas = [one for one in SCHEMAS if one["function"]["name"] not in without]
        self._call = lru_cache(maxsize=4096)(self._fresh)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What a tool replies; a call that its schema does not allow is refused with the reason."""
        if why := self._fault(name, arguments):
            return ToolResult(f"error: {why}", ok=False)
        plain = tuple(
            (key, tuple(value) if isinstance(value, list | tuple) else value)
            for key, value in sorted(arguments.items())
            if value is not None
        )
        return self._call(name, plain)

    def _fresh(self, name: str, arguments: tuple[tuple[str, Any], ...]) -> ToolResult:
        made: ToolResult = getattr(self, f"_{name}")(**dict(arguments))
        return made

    def _fault(self, name: str, arguments: Mapping[str, Any]) -> str:
        known = {one["function"]["name"]: one["function"]["parameters"] for one in self.schemas}
        if name not in known:
            return f"there is no tool '{name}' ({nearest(name, known)})"
        properties, needed = known[name]["properties"], known[name]["required"]
        for key in arguments:
            if key not in properties:
                return f"{name} has no argument '{key}' ({nearest(key, properties)})"
        for key in needed:
            if arguments.get(key) is None:
                return f"{name} needs '{key}'"
        for key, value in arguments.items():
            if value is None:
                continue
            if properties[key]["type"] == "string" and (not isinstance(value, str) or not value.strip()):
                return f"'{key}' of {name} must be text that is not empty"
            if properties[key]["type"] == "array":
                whole = isinstance(value, list | tuple) and [type(one) for one in value] == [int, int]
                if not whole or not 1 <= value[0] <= value[1]:
                    return f"'{key}' of {name} must be two whole numbers [first, last] with 1 <= first <= last"
        return ""

    # -- the tools

    def _view_file(self, path: str, view_range: tuple[int, int] | None = None) -> ToolResult:
        path = normal(path)
        if path not in self.snapshot:
            return self._no_file(path)
        lines = self.snapshot.lines(path)
        if path in self.snapshot.skipped:
            return ToolResult(f"error: {path} cannot be shown: {self.snapshot.skipped[path]}", ok=False)
        first, last = view_range or (1, len(lines))
        if first > max(1, len(lines)):
            return ToolResult(f"error: {path} has {len(lines)} lines, so there is no line {first}", ok=False)
        end = min(last, len(lines), first + VIEW_LINES - 1)
        head = f"{path}, lines {first} to {end} of {len(lines)}" if lines else f"{path} is empty"
        body = numbered(lines, first, end)
        left = [f"... {len(lines) - end} more lines: ask for view_range"] if end < min(last, len(lines)) else []
        return ToolResult("\n".join([head, *body, *left, *self._relations(path)]), ((path, first, end),) if lines else ())

    def _relations(self, path: str) -> Iterator[str]:
        if self.snapshot.large:
            return
        if not self.code.readable(path):
            yield "imports: not known for files of this kind"
            return
        yield f"imports: {', '.join(self.code.imports[path][:20]) or 'no file of this repository'}"
        yield f"imported by: {', '.join(self.code.importers[path][:20]) or 'no file of this repository'}"

    def _no_file(self, path: str) -> ToolResult:
        if path in self.snapshot.skipped:
            return ToolResult(f"error: {path} cannot be shown: {self.snapshot.skipped[path]}", ok=False)
        if path.startswith("/") or ".." in path.split("/"):
            return ToolResult(f"error: '{path}' lies outside the repository", ok=False)
        near = suggestions(path, self.snapshot.paths)
        return ToolResult(f"error: there is no file '{path}'" + (f"; did you mean {', '.join(near)}?" if near else ""), ok=False)

    def _codebase_search(self, query: str) -> ToolResult:
        if "\n" in query:
            return ToolResult("error: 'query' of codebase_search must be one line", ok=False)
        wanted, found = query.lower(), list[tuple[str, int]]()
        more = 0
        for path in self._candidates(query):
            text = self.snapshot.lower(path)
            if wanted in text:
                for number, line in enumerate(text.split("\n"), 1):
                    if wanted in line:
                        more += len(found) >= LISTED
                        found += [(path, number)] if len(found) < LISTED else []
        if not found:
            return ToolResult(f"no line holds {query!r}")
        files = Counter(path for path, _ in found)
        rows = [
            f"{len(found) + more} lines in {len(files)} files hold {query!r}"
            + (f"; the first {LISTED} are listed" if more else "")
        ]
        rows += [f"{path}: {', '.join(str(at) for one, at in found if one == path)}" for path in files]
        for path, first, end in _windows(found, self.snapshot)[:WINDOWS]:
            rows += [f"--- {path}, lines {first} to {end}", *numbered(self.snapshot.lines(path), first, end)]
        return ToolResult("\n".join(rows))

    def _candidates(self, query: str) -> Sequence[str]:
        """Files that may hold ``query``: all of them, or of a large repository those that ripgrep names, where it is
        installed."""
        program = shutil.which("rg")
        if program is None or not self.snapshot.large or self.snapshot.root is None or not query.isascii():
            return self.snapshot.paths
        argv = [program, "--no-config", "--no-ignore", "--hidden", "--no-messages", "-l", "-0", "-i", "-F", "--", query, "."]
        done = subprocess.run(argv, cwd=self.snapshot.root, capture_output=True, check=False)
        if done.returncode not in (0, 1):  # it could not search: 1 says that it found nothing
            return self.snapshot.paths
        named = {name.decode("utf-8", "surrogateescape").removeprefix("./") for name in done.stdout.split(b"\0")}
        return [path for path in self.snapshot.paths if path in named]

    def _repo_tree(self) -> ToolResult:
        return ToolResult(tree_text(self.snapshot))

    def _connected_tree(self, file: str = "") -> ToolResult:
        if not file:
            if self.snapshot.large:
                return ToolResult("error: there are too many files for an overview: name a file", ok=False)
            degree = {path: len(self.code.imports[path]) + len(self.code.importers[path]) for path in self.snapshot.paths}
            most = sorted((path for path in degree if degree[path]), key=lambda path: (-degree[path], path))[:40]
            rows = [
                f"{path}: imports {len(self.code.imports[path])}, imported by {len(self.code.importers[path])}" for path in most
            ]
            return ToolResult("\n".join(["the most connected files", *rows]) if rows else "no file imports another one")
        path = normal(file)
        if path not in self.snapshot:
            return self._no_file(path)
        if not self.code.readable(path):
            return ToolResult(f"{path}: imports are not known for files of this kind")
        imports, importers = self.code.imports[path], self.code.importers[path]
        text = [f"{path} imports {len(imports)} files", *(f"  {one}" for one in imports[:LISTED])]
        text += [f"{path} is imported by {len(importers)} files", *(f"  {one}" for one in importers[:LISTED])]
        return ToolResult("\n".join(text))


def normal(path: str) -> str:
    """A path as the snapshot names it: no ``./`` before it, and ``/`` between folders."""
    path = path.strip().replace("\\", "/")
    while path.startswith("./"):
        path = path[2:]
    return path


def numbered(lines: Sequence[str], first: int, last: int) -> list[str]:
    """Lines with their numbers, from 1; what is no printable text is shown as it is written in Python, long lines are cut."""
    return [
        f"{at:5d}  {line if len(line) <= WIDTH else line[:WIDTH] + ' ...'}"
        for at, line in enumerate(lines[first - 1 : last], first)
    ]


def suggestions(path: str, paths: Sequence[str]) -> list[str]:
    """The nearest of ``paths``, at most three: those that end alike first."""
    name = PurePosixPath(path).name
    same = [one for one in paths if PurePosixPath(one).name == name]
    return same[:3] or difflib.get_close_matches(path, paths[:5000], n=3, cutoff=0.5)


def _windows(found: Sequence[tuple[str, int]], snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """Spans of 20 lines around matches, one after the other; matches that lie in a window already open none."""
    spans: list[tuple[str, int, int]] = []
    for path, at in found:
        if not spans or spans[-1][0] != path or at > spans[-1][2]:
            first = max(1, at - WINDOW // 2)
            spans.append((path, first, min(len(snapshot.lines(path)), first + WINDOW - 1)))
    return spans


def tree_text(snapshot: Snapshot) -> str:
    """The filtered hierarchy: files with their lines, or where that is too long folders with the number of files below, as deep
    as fits."""
    name = snapshot.name or "repository"
    files = [path if snapshot.large else f"{path} ({len(snapshot.lines(path))})" for path in snapshot.paths]
    if len(files) <= TREE_LINES:
        return "\n".join([f"{name}: {len(files)} files, lines in brackets", *files])
    depth, rows = 1, list[str]()
    while depth < 12:
        counts = Counter("/".join(path.split("/")[:depth]) for path in snapshot.paths)
        more = [f"{path}/ ({n} files)" if n > 1 else path for path, n in sorted(counts.items())]
        if len(more) > TREE_LINES and rows:
            break
        rows, depth = more, depth + 1
    cut = [f"... {len(rows) - TREE_LINES} more"] if len(rows) > TREE_LINES else []
    return "\n".join(
        [f"{name}: {len(snapshot.paths)} files, too many to list: folders {depth - 1} deep", *rows[:TREE_LINES], *cut]
    )
