"""What the tests say of themselves, in processor seconds: the slowest, each worker's start and memory, files with too much."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

SHARE = 0.05
"""Of the default tests' time, what one file may take at most. A file that needs more has what can be marked as slow."""
WHOLE = 100
"""Files in a run from which on the shares say something."""
SLOWEST = 20


def over(seconds: Mapping[str, float], share: float = SHARE) -> list[str]:
    """One sentence for each file whose tests took more than ``share`` of all ``seconds`` (file -> seconds)."""
    everything = sum(seconds.values())
    return [
        f"{file} takes {one / everything:.1%} of all time, more than {share:.0%}: mark as slow what a change can do without"
        for file, one in sorted(seconds.items())
        if one > share * everything
    ]


def spent() -> float:
    """Processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Suite:
    """A plug-in of pytest. In a worker it measures, where the run is steered from it sums up."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker: dict[str, object] | None = getattr(config, "workeroutput", None)
        self.whole = config.option.markexpr == "not slow" and not config.option.keyword
        self.before, self.last = 0.0, False
        self.tests: Counter[str] = Counter()
        self.workers: list[str] = []
        self.faults: list[str] = []

    def pytest_collection_finish(self) -> None:
        self.before = spent()
        if self.worker is not None:
            self.worker["began"] = self.before

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        self.last = nextitem is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Once for each of set-up, call and teardown of a test. What a worker's last test tears down is everybody's."""
        report = yield
        now = spent()
        report.spent, self.before = 0.0 if self.last and call.when == "teardown" else now - self.before, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.worker is None:
            self.tests[report.nodeid] += report.spent

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A worker of pytest-xdist has ended."""
        told = getattr(node, "workeroutput", {})
        if "began" in told:
            self.workers.append(f"{told['began']:.0f} s, {told['memory']:.0f} MB")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.worker is not None:
            self.worker["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            return
        files: Counter[str] = Counter()
        for test, one in self.tests.items():
            files[test.partition("::")[0]] += one
        if self.whole and len(files) >= WHOLE:
            self.faults = over(files)
        if self.faults and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = [f"{one:7.2f}  {test}" for test, one in self.tests.most_common(SLOWEST) if one >= 0.5]
        if slowest:
            terminalreporter.write_line("\n".join(["processor seconds of the slowest tests", *slowest]))
        if self.workers:
            terminalreporter.write_line(f"workers (seconds before the first test, memory at most): {'; '.join(self.workers)}")
        for fault in self.faults:
            terminalreporter.write_line(f"FAILED {fault}", red=True)
