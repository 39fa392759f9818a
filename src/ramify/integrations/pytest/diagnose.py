"""``pytest --ramify-diagnose RUN``: where the bug after each failing test may be, as case files in a run.

While the tests run, the lines that each of them runs are recorded; failing and passing tests together rank what the failing one
ran. Where nothing could be recorded, the rules look through the source alone, with the test's failure as the issue. No model is
asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ramify.methods.diagnose.case import CaseFile
    from ramify.methods.diagnose.spectrum import FailedTest, Spectrum

OPTION = "--ramify-diagnose"
MOST = 20
"""Failing tests that are looked into."""
_RAN = "ramify_ran"


def joined(args: tuple[str, ...]) -> list[str] | None:
    """The arguments with ``--ramify-diagnose=RUN`` instead of ``--ramify-diagnose RUN``; None where RUN is not there yet.

    pytest looks for its root and its settings before it knows this option, and takes a folder after a space for one with tests.
    """
    at = next((at for at, given in enumerate(args[:-1]) if given == OPTION), None)
    if at is None or not Path(args[at + 1]).exists():
        return None
    return [*args[:at], f"{OPTION}={args[at + 1]}", *args[at + 2 :]]


class RecordLines:
    """Records what each test runs, in every process that runs tests, and hangs it on the test's report."""

    def __init__(self, root: Path) -> None:
        from ramify.integrations.pytest.lines import LineRecorder, below

        self.named = below(root)
        self.recorder = LineRecorder(self.named)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Follow set-up and call of a test."""
        item.stash[_recorded] = self.recorder.start()
        try:
            return (yield)
        finally:
            self.recorder.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hang lines, and of a failure its frames, on the report."""
        report = yield
        if report.when == "call" and item.stash.get(_recorded, False):
            facts: dict[str, Any] = {"ran": self.recorder.stop(), "doctest": type(item).__name__ == "DoctestItem"}
            if report.failed and call.excinfo is not None:
                frames = [(self.named(str(entry.path)), entry.lineno + 1) for entry in call.excinfo.traceback]
                facts |= {"error": call.excinfo.typename, "frames": [frame for frame in frames if frame[0]]}
            setattr(report, _RAN, facts)
        return report


_recorded = pytest.StashKey[bool]()


class Diagnose:
    """Collects outcomes, and looks for the bugs after failures when the session ends."""

    def __init__(self, run: str, root: Path) -> None:
        self.run, self.root = Path(run), root
        self.failed: dict[str, str] = {}
        self.found: dict[str, FailedTest] = {}
        self.counts = {True: Counter[tuple[str, int]](), False: Counter[tuple[str, int]]()}
        self.outcomes = Counter[bool]()
        self.tests = set[str]()
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note an outcome, and what ran."""
        facts = report.__dict__.pop(_RAN, None)
        if report.when != "call" or report.skipped:
            return
        if facts is not None:
            self.outcomes[report.failed] += 1
            self.counts[report.failed].update((file, line) for file, lines in facts["ran"].items() for line in lines)
            if not facts["doctest"]:
                self.tests.add(report.nodeid.partition("::")[0])
        if report.failed:
            self.failed[report.nodeid] = f"The test {report.nodeid} fails.\n\n{report.longreprtext}\n"
            if facts is not None and len(self.found) < MOST:
                self.found[report.nodeid] = self._failed(report, facts)

    def _failed(self, report: pytest.TestReport, facts: dict[str, Any]) -> FailedTest:
        from ramify.methods.diagnose.spectrum import FailedTest

        file, line, _ = report.location
        frames = tuple((str(path), int(at)) for path, at in facts.get("frames", ()))
        ran = {path: tuple(lines) for path, lines in facts["ran"].items()}
        return FailedTest(report.nodeid, file.replace("\\", "/"), (line or 0) + 1, facts.get("error", ""), frames, ran)

    def _spectrum(self) -> Spectrum:
        from ramify.methods.diagnose.spectrum import Spectrum

        by_file: dict[bool, dict[str, dict[int, int]]] = {True: {}, False: {}}
        for outcome, counts in self.counts.items():
            for (file, line), count in counts.items():
                by_file[outcome].setdefault(file, {})[line] = count
        return Spectrum(self.outcomes[True], self.outcomes[False], by_file[True], by_file[False], frozenset(self.tests))

    def pytest_sessionfinish(self) -> None:
        """Look for each, and keep what was found in the run."""
        if not self.failed:
            return
        from ramify.base.errors import RamifyError
        from ramify.methods.diagnose import record
        from ramify.methods.diagnose.localizer import Localizer
        from ramify.methods.diagnose.snapshot import Snapshot
        from ramify.methods.diagnose.spectrum import SpectrumLocalizer

        try:
            snapshot, by_source, spectrum = Snapshot.open(self.root), Localizer(), self._spectrum()
            settings = by_source.config.model_dump(mode="json") | {"model": "", "samples": 1}
            with record.begin(self.run, settings) as stored:
                for name, issue in list(self.failed.items())[:MOST]:
                    called = name.rpartition("/")[2].replace("::", ".")
                    test = self.found.get(name)
                    localizer = by_source if test is None else SpectrumLocalizer(test, spectrum)
                    case = record.looked(stored, localizer, snapshot, issue, called, settings)
                    self.lines.append(f"{name}: {_places(case)}")
            if any(test.error == "AssertionError" for test in self.found.values()):
                self.lines.append("read the assertion first: what ran does not tell a wrong expectation from a fault")
            if len(self.failed) > MOST:
                self.lines.append(f"{len(self.failed) - MOST} more failing tests were not looked into")
            if len(self.found) < min(MOST, len(self.failed)):
                self.lines.append("what the tests run was not recorded: another program, such as coverage, follows their lines")
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


def _places(case: CaseFile) -> str:
    """The likeliest places of a case file in a line."""
    said = []
    for place in case.findings[:3]:
        lines = f" (line {', '.join(map(str, place.lines[:3]))})" if place.lines else ""
        likely = "" if place.confidence is None else f" {place.confidence:.0%}"
        said.append(f"{place.location}{lines}{likely}")
    return "; ".join(said) or "no place was found"
