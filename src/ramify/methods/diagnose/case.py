"""A case file: the locations of a bug in a repository, and of each a diagnosis in five fields with the tool calls that showed
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import read_record
from ramify.methods.diagnose.snapshot import Snapshot

FIELDS = ("location_explanation", "root_cause", "solution_idea", "dependencies", "testing_impact")
"""What is said of a location: why it matters, the mechanism, the direction of the edit in words,
what else must change, which tests."""
SHOWN = 200
"""Lines of a span that a Markdown rendering quotes no more than."""


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
    evidence: tuple[Mapping[str, Any], ...] = ()
    """The calls that displayed the span: tool, args, digest, lines."""
    confidence: float | None = None
    """Probability that it is right, as a gate has it; None where none was asked."""

    @property
    def span(self) -> tuple[str, int, int]:
        """File, first and last line."""
        return self.file, self.start, self.end

    @property
    def location(self) -> str:
        """``FILE:FIRST-LAST``."""
        return f"{self.file}:{self.start}-{self.end}"


@dataclass(frozen=True, slots=True)
class CaseFile:
    """What was found for one issue, best first. ``meta`` says how:
    turns, calls, recoveries, tokens, model, what was wrong with it."""

    issue_id: str
    repo: str
    commit: str
    findings: tuple[Diagnosis, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    issue: str = ""

    @property
    def locations(self) -> list[tuple[str, int, int]]:
        """The spans, best first."""
        return [one.span for one in self.findings]

    def to_json(self) -> dict[str, Any]:
        """JSON form, as files and runs hold it."""
        return asdict(self) | {"findings": [asdict(one) | {"evidence": [dict(e) for e in one.evidence]} for one in self.findings]}

    def to_markdown(self) -> str:
        """For people: each location with its five fields."""
        parts = [f"# Where the bug is: {self.issue_id}", f"{self.repo}{f' at {self.commit[:12]}' if self.commit else ''}"]
        parts += [] if self.findings else ["No location was found."]
        for number, one in enumerate(self.findings, 1):
            sure = "" if one.confidence is None else f" (right with probability {one.confidence:.2f})"
            rows = [f"- **{name.replace('_', ' ')}**: {getattr(one, name)}" for name in FIELDS if getattr(one, name)]
            parts += [f"## {number}. `{one.location}`{sure}", "\n".join(rows)]
        if self.meta:
            names = ("by", "turns", "calls", "recovered", "zero_tool", "notes")
            parts.append("\n".join(f"- {name.replace('_', ' ')}: {self.meta[name]}" for name in names if self.meta.get(name)))
        return "\n\n".join(part for part in parts if part) + "\n"


def read_case(record: Mapping[str, Any], where: str) -> CaseFile:
    """A case file from its JSON form. Raises UserError naming ``where`` and the field."""

    def text(value: Mapping[str, Any], name: str, spot: str) -> str:
        found = value.get(name, "")
        if not isinstance(found, str):
            raise UserError(f"{spot}: '{name}' must be text")
        return found

    listed = record.get("findings")
    if not isinstance(listed, list):
        raise UserError(f"{where} is no case file: it has no list 'findings'")
    made = []
    for at, one in enumerate(listed):
        spot = f"{where}: finding {at}"
        if not isinstance(one, Mapping) or not isinstance(one.get("file"), str):
            raise UserError(f"{spot} has no 'file'")
        start, end = one.get("start"), one.get("end")
        if type(start) is not int or type(end) is not int or not 1 <= start <= end:
            raise UserError(f"{spot}: 'start' and 'end' must be lines, 1 <= start <= end")
        sure = one.get("confidence")
        if sure is not None and (isinstance(sure, bool) or not isinstance(sure, int | float) or not 0 <= sure <= 1):
            raise UserError(f"{spot}: 'confidence' must lie between 0 and 1")
        evidence = one.get("evidence") or ()
        if not isinstance(evidence, Sequence) or not all(isinstance(e, Mapping) for e in evidence):
            raise UserError(f"{spot}: 'evidence' must be a list of objects")
        texts: dict[str, Any] = {name: text(one, name, spot) for name in FIELDS}
        made.append(Diagnosis(one["file"], start, end, **texts, evidence=tuple(evidence), confidence=sure))
    meta = record.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise UserError(f"{where}: 'meta' must be an object")
    names = ("issue_id", "repo", "commit")
    about = {name: text(record, name, where) for name in names}
    return CaseFile(**about, findings=tuple(made), meta=meta, issue=text(record, "issue", where))


def load_case(path: Path) -> CaseFile:
    """The case file in a JSON file. Raises UserError."""
    return read_case(read_record(path, "the case file"), str(path))


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
