"""``pytest --ramify-diagnose RUN``: where the bug after each failing test may be, as case files in a run.

The rule policy looks, with the test's failure as the issue; it runs nothing and asks no model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

MOST = 20
"""Failing tests that are looked into."""


class Diagnose:
    """Collects failures, and looks for their bugs when the session ends."""

    def __init__(self, run: str, root: Path) -> None:
        self.run, self.root = Path(run), root
        self.failed: dict[str, str] = {}
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed and report.when == "call":
            self.failed[report.nodeid] = f"The test {report.nodeid} fails.\n\n{report.longreprtext}\n"

    def pytest_sessionfinish(self) -> None:
        """Look for each, and keep what was found in the run."""
        if not self.failed:
            return
        from ramify.base.errors import RamifyError
        from ramify.methods.diagnose import record
        from ramify.methods.diagnose.localizer import Localizer
        from ramify.methods.diagnose.snapshot import Snapshot

        try:
            snapshot, localizer = Snapshot.open(self.root), Localizer()
            settings = localizer.config.model_dump(mode="json") | {"model": "", "samples": 1}
            with record.begin(self.run, settings) as stored:
                for name, issue in list(self.failed.items())[:MOST]:
                    called = name.rpartition("/")[2].replace("::", ".")
                    case = record.looked(stored, localizer, snapshot, issue, called, settings)
                    self.lines.append(f"{name}: {', '.join(one.location for one in case.findings) or 'no place was found'}")
            if len(self.failed) > MOST:
                self.lines.append(f"{len(self.failed) - MOST} more failing tests were not looked into")
        except RamifyError as error:
            self.lines.append(f"not looked into: {error}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where."""
        if self.lines:
            from ramify.render.text import sanitize

            terminalreporter.section("ramify: where the bug may be (rules, no model)")
            for line in self.lines:
                terminalreporter.line(sanitize(line, flatten=True))
            terminalreporter.line(f"case files are in {self.run}: ramify show {self.run}")
