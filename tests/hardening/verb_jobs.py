"""A command line as a job that is struck: its files before, after each fault, and at the end, whatever the command."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import io
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kill_inputs
from fault_jobs import Job, promise

from ramify.cli.main import main

DATABASE, GIT = "run.sqlite", ".git"
CLOCKS = ("seconds", "run", "ms", "commit")
CLOCK_ENTRIES = ("stretch", "environment")


@dataclass(eq=False)
class Verb(Job):
    """One command that writes, and what holds of its files however it was stopped.

    A run opens, ``check run`` finds it whole, and it has every record that was in it before. Any other file is what it was before
    the command or what it is after it; those of ``passes`` are replaced as the work continues and are whole each time. Files
    whose names begin with a dot are nobody's, and gone when the same command ends well.
    It then leaves what the undisturbed one leaves, clocks apart.
    """

    words: str
    """The command line."""
    name: str = ""
    after: str = ""
    """The job whose result it starts from."""
    again: str = ""
    """What continues with a run that was interrupted, where it is not the same command."""
    first: str = ""
    """What is done before it, and interrupted (``kill_inputs.wander``)."""
    once: str = ""
    """What it makes and refuses to make twice."""
    old: str = ""
    """A file that is there before, to be replaced."""
    passes: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    """Files that hold measured times: compared by their shape."""
    repeats: bool = False
    """Whether the same command, once it has ended, does as much again (where it was interrupted, it continues)."""
    readers: tuple[str, ...] = ()
    """Commands that read what it wrote: they answer, or refuse in one sentence while there is nothing yet."""
    warm: bool = True
    """Whether it may run in the process that forks the others."""
    _fill: dict[str, str] = field(init=False, default_factory=dict)
    _before: dict[str, Any] = field(init=False, default_factory=dict)
    _seen: dict[str, Any] = field(init=False, default_factory=dict)
    _final: dict[str, Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.name = self.name or self.command

    @property
    def command(self) -> str:
        """The words of the command without its arguments, as the reference of commands names it."""
        first, second = [*self.words.split(), ""][:2]
        method = importlib.util.find_spec(f"ramify.methods.{first.replace('-', '_')}")
        return first if method is None else f"{first} {second}"

    def prepare(self, folder: Path) -> None:
        """Do what comes before in the empty ``folder``; inputs go beside it."""
        from kill_table import JOBS

        inputs = folder.parent / "in"
        if not inputs.exists():
            kill_inputs.make_inputs(inputs)
        self._fill = {"in": str(inputs), "parts": str(Path(kill_inputs.__file__))}
        if self.after:
            needed = JOBS[self.after]
            needed.prepare(folder)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert needed.act(folder) == 0, self.after
        if self.name == "forensics plan":
            (folder / "case").mkdir()
        elif self.after == "forensics plan":
            shutil.copy(inputs / "case.toml", folder / "case" / "case.toml")
        if self.first:
            os.environ[kill_inputs.INTERRUPT] = "5"
            assert self._call(self.first, folder)[0] == 130
            del os.environ[kill_inputs.INTERRUPT]
        if self.old:
            (folder / self.old).write_text("old")
        self._fill |= self._names(folder)
        self._before = self._state(folder)
        self._final = None

    def start(self) -> None:
        """A fresh copy of what was prepared is there."""
        self._seen = {}

    def act(self, folder: Path) -> int:
        """See :class:`Job`."""
        if self.once and (folder / self.once).exists():
            return 0
        words = self.again if self.again and self._whole(folder / "run", folder) else self.words
        return self._run(words, folder)

    def check(self, folder: Path, promised: list[str]) -> None:
        """See :class:`Job`."""
        now = self._state(folder)
        for path in {**self._before, **self._seen}:
            assert path in now or path in self._passing(now) or path not in (self._final or {}), f"{path} is gone"
        for path, value in now.items():
            if path.endswith(DATABASE):
                lost = {*map(_key, [*self._before.get(path, ()), *self._seen.get(path, ())])} - {*map(_key, value)}
                assert not lost, f"{path} lost {sorted(lost)[:2]}"
            elif not self._is(path, self.passes) and self._final is not None:
                known = [state[path] for state in (self._before, self._final) if path in state]
                assert value in known, f"{path} is neither the old file nor the new one: {str(value)[:200]}"
        self._seen = now
        for line in self.readers:
            code, said = self._call(line, folder)
            assert code in (0, 1, 2), (line, code, said)

    def digest(self, folder: Path) -> Any:
        """See :class:`Job`."""
        left = [str(path.relative_to(folder)) for path in folder.rglob(".*") if path.name != GIT or _hidden(path.parent, folder)]
        assert not left, f"left behind: {left}"
        found = self._state(folder)
        self._final = self._final or found
        return found

    def finished(self) -> bool:
        """See :class:`Job`."""
        return self._seen == self._final

    # Files

    def _state(self, folder: Path) -> dict[str, Any]:
        """Path -> what the file holds, clocks apart; runs by their records. Raises AssertionError on a file that is not whole."""
        found = {}
        runs = [path.parent for path in folder.rglob(DATABASE) if not _hidden(path, folder)]
        for run in runs:
            if self._whole(run, folder):
                found[str((run / DATABASE).relative_to(folder))] = self._records(run, folder)
        for path in folder.rglob(GIT):
            if not _hidden(path.parent, folder):
                found[str(path.relative_to(folder))] = _commits(path)
        for path in sorted(folder.rglob("*")):
            own = any(path.is_relative_to(run) for run in runs) and path.name.startswith((DATABASE, "lock"))
            own |= path.name == PACES
            if path.is_file() and not own and not _hidden(path, folder):
                name = str(path.relative_to(folder))
                try:
                    found[name] = self._value(path, name)
                except Exception as error:
                    raise AssertionError(f"{name} is not whole: {type(error).__name__}: {error}") from error
        return found

    def _whole(self, run: Path, folder: Path) -> bool:
        """Whether there is a run, which must be whole then; one that was being made is refused in one sentence."""
        if not (run / DATABASE).exists():
            return False
        code, said = self._call(f"check run {shlex.quote(str(run))} --json", folder)
        assert code in (0, 2), said
        assert code == 0 or (said.count("\n") == 1 and "is not a run" in said), said
        return code == 0

    def _records(self, run: Path, folder: Path) -> tuple[str, ...]:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "lines.jsonl"
            code, said = self._call(f"export {shlex.quote(str(run))} {out} --to jsonl --json", folder)
            assert code == 0, said
            lines = [json.loads(line) for line in out.read_text().splitlines()]
        return _sorted(line for line in lines if line["kind"] != "run")

    def _value(self, path: Path, name: str) -> Any:
        if path.suffix == ".jsonl" and path.name != self.old:
            *lines, torn = path.read_bytes().split(b"\n")
            assert not torn, f"a torn line: {torn[-80:]!r}"
            return _sorted(map(json.loads, lines))
        if path.suffix == ".json":
            value = _timeless(json.loads(path.read_bytes()))
            return _shape(value) if self._is(name, self.timed) else value
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            load_file(path)
        if self._is(name, self.timed):
            return path.read_bytes().rstrip()[-7:]
        return path.read_bytes()

    def _is(self, name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    def _passing(self, names: Any) -> list[str]:
        return [name for name in names if self._is(name, self.passes)]

    # Commands

    def _names(self, folder: Path) -> dict[str, str]:
        """What a command line names that an earlier command made."""
        found = {}
        if "{node}" in self.words or "{tree}" in self.words:
            lines = [json.loads(line) for line in self._records(folder / "run", folder)]
            nodes = [line for line in lines if line.get("role") == "assistant"]
            found = {"node": min(node["id"] for node in nodes), "tree": min(node["tree"] for node in nodes)}
        if "{did}" in self.words:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self._run("forensics report case runs --json", folder)
            runs = json.loads(said.getvalue())["runs"]
            found |= {
                name: next(r["leaf"] for r in runs if r["behavior"] is did) for name, did in (("did", True), ("not", False))
            }
        return found

    def _run(self, line: str, folder: Path) -> int:
        words = shlex.split(line)
        for name, value in self._fill.items():
            words = [word.replace("{" + name + "}", value) for word in words]
        os.environ["RAMIFY_CACHE"] = str(folder / "cache")
        with contextlib.chdir(folder):
            return main(words)

    def _call(self, line: str, folder: Path) -> tuple[int, str]:
        """Exit code and standard error of a command that only reads."""
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = self._run(line, folder)
        return code, said.getvalue()


class Serve(Verb):
    """A server that records; its client asks until it is killed. What was answered is in the run."""

    ASKED, MODEL = 6, "builtin"

    def act(self, folder: Path) -> int:
        """See :class:`Job`."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        threading.Thread(target=self._ask, args=(port,), daemon=True).start()
        return self._run(self.words.replace("{port}", str(port)), folder)

    def check(self, folder: Path, promised: list[str]) -> None:
        """See :class:`Job`."""
        answered = self.digest(folder) if (folder / "run" / DATABASE).exists() else []
        assert set(promised) <= set(answered), (promised, answered)

    def digest(self, folder: Path) -> Any:
        """See :class:`Job`."""
        if not self._whole(folder / "run", folder):
            return []
        nodes = [json.loads(line) for line in self._records(folder / "run", folder)]
        said = {node["id"]: node["text"] for node in nodes if node["kind"] == "node"}
        return sorted({said[node["parent"]] for node in nodes if node.get("role") == "assistant"})

    def _ask(self, port: int) -> None:
        for number in range(self.ASKED):
            text = f"hello {number}"
            body = {"model": self.MODEL, "messages": [{"role": "user", "content": text}], "seed": number, "max_tokens": 4}
            self._post(port, "v1/chat/completions", body)
            promise(text)
        os.kill(os.getpid(), signal.SIGTERM)

    @staticmethod
    def _post(port: int, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    return json.load(reply)
            except urllib.error.URLError:
                time.sleep(0.01)


def _commits(repository: Path) -> str:
    """What the branches and tags of a git repository are, which must be whole and checked out."""
    said = []
    for words in ("fsck --full --strict", "diff-index HEAD", "for-each-ref"):
        done = subprocess.run(["git", "-C", repository.parent, *words.split()], capture_output=True, text=True)
        assert done.returncode == 0, f"git {words}: {done.stderr}"
        said.append(done.stdout)
    assert not said[1], said[1]
    return said[2]


PACES = "paces.json"
"""How quick commands were that ended by themselves: not of one that was killed."""


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _key(line: str) -> str:
    """What a record is known by: a finding gives way to a newer one of its maker, name and place, corrected over all of them, and
    the count of a position's forks to one of more forks."""
    record = json.loads(line)
    replaced = record.get("kind") == "finding" or record.get("maker") == "rollout.potential"
    return str([record[name] for name in ("maker", "name", "node", "offset")] if replaced else line)


def _sorted(records: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Records as text, those of a run's journal that hold clocks left out."""
    kept = (record for record in records if record.get("entry") not in CLOCK_ENTRIES)
    return tuple(sorted(json.dumps(_timeless(record), sort_keys=True) for record in kept))


def _timeless(value: Any) -> Any:
    """A record without its clocks."""
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in CLOCKS}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else type(value).__name__


class ServeComposer(Serve):
    """The same of a composer over a pool."""

    MODEL = "composer"


class ServePages(Serve):
    """The pages of all runs, which a reader opens."""

    def _ask(self, port: int) -> None:
        for path in ("", "runs", "words", "run/run/", "run/run/why"):
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as reply:
                        assert reply.status == 200
                        break
                except urllib.error.URLError:
                    time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)


class ServeWorld(Serve):
    """A simulated environment that keeps its answers; what a client was answered is in the run."""

    def digest(self, folder: Path) -> Any:
        """See :class:`Job`."""
        if not self._whole(folder / "run", folder):
            return []
        records = [json.loads(line) for line in self._records(folder / "run", folder)]
        return sorted(one["payload"]["text"] for one in records if one["kind"] == "journal")

    def _ask(self, port: int) -> None:
        self._post(port, "reset", {})
        for number in range(self.ASKED):
            seen = self._post(port, "step", {"action": {"text": f"hello {number}"}})
            promise(seen["observation"]["text"])
        os.kill(os.getpid(), signal.SIGTERM)
