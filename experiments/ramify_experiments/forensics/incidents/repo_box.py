"""A git repository in a sandbox, kept between commands as a tar archive: the same files give the same bytes.

Every command runs in a box and a shell of its own; what it leaves in the repository lasts, processes do not.
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.ids import stable_hash
from ramify.base.waiting import wait_for
from ramify.env.tools import cut
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits, Outcome, Sandbox
from ramify_experiments.forensics.incidents import typed_repo

LIMITS = Limits(
    seconds=120,
    memory_bytes=1024 * MIB,
    disk_bytes=128 * MIB,
    files=20_000,
    processes=64,
    output_bytes=MIB,
    returned_bytes=12 * MIB,
)
KEPT, TOO_LONG = 1000, 124
"""Answers that are remembered; the exit code of a command that was stopped after 100 seconds."""
_ENV = {
    "MYPY_CACHE_DIR": "/tmp/mypy",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Agent"), ("EMAIL", "agent@example.com"))
    },
    **{f"GIT_{who}_DATE": "2026-01-05T09:00:00Z" for who in ("AUTHOR", "COMMITTER")},
}
#: Unpack, run, and pack again, so that the same files give the same bytes: no times, owners or order, and no file times
#: in git's index.
_RUN = """
mkdir -p repo /tmp/mypy; tar -xzf mypy.tgz -C /tmp/mypy 2>/dev/null; tar -xf state.tar -C repo; cd repo
timeout 100 env -u COMMAND sh -c "$COMMAND" > ../out 2>&1 < /dev/null; code=$?
cd "$OLDPWD"; head -c 200000 out; cd repo
if git rev-parse -q --git-dir > /dev/null 2>&1 && [ -f .git/index ]; then
    git ls-files -s -z > ../entries && rm -f .git/index && git update-index -z --index-info < ../entries
fi
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --exclude=.mypy_cache --exclude=__pycache__ -cf - . 2>/dev/null |
    gzip -n > ../next.tgz
exit $code
"""
_START = """
git init -q -b main --template= . && mkdir -p .git/hooks &&
    git add -A && git commit -q -m 'Version 2.4' && rm -f .git/COMMIT_EDITMSG
"""
_WARM = (
    "printf 'import re\\nfrom typing import Any\\n' > warm.py; mypy --strict warm.py; rm -f /tmp/mypy/*/warm.*; tar -czf "
    "../mypy.tgz -C /tmp/mypy ."
)


class RepoBox:
    """Runs commands on repositories in ``sandbox``; what it made and judged once it remembers."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._starts: dict[tuple[int, int], bytes] = {}
        self._facts: dict[str, str] = {}
        self._done: dict[str, tuple[str, bytes]] = {}

    def run(self, command: str, archive: bytes, files: Mapping[str, bytes | str] | None = None, warm: bool = True) -> Outcome:
        """Run a command on the files of ``archive``; ``next.tgz`` of the outcome holds those it leaves.

        Raises InfrastructureError where the sandbox ends it before it can pack them.
        """
        given = {"state.tar": archive, **({"mypy.tgz": self.mypy_cache} if warm else {}), **(files or {})}
        env = {**_ENV, "COMMAND": command}
        done = wait_for(
            self._sandbox.run(["sh", "-c", _RUN], files=given, env=env, limits=LIMITS, returns=["next.tgz", "mypy.tgz"])
        )
        if "next.tgz" not in done.files:
            raise InfrastructureError("sandbox", f"the command left no repository: {done.reason} {done.error_text[-300:]}")
        return done

    def shell(self, command: str, archive: bytes) -> tuple[str, bytes]:
        """Run a command: its output with the exit code, and the archive of the files after it.
        Results are cached by command and files."""
        key = stable_hash(command, archive)
        if key in self._done:
            return self._done[key]
        done = self.run(command, archive)
        result = f"{cut(done.text)}\n[exit code {done.code}]".lstrip("\n"), done.files["next.tgz"]
        if done.code != TOO_LONG:  # what is slow may be so by chance
            if len(self._done) >= KEPT:
                self._done.clear()
            self._done[key] = result
        return result

    @cached_property
    def mypy_cache(self) -> bytes:
        """What mypy keeps of the standard library, so that a check takes half a second and not three; nothing of a
        repository's."""
        return self.run(_WARM, _archive({}), warm=False).files["mypy.tgz"]

    def start(self, seed: int, errors: int) -> bytes:
        """The repository of `typed_repo.files`, committed once."""
        if (seed, errors) not in self._starts:
            done = self.run(_START, _archive(typed_repo.files(seed, errors)))
            if done.code != 0:
                raise InfrastructureError("env", f"the repository could not be made: {done.text[-300:]}")
            self._starts[seed, errors] = done.files["next.tgz"]
        return self._starts[seed, errors]

    def judge(self, archive: bytes, message: str) -> dict[str, Any]:
        """The state of the repository compared with `start`: see ``inside/judge_repo.py``. ``message``: what a commit should say.

        Raises InfrastructureError where that cannot be determined.
        """
        key = stable_hash(archive, message)
        if key not in self._facts:
            wanted = {
                "message": message, "config": typed_repo.CONFIG, "marker": typed_repo.MARKER,
                "functions": {f"{typed_repo.PACKAGE}/{module}.py": typed_repo.functions(module) for module in typed_repo.MODULES},
            }  # fmt: skip
            script = (Path(__file__).parent / "inside" / "judge_repo.py").read_text()
            done = self.run(
                "cd .. && python -I judge.py < wanted.json", archive, {"judge.py": script, "wanted.json": json.dumps(wanted)}
            )
            facts = done.text.strip().rpartition("\n")[2]
            if done.code != 0 or not facts.startswith("{"):
                raise InfrastructureError("scorer", f"the repository could not be judged: {done.reason}, {done.text[-300:]}")
            self._facts[key] = facts
        return dict(json.loads(self._facts[key]))


@cache
def shared_box() -> RepoBox:
    """The box of this process. Raises NeedsError where mypy or git is missing, or nothing isolates."""
    if importlib.util.find_spec("mypy") is None:
        raise NeedsError("a repository whose types are checked needs the package 'mypy': pip install \"ramify[forensics]\"")
    if shutil.which("git") is None:
        raise NeedsError("a repository needs the program 'git'")
    return RepoBox(find_sandbox())


def _archive(files: Mapping[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for path, text in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()
