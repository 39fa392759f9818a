"""A case file: the locations of a bug in a repository, and of each a diagnosis in five fields with the tool calls that showed
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from ramify.methods.diagnose.snapshot import Snapshot
from ramify.render.result import Folded, Result, Section, table

FIELDS = ("location_explanation", "root_cause", "solution_idea", "dependencies", "testing_impact")
"""What is said of a location: why it matters, the mechanism, the direction of the edit in words,
what else must change, which tests."""


@dataclass(frozen=True, slots=True)
class Displayed:
    """A tool call that displayed lines of a location: the first of them it showed, from 1, both ends included."""

    tool: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    lines: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One location (lines from 1, both inclusive) and what is said of it."""

    file: str
    start: int
    end: int
    location_explanation: str = ""
    root_cause: str = ""
    solution_idea: str = ""
    dependencies: str = ""
    testing_impact: str = ""
    evidence: tuple[Displayed, ...] = ()
    """The calls that displayed the span."""
    confidence: float | None = None
    """Probability that it is right, as a gate has it; None where none was asked."""
    lines: tuple[int, ...] = ()
    """Lines of the span that failing and passing tests point at, the most suspicious first; empty where no test was run."""

    @property
    def span(self) -> tuple[str, int, int]:
        """File, first and last line."""
        return self.file, self.start, self.end

    @property
    def location(self) -> str:
        """``FILE:FIRST-LAST``."""
        return f"{self.file}:{self.start}-{self.end}"

    @property
    def said(self) -> dict[str, str]:
        """Those of :data:`FIELDS` that are not empty."""
        return {name: text for name in FIELDS if (text := str(getattr(self, name)))}


@dataclass(frozen=True, slots=True)
class BugSearch:
    """How a localization went."""

    turns: int = 0
    calls: int = 0
    refused: int = 0
    recovered: int = 0
    """Calls without their wrapper that were run."""
    loops: int = 0
    cut_off: int = 0
    dropped: int = 0
    final: bool = False
    """Whether the last prompt had to ask for the answer."""
    zero_tool: bool = False
    """Whether an answer came before any tool was called."""
    tokens_in: int = 0
    tokens_out: int = 0
    answered: bool = False
    failed: str = ""
    """Why the model failed, where it did."""
    by: str = ""
    weights: str = ""
    signals: Mapping[str, str] = field(default_factory=dict)
    """What speaks for the first finding, see :data:`ramify.methods.diagnose.algorithm.LEVELS`."""
    skipped: int = 0
    """Files of the repository that were not read."""


@dataclass(frozen=True)
class CaseFile(Result):
    """What was found for one issue, best first; ``caveats`` say what was wrong with an answer.

    Raises ValueError on lines or a confidence out of range.
    """

    issue_id: str = ""
    repo: str = ""
    commit: str = ""
    _: KW_ONLY
    findings: tuple[Diagnosis, ...]
    meta: BugSearch = BugSearch()
    issue: str = ""
    run: str = ""
    """The run that keeps it, where there is one."""

    def __post_init__(self) -> None:
        for at, one in enumerate(self.findings):
            if not 1 <= one.start <= one.end:
                raise ValueError(f"finding {at}: 'start' and 'end' must be lines, 1 <= start <= end")
            if one.confidence is not None and not 0 <= one.confidence <= 1:
                raise ValueError(f"finding {at}: 'confidence' must lie between 0 and 1")

    @property
    def locations(self) -> list[tuple[str, int, int]]:
        """The spans, best first."""
        return [one.span for one in self.findings]

    def sections(self) -> Iterable[Section]:
        """The places, what is said of each, and how they were looked for."""
        looked = {name: getattr(self.meta, name) for name in ("by", "turns", "calls", "recovered", "zero_tool")}
        yield Section.of(
            f"Where the bug is: {self.issue_id}",
            f"{self.repo}{f' at {self.commit[:12]}' if self.commit else ''}",
            "" if self.findings else "No location was found.",
            table(("place", "right with probability"), [(one.location, one.confidence) for one in self.findings]),
            *(
                table(("of it", "what is said"), [(_spelled(name), text) for name, text in one.said.items()], one.location)
                for one in self.findings
            ),
            table(("search", ""), [(_spelled(name), value) for name, value in looked.items() if value]),
            Folded("the issue", self.issue) if self.issue else None,
            f"Kept in {self.run}: `ramify show {self.run}`" if self.run else "",
        )


def _spelled(name: str) -> str:
    return name.replace("_", " ")


def checked(found: Iterable[Diagnosis], snapshot: Snapshot) -> tuple[list[Diagnosis], list[str]]:
    """Locations as the snapshot can hold them, and notes on what was wrong.

    A span whose end lies before its start is swapped, one beyond the end of its file is clipped, one in a file that is not there
    or wholly beyond its end is dropped, and spans of one file that are equal or overlap become one,
    with what the first of them says.
    """
    kept: list[Diagnosis] = []
    notes: list[str] = []
    for one in found:
        if one.file not in snapshot:
            notes.append(f"{one.location}: there is no such file, so it is left out")
            continue
        start, end, size = one.start, one.end, len(snapshot.lines(one.file))
        if start > end:
            notes.append(f"{one.location}: swapped")
            start, end = end, start
        if start > size or end < 1:
            notes.append(f"{one.location}: {one.file} has {size} lines, so it is left out")
            continue
        if end > size or start < 1:
            notes.append(f"{one.location}: clipped to the {size} lines of the file")
            start, end = max(1, start), min(end, size)
        same = next((at for at, k in enumerate(kept) if k.file == one.file and k.start <= end and start <= k.end), None)
        if same is None:
            kept.append(replace(one, start=start, end=end))
        else:
            first = kept[same]
            texts = {name: getattr(first, name) or getattr(one, name) for name in FIELDS}
            kept[same] = replace(first, start=min(first.start, start), end=max(first.end, end), **texts)
            notes.append(f"{one.location}: overlaps {first.location}, merged")
    return kept, notes
