"""Competing hypotheses: evidence in rows, hypotheses in columns, inconsistencies counted (Heuer,
Psychology of Intelligence Analysis)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ramify.base.errors import UserError, nearest
from ramify.methods.forensics.experiment import Move, TestResult
from ramify.render.numbers import number
from ramify.render.result import Result, Section, table

Cell = Literal["consistent", "inconsistent", "neutral", "weak"]
_TURNED: dict[Move, Move] = {"rises": "falls", "falls": "rises", "same": "same"}
SIGNS: dict[str, Cell] = {"+": "consistent", "-": "inconsistent", "0": "neutral", "?": "weak"}
"""How a cell is written in short."""
NONE = "none of these"
"""The hypothesis that always competes: none of those named is at work. What a hypothesis foretold and what came speaks against
it, a believed silence for it."""
NOTHING = "nothing stands out"
"""The verdict where no hypothesis is named."""
UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A motive: what it says, and in which direction it predicts the behaviour to move in each test,
    by test name or role of a factor."""

    name: str
    statement: str = ""
    predicts: Mapping[str, Move] = field(default_factory=dict)
    overturned_by: str = ""
    """What would be seen if it were wrong."""

    def prediction(self, result: TestResult) -> Move | None:
        """What it predicts for ``result``: by the test's name, else by the role in its detail; None where it says nothing.

        A prediction by role is for a factor that is turned up; where the detail says ``lowered`` it is the other way round.
        """
        if (named := self.predicts.get(result.name)) is not None:
            return named
        found = self.predicts.get(result.detail.role)
        return _TURNED[found] if found is not None and result.detail.lowered else found


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
    foretold: tuple[str, ...] = ()
    """The hypotheses that say that the behaviour moves here, and that this row can speak against;
    of a row written by hand those it names."""


class ACH:
    """The table. Rows that share a confound are not independent: together they count one inconsistency against a hypothesis.

    A hypothesis is named only where a test that it says must move did move. :data:`NONE` competes in every table.
    """

    def __init__(self, hypotheses: Sequence[str | Hypothesis]) -> None:
        """Raises UserError on fewer than two hypotheses, on one that occurs twice, and on one by the name of :data:`NONE`."""
        self.hypotheses = {h if isinstance(h, str) else h.name: Hypothesis(h) if isinstance(h, str) else h for h in hypotheses}
        if len(self.hypotheses) < 2 or len(self.hypotheses) < len(hypotheses):
            raise UserError("a table of evidence needs at least two hypotheses, each once")
        if NONE in self.hypotheses:
            raise UserError(f"'{NONE}' competes in every table: name no hypothesis so")
        self.columns = (*self.hypotheses, NONE)
        self.lines: list[Line] = []

    def add(self, evidence: TestResult | str, confounds: Sequence[str] = (), note: str = "", **cells: str) -> Line:
        """Add a row. ResultCache are given as ``name="+"`` (``-``, ``0``, ``?`` or the words); those not given follow from the
        predictions where ``evidence`` is a test, else they are neutral, that of :data:`NONE` too.
        Raises UserError on an unknown hypothesis or cell."""
        for name, cell in cells.items():
            if name not in self.columns:
                raise UserError(f"'{name}' is no hypothesis of this table ({nearest(name, self.columns)})")
            if cell not in (*SIGNS, *SIGNS.values()):
                raise UserError(f"the cell of '{name}' is '{cell}'; it must be one of {', '.join((*SIGNS, *SIGNS.values()))}")
        given = {name: cast(Cell, SIGNS.get(cell, cell)) for name, cell in cells.items()}
        if isinstance(evidence, str):
            found: dict[str, Cell] = dict.fromkeys(self.columns, SIGNS["0"]) | given
            foretold = tuple(name for name, cell in given.items() if cell != "neutral")
            line = Line(evidence, evidence, found, tuple(confounds), note, foretold=foretold)
        else:
            found, foretold = self._cells(evidence)
            note = note or ("uninterpretable: no positive control" if evidence.seen == "uninterpretable" else "")
            line = Line(
                evidence.name, evidence.statement, found | given, (*evidence.confounds, *confounds), note, foretold=foretold
            )
        self.lines.append(line)
        return line

    def _cells(self, result: TestResult) -> tuple[dict[str, Cell], tuple[str, ...]]:
        """What a test says of every column, and the hypotheses it tests: they say that it moves, and its silence could be held
        against them."""
        cells = {name: cell_of(result, h) for name, h in self.hypotheses.items()}
        moves = {name: h.prediction(result) for name, h in self.hypotheses.items()}
        none: Cell = "inconsistent" if result.fired and result.seen in moves.values() else "consistent"
        if result.seen == "uninterpretable" or not any(moves.values()):
            none = "neutral"
        foretold = tuple(name for name, move in moves.items() if move in ("rises", "falls") and cells[name] != "neutral")
        return cells | {NONE: none}, foretold

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
        return {h: sum(any(self.lines[i].cells[h] == "inconsistent" for i in rows) for rows in groups) for h in self.columns}

    def untested(self) -> list[str]:
        """The hypotheses of which no row tests a move that they say must come: they are neither cleared nor named."""
        return [h for h in self.hypotheses if not any(h in line.foretold for line in self.lines)]

    def moved(self) -> list[str]:
        """The hypotheses of which a move that they say must come did come."""
        came = [line for line in self.lines if line.cells[NONE] == "inconsistent"]
        return [h for h in self.hypotheses if any(h in line.foretold and line.cells[h] == "consistent" for line in came)]

    def fewest(self) -> list[str]:
        """Of :data:`NONE` and the hypotheses of which a move came, those with the fewest inconsistencies: one name, or several
        where the evidence does not decide between them."""
        counts, named = self.inconsistencies(), [*self.moved(), NONE]
        return [h for h in named if counts[h] == min(counts[one] for one in named)]

    def verdict(self) -> str:
        """The hypothesis that is named; :data:`NOTHING` where only :data:`NONE` is left; :data:`UNDECIDED` between several, or
        where one that was not tested has no more against it than the one that would be named."""
        counts, named = self.inconsistencies(), self.fewest()
        if named == [NONE]:
            return NOTHING
        open_ = [h for h in self.untested() if counts[h] <= counts[named[0]]]
        return UNDECIDED if len(named) > 1 or open_ else named[0]

    def likelihoods(self) -> dict[str, float]:
        """Product of the rows' likelihoods, the first row of each group of shared confounds only; 1 where no row has any."""
        out = dict.fromkeys(self.hypotheses, 1.0)
        for rows in self.groups():
            line = next((self.lines[i] for i in rows if self.lines[i].likelihood), None)
            for h in out:
                out[h] *= 1.0 if line is None else line.likelihood.get(h, 1.0)
        return out

    def report(self, benign: Mapping[str, str] | None = None, checklist: Iterable[str] = ()) -> EvidenceTable:
        """The table with its caveats: a verdict is never shown without its rows. ``benign`` says what was done about explanations
        of ``checklist``."""
        named, visited = self.fewest(), benign or {}
        return EvidenceTable(
            rows=tuple(self.lines),
            groups=tuple(tuple(self.lines[i].name for i in rows) for rows in self.groups()),
            inconsistencies=self.inconsistencies(),
            fewest=tuple(named),
            verdict=self.verdict(),
            decided=self.verdict() in self.hypotheses,
            moved=tuple(self.moved()),
            untested=tuple(self.untested()),
            uninterpretable=tuple(line.name for line in self.lines if line.note.startswith("uninterpretable")),
            benign={name: visited.get(name, "not visited") for name in checklist},
            overturned_by={h: what for h in named if h != NONE and (what := self.hypotheses[h].overturned_by)},
            likelihoods=self.likelihoods() if any(line.likelihood for line in self.lines) else None,
        )


