"""Workspaces: a folder of text files that holds the programs of several roles, run in the sandbox only,
kept in the run, written out as git commits."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.files import folder_aside, reason, refusal
from ramify.base.ids import canonical_json, stable_hash
from ramify.sandbox.protocol import Limits, Outcome, Sandbox, inside_path
from ramify.score.judge import Each, Item
from ramify.trace.lines import read_lines

Files = Mapping[str, str]
"""Path -> text."""
VERSION = 1
MOST_FILES, MOST_BYTES = 400, 2 << 20


def read_workspace(folder: Path) -> dict[str, str]:
    """The text files below ``folder``; hidden ones are left out.
    Raises UserError on links, on files that are no text, and on too many of them."""
    if not folder.is_dir():
        raise UserError(f"there is no workspace {folder}: it is a folder with the programs of its roles")
    found: dict[str, str] = {}
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            path = Path(parent) / name
            if name.startswith("."):
                continue
            if path.is_symlink():
                raise UserError(f"{path} is a link: a workspace holds files of its own only")
            try:
                found[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"{path} cannot be read as text: {reason(error)}") from None
    check_files(found, str(folder))
    return found


def check_files(files: Files, where: str) -> None:
    """Raises UserError on files that no workspace can hold: outside it, git's own, too many, or too large."""
    if not files:
        raise UserError(f"{where} holds no file")
    if len(files) > MOST_FILES or sum(len(text.encode("utf-8", "replace")) for text in files.values()) > MOST_BYTES:
        raise UserError(f"{where} is too large for a workspace: at most {MOST_FILES} files and {MOST_BYTES} bytes")
    for path, text in files.items():
        inside_path(path)
        if any(part.lower() == ".git" or part in ("", ".") for part in path.split("/")) or "\n" in path:
            raise UserError(f"{where}: '{path!r:.80}' is not a path of a workspace's file")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}: '{path}' is not text") from None


def packed(files: Files) -> bytes:
    """A workspace as the run keeps it."""
    return canonical_json(dict(files)).encode()


def unpacked(data: bytes) -> dict[str, str]:
    """Inverse of :func:`packed`."""
    return {str(path): str(text) for path, text in json.loads(data).items()}


@dataclass(frozen=True)
class RoleTask:
    """A task of a role."""

    id: str
    given: str
    """What the program reads: the task's ``input``, of a judge the ``artefact``."""
    split: str
    label: bool | None
    """Of a judge's task whether the artefact is good."""
    data: Mapping[str, Any]
    """Its other fields."""


def read_tasks(path: Path, judges: bool) -> dict[str, RoleTask]:
    """The tasks in a file of JSON lines, by id; of a role whose program ``judges`` they are labelled artefacts.
    Raises UserError naming line and field."""
    shown, found = "artefact" if judges else "input", dict[str, RoleTask]()
    for number, row in read_lines(path):
        for name in ("id", shown, *(["label"] if judges else [])):
            if name not in row:
                raise UserError(f"{path}:{number}: '{name}' is missing")
        name, given, split = str(row.pop("id")), str(row.pop(shown)), str(row.pop("split", "validation"))
        if name in found:
            raise UserError(f"{path}:{number}: the id '{name}' is there twice")
        found[name] = RoleTask(name, given, split, bool(row.pop("label")) if judges else None, row)
    if not found:
        raise UserError(f"{path} holds no task")
    return found


class Program:
    """The program of one role in one workspace."""

    def __init__(self, sandbox: Sandbox, files: Files, command: Sequence[str], seconds: float) -> None:
        self._sandbox, self._files, self._command = sandbox, dict(files), list(command)
        self._limits = Limits(seconds=seconds)

    async def run(self, text: str) -> Outcome:
        """Run it on ``text`` as its standard input. Raises InfrastructureError where the sandbox itself fails."""
        return await self._sandbox.run(
            self._command, files=self._files, stdin=text.encode("utf-8", "replace"), limits=self._limits
        )


