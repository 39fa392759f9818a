"""Competing hypotheses: evidence in rows, hypotheses in columns, inconsistencies counted (Heuer, Psychology of Intelligence Analysis)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ramify.base.errors import UserError, nearest
from ramify.stats.experiment import Move, TestResult

Cell = Literal["consistent", "inconsistent", "neutral", "weak"]
_TURNED: dict[Move, Move] = {"rises": "falls", "falls": "rises", "same": "same"}
SIGNS: dict[str, Cell] = {"+": "consistent", "-": "inconsistent", "0": "neutral", "?": "weak"}
"""How a cell is written in short."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A motive: what it says, and in which direction it predicts the behaviour to move in each test, by test name or role of a lever."""

    name: str
    statement: str = ""
    predicts: Mapping[str, Move] = field(default_factory=dict)
    overturned_by: str = ""
    """What would be seen if it were wrong."""

    def prediction(self, result: TestResult) -> Move | None:
        """What it predicts for ``result``: by the test's name, else by the role in its detail; None where it says nothing.

        A prediction by role is for a lever that is turned up; where the detail says ``lowered`` it is the other way round.
        """
        if (named := self.predicts.get(result.name)) is not None:
            return named
        found = self.predicts.get(str(result.detail.get("role", "")))
        return _TURNED[found] if found is not None and result.detail.get("lowered") else found


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a piece of evidence, what it says of each hypothesis, and what else might explain it."""

    name: str
    statement: str
    cells: Mapping[str, Cell]
    confounds: tuple[str, ...] = ()
    note: str = ""
    likelihood: Mapping[str, float] = field(default_factory=dict)
    """Hypothesis -> probability of what was seen, where positive controls give it."""


class ACH:
    """The table. Rows that share a confound are not independent: together they count one inconsistency against a hypothesis."""

    def __init__(self, hypotheses: Sequence[str | Hypothesis]) -> None:
        """Raises UserError on fewer than two hypotheses, or on one that occurs twice: evidence decides between, never about one."""
        self.hypotheses = {h if isinstance(h, str) else h.name: Hypothesis(h) if isinstance(h, str) else h for h in hypotheses}
        if len(self.hypotheses) < 2 or len(self.hypotheses) < len(hypotheses):
            raise UserError("a table of evidence needs at least two hypotheses, each once")
        self.lines: list[Line] = []

    def add(self, evidence: TestResult | str, confounds: Sequence[str] = (), note: str = "", **cells: str) -> Line:
        """Add a row. Cells are given as ``name="+"`` (``-``, ``0``, ``?`` or the words); those not given follow from the predictions
        where ``evidence`` is a test, else they are neutral. Raises UserError on an unknown hypothesis or cell."""
        for name, cell in cells.items():
            if name not in self.hypotheses:
                raise UserError(f"'{name}' is no hypothesis of this table ({nearest(name, self.hypotheses)})")
            if cell not in (*SIGNS, *SIGNS.values()):
                raise UserError(f"the cell of '{name}' is '{cell}'; it must be one of {', '.join((*SIGNS, *SIGNS.values()))}")
        given = {name: SIGNS.get(cell, cell) for name, cell in cells.items()}
        if isinstance(evidence, str):
            line = Line(evidence, evidence, {h: given.get(h, "neutral") for h in self.hypotheses}, tuple(confounds), note)  # type: ignore[misc]
        else:
            found = {name: cell_of(evidence, h) for name, h in self.hypotheses.items()} | given
            note = note or ("uninterpretable: no positive control" if evidence.seen == "uninterpretable" else "")
            line = Line(evidence.name, evidence.statement, found, (*evidence.confounds, *confounds), note)  # type: ignore[arg-type]
        self.lines.append(line)
        return line

    def groups(self) -> list[list[int]]:
        """Rows that hang together through shared confounds, as lists of row numbers."""
        groups: list[tuple[list[int], set[str]]] = []
        for i, line in enumerate(self.lines):
            joined = [g for g in groups if g[1] & set(line.confounds)]
            rows = sorted([row for g in joined for row in g[0]] + [i])
            groups = [g for g in groups if not any(g is other for other in joined)]
            groups.append((rows, set(line.confounds).union(*(g[1] for g in joined))))
        return sorted(rows for rows, _ in groups)

    def inconsistencies(self) -> dict[str, int]:
        """Independent rows against each hypothesis; confirmations count nothing."""
        groups = self.groups()
        return {h: sum(any(self.lines[i].cells[h] == "inconsistent" for i in rows) for rows in groups) for h in self.hypotheses}

    def ranking(self) -> list[str]:
        """Hypotheses, the fewest inconsistencies first; ties in the order given."""
        counts = self.inconsistencies()
        return sorted(self.hypotheses, key=lambda h: counts[h])

    def untested(self) -> list[str]:
        """The hypotheses that say nothing about any row: nothing could have spoken against them."""
        return [h for h in self.hypotheses if all(line.cells[h] == "neutral" for line in self.lines)]

    def fewest(self) -> list[str]:
        """The tested hypotheses with the fewest inconsistencies: one name where the evidence decides, several where it does not, all
        where none is tested."""
        counts, untested = self.inconsistencies(), self.untested()
        tested = [h for h in self.hypotheses if h not in untested] or list(self.hypotheses)
        return [h for h in tested if counts[h] == min(counts[t] for t in tested)]

    def likelihoods(self) -> dict[str, float]:
        """Product of the rows' likelihoods, the first row of each group of shared confounds only; 1 where no row has any."""
        out = dict.fromkeys(self.hypotheses, 1.0)
        for rows in self.groups():
            line = next((self.lines[i] for i in rows if self.lines[i].likelihood), None)
            for h in out:
                out[h] *= 1.0 if line is None else line.likelihood.get(h, 1.0)
        return out

    def report(self, benign: Mapping[str, str] | None = None, checklist: Iterable[str] = ()) -> dict[str, Any]:
        """The table and what it does not say: never a verdict without its rows. ``benign`` says what was done about explanations of
        ``checklist``."""
        counts, visited = self.inconsistencies(), benign or {}
        named = self.fewest()
        silent = [line.name for line in self.lines if line.note.startswith("uninterpretable")]
        bearing = len(self.hypotheses) - len(self.untested()) > 1 and any(
            cell == "inconsistent" for line in self.lines for cell in line.cells.values()
        )
        return {
            "rows": [
                {"name": x.name, "statement": x.statement, "cells": dict(x.cells), "confounds": list(x.confounds), "note": x.note}
                for x in self.lines
            ],
            "groups": [[self.lines[i].name for i in rows] for rows in self.groups()],
            "inconsistencies": counts,
            "fewest": named if bearing else [],
            "decided": bearing and len(named) == 1,
            "untested": self.untested() if self.lines else [],
            "uninterpretable": silent,
            "benign": {name: visited.get(name, "not visited") for name in checklist},
            "overturned_by": {h: self.hypotheses[h].overturned_by for h in named if self.hypotheses[h].overturned_by},
            "likelihoods": self.likelihoods() if any(line.likelihood for line in self.lines) else None,
        }


def cell_of(result: TestResult, hypothesis: Hypothesis) -> Cell:
    """What a test says of a hypothesis: nothing without a prediction or where its silence cannot be believed, and silence
    nothing against a move the other way than that of its positive control."""
    predicted = hypothesis.prediction(result)
    if predicted is None or result.seen == "uninterpretable":
        return "neutral"
    if result.seen == "same" and predicted != "same" and result.control and result.control.move not in (None, predicted):
        return "neutral"
    return "consistent" if predicted == result.seen else "inconsistent"