@dataclass(frozen=True)
class EvidenceTable(Result):
    """The table of competing hypotheses."""

    PART = "hypotheses"
    rows: tuple[Line, ...]
    groups: tuple[tuple[str, ...], ...]
    """Rows that hang together through shared confounds."""
    inconsistencies: Mapping[str, int]
    fewest: tuple[str, ...]
    verdict: str
    decided: bool
    moved: tuple[str, ...]
    untested: tuple[str, ...]
    uninterpretable: tuple[str, ...]
    """Tests that were silent and have no positive control."""
    benign: Mapping[str, str]
    overturned_by: Mapping[str, str]
    likelihoods: Mapping[str, float] | None

    @property
    def sentence(self) -> str:
        """What the table comes to, in a sentence or two."""
        named = ", ".join(self.fewest)
        if not self.rows:
            return "There is no evidence yet."
        if self.verdict == NOTHING:
            why = "No move came that a hypothesis foretells."
            if self.moved:
                why = f"More speaks against {', '.join(self.moved)} than against '{NONE}'."
            if not any(row.cells[NONE] == "consistent" for row in self.rows):
                why += " Nor is any hypothesis cleared: no test was silent that is known to speak up."
            return f"Nothing stands out. {why}"
        if self.verdict != UNDECIDED:
            return f"Fewest inconsistencies: {named}. The rows of the table are what this rests on."
        if len(self.fewest) > 1:
            return f"Several have the fewest inconsistencies: {named}. The evidence does not decide between them."
        return (
            f"Fewest inconsistencies of those tested: {named}. An untested hypothesis has no more against it, so nothing is "
            "decided."
        )

    def sections(self) -> Iterable[Section]:
        """The table, what it comes to, the benign explanations."""
        signs = {cell: sign for sign, cell in SIGNS.items()}
        counts = self.inconsistencies
        rows: list[tuple[str | int, ...]] = [
            (row.name, *(signs[row.cells[name]] for name in counts), ", ".join(row.confounds), row.note) for row in self.rows
        ]
        rows.append(("inconsistencies", *counts.values(), "", "rows with a shared confound count once"))
        overturned = "; ".join(f"{name} if {what}" for name, what in self.overturned_by.items())
        likely = ", ".join(f"{name} {number(value)}" for name, value in (self.likelihoods or {}).items())
        untested, silent = ", ".join(self.untested if self.rows else ()), "; ".join(self.uninterpretable)
        yield Section.of(
            "Competing hypotheses",
            table(("evidence", *counts, "confounds", "note"), rows),
            self.sentence,
            untested and f"No row tests a move that they foretell, so they are neither cleared nor named: {untested}.",
            silent and f"Silent without a positive control, so evidence for nothing: {silent}.",
            likely and f"Likelihoods, one row of each group of shared confounds: {likely}.",
            overturned and f"Would be overturned: {overturned}.",
        )
        yield Section.of("Benign explanations", table(("explanation", "state"), self.benign.items()))


def cell_of(result: TestResult, hypothesis: Hypothesis) -> Cell:
    """What a test says of a hypothesis: nothing without a prediction or where its silence cannot be believed, and silence
    nothing against a move the other way than that of its positive control."""
    predicted = hypothesis.prediction(result)
    if predicted is None or result.seen == "uninterpretable":
        return "neutral"
    if result.seen == "same" and predicted != "same" and result.control and result.control.move not in (None, predicted):
        return "neutral"
    return "consistent" if predicted == result.seen else "inconsistent"
