"""What a reader did not understand, and a writer could not write: counted while it works, and said in the verb's last line.

A reader or writer calls :func:`unread`, :func:`lost` and the others wherever it stands; where nobody asked (a gateway that reads
messages, a test), nothing is counted. So a plug-in's reader needs no further parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ramify.base.errors import UserError
from ramify.base.words import plural

NAMED = 5
"""How many bad records a sentence names."""


class BadRecordError(UserError):
    """One record of a file is bad; others may be good."""


@dataclass(frozen=True, slots=True)
class UnreadField:
    """A field that no reader knows, what has it, and how many of these."""

    field: str
    of: str
    count: int


@dataclass
class Notes:
    """What was counted while files were read or a run was written."""

    skip_bad: bool = False
    """Whether a bad record is counted instead of ending the import."""
    fields: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(field, what has it) -> how many: fields with text or lists that no reader knows. They are kept where there is a place."""
    bad: list[str] = field(default_factory=list)
    """The sentence of each bad record that was left out."""
    open_calls: int = 0
    """Calls of tools that no message answers."""
    unwritten: Counter[str] = field(default_factory=Counter)
    """What has no place in the written format -> how often."""

    @property
    def unread(self) -> tuple[UnreadField, ...]:
        """The fields that no reader knows, sorted."""
        return tuple(UnreadField(name, of, n) for (name, of), n in sorted(self.fields.items()))

    def sentences(self) -> list[str]:
        """What was not understood, a line each; none where all was."""
        lines = []
        if self.fields:
            named = ", ".join(f"'{name}' of {plural(n, of)}" for (name, of), n in sorted(self.fields.items()))
            lines.append(f"not understood: {named}")
        if self.open_calls:
            lines.append(
                f"{plural(self.open_calls, 'call')} of tools without a result: marked as 'unanswered' where the attempt ends"
            )
        if self.bad:
            more = f"; and {len(self.bad) - NAMED} more" if len(self.bad) > NAMED else ""
            lines.append(f"left out {plural(len(self.bad), 'bad record')}: {'; '.join(self.bad[:NAMED])}{more}")
        return lines

    def loss(self) -> str:
        """What was not written, as a clause; "" where all was."""
        return ", ".join(plural(count, what) for what, count in sorted(self.unwritten.items()))


_NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def noting(skip_bad: bool = False) -> Iterator[Notes]:
    """Count what is not understood or not written inside the block."""
    notes = Notes(skip_bad)
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def holds(value: Any) -> bool:
    """Whether a value holds text or a list, itself or inside."""
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    return isinstance(value, (str, list)) and bool(value)


def strange(fields: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The fields that hold text or lists and are not ``known``."""
    return [str(name) for name, value in fields.items() if name not in known and holds(value)]


def unread(fields: Mapping[str, Any], known: Collection[str], of: str) -> None:
    """Count the :func:`strange` fields of a record, message or part; ``of`` says which, in the singular."""
    notes = _NOTES.get()
    if notes is not None:
        notes.fields.update((name, of) for name in strange(fields, known))


def opened(calls: int) -> None:
    """Count calls of tools that nothing answers."""
    notes = _NOTES.get()
    if notes is not None:
        notes.open_calls += calls


def lost(what: str, count: int = 1) -> None:
    """Count what a writer has no place for; ``what`` in the singular."""
    notes = _NOTES.get()
    if notes is not None and count:
        notes.unwritten[what] += count


@contextmanager
def one_record() -> Iterator[None]:
    """What is counted of a record that turns out to be bad is not counted."""
    notes = _NOTES.get()
    before = None if notes is None or not notes.skip_bad else (notes.fields.copy(), notes.open_calls)
    try:
        yield
    except BaseException:
        if notes is not None and before is not None:
            notes.fields, notes.open_calls = before
        raise


def skipping() -> bool:
    """Whether bad records are to be left out and counted."""
    notes = _NOTES.get()
    return notes is not None and notes.skip_bad


def skipped(error: Exception) -> bool:
    """Count a bad record where these are to be left out, and say whether they are."""
    notes = _NOTES.get()
    if notes is None or not notes.skip_bad:
        return False
    notes.bad.append(str(error))
    return True
