"""What ``ramify why --context`` says: the parts of a context that caused a step, and how it was counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ramify.base.errors import EXIT_BUDGET, EXIT_DONE
from ramify.base.words import plural
from ramify.jobs.why.records import Chance
from ramify.render.numbers import percent_interval
from ramify.render.result import Result, Section, table
from ramify.rollout.commands import NOBODY, Commands

Together = Literal["one", "together", "each"]


@dataclass(frozen=True, slots=True)
class CausingPart:
    """A part that was confirmed, and how often the decision was made with it and without."""

    where: str
    text: str
    role: str
    kept: Chance
    """With it; of parts that are each enough: without the others of them."""
    deleted: Chance
    """Without it."""
    filled: Chance
    """With filler in its place."""


@dataclass(frozen=True, slots=True)
class ContextCause:
    """One cause: a part alone (``one``), parts that are needed ``together``, or of which ``each`` is enough."""

    kind: Together
    parts: tuple[CausingPart, ...]
    level: float
    """At which it was tested: a share of the result's level."""


@dataclass(frozen=True, repr=False, kw_only=True)
class AboutStep(Result):
    """What an answer about one step says besides what it names."""

    tree: str
    node: str
    """The step's reply."""
    action: str
    target: str
    """What counts as taking the step again."""
    measured: Literal["decision", "outcome"]
    verdict: Literal["parts", "tokens", "none"]
    """What stands out, ``none`` where nothing does."""
    headline: str
    level: float
    samples: int
    """Samples in all, now or earlier."""
    screened: int
    """Of these to screen; the others confirmed."""
    failed: int = 0
    spent: bool = False
    run: str = ""
    commands: Commands = NOBODY
    """Those of the run, with who played."""

    @property
    def exit_code(self) -> int:
        """That of a spent budget where nothing stands out for want of it."""
        return EXIT_BUDGET if self.spent and self.verdict == "none" else EXIT_DONE

    def to_do(self, at: str = "") -> Section:
        """What to do next: look at the step, and go on from there, of a position in it (``:OFFSET``) from that."""
        lines = [f"Look at it: `{self.commands.show}`"]
        if self.commands.plays:
            lines.append(f"Go on from there: `{self.commands.fork(self.node, f'{at} --n 32')}`")
        return Section.of("what to do next", "\n".join(lines))


@dataclass(frozen=True, repr=False, kw_only=True)
class WhyContext(AboutStep):
    """Which parts of what the agent was shown caused a step. ``verdict`` is ``parts`` where some stand out, else ``none``."""

    PART: ClassVar[str] = "--context"

    whole: Chance
    """In the context as it was."""
    bare: Chance
    """Without any part, where that was sampled."""
    causes: tuple[ContextCause, ...]
    parts: int
    """Leaves that the context was taken apart into."""
    tried: int
    """Claims whose confirmation began."""

    def sections(self) -> Iterable[Section]:
        """The headline, the causes with their counts, what was sampled, what to do next."""
        head = ("cause", "part", "text", "with it", "deleted", "with filler")
        rows = [
            (number if at == 0 else "", part.where, part.text.strip(), told(part.kept), told(part.deleted), told(part.filled))
            for number, cause in enumerate(self.causes, 1)
            for at, part in enumerate(cause.parts)
        ]
        yield Section.of("", self.headline, table(head, rows) if rows else None, self._counted())
        yield self.to_do()

    def _counted(self) -> str:
        text = (
            f"{plural(self.samples, 'sample')} of the {self.measured} ({self.screened} to screen {plural(self.parts, 'part')}, "
            f"{self.samples - self.screened} apart from these to confirm), {self.target}: {told(self.whole)} as it was shown"
        )
        text += f", {told(self.bare)} without any part" if self.bare.n else ""
        text += f". The chance of naming any part without an effect is at most {self.level:g}."
        text += f" {plural(self.failed, 'sample')} failed, not counted." if self.failed else ""
        return text


def told(chance: Chance) -> str:
    """A chance with its interval; a dash where nothing was counted."""
    return f"{chance.k} of {chance.n} {percent_interval(chance.interval)}" if chance.n else "-"
