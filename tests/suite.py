"""What the tests say of themselves: what each worker spent before its first test, its memory, and files that take too much."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

import pytest

SHARE = 0.05
"""Of the default tests' time, what one file may take at most. A file that needs more has what can be marked as slow."""
WHOLE = 100
"""Files in a run from which on the shares say something."""


def over(seconds: Mapping[str, float], share: float = SHARE) -> list[str]:
    """One sentence for each file whose tests took more than ``share`` of all ``seconds`` (file -> seconds)."""
    everything = sum(seconds.values())
    return [
        f"{file} takes {one / everything:.1%} of all time, more than {share:.0%}: mark as slow what a change can do without"
        for file, one in sorted(seconds.items())
        if one > share * everything
    ]


class Suite:
    """A plug-in of pytest. In a worker it measures, where the run is steered from it sums up."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker: dict[str, object] | None = getattr(config, "workeroutput", None)
        self.whole = config.option.markexpr == "not slow" and not config.option.keyword
        self.seconds: dict[str, float] = {}
        self.workers: list[str] = []
        self.faults: list[str] = []

    def pytest_collection_finish(self) -> None:
        if self.worker is not None:
            self.worker["began"] = time.process_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.worker is None:
            file = report.nodeid.partition("::")[0]
            self.seconds[file] = self.seconds.get(file, 0.0) + report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A worker of pytest-xdist has ended."""
        told = getattr(node, "workeroutput", {})
        if "began" in told:
            self.workers.append(f"{told['began']:.0f} s, {told['memory']:.0f} MB")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.worker is not None:
            self.worker["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        elif self.whole and len(self.seconds) >= WHOLE:
            self.faults = over(self.seconds)
            if self.faults and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.workers:
            terminalreporter.write_line(f"workers (imports and collection, memory at most): {'; '.join(self.workers)}")
        for fault in self.faults:
            terminalreporter.write_line(f"FAILED {fault}", red=True)
