"""The summary of a run: how often its attempts succeeded, what was found in it, where its budget went."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.base.words import plural
from ramify.jobs.results import AttemptEntry, Evaluation, Improved, SuccessGain, UpdateReport
from ramify.render.numbers import number, percent, percent_interval, points, points_interval
from ramify.render.result import Cell, Grid, Part, Result, Section, shortened, table
from ramify.render.sections import sections_of
from ramify.render.terminal import short
from ramify.rollout.commands import commands
from ramify.score.credit.protocol import meanings
from ramify.stats.intervals import Interval, wilson
from ramify.trace.db import Run, counts
from ramify.trace.failures import failures
from ramify.trace.node import Annotation, Finding, judge_version
from ramify.trace.outcome import NOBODY, Decider, settled, successes, undecided
from ramify.trace.outcomes import how_to_judge

LAST = 5
"""How many updates (or names of trees) are shown."""
MOST = 20
"""How many findings, and rows of what a method shows."""
WIDEST = 90
"""Characters of a cell of it."""
COLUMNS = 5
"""How many of the numbers that explain a step's credit."""


@dataclass(frozen=True)
class CountedAttempts:
    """Successes among the attempts, or the forks, that were scored."""

    successes: int
    n: int
    interval: Interval | None = None
    """None of forks and where a selector chose the attempts: they are no independent samples."""


@dataclass(frozen=True)
class GivenScores:
    """The scores that one version of a judge gave."""

    scorer: str
    judges: Mapping[str, str]
    """The judges that they depend on: slot -> hash."""
    n: int
    unscored: int
    """Of them without a value: the judge could not run, or could not decide."""
    counting: bool
    """Whether they count: not where another judge took over a slot."""

    @classmethod
    def each(cls, run: Run) -> tuple[GivenScores, ...]:
        """Of a run, by scorer and judge."""
        now = run.incumbents()
        return tuple(cls(scorer, judges, n, n - given, counts(judges, now)) for scorer, judges, n, given, _ in run.tallies())


@dataclass(frozen=True)
class FailedAttempts:
    """Attempts that an infrastructure failure ended."""

    n: int
    of: int
    reasons: Mapping[str, int]
    sentence: str


@dataclass(frozen=True)
class CreditedSteps:
    """What one credit rule gave to steps: the strongest with the numbers that explain them, and what these mean."""

    maker: str
    steps: int
    credited: int
    strongest: tuple[Mapping[str, Any], ...]
    """The step's node, and its numbers by their names."""
    numbers: Mapping[str, str]

    @property
    def grid(self) -> Grid:
        """The strongest steps with the first of their numbers."""
        known = [name for name in self.numbers if _is_number(self.strongest[0].get(name))][:COLUMNS]
        rows = [
            (str(row["node"])[:12], *(number(row[name]) if _is_number(row.get(name)) else None for name in known))
            for row in self.strongest
        ]
        return table(("step", *known), rows, f"credit by {self.maker}: {self.credited} of {self.steps} steps, the strongest")

    @property
    def explained(self) -> str:
        """What the shown numbers mean."""
        return "\n".join(f"  {name}: {self.numbers[name]}" for name in self.grid.head[1:])


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


