"""A command as an agent, in a git worktree of its own: what its files are after every step is a commit,
and a branch has them from there.

The repository that it was made of is not touched but for commits under ``refs/ramify/``, which keep the recorded states. Files
that git ignores are not recorded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, UserError

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


def git(folder: Path, *words: str, index: str = "") -> str:
    """What a git command says. Raises InfrastructureError where it fails."""
    env = {**os.environ, **_WHO, **_WHEN, **({"GIT_INDEX_FILE": index} if index else {})}
    done = subprocess.run(["git", "-C", str(folder), *words], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise InfrastructureError("env", f"git {words[0]} failed in {folder}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.strip()


def base_commit(repo: Path | str, base: str) -> str:
    """The commit that ``base`` names. Raises UserError where there is no such repository or commit."""
    try:
        return git(Path(repo), "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    except (InfrastructureError, OSError):
        raise UserError(f"{repo} is not a git repository with a commit '{base}'") from None


class Worktree:
    """A fresh checkout of ``base``, and the command that runs in it."""

    def __init__(self, repo: Path, base: str, place: str = PLACE) -> None:
        self.repo, self.place = repo, place
        self._parent = tempfile.TemporaryDirectory(prefix="ramify-")
        self.folder = Path(self._parent.name).resolve() / "worktree"
        self._index = str(Path(self._parent.name) / "index")
        with _git:  # two at once would meet at the repository's locks
            git(repo, "worktree", "add", "--quiet", "--detach", str(self.folder), base)
        self._last = base
        self._process: subprocess.Popen[str] | None = None

    def commit(self) -> str:
        """A commit of the files as they are; neither the branch nor the index that the command sees changes."""
        if not Path(self._index).exists():
            git(self.folder, "read-tree", self._last, index=self._index)
        git(self.folder, "add", "--all", index=self._index)
        tree = git(self.folder, "write-tree", index=self._index)
        if tree != git(self.folder, "rev-parse", f"{self._last}^{{tree}}"):
            self._last = git(self.folder, "commit-tree", tree, "-p", self._last, "-m", "a step of an agent")
            with _git:
                git(self.folder, "update-ref", f"refs/ramify/{self._last}", self._last)
        return self._last

    def back(self, commit: str) -> None:
        """Make the files those of ``commit``."""
        if self.commit() != commit:
            git(self.folder, "read-tree", "-u", "--reset", commit, index=self._index)
            self._last = commit

    def named(self, value: Any, inside: bool) -> Any:
        """A JSON value in which the folder is called ``place``; ``inside``: the other way round, as the command knows it."""
        old, new = (self.place, str(self.folder)) if inside else (str(self.folder), self.place)
        return json.loads(json.dumps(value).replace(old, new))

    def run(self, command: Sequence[str], prompt: str, url: str) -> str:
        """Run the command to its end and return what it printed. Raises InfrastructureError where its exit code is not 0."""
        argv = [word.replace("{prompt}", prompt).replace("{url}", url) for word in command]
        env: dict[str, Any] = {**os.environ, **_WHEN, "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": "none"}
        pipes: Mapping[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        self._process = subprocess.Popen(argv, cwd=self.folder, env=env, start_new_session=True, errors="replace", **pipes)
        out, errors = self._process.communicate()
        if self._process.returncode:
            last = errors.strip().rpartition("\n")[2][-300:]
            raise InfrastructureError("env", f"the command {argv[0]} ended with exit code {self._process.returncode}: {last}")
        return out.strip()

    def close(self) -> None:
        """End the command, and remove the folder; the commits stay."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with _git, suppress(InfrastructureError):
            git(self.repo, "worktree", "remove", "--force", str(self.folder))
        self._parent.cleanup()
