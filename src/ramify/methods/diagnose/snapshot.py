"""A repository as the tools see it: its text files, without documentation, builds, dependencies, version control and links.

A snapshot never changes: what was read once is what every tool shows. Links are not followed, whatever they point at.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from ramify.base.errors import UserError
from ramify.base.files import reason
from ramify.base.ids import stable_hash

LARGEST = 2 << 20
"""Bytes of a file; a larger one is skipped."""
MANY = 20_000
"""Files from which on no file is read before it is asked for, so the tree counts files and not lines."""
FOLDERS = frozenset(
    """doc docs documentation site-packages node_modules bower_components vendor third_party build dist target out venv env
    __pycache__ htmlcov coverage runs""".split()
)
"""Folders that hold no source to look at; so do those whose names begin with a dot or end in .egg-info."""
PROSE = frozenset([".md", ".rst", ".txt", ".adoc", ".tex", ".pdf"])
SOURCE = frozenset(
    """.py .pyi .pyx .js .jsx .mjs .cjs .ts .tsx .go .rs .java .kt .scala .c .h .cc .cpp .hpp .cs .rb .php .swift .lua .sh .pl
    .r .jl .ex .hs""".split()
)
"""Ends of the names of source files."""
_SHA = re.compile(r"[0-9a-f]{7,40}")


class Snapshot:
    """Paths (with ``/``, sorted) and texts of a repository. ``skipped``: path -> why it is not there."""

    def __init__(self, texts: Mapping[str, str], name: str = "", commit: str = "", root: Path | None = None) -> None:
        self.name, self.commit, self.root = name, commit, root
        self.skipped: dict[str, str] = {}
        self._lines: dict[str, tuple[str, ...]] = {path: split_lines(text) for path, text in texts.items()}
        self._paths = sorted(self._lines)

    @classmethod
    def open(cls, repo: str | Path) -> Snapshot:
        """The repository in a folder, or ``FOLDER@COMMIT`` of a git repository as it was then.

        Raises UserError where there is no such folder or commit, or no source in it.
        """
        folder, _, commit = str(repo).rpartition("@")
        if folder and _SHA.fullmatch(commit) and not Path(repo).exists():
            made = cls(_archived(Path(folder), commit), Path(folder).resolve().name, commit)
            made._keep({path: split_lines("\n".join(lines)) for path, lines in made._lines.items() if wanted(path)})
        else:
            root = Path(repo)
            if not root.is_dir():
                raise UserError(f"there is no folder {root} to look for a bug in")
            made = cls({}, root.resolve().name, _head(root), root.resolve())
            made._walk()
        if not any(PurePosixPath(path).suffix in SOURCE for path in made._paths):
            why = f" ({len(made.skipped)} files were skipped)" if made.skipped else ""
            raise UserError(f"{repo} holds no source file{why}")
        return made

    @property
    def paths(self) -> list[str]:
        """Every path, sorted. Do not change it."""
        return self._paths

    def __contains__(self, path: object) -> bool:
        return path in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self._paths)

    def lines(self, path: str) -> tuple[str, ...]:
        """The lines of a file without their ends; bytes that are not UTF-8 are U+FFFD.
        Empty for a file that cannot be read any more."""
        if path not in self._lines:
            text, why = ("", "no such file") if self.root is None or path not in self else _read(self.root / path)
            if why:
                self.skipped[path] = why
            self._lines[path] = split_lines(text)
        return self._lines[path]

    def lower(self, path: str) -> str:
        """A file's text in lower case, a line each."""
        if path not in self._lowered:
            self._lowered[path] = "\n".join(self.lines(path)).lower()
        return self._lowered[path]

    @cached_property
    def _lowered(self) -> dict[str, str]:
        return {}

    @property
    def large(self) -> bool:
        """Whether it has so many files that lines are not counted."""
        return len(self._paths) > MANY

    @cached_property
    def digest(self) -> str:
        """A hash of paths and, where they were read, texts."""
        return stable_hash(*(part for path in self._paths for part in (path, "" if self.large else "\n".join(self.lines(path)))))

    def _keep(self, lines: dict[str, tuple[str, ...]]) -> None:
        self._lines, self._paths = lines, sorted(lines)

    def _walk(self) -> None:
        assert self.root is not None
        ignored, found, folders = _ignored(self.root), [], [""]
        while folders:
            below = folders.pop()
            try:
                entries = sorted(os.scandir(self.root / below), key=lambda entry: entry.name)
            except OSError as error:
                self.skipped[below or "."] = reason(error)
                continue
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                if not entry.name.isprintable() or "\udc80" <= max(entry.name) <= "\udcff":
                    self.skipped[ascii(path)[1:-1]] = "its name is not printable text"
                elif entry.is_symlink():
                    self.skipped[path] = "a link, which is not followed"
                elif entry.is_dir(follow_symlinks=False):
                    if kept_folder(entry.name) and not ignored(path + "/"):
                        folders.append(path)
                elif not entry.is_file(follow_symlinks=False):
                    self.skipped[path] = "no plain file"
                elif wanted(path) and not ignored(path):
                    found.append(path)
        self._paths = sorted(found)
        if self.large:
            return
        for path in self._paths:
            text, why = _read(self.root / path)
            if why:
                self.skipped[path] = why
            else:
                self._lines[path] = split_lines(text)
        self._paths = sorted(self._lines)