@dataclass(frozen=True)
class SpentOn:
    """Tokens and seconds of one purpose."""

    tokens: float = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class RunSummary(Result):
    """Everything the summary of a run shows. An imported run has no evaluations, updates or gain.

    ``attempts`` is None in an improve run, which has evaluations instead, and where no attempt is scored. ``scorers`` are the
    candidates where several could decide. ``forks`` are those that were asked for (None without any): they are no attempts."""

    run: str
    ramify: str | None
    kind: str
    config: Any
    attempts: CountedAttempts | None
    forks: CountedAttempts | None
    scorers: tuple[str, ...]
    scores: tuple[GivenScores, ...]
    failed: FailedAttempts | None
    findings: tuple[Finding, ...]
    results: Mapping[str, tuple[Section, ...]]
    """What the run keeps of verbs, and the live view of the one that made it, by verb."""
    credit: tuple[CreditedSteps, ...]
    trees: tuple[str, ...]
    nodes: int
    done: bool
    gain: SuccessGain | None
    evals: Mapping[str, Evaluation]
    updates: tuple[UpdateReport, ...]
    spent: Mapping[str, SpentOn]
    """By purpose."""
    next: tuple[str, ...] = ()
    """Sentences with the commands that go on from here."""

    def sections(self) -> Iterable[Section]:
        """What a reader wants to know first."""
        size = f"{plural(len(self.trees), 'tree')}, {plural(self.nodes, 'node')}"
        yield Section.of("", f"{self.run}: {size}, made by ramify {self.ramify}", *self._attempts(), *self._found())
        for sections in self.results.values():
            yield from shortened(sections, MOST, WIDEST)
        yield Section.of("", *self._trained())
        for one in self.credit:
            yield Section.of("", one.grid, one.explained)
        spent = [(name, short(one.tokens), f"{one.seconds:.1f}") for name, one in self.spent.items()]
        yield Section.of("", table(("where the budget went", "tokens", "seconds"), spent))
        if self.trees and not self.evals:
            left = f", and {len(self.trees) - LAST} more" if len(self.trees) > LAST else ""
            yield Section.of("", f"trees: {', '.join(self.trees[:LAST])}{left}")
        yield Section.of("what to do next", "\n".join(self.next))

    def _attempts(self) -> Iterable[Part]:
        played = self.attempts
        if played is not None and played.interval is None:
            yield (
                f"{played.successes} of {played.n} attempts succeeded. A selector chose where they start, so this is not a "
                f"success rate: `ramify tree-rollouts report {shlex.quote(self.run)}` evaluates the trees."
            )
        elif played is not None:
            row = percent(played.successes / played.n), percent_interval(played.interval), played.successes, played.n
            yield table(("success", "95 % interval", "successes", "attempts"), [row])
        elif self.scorers:
            yield f"Several scorers judged the attempts ({', '.join(self.scorers)}): choose one with --scorer NAME."
        if (forked := self.forks) is not None:
            are = "is" if forked.n == 1 else "are"
            yield f"{plural(forked.n, 'fork')} {are} not counted with them; {forked.successes} succeeded."
        if self.failed is not None:
            yield f"{self.failed.sentence}. Failed attempts are not counted."
        given = []
        for judged in self.scores:
            version = judge_version(judged.scorer, judged.judges) or "not recorded"
            given.append((judged.scorer, version, judged.n, judged.unscored, "yes" if judged.counting else "no"))
        yield table(("scores by", "judge's version", "scores", "without a value", "count"), given)

    def _found(self) -> Iterable[Part]:
        """Findings of methods: maker, finding, node, reason, and what to do about it."""
        rows: list[tuple[Cell, ...]] = []
        for finding in self.findings[:MOST]:
            value = None if finding.value is None else f"{number(finding.value)} {finding.unit}"
            rows.append((finding.maker, finding.name, (finding.node or "the run")[:12], value, finding.why))
        left = f" (the first {MOST}; --json has all {len(self.findings)})" if len(self.findings) > MOST else ""
        yield table(("found by", "what", "where", "value", "why"), rows, f"findings{left}")
        yield "\n".join(
            f"  {action}" for action in dict.fromkeys(finding.action for finding in self.findings[:MOST] if finding.action)
        )

    def _trained(self) -> Iterable[Part]:
        if self.gain is not None:
            by, ends = points(self.gain.success), points_interval(self.gain.interval)
            yield f"Success changed by {by} points, 95 % interval {ends}."
        elif self.updates:
            yield f"Not finished: continue with `ramify resume {shlex.quote(self.run)}`."
        rows = [(name, percent(one.success), percent_interval(one.interval), one.n) for name, one in self.evals.items()]
        yield table(("evaluation", "success", "95 % interval", "episodes"), rows)
        last = self.updates[-LAST:]
        head = ("update", "success", "groups with mixed outcomes", "groups", "attempts", "tokens so far")
        updates = [(one.update, percent(one.success), percent(one.mixed), one.groups, one.leaves, one.tokens) for one in last]
        yield table(head, updates, f"last {len(last)} of {len(self.updates)} updates")


