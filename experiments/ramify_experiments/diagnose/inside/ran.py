"""Runs inside a sandbox, never in the host: tests of a tree and of changed copies of it, with what `--ramify-diagnose` records.

Reads job.json ({"path": folders to import from, "cases": [{"files": {path: text}, "tests": arguments of pytest}], "seconds"}) and
writes done.json: for each case the failing tests with their texts, and the spectrum.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def run(tests: list[str]) -> None:
    """One session in this process."""
    import dataclasses

    import pytest

    from ramify.integrations.pytest.diagnose import Diagnose, RecordLines

    class Kept(Diagnose):
        """Writes what was recorded in the place of looking."""

        def pytest_sessionfinish(self) -> None:
            spectrum = dataclasses.asdict(self._spectrum())
            texts = {name: text[:20_000] for name, text in self.failed.items()}
            found: dict[str, object] = {"spectrum": spectrum | {"tests": sorted(self.tests)}, "texts": texts}
            found["failed"] = [dataclasses.asdict(one) for one in [*self.found.values()][:1]]
            Path("one.json").write_text(json.dumps(found), encoding="utf-8")

    here = Path.cwd()
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout", "2"]
    options += ["-o", "addopts=", "-o", "filterwarnings="]  # the package's own may turn a warning of pytest into an error
    pytest.main([*options, "--rootdir", str(here), *tests], plugins=[RecordLines(here), Kept("", here)])


def main() -> None:
    """Every case in a process of its own, forked when pytest is loaded, in the tree that it changes and puts back."""
    job = json.loads(Path("job.json").read_text(encoding="utf-8"))
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:0] = job["path"]
    sys.dont_write_bytecode = True
    import pytest  # noqa: F401
    import pytest_timeout  # type: ignore[import-untyped]  # noqa: F401

    import ramify.integrations.pytest.diagnose
    import ramify.integrations.pytest.lines
    import ramify.methods.diagnose.spectrum  # noqa: F401

    done = []
    for case in job["cases"]:
        kept = {path: Path(path).read_text(encoding="utf-8") for path in case["files"] if Path(path).exists()}
        for path, text in case["files"].items():
            Path(path).write_text(text, encoding="utf-8")
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            try:
                run(case["tests"])
            finally:
                os._exit(0)
        status = _ended(child, job["seconds"])
        try:
            done.append(json.loads(Path("one.json").read_text(encoding="utf-8")) if status else {})
        except (OSError, ValueError):
            done.append({})
        Path("one.json").unlink(missing_ok=True)
        for path, text in kept.items():
            Path(path).write_text(text, encoding="utf-8")
    Path("done.json").write_text(json.dumps(done), encoding="utf-8")


def _ended(child: int, seconds: float) -> bool:
    """Whether a process ended in time; it is killed where it did not."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


if __name__ == "__main__":
    main()
