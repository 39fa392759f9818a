"""Python programs in processes of their own that need not load torch:
each is forked from one that has loaded it and did nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Has loaded what takes seconds (torch's optimizers load torch._dynamo). Reads a job a line, which a child of its own runs as
#: ``__main__``, ending as an interpreter does; the parent says how.
SERVER = """
import json, os, sys, types, warnings
import numpy, pydantic, scipy.stats, torch, torch._dynamo

job = None
for line in sys.stdin:
    if os.fork() == 0:
        job = json.loads(line)
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
if job:
    for fd, name in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(name, os.O_RDWR), fd)
    if not job["strict"]:
        sys.warnoptions.clear()
        warnings.resetwarnings()
    if job["tty"]:  # the terminal of a session of its own: Ctrl-C there reaches it
        os.setsid()
        for fd in (0, 1, 2):
            os.dup2(os.open(job["tty"], os.O_RDWR), fd)
        sys.stdin, sys.stdout, sys.stderr = (open(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    os.environ.update(job["env"])
    os.chdir(job["folder"])
    sys.argv, sys.path[0] = [job["file"] or "-", *job["argv"]], os.path.dirname(job["file"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if job["file"]:
        main.__file__ = job["file"]
    exec(compile(job["code"], job["file"] or "<stdin>", "exec"), main.__dict__)
"""


class Forks:
    """Runs programs one at a time. Warnings are errors in them, as in the tests, where ``strict``; torch has one thread."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        code: str,
        folder: Path,
        file: Path | None = None,
        strict: bool = True,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        tty: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """``code`` in ``folder``, as ``python file`` would run it, or, without a file, ``python -``.

        ``tty``: the terminal it runs in, which then has what it prints. ``env`` is added to the environment.
        """
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            job = {
                "code": code,
                "folder": str(folder),
                "file": str(file or ""),
                "strict": strict,
                "argv": list(argv),
                "env": dict(env or {}),
                "tty": tty,
                "out": out.name,
                "err": err.name,
            }
            try:
                status = int(self._ask(json.dumps(job)))
            except BaseException:  # a timeout, most likely: what runs must not answer the next question
                self.close()
                raise
            return subprocess.CompletedProcess([job["file"]], status, out.read(), err.read())

    def _ask(self, line: str) -> str:
        if self._server is None:
            env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
            self._server = subprocess.Popen([sys.executable, "-W", "error", "-c", SERVER], start_new_session=True, **pipes)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def close(self) -> None:
        """End the server, and what it runs."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None
