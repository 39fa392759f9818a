"""What ``ramify why --tokens`` says: the forking tokens of a step, their odds, and how it was counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ramify.base.words import plural
from ramify.jobs.context.answer import AboutStep, told
from ramify.jobs.why.records import Chance
from ramify.render.numbers import percent
from ramify.render.result import Section, table

MOST_SHOWN = 12
"""Other tokens of which the table shows what was counted, where none of them is named."""


@dataclass(frozen=True, slots=True)
class TokenOdds:
    """Another token that was tried at a position of the reply."""

    offset: int
    """The position, in tokens of the step's node: where the reply's own token stands."""
    before: str
    """The end of the reply's text before it."""
    token: str
    """The reply's own token there, as text."""
    odds: float
    """Its probability under the model at temperature 1."""
    instead: str
    instead_id: int
    instead_odds: float
    kept: Chance
    """How often it came out as recorded with the reply's own token."""
    changed: Chance
    """How often with the other one."""
    confirmed: bool
    """Counted on samples that were drawn to confirm; else only screened."""
    named: bool


@dataclass(frozen=True, repr=False, kw_only=True)
class WhyTokens(AboutStep):
    """At which tokens of a step another one would have led elsewhere. ``verdict`` is ``tokens`` where some do, else ``none``."""

    PART: ClassVar[str] = "--tokens"

    tried: tuple[TokenOdds, ...]
    """Every other token that was tried, in the order of the reply."""
    tokens: int
    """Tokens of the reply."""
    known: int
    """Other tokens with enough probability, tried or not."""

    @property
    def forks(self) -> tuple[TokenOdds, ...]:
        """Those that lead elsewhere."""
        return tuple(entry for entry in self.tried if entry.named)

    def sections(self) -> Iterable[Section]:
        """The headline, the forking tokens with odds and counts, what was sampled, what to do next."""
        shown = self.forks or tuple(sorted(self.tried, key=lambda entry: -entry.instead_odds)[:MOST_SHOWN])
        head = ("token", "after", "it said", "odds", "instead", "odds", "as recorded with it", "with the other")
        rows = [
            (
                entry.offset,
                entry.before,
                repr(entry.token),
                percent(entry.odds, 0),
                repr(entry.instead),
                percent(entry.instead_odds, 0),
                told(entry.kept),
                told(entry.changed),
            )
            for entry in shown
        ]
        yield Section.of("", self.headline, table(head, rows) if rows else None, self._counted())
        yield self.to_do(f":{self.forks[0].offset}" if self.forks else "")

    def _counted(self) -> str:
        text = (
            f"{plural(self.samples, 'continuation')} ({self.screened} to screen {len(self.tried)} of "
            f"{plural(self.known, 'other token')} of a reply of {self.tokens}, {self.samples - self.screened} apart from these "
            f"to confirm), {self.target}. Odds are the model's at temperature 1. The chance of naming any token without an "
            f"effect is at most {self.level:g}."
        )
        return text + (f" {plural(self.failed, 'sample')} failed, not counted." if self.failed else "")