def summarise(run: Run, scorer: str | None = None) -> RunSummary:
    """The summary of a run. Raises UserError where there is no ``scorer`` of that name."""
    evals = run.memo("eval", Evaluation)
    arm = run.config.get("arm")
    updates = () if arm is None else tuple(update for update in run.memo("update", UpdateReport).values() if update.arm == arm)
    result = run.memo("result", Improved).get("improve")
    deciding = settled(run, scorer)
    attempts, forks = counted(run, deciding, scorer is None, not evals and not updates)
    failed = failures(run)
    reasons = len(failed.reasons), failed.attempts, failed.counted, failed.sentence()
    return RunSummary(
        run=str(run.folder),
        ramify=run.meta.get("ramify"),
        kind=run.kind,
        config=run.meta.get("config"),
        attempts=attempts,
        forks=forks,
        scorers=tuple(undecided(run)) if deciding is NOBODY else (),
        scores=GivenScores.each(run),
        failed=FailedAttempts(*reasons) if failed.reasons else None,
        findings=tuple(run.findings()),
        results=sections_of(run),
        credit=tuple(_credited(run)),
        trees=tuple(tree.name for tree in run.trees()),
        nodes=len(run),
        done=result is not None,
        gain=None if result is None else result.gain,
        evals=evals,
        updates=updates,
        spent=_spent(updates, evals),
        next=tuple(_next(run, attempts)),
    )


def counted(
    run: Run, deciding: Decider, journal: bool = True, trees: bool = True, forks: bool = True
) -> tuple[CountedAttempts | None, CountedAttempts | None]:
    """Attempts and forks of a run, and how many succeeded; None where none has an outcome. What the ``journal`` says of attempts
    counts before what ``deciding`` says of the ``trees``. Without ``forks`` these are not looked for."""
    outcomes = [entry.outcome for entry in run.memo("attempt", AttemptEntry).values()] if journal else []
    scored = [outcome for outcome in outcomes if outcome is not None]
    wanted = forks or (trees and not outcomes)
    known = [(fork, success) for fork, success in successes(run, deciding) if success is not None] if wanted else []
    if not outcomes and trees:
        scored = [success for fork, success in known if not fork]
    forked = [success for fork, success in known if fork]
    chosen = next(iter(run.journal("tree")), None)  # the trees of a selector: their attempts are no independent samples
    interval = wilson(sum(scored), len(scored)) if scored and chosen is None else None
    attempts = CountedAttempts(sum(scored), len(scored), interval) if scored else None
    return attempts, CountedAttempts(sum(forked), len(forked)) if forked else None


def _next(run: Run, attempts: CountedAttempts | None) -> Iterable[str]:
    """What goes on from a run: ``attempts`` are those that have an outcome."""
    able = commands(run)
    if attempts is None:
        yield f"Nobody said how the attempts ended: {how_to_judge(run)}."
    elif attempts.successes < attempts.n:
        yield f"Which step lost it: `{able.why()}`"
    replies = (node for info in run.trees()[:1] for node in run.nodes(info.name) if node.role == "assistant")
    if (reply := next(replies, None)) is not None:
        yield f"Go on from a step, such as the first of {reply.tree}: {able.go_on(reply.id, 'what else it may do there')}"
    yield f"Every step and its id: `{able.show}`"


def _credited(run: Run) -> Iterable[CreditedSteps]:
    by_maker: dict[str, list[Annotation]] = {}
    for annotation in run.annotations(name="why"):
        if isinstance(annotation.value, Mapping) and isinstance(annotation.value.get("A"), int | float):
            by_maker.setdefault(annotation.maker, []).append(annotation)
    meaning = meanings(run) if by_maker else {}
    for maker, notes in by_maker.items():
        strongest = heapq.nlargest(LAST, notes, lambda annotation: abs(annotation.value["A"]))
        told = tuple({"node": annotation.node} | dict(annotation.value) for annotation in strongest)
        credited = sum(annotation.value["A"] != 0 for annotation in notes)
        yield CreditedSteps(maker, len(notes), credited, told, meaning.get(maker, {}))


def _spent(updates: Sequence[UpdateReport], evals: Mapping[str, Evaluation]) -> dict[str, SpentOn]:
    """Tokens and seconds by purpose. An update's tokens are the total so far; its seconds are its own, by phase."""
    seconds: dict[str, float] = {}
    for update in updates:
        for part, seconds_of in update.seconds.items():
            seconds[part] = seconds.get(part, 0.0) + seconds_of
    spent = {part: SpentOn(updates[-1].tokens if part == "sample" else 0, seconds_of) for part, seconds_of in seconds.items()}
    return spent | {f"evaluation {key}": SpentOn(evaluation.tokens, evaluation.seconds) for key, evaluation in evals.items()}