class WorkspaceJudge(Each):
    """The judge that a workspace holds: its program gets the artefact and ends with exit code 0 (yes) or 1 (no); anything else is
    no answer."""

    def __init__(
        self, sandbox: Sandbox, files: Files, command: Sequence[str], patterns: Sequence[str], seconds: float, name: str
    ) -> None:
        self._program, self.name = Program(sandbox, files, command, seconds), name
        self.identity = judge_identity(files, command, patterns)

    async def one(self, item: Item) -> bool | None:
        """The program's word. Raises InfrastructureError("scorer") where it did not end by itself."""
        outcome = await self._program.run(item.text)
        if outcome.reason != "exit":
            raise InfrastructureError("scorer", f"{self.name} did not end by itself: {outcome.reason}")
        return outcome.code == 0 if outcome.code in (0, 1) else None


def judge_identity(files: Files, command: Sequence[str], patterns: Sequence[str]) -> str:
    """Hash of a judge's command and of the files that it is made of (all, without ``patterns``):
    the same content is the same judge."""
    own = sorted((path, text) for path, text in files.items() if not patterns or any(fnmatch(path, one) for one in patterns))
    return stable_hash("judge", "workspace", VERSION, *command, *(part for pair in own for part in pair))


def changed(before: Files, after: Files) -> list[str]:
    """Paths that differ, with what became of them: ``+new``, ``-gone``, ``~changed``."""
    marks = {path: "+" if path not in before else "-" if path not in after else "~" for path in sorted({*before, *after})}
    return [f"{mark}{path}" for path, mark in marks.items() if before.get(path) != after.get(path)]


def write_git(folder: Path, nodes: Sequence[tuple[Files, int | None, str]], names: Mapping[str, int]) -> None:
    """Make a git repository of an archive: a commit a workspace (files, number of the parent,
    message), a tag for each of ``names``.

    The same archive makes the same commits: no date and no person of this machine is in them. The branch ``main`` is the first of
    ``names``. The folder is there whole or not at all. Raises UserError where it is there already,
    NeedsError where git is not, RamifyError where the disk refuses.
    """
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} is there already: choose another folder")
    lines: list[bytes] = []
    for number, (files, parent, message) in enumerate(nodes):
        body = message.encode("utf-8", "replace")
        head = f"commit refs/heads/node-{number:04d}\nmark :{number + 1}\ncommitter ramify <ramify@localhost> {number} +0000\n"
        lines.append(head.encode())
        lines.append(b"data %d\n%s\n" % (len(body), body))
        if parent is not None:
            lines.append(b"from :%d\ndeleteall\n" % (parent + 1))
        for path, text in files.items():
            data = text.encode()
            lines.append(b"M 100644 inline %s\ndata %d\n%s\n" % (_quoted(path), len(data), data))
    for name, number in names.items():
        lines.append(f"reset refs/tags/{name}\nfrom :{number + 1}\n\n".encode())
    first = next(iter(names.values()), 0)
    lines.append(f"reset refs/heads/main\nfrom :{first + 1}\n\n".encode())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(folder.parent) as building:
            made = building / "archive"
            _git(["init", "-q", "-b", "main", str(made)])
            _git(["-C", str(made), "fast-import", "--quiet"], b"".join(lines))
            _git(["-C", str(made), "reset", "-q", "--hard", "main"])
            made.rename(folder)
    except OSError as error:
        raise refusal(f"cannot write {folder}", error) from None


def _quoted(path: str) -> bytes:
    return b'"' + path.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _git(words: Sequence[str], stdin: bytes = b"") -> None:
    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": os.devnull}
    try:
        subprocess.run(["git", *words], input=stdin, capture_output=True, check=True, env=env)
    except FileNotFoundError:
        raise NeedsError("workspaces are written out as git commits, and git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"git could not write the workspaces: {error.stderr.decode('utf-8', 'replace').strip()[:200]}") from None
