"""Runs inside a sandbox, never in the host: pytest on a package and on mutants of it, with what each test calls and how it fails.

Reads job.json ({"tests": [...], "package": folder, "mutants": [{"path", "text", "tests"}], "seconds": of each}) and writes
done.json: without mutants the outcome and the functions of each test,
else for each mutant the failing and passing tests and how the first one fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest


class Watch:
    """A plug-in of pytest: outcome of each test, functions of the package that it calls, frames and message of a failure."""

    def __init__(self, package: str, profile: bool) -> None:
        self.root, self.package, self.profile = os.getcwd() + os.sep, package, profile
        self.tests: dict[str, Any] = {}
        self._called: set[str] = set()
        self._left = 0

    def _event(self, frame: Any, event: str, arg: Any) -> None:
        self._left -= 1
        if self._left < 0:  # what a test calls is known by then
            sys.setprofile(None)
        if event == "call" and frame.f_code.co_filename.startswith(self.root + self.package):
            self._called.add(f"{frame.f_code.co_filename[len(self.root) :]}:{frame.f_code.co_firstlineno}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        """Note what is called while a test runs."""
        self._called, self._left = set(), 30_000
        if self.profile:
            sys.setprofile(self._event)
        yield
        sys.setprofile(None)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Note how a test ended."""
        outcome: Any = yield
        report = outcome.get_result()
        if report.when != "call":
            return
        row = {"passed": report.passed, "seconds": round(call.duration, 4), "called": sorted(self._called)}
        if call.excinfo is not None and report.failed:
            frames = [(str(one.path), one.lineno + 1, one.name, str(one.statement)) for one in call.excinfo.traceback]
            inside = [
                (path[len(self.root) :], line, name, text) for path, line, name, text in frames if path.startswith(self.root)
            ]
            row |= {"frames": inside, "error": type(call.excinfo.value).__name__, "message": str(call.excinfo.value)[:400]}
        self.tests[item.nodeid] = row


def run(tests: list[str], package: str, profile: bool) -> dict[str, Any]:
    """Outcomes of tests in this process."""
    watch = Watch(package, profile)
    skip = "not (Prime or Fourier or oncurrent or orderings or threads)"  # slow ones
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:ramify", "--no-header", "--tb=no", "-k", skip]
    pytest.main([*options, *([] if profile else ["-x"]), *tests], plugins=[watch])
    return watch.tests


def main() -> None:
    """One job."""
    with open("job.json", encoding="utf-8") as file:
        job = json.load(file)
    found: Any
    if "one" in job:
        found = run(job["tests"], job["package"], job["profile"])
    else:
        found = []
        for mutant in job["mutants"]:
            with open(mutant["path"], encoding="utf-8") as file:
                kept = file.read()
            with open(mutant["path"], "w", encoding="utf-8") as file:
                file.write(mutant["text"])
            with open("job.json", "w", encoding="utf-8") as file:
                json.dump({"one": True, "tests": mutant["tests"], "package": job["package"], "profile": False}, file)
            try:
                subprocess.run([sys.executable, "watch.py"], timeout=job["seconds"], capture_output=True, check=False)
                with open("done.json", encoding="utf-8") as file:
                    found.append(json.load(file))
                os.remove("done.json")
            except (subprocess.TimeoutExpired, OSError, ValueError):
                found.append({})
            with open(mutant["path"], "w", encoding="utf-8") as file:
                file.write(kept)
    with open("done.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
