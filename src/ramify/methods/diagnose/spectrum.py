"""Where a fault is, by what failing and passing tests ran: a ranking of functions and of their lines, beside the test itself.

A test is where a failure shows. The candidates are the functions that the failing test ran and the test itself, which stands for
every cause outside the code: a wrong expectation, a missing file, a network that is down. What speaks for each (:data:`FEATURES`,
:data:`OUTSIDE`) is weighed by a conditional logit, so its probabilities are shares of one; the weights are those of
``python -m ramify_experiments.diagnose.outside --fit``, which sees other packages than those that the evidence is reported on.

Suspicion of a line is Ochiai's, ``ef / sqrt(F (ef + ep))``: ``ef`` and ``ep`` are the failing and passing tests that ran it, F
all failing ones (Abreu, Zoeteweij and van Gemund, *On the accuracy of spectrum-based fault localization*, 2007).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ramify.base.ids import stable_hash
from ramify.methods.diagnose.algorithm import Span
from ramify.methods.diagnose.case import BugSearch, CaseFile, Diagnosis
from ramify.methods.diagnose.code import CodeMap, Symbol, is_test, words
from ramify.methods.diagnose.localizer import Localizer
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.trace.message import Message

BY_TESTS = "rules (no model: lines that failing and passing tests ran)"
MOST = 5
"""Places that are named, and lines of each."""
LEAST = 0.02
"""Probability of a further place that is named."""
ENVIRONMENT = re.compile(
    r"^(\w*Connection\w*|\w*Timeout\w*|gaierror|herror|URLError|HTTPError|SSLError|FileNotFoundError|PermissionError|OSError|"
    r"ModuleNotFoundError|ImportError|NotADirectoryError|IsADirectoryError|ProxyError|BlockingIOError)$"
)
"""Exceptions that what a program runs in raises more often than its code does."""
ASSERTED = re.compile(r"(AssertionError|Failed|\w*Doc[Tt]est\w*|TypeError|AttributeError)$")
"""Exceptions by which a test says that the code is wrong; the last two are what it meets in a value of another kind."""
FEATURES = (
    "suspicion",
    "suspicion beside the highest",
    "share of the failing tests",
    "in the traceback",
    "last frame in the code",
    "named in the test",
    "words of the test's name",
    "lines that ran",
    "file of tests",
    "named by the source alone",
)
"""Of a function, as :func:`candidates` gives them."""
OUTSIDE = (
    "bias",
    "highest suspicion",
    "error of the environment",
    "raised by the test, and no assertion",
    "passing tests there",
)
"""Of the test itself."""
LINE_FEATURES = (
    "suspicion beside the highest",
    "last frame",
    "comparison or condition",
    "arithmetic or index",
    "number",
    "return",
    "call",
    "head of a definition",
    "nothing but a name or word",
)
"""Of a line of a function."""


@dataclass(frozen=True)
class FailedTest:
    """A failing test, with what it ran. Lines count from 1."""

    name: str
    file: str = ""
    """Its file, from the root of the repository."""
    line: int = 1
    error: str = ""
    """Name of the exception."""
    frames: tuple[tuple[str, int], ...] = ()
    """Files below the root and lines of the traceback, the last one last."""
    ran: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """File -> lines."""


@dataclass(frozen=True)
class Spectrum:
    """What all tests of a session ran: how many failing and passing ones, and how many of each ran a line."""

    failing: int
    passing: int
    failed: Mapping[str, Mapping[int, int]]
    passed: Mapping[str, Mapping[int, int]]
    tests: frozenset[str] = frozenset()
    """Files that tests were collected from."""

    def ochiai(self, file: str, line: int) -> float:
        """Suspicion of a line, from 0 to 1."""
        ef, ep = self.failed.get(file, {}).get(line, 0), self.passed.get(file, {}).get(line, 0)
        return ef / math.sqrt(self.failing * (ef + ep)) if ef else 0.0

    def is_test(self, file: str) -> bool:
        """Whether a file holds tests, or what only tests use."""
        return file in self.tests or is_test(file)


@dataclass(frozen=True)
class Suspect:
    """A function that the failing test ran (``outside`` False), or the test itself; ``row``: its features."""

    file: str
    name: str
    start: int
    end: int
    lines: tuple[int, ...]
    """Those that the failing test ran."""
    row: tuple[float, ...]
    outside: bool = False


@dataclass(frozen=True)
class RankWeights:
    """Of :data:`FEATURES`, :data:`OUTSIDE` and :data:`LINE_FEATURES`; those of lines were set by hand and are not fitted."""

    functions: tuple[float, ...] = (1.78, 4.26, 0.77, -0.32, 0.86, 0.35, 0.31, -0.03, -4.0, 0.43)
    outside: tuple[float, ...] = (2.73, -2.16, 2.63, 5.97, -0.19)
    lines: tuple[float, ...] = (3.0, 1.0, 0.7, 0.5, 0.2, 0.2, 0.2, -2.0, -2.0)

    @classmethod
    def by_hand(cls) -> RankWeights:
        """As they were set before anything was measured."""
        return cls((1.0, 3.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.3, -4.0, 1.0), (0.0, -2.0, 2.0, 1.0, 0.5))


def candidates(test: FailedTest, spectrum: Spectrum, code: CodeMap, named: Sequence[Span] = ()) -> list[Suspect]:
    """Every function that the test ran, and last the test itself; ``named``: places that a look through the source names."""
    held: dict[tuple[str, Symbol], list[int]] = {}
    for file, lines in test.ran.items():
        if file not in code.snapshot or not code.readable(file):
            continue
        for line in lines:
            symbol = code.symbol(file, line, line)
            if symbol is not None and symbol.kind != "class" and symbol.start <= line <= symbol.end:
                held.setdefault((file, symbol), []).append(line)
    itself = code.symbol(test.file, test.line, test.line) if test.file in code.snapshot else None
    tests = {file for file in {*spectrum.tests, test.file} if spectrum.is_test(file)}
    held = {key: lines for key, lines in held.items() if key[0] not in tests}
    text = _text(code.snapshot, test.file, itself)
    said, titled = set(re.findall(r"[A-Za-z_]\w*", text)), set(words(test.name.rpartition("::")[2].partition("[")[0]))
    suspicion = {key: max(spectrum.ochiai(key[0], line) for line in lines) for key, lines in held.items()}
    highest = max(suspicion.values(), default=0.0)
    inside = [at for at, (file, _) in enumerate(test.frames) if not spectrum.is_test(file)]
    suspects = []
    for (file, symbol), ran in sorted(held.items(), key=lambda item: (item[0][0], item[0][1].start)):
        short = symbol.name.rpartition(".")[2]
        pieces = words(symbol.name)
        within = [at for at in inside if test.frames[at][0] == file and test.frames[at][1] in ran]
        highest_here = suspicion[file, symbol]
        row = (
            highest_here,
            math.log(highest_here / highest),
            max(spectrum.failed[file].get(line, 0) for line in ran) / spectrum.failing,
            float(bool(within)),
            float(bool(within) and within[-1] == inside[-1]),
            float(short in said),
            sum(word in titled for word in pieces) / max(1, len(pieces)),
            math.log1p(len(ran)),
            float(spectrum.is_test(file)),
            float((file, symbol.start, symbol.end) in named),
        )
        suspects.append(Suspect(file, symbol.name, symbol.start, symbol.end, tuple(ran), row))
    best = max(suspicion, key=lambda key: suspicion[key], default=None)
    passing = 0 if best is None else min(spectrum.passed.get(best[0], {}).get(line, 0) for line in held[best])
    outer = (
        1.0,
        highest,
        float(ENVIRONMENT.match(test.error) is not None),
        float(bool(test.frames) and spectrum.is_test(test.frames[-1][0]) and not ASSERTED.match(test.error)),
        math.log1p(passing),
    )
    start, end = (itself.start, itself.end) if itself is not None else (test.line, test.line)
    return [*suspects, Suspect(test.file, test.name, start, end, (test.line,), outer, outside=True)]


def _text(snapshot: Snapshot, file: str, symbol: Symbol | None) -> str:
    return "" if symbol is None else "\n".join(snapshot.lines(file)[symbol.start - 1 : symbol.end])


def shares(suspects: Sequence[Suspect], weights: RankWeights) -> np.ndarray:
    """(candidates,): the probability of each."""
    score = np.array([np.dot(weights.outside if suspect.outside else weights.functions, suspect.row) for suspect in suspects])
    share = np.exp(score - score.max())
    out: np.ndarray = share / share.sum()
    return out


def ranked(suspects: Sequence[Suspect], share: np.ndarray) -> list[int]:
    """Positions of the suspects, the likeliest first; the test itself only where it is likelier than all code together."""
    order = sorted(range(len(suspects)), key=lambda at: (-share[at], at))
    outside = next(at for at, suspect in enumerate(suspects) if suspect.outside)
    if order[0] == outside and share[outside] <= 0.5 and len(order) > 1:
        order[0], order[1] = order[1], order[0]
    return order


def line_rows(suspect: Suspect, test: FailedTest, spectrum: Spectrum, snapshot: Snapshot) -> np.ndarray:
    """(lines, features): see :data:`LINE_FEATURES`."""
    suspicion = [spectrum.ochiai(suspect.file, line) for line in suspect.lines]
    highest = max(suspicion)
    frames = [line for file, line in test.frames if file == suspect.file and line in suspect.lines]
    last = frames[-1] if frames else 0
    rows = []
    for line, score in zip(suspect.lines, suspicion, strict=True):
        text = snapshot.lines(suspect.file)[line - 1].strip() if line <= len(snapshot.lines(suspect.file)) else ""
        code = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "''", text)
        rows.append([
            math.log(score / highest),
            float(line == last),
            float(bool(re.search(r"[<>=!]=|[<>]|\b(if|elif|while|and|or|not|in|is)\b", code))),
            float(bool(re.search(r"[\w)\]]\s*(//|[-+*/%])\s*[\w(]|\w\[", code))),
            float(bool(re.search(r"\b\d+\b", code))),
            float(code.startswith(("return", "yield"))),
            float(bool(re.search(r"\w\(", code)) and not code.startswith("def")),
            float(code.startswith(("def ", "async def", "class ", "@"))),
            float(bool(re.fullmatch(r"(else|try|finally)?:?|pass|break|continue|return|''|'' ?''|[\w.]+", code))),
        ])  # fmt: skip
    return np.array(rows)


def ranked_lines(
    suspect: Suspect, test: FailedTest, spectrum: Spectrum, snapshot: Snapshot, weights: RankWeights
) -> tuple[int, ...]:
    """The lines of a candidate that the failing test ran, the most suspicious first."""
    if suspect.outside:
        return suspect.lines
    score = line_rows(suspect, test, spectrum, snapshot) @ np.array(weights.lines)
    return tuple(suspect.lines[at] for at in np.argsort(-score, kind="stable"))


class SpectrumLocalizer:
    """Localizes one failing test by what it and the others ran; :class:`ramify.methods.diagnose.record` keeps what it finds."""

    def __init__(self, test: FailedTest, spectrum: Spectrum, weights: RankWeights | None = None) -> None:
        self.test, self.spectrum, self.weights = test, spectrum, weights or RankWeights()

    def key(self, snapshot: Snapshot, issue: str) -> str:
        """Stable hash of all that decides a localization."""
        return stable_hash(snapshot.digest, issue, BY_TESTS, repr((self.test, self.spectrum, self.weights)))

    def traced(
        self, repo: Snapshot, issue: str, issue_id: str = "", progress: Callable[[int], object] = lambda turn: None
    ) -> tuple[CaseFile, list[Message]]:
        """The case file, and it as a conversation of a question and an answer."""
        named = Localizer().run(repo, issue).locations
        suspects = candidates(self.test, self.spectrum, CodeMap(repo), named)
        share = shares(suspects, self.weights)
        order = ranked(suspects, share)[:MOST]
        best = [at for rank, at in enumerate(order) if suspects[at].file in repo and (not rank or share[at] >= LEAST)]
        findings = tuple(replace(self._diagnosis(suspects[at], repo), confidence=float(share[at])) for at in best)
        case = CaseFile(
            issue_id, repo.name, repo.commit, findings=findings, meta=BugSearch(by=BY_TESTS, answered=bool(findings)), issue=issue
        )
        said = "\n".join(f"{finding.location}: {finding.location_explanation}" for finding in findings) or "No place was found."
        return case, [Message("user", issue), Message("assistant", said)]

    def _diagnosis(self, suspect: Suspect, snapshot: Snapshot) -> Diagnosis:
        test, spectrum = self.test, self.spectrum
        if suspect.outside:
            why = f"The test itself, or something outside the code{f' ({test.error})' if test.error else ''}."
            return Diagnosis(suspect.file, suspect.start, suspect.end, why, lines=suspect.lines)
        lines = ranked_lines(suspect, test, spectrum, snapshot, self.weights)[:MOST]
        top = max(suspect.lines, key=lambda line: spectrum.ochiai(suspect.file, line))
        failed, passed = spectrum.failed[suspect.file].get(top, 0), spectrum.passed.get(suspect.file, {}).get(top, 0)
        why = (
            f"`{suspect.name}`: line {top} ran in {failed} of {spectrum.failing} failing and {passed} of {spectrum.passing} "
            f"passing tests (suspicion {spectrum.ochiai(suspect.file, top):.2f}). Look at line{'s' if len(lines) > 1 else ''} "
            f"{', '.join(map(str, lines))} first."
        )
        return Diagnosis(suspect.file, suspect.start, suspect.end, why, lines=lines)
