"""A command as an agent, in a work tree of its own: what its files are after every step is a commit,
and a branch has them from there.

The repository that it was made of is not touched but for commits under ``refs/ramify/``, which keep the recorded states: the
work tree has refs of its own (a worktree of git shares them, and a branch of one attempt is there in the next), and reads the
repository's objects where they lie. Files that git ignores are not recorded.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.files import reason

PLACE = "/ramify/worktree"
"""What the folder is called in the requests that are recorded and in the replies:
each episode has another, and all have to agree."""
_WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "ramify"), ("EMAIL", "ramify@localhost"))
}
_WHEN = {"GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z"}
"""One date for all commits, so that the same files have the same commit."""
_git = threading.Lock()
PREFIX, OWNER = "ramify-", "owner"
"""How the folder around a worktree begins, and the file in it that says whose it is: PID.START and its mark."""
MARK = "RAMIFY_WORKTREE"
"""In the environment of everything that runs in a worktree: its mark."""
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "OLDPWD")
"""Variables that would have a command work in another folder."""
_SETTINGS = (
    r"^(user|filter|diff|merge)\.|^core\.(autocrlf|eol|safecrlf|filemode|ignorecase|symlinks|excludesfile|attributesfile)$"
)
"""Settings of the repository that its work tree has, too: no remote, no credentials, no hooks."""
MOST_OUTPUT = 1 << 20
"""Bytes that are kept of what a command prints."""
Popen: TypeAlias = "subprocess.Popen[bytes]"


def git(folder: Path, *words: str, given: str = "", **env: str) -> str:
    """What a git command says that gets ``given`` and the variables ``env``. Raises InfrastructureError where it fails."""
    return _git_bytes(folder, *words, given=given.encode(), **env).decode("utf-8", "replace").strip()


def _git_bytes(folder: Path, *words: str, given: bytes = b"", **env: str) -> bytes:
    variables = {**os.environ, **_WHO, **_WHEN, **env}
    done = subprocess.run(["git", "-C", str(folder), *words], env=variables, capture_output=True, input=given)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise InfrastructureError("env", f"git {words[0]} failed in {folder}: {said}")
    return done.stdout


def base_commit(repo: Path | str, base: str) -> str:
    """The commit that ``base`` names. Raises UserError where there is no such repository or commit."""
    try:
        return git(Path(repo), "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    except (InfrastructureError, OSError):
        raise UserError(f"{repo} is not a git repository with a commit '{base}'") from None


def file_at(repo: Path, base: str, name: str) -> tuple[str, str]:
    """The path in the repository of the file that ``name`` is, seen from the current folder or from ``repo``, and its text in
    the commit ``base``; "" where that has none. Raises UserError where it cannot be edited."""
    top = Path(git(repo, "rev-parse", "--show-toplevel")).resolve()
    path = next((full for folder in (Path.cwd(), repo) if (full := (folder / name).resolve()).is_relative_to(top)), None)
    if path is None or path == top:
        raise UserError(f"--file {name} is not a file in the repository {top}, in checkouts of which the attempts work")
    inside = path.relative_to(top).as_posix()
    listed = git(top, "ls-tree", base, "--", f":(literal){inside}").split()
    if not listed:
        return inside, ""
    if listed[0][:3] != "100":
        what = {"120": "a link", "160": "a submodule"}.get(listed[0][:3], "a folder")
        raise UserError(f"--file {name} is {what} in the commit {base[:12]} that attempts begin with: name a file")
    try:
        return inside, _git_bytes(top, "cat-file", "blob", listed[2]).decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"--file {name} is not UTF-8 text in the commit {base[:12]}") from None


def commit_with(repo: Path, base: str, path: str, text: str) -> str:
    """The commit that is ``base`` but for the file at ``path`` of the repository, which says ``text``. It has the parents and the
    message of ``base``, so that an agent that reads the log sees nothing else."""
    top = Path(git(repo, "rev-parse", "--show-toplevel"))
    mode = (git(top, "ls-tree", base, "--", f":(literal){path}").split() or ["100644"])[0]
    blob = git(top, "hash-object", "-w", "--stdin", given=text)
    with tempfile.TemporaryDirectory() as folder:
        own = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git(top, "read-tree", base, **own)
        git(top, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}", **own)
        tree = git(top, "write-tree", **own)
    _, rest = _git_bytes(top, "cat-file", "commit", base).split(b"\n", 1)
    written = _git_bytes(top, "hash-object", "-t", "commit", "-w", "--stdin", given=b"tree %s\n%s" % (tree.encode(), rest))
    commit = written.decode().strip()
    with _git:
        git(top, "update-ref", f"refs/ramify/{commit}", commit)
    return commit


def patch_between(repo: Path, base: str, commit: str) -> str:
    """The unified diff of two commits, as `git apply` takes it."""
    return _git_bytes(repo, "diff-tree", "-p", "--no-ext-diff", "--no-textconv", base, commit).decode("utf-8", "replace")


_DIFF = re.compile(r"^--- [^\n]*\n\+\+\+ [^\n]*\n(?=@@ )", re.MULTILINE)


def edited_text(old: str, given: str, name: str) -> str:
    """The text that ``given`` says a file with the text ``old`` becomes: itself, or what a unified diff makes of ``old``. Raises
    UserError where it is a diff that does not fit, or one of several files; ``name`` says whose it is."""
    heads = _DIFF.findall(given)
    if not heads or not given.lstrip().startswith(("--- ", "diff ", "Index: ", "From ")):
        return given
    if len(heads) > 1:
        raise UserError(f"{name} is a diff of {len(heads)} files: give one of the file that --file names")
    patch = f"--- a/file\n+++ b/file\n{_DIFF.split(given)[1]}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(old.encode())
        try:
            git(Path(folder), "apply", "-", given=patch, GIT_CEILING_DIRECTORIES=str(Path(folder).resolve().parent))
        except InfrastructureError as error:
            raise UserError(f"{name} is a diff that does not fit the file: {error.message.rpartition(': ')[2]}") from None
        return Path(folder, "file").read_bytes().decode()


def _check_out(repo: Path, base: str, folder: Path, common: Path) -> None:
    """A repository in ``folder`` with the files of ``base`` and the branches and tags of ``repo``, whose objects it reads in
    ``common``."""
    git(repo, "init", "--quiet", f"--object-format={git(repo, 'rev-parse', '--show-object-format')}", str(folder))
    inside = folder / ".git"
    (inside / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (inside / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n", encoding="utf-8")
    for name in ("shallow", "info/exclude"):
        if (common / name).is_file():
            (inside / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(common / name, inside / name)
    with suppress(InfrastructureError):  # git fails where nothing matches
        for setting in git(repo, "config", "--local", "--null", "--get-regexp", _SETTINGS).split("\0"):
            name, _, value = setting.partition("\n")
            if name:
                git(folder, "config", "--add", name, value)
    refs = git(repo, "for-each-ref", "--format=create %(refname) %(objectname)", "refs/heads", "refs/tags")
    git(folder, "update-ref", "--stdin", given=refs + "\n" if refs else "")
    git(folder, "checkout", "--quiet", "--detach", base)


class Worktree:
    """A fresh checkout of ``base``, and the command that runs in it: in the folder that ``repo`` is of the repository. Raises
    UserError where ``base`` has no such folder."""

    def __init__(self, repo: Path, base: str, place: str = PLACE) -> None:
        self.repo, self.place = repo, place
        self._parent = tempfile.TemporaryDirectory(prefix=PREFIX)
        self._mark, self._lock, self._closed = secrets.token_hex(16), threading.Lock(), False
        (Path(self._parent.name) / OWNER).write_text(f"{_identity(str(os.getpid()))} {self._mark}")
        self.folder = Path(self._parent.name).resolve() / "worktree"
        common = Path(repo, git(repo, "rev-parse", "--git-common-dir")).resolve()
        self._own = {"GIT_INDEX_FILE": str(Path(self._parent.name) / "index"), "GIT_OBJECT_DIRECTORY": str(common / "objects")}
        _check_out(repo, base, self.folder, common)
        self._last = base
        self._process: Popen | None = None
        self.inside = self.folder / git(repo, "rev-parse", "--show-prefix")
        if not self.inside.is_dir():
            self.close()
            raise UserError(f"the folder {repo} is not in the commit {base[:12]}: commit it, or name another --repo")

    def commit(self) -> str:
        """A commit of the files as they are, in the repository; the branch and the index that the command sees stay."""
        if not Path(self._own["GIT_INDEX_FILE"]).exists():
            git(self.folder, "read-tree", self._last, **self._own)
        git(self.folder, "add", "--all", **self._own)
        tree = git(self.folder, "write-tree", **self._own)
        if tree != git(self.repo, "rev-parse", f"{self._last}^{{tree}}"):
            self._last = git(self.repo, "commit-tree", tree, "-p", self._last, "-m", "a step of an agent")
            with _git:  # two at once would meet at the repository's locks
                git(self.repo, "update-ref", f"refs/ramify/{self._last}", self._last)
        return self._last

    def back(self, commit: str) -> None:
        """Make the files those of ``commit``."""
        if self.commit() != commit:
            git(self.folder, "read-tree", "-u", "--reset", commit, **self._own)
            self._last = commit

    def named(self, value: Any, inside: bool) -> Any:
        """A JSON value in which the folder is called ``place``; ``inside``: the other way round, as the command knows it."""
        old, new = (self.place, str(self.folder)) if inside else (str(self.folder), self.place)
        return json.loads(json.dumps(value).replace(old, new))

    def run(self, command: Sequence[str], prompt: str, url: str) -> str:
        """Run the command to its end and return what it printed. Raises InfrastructureError where its exit code is not 0."""
        argv = [word.replace("{prompt}", prompt).replace("{url}", url) for word in command]
        done = self.ended(argv, {**_WHEN, "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": "none"})
        if done.code:
            raise InfrastructureError("env", f"the command {argv[0]} ended with exit code {done.code}: {done.last}")
        return done.out.strip()

    def ended(self, argv: Sequence[str] | str, env: Mapping[str, str | None], seconds: float | None = None) -> CommandEnd:
        """Run a command, or a line of the shell, in the folder, to its end or for ``seconds``; then whatever it started is ended,
        too. ``env``: variables besides this process's own; None takes one away. Raises InfrastructureError where it cannot be
        started, or the worktree is closed."""
        own: dict[str, str | None] = {"PWD": str(self.inside), **dict.fromkeys(_ELSEWHERE), MARK: self._mark}
        given = {name: value for name, value in {**os.environ, **env, **own}.items() if value is not None}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:  # a pipe stays open as long as any child
            process = self._started(argv, given, out, errors)
            try:
                code, late = process.wait(seconds), False
            except subprocess.TimeoutExpired:
                code, late = 0, True
            self._end(process)
            return CommandEnd(process.returncode if late else code, _read(out), _read(errors), late)

    def _started(self, argv: Sequence[str] | str, env: Mapping[str, str], out: IO[bytes], errors: IO[bytes]) -> Popen:
        with self._lock:
            if self._closed:
                raise InfrastructureError("env", "the episode is over")
            words = ["sh", "-c", argv] if isinstance(argv, str) else list(argv)
            try:
                process = subprocess.Popen(
                    words, cwd=self.inside, env=env, start_new_session=True, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
                )
            except (OSError, ValueError) as error:
                raise InfrastructureError("env", f"the command {words[0]} cannot be started: {reason(error)}") from None
            self._process = process
            return process

    def _end(self, process: Popen) -> None:
        """End the process, its group, and what left the group."""
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_marked(self._mark)

    def close(self) -> None:
        """End the command, and remove the folder; the commits stay."""
        with self._lock:
            self._closed = True
        if self._process is not None:
            self._end(self._process)
        self._parent.cleanup()


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended, and the end of what it printed."""

    code: int
    """Its exit code; below 0 the signal that ended it."""
    out: str
    errors: str
    late: bool
    """Whether it was ended because its time was over."""

    @property
    def last(self) -> str:
        """The last line that says anything, of its errors or else of its output."""
        return (self.errors.strip() or self.out.strip()).rpartition("\n")[2][-300:]


def _read(file: IO[bytes]) -> str:
    """The last characters of a file that a command wrote."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_OUTPUT))
    return file.read().decode("utf-8", "replace")


def end_marked(mark: str) -> None:
    """End every process whose environment says that a worktree of this ``mark`` started it, also where it left its group."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(8):  # what is being forked meanwhile is seen the next time
        running = [process for process in Path("/proc").iterdir() if process.name.isdecimal()]
        pids = [int(process.name) for process in running if wanted in _environment(process)]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # another person's, or gone
        return []


def sweep() -> int:
    """Remove the work trees that killed processes left, end what ran in them; how many there were."""
    count = 0
    for mark in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        try:
            owner, name = mark.read_text().split()
        except (OSError, ValueError):
            continue
        if not _alive(owner):
            end_marked(name)
            shutil.rmtree(mark.parent, ignore_errors=True)
            count += 1
    return count


def _alive(owner: str) -> bool:
    """Whether the process is there that ``PID.START`` names."""
    return owner == _identity(owner.partition(".")[0])


def _identity(pid: str) -> str:
    """``PID.START``: a number is given again to other processes, with another start."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}.{text.rpartition(')')[2].split()[19]}"