def split_lines(text: str) -> tuple[str, ...]:
    """The lines as an editor numbers them: ended by a line feed, whose carriage return is not a part of the line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(line[:-1] if line.endswith("\r") else line for line in lines)


def kept_folder(name: str) -> bool:
    """Whether a folder of this name may hold source to look at."""
    return name not in FOLDERS and not name.startswith(".") and not name.endswith(".egg-info")


def wanted(path: str) -> bool:
    """Whether a file is source or configuration, by its path."""
    pure = PurePosixPath(path)
    return all(map(kept_folder, pure.parts[:-1])) and pure.suffix.lower() not in PROSE and not pure.name.startswith(".")


def _read(path: Path) -> tuple[str, str]:
    """Text of a file, and why there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return "", "no plain file"
            data = file.read(LARGEST + 1)
    except OSError as error:
        return "", reason(error)
    return _decoded(data)


def _decoded(data: bytes) -> tuple[str, str]:
    if len(data) > LARGEST:
        return "", f"larger than {LARGEST >> 20} MiB"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace"), ""
    if b"\0" in data[:8192]:
        return "", "binary"
    return data.decode("utf-8-sig", "replace"), ""


def _ignored(root: Path) -> Callable[[str], bool]:
    """Whether the .gitignore of ``root`` names a path (folders end in ``/``):
    its common patterns; the last one that matches decides."""
    text, why = _read(root / ".gitignore")
    rules = [] if why else [rule for line in text.splitlines() if (rule := _rule(line)) is not None]

    def ignored(path: str) -> bool:
        return next((not kept for pattern, kept in reversed(rules) if pattern.fullmatch(path)), False)

    return ignored


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """A line of .gitignore as (pattern of paths, whether it takes back);
    None of an empty line, a comment, or more stars than a pattern needs."""
    line = line.rstrip()
    kept, line = line.startswith("!"), line.removeprefix("!")
    if not line or line.startswith("#") or line.count("*") > 8:
        return None
    anchored, folder, body = "/" in line.rstrip("/"), line.endswith("/"), line.strip("/")
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    written = "".join(parts.get(one, re.escape(one)) for one in re.split(r"(\*\*/|\*\*|\*|\?)", body))
    return re.compile(f"{'' if anchored else '(?:.*/)?'}{written}{'/' if folder else '/?'}"), kept


def _head(root: Path) -> str:
    """The commit that is checked out, read from git's files; empty where that cannot be told."""
    head, why = _read(root / ".git" / "HEAD")
    if why:
        return ""
    name = head.strip().removeprefix("ref: ")
    if _SHA.fullmatch(name):
        return name
    if ".." in name.split("/") or name.startswith("/"):
        return ""
    found = _read(root / ".git" / name)[0].strip()
    if not found:
        packed = re.search(rf"^([0-9a-f]{{40}}) {re.escape(name)}$", _read(root / ".git" / "packed-refs")[0], re.MULTILINE)
        found = packed[1] if packed else ""
    return found if _SHA.fullmatch(found) else ""


def _archived(folder: Path, commit: str) -> dict[str, str]:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to look for a bug in")
    if shutil.which("git") is None:
        raise UserError(f"{folder}@{commit} needs the program 'git', which is not installed")
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "archive", "--format=tar", commit],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"{folder} has no commit {commit}: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}")
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and member.size <= LARGEST else None
            text, why = _decoded(file.read()) if file is not None else ("", "no file")
            if not why:
                texts[member.name] = text
    return texts
