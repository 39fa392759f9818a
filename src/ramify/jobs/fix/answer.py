"""What ``ramify fix`` says: how the candidates fared at the step and in whole attempts, and the edit that is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ramify.base.words import plural
from ramify.render.numbers import p_value, points, points_interval
from ramify.render.result import Result, Section, Verbatim, table
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow


@dataclass(frozen=True, slots=True)
class ConfirmedTask:
    """Whole attempts at one task."""

    task: str
    unedited: Counts
    edited: Counts
    p_corrected: float
    """Fisher, over the tasks (Holm)."""

    @property
    def verdict(self) -> str:
        """better, worse, or the same: what these attempts show, at 5 % over all tasks."""
        if self.p_corrected > 0.05:
            return "same"
        return "better" if self.edited.rate > self.unedited.rate else "worse"


@dataclass(frozen=True, slots=True)
class ConfirmedFix:
    """What whole attempts said of one candidate."""

    name: str
    accepted: bool
    difference: float
    """Mean share of attempts that do what is wanted with it minus without it, each task with equal weight."""
    interval: tuple[float, float] | None
    """Over tasks; None of one task."""
    p: float
    """Exact within tasks, at the last look."""
    level: float
    """What ``p`` must not exceed."""
    tasks: tuple[ConfirmedTask, ...]


@dataclass(frozen=True)
class Fixes(Result):
    """Which edits made the agent better."""

    run: str
    node: str
    """The step at which they were screened; "" where none was."""
    task: str
    target: str
    """What counts: ``success``, or what a reply does (``calls:TOOL``, ``says:REGEX``, a judge). Declared before any sample."""
    screened: tuple[EvidenceRow, ...]
    unscreened: tuple[str, ...]
    """Candidates that were played by whole attempts alone."""
    confirmed: tuple[ConfirmedFix, ...]
    edits: Mapping[str, Mapping[str, Any]]
    diffs: Mapping[str, str]
    """What each changes, as a unified diff: of the file, else of the prompt of the step."""
    attempts: int
    failed: int
    """Attempts that an infrastructure failure ended, which count as neither."""
    other: bool = True
    """Whether the whole attempts were at other tasks than the step's, which a run with one task does not hold."""
    proposed: int = 0
    """Candidates that were proposed, and how many of them could not be read."""
    unread: int = 0
    call: int = 1
    """How many calls about this run declared candidates, this one among them: each has a level of its own."""
    wrote: str = ""
    """The file that holds the accepted edit."""

    @property
    def part(self) -> str:
        """The run keeps the result of every call."""
        return "" if self.call == 1 else str(self.call)

    @property
    def accepted(self) -> str | None:
        """The candidate that helped most of those accepted."""
        able = [fix for fix in self.confirmed if fix.accepted]
        return max(able, key=lambda fix: fix.difference).name if able else None

    def sections(self) -> Iterable[Section]:
        """The answer, the screening, what whole attempts said at each task, and the accepted edit."""
        best = next((fix for fix in self.confirmed if fix.name == self.accepted), None)
        tasks, at = ("other task", "other tasks") if self.other else ("task", "the same task" if self.node else "the run's tasks")
        over = plural(0 if not self.confirmed else len(self.confirmed[0].tasks), tasks)
        if best is not None:
            said = f"{best.name} helps: {points(best.difference)} points over {over}{_ends(best)}, p = {p_value(best.p)}."
        elif self.confirmed:
            said = f"No edit is accepted: none was shown to help over {over}."
        elif any(row.n for row in self.screened):
            said = "No edit is accepted: none did enough better at the step than leaving it as it is."
        else:
            said = "No edit is accepted: no attempt at the step has an outcome."
        told = f"{plural(self.attempts, 'attempt')} played" + (
            f", {self.failed} failed and count as neither" if self.failed else ""
        )
        screened = f"Screened at step {self.node[:12]} of {self.task}" if self.screened else "Not screened at a step"
        proposed = f" {plural(self.proposed, 'proposal')}, {self.unread} could not be read." if self.proposed else ""
        counts = "" if self.target == "success" else f" What counts: {self.target}."
        yield Section.of("", said, f"{screened}; {told}.{counts}{proposed}")
        does = "succeeded" if self.target == "success" else "did it"
        if self.screened:
            base = self.screened[0].share - self.screened[0].difference
            rows = [
                (row.intervention, f"{row.hits} of {row.n}", points(row.difference), points_interval(row.difference_interval))
                for row in self.screened
            ]
            title = f"at the step, where {base:.0%} of the unedited {does}"
            yield Section.of(title, table(("edit", does, "points", "95 % interval"), rows))
        for fix in self.confirmed:
            lines = [
                (each.task, f"{each.unedited.k} of {each.unedited.n}", f"{each.edited.k} of {each.edited.n}", each.verdict)
                for each in fix.tasks
            ]
            verdict = "accepted" if fix.accepted else "not accepted"
            wanted = f"p = {p_value(fix.p)}, wanted at most {p_value(fix.level)}"
            says = f"{points(fix.difference)} points{_ends(fix)}, {wanted}: {verdict}."
            head = ("task", "unedited", "edited", "")
            yield Section.of(f"{fix.name}: whole attempts at {at}", table(head, lines), says)
        if self.accepted is not None:
            kept = f"Written to {self.wrote}." if self.wrote else "Nothing was written: --write FILE keeps the edit."
            if self.wrote and "file" in self.edits[self.accepted]:
                kept += " `git apply` in the repository takes it."
            yield Section.of("the edit", Verbatim(self.diffs[self.accepted], "diff"), kept)


def _ends(fix: ConfirmedFix) -> str:
    return f", 95 % interval over tasks {points_interval(fix.interval)}" if fix.interval else ""
