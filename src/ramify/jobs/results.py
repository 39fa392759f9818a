"""What jobs find and keep: the records of a run's journal, and the results of ``improve`` and ``rollout``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from ramify.base.errors import EXIT_BUDGET, EXIT_FAILED
from ramify.base.words import plural
from ramify.methods.tree_rollouts.run import TreeReport
from ramify.render.numbers import number, percent, percent_interval, points, points_interval
from ramify.render.result import Cell, Grid, Planned, Result, Section, table
from ramify.render.terminal import short
from ramify.stats.drops import SuccessDifference, SuccessShare
from ramify.stats.intervals import Interval, wilson
from ramify.trace.graph import short as clipped
from ramify.train.settings import Fidelity as Fidelity

REPORT = "report.html"
"""The report that ``ramify improve`` writes into the run."""


@dataclass(frozen=True, slots=True)
class AttemptEntry:
    """One attempt, as the journal keeps it."""

    task: str
    outcome: bool | None
    reward: float
    truncated: bool
    failure: str | None
    turns: int
    tokens: int
    leaf: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """One call's share of the time that a run took."""

    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """Success on the held-out tasks; an interval of 95 % (Wilson)."""

    success: float
    interval: Interval
    n: int
    """Episodes that could be scored."""
    failed: int = 0
    tokens: int = 0
    turns: float = 0.0
    """Mean of an episode."""
    entropy: float | None = None
    """Mean of the replies' tokens, nats."""
    seconds: float = 0.0
    cut: float = 0.0
    """Share of the replies that were as long as ``max_reply`` allows and had not ended."""


@dataclass(frozen=True)
class EvaluationEntry(Evaluation):
    """The same with how each episode ended, None where it could not be scored, as the journal keeps it."""

    outcomes: tuple[int | None, ...] = ()

    @property
    def told(self) -> Evaluation:
        """Without the single outcomes: those are in the run."""
        return Evaluation(**{member.name: getattr(self, member.name) for member in fields(Evaluation)})


@dataclass(frozen=True)
class EvaluatedArm:
    """The evaluations of an arm that was run for comparison."""

    before: EvaluationEntry
    after: EvaluationEntry


@dataclass(frozen=True)
class SuccessGain(SuccessDifference):
    """Success after minus success before, paired by episode."""

    n: int
    """Episodes that both evaluations scored."""


@dataclass(frozen=True)
class Validation:
    """Success of a checkpoint on tasks that are neither trained on nor held out."""

    arm: str
    updates: int
    """After how many updates."""
    success: float
    n: int
    tokens: int
    seconds: float
    fidelity: Fidelity
    checkpoint: str
    """The blob of its weights; "" where a better one made it needless."""


@dataclass(frozen=True)
class CriticReport:
    """How well the critic ranked the states of an update before it learned from them, and what it has seen."""

    spoke: bool
    auroc: float | None
    won: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class GrownReport:
    """Shares over the groups and attempts of one update."""

    success: float
    mixed: float
    """Groups with mixed outcomes."""
    l1: float
    groups: int
    solved: int = 0
    split: int = 0
    """Groups at whose tasks attempts were split."""
    leaves: int
    """Attempts that could be scored."""
    attempts: int = 0
    forks: int = 0
    independent: tuple[int, int]
    """Successes and number of the attempts from start to end at tasks that were not split."""
    abandoned: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UpdateReport(GrownReport):
    """One update of ``improve``: what it sampled, and what it learned."""

    update: int
    arm: str
    tokens: int
    """Generated for training until then."""
    train: Mapping[str, float | None]
    """Losses, by name."""
    seconds: Mapping[str, float]
    """By phase: sample, credit, train."""
    checkpoint: str = ""
    """The blob that continues it."""
    warnings: tuple[str, ...] = ()
    cost: float = 0.0
    """Tokens of one attempt."""
    critic: CriticReport | None = None
    fidelity: Fidelity | None = None
    """Of a pretrained model after the update."""
    taken_back: bool = False
    """The update broke the bound on what may be lost: the agent is the one before it, and training ended."""


@dataclass(frozen=True)
class ChangedState:
    """One state in which the agent now does something else: see :class:`ramify.jobs.changes.BehaviourChange`."""

    text: str
    """In one sentence."""
    tree: str
    task: str
    state: str
    at: str
    action: str
    before: float
    after: float
    p: float | None
    success_before: SuccessShare | None
    success_after: SuccessShare | None
    difference: SuccessDifference | None
    matters: bool


@dataclass(frozen=True)
class Changes:
    """What training changed."""

    why: str
    """In one sentence."""
    states: tuple[ChangedState, ...]


class CurvePoint(NamedTuple):
    """Success at some point of a training."""

    tokens: float
    """Generated for training until then."""
    k: int
    """Successes."""
    n: int

    @property
    def rate(self) -> float:
        """Their share."""
        return self.k / self.n

    @property
    def interval(self) -> Interval:
        """95 % (Wilson)."""
        return wilson(self.k, self.n)


@dataclass(frozen=True)
class ComparedArm:
    """Success of one arm after training, its gain, and its curve."""

    success: float
    interval: Interval
    gain: SuccessGain
    curve: tuple[CurvePoint, ...]


SAME = 1.03
"""Perplexity up to this multiple of the start's is called "nothing lost"."""


@dataclass(frozen=True)
class WhatWasLost:
    """What training cost a pretrained model, and which of its checkpoints was kept."""

    before: Fidelity
    after: Fidelity
    """Of the checkpoint that was kept."""
    bound: float
    """Largest allowed multiple of the start's perplexity; 0 for none."""
    kept: int
    """After how many updates the kept checkpoint was."""
    updates: int
    """That were planned."""
    taken_back: int | None
    """Number of the update, from 1, that broke the bound and was taken back; None where none was."""
    avoided: Fidelity | None
    """What it would have come to."""
    left: int
    """Tokens of the budget that were not spent since training ended there."""
    validations: tuple[Validation, ...]
    texts: int
    tokens: int
    """Tokens of the texts that are predicted."""

    @property
    def ratio(self) -> float:
        """Perplexity as a multiple of the start's."""
        return self.after.perplexity / self.before.perplexity

    @property
    def sentence(self) -> str:
        """In one sentence."""
        verdict = "nothing lost" if self.ratio <= SAME else "little lost" if self.ratio <= (self.bound or 1.1) else "much lost"
        change = f"perplexity {number(self.before.perplexity)} -> {number(self.after.perplexity)}, KL {self.after.kl:.3g}"
        if not self.kept:
            change += "; the start was kept, so a difference in success is chance"
        if self.avoided is None or self.taken_back is None:
            return f"{verdict}: {change}"
        risen = f"perplexity would have risen from {number(self.before.perplexity)} to {number(self.avoided.perplexity)}"
        return (
            f"{verdict}: {change}; stopped at update {self.taken_back} of {self.updates}: {risen}, {short(self.left)} tokens left"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """The harm, where there is some and no bound kept it away."""
        if self.ratio <= (self.bound or 1.1):
            return ()
        return (
            f"training harmed what the model knew: perplexity of general texts is {self.ratio:.3g} times the start's, and "
            "keep.perplexity set no bound; take an adapter (leave --all-weights out), a smaller --train.lr, or a bound",
        )

    def grid(self) -> Grid:
        """The validated checkpoints."""
        head = ("checkpoint after", "success, validation", "episodes", "perplexity", "KL", "kept")
        rows = [
            (
                plural(check.updates, "update"),
                percent(check.success),
                check.n,
                check.fidelity.perplexity,
                check.fidelity.kl,
                check.updates == self.kept,
            )
            for check in self.validations
        ]
        return table(head, rows)


@dataclass(frozen=True)
class Improved(Result):
    """What ``improve`` made of an agent, and at what cost."""

    before: Evaluation
    after: Evaluation
    gain: SuccessGain
    tokens: int
    attempts: int
    forks: int
    updates: int
    seconds: float
    changes: Changes
    run: str
    compare: Mapping[str, ComparedArm] | None = None
    """By arm, the run's own first; None without a comparison."""
    lost: WhatWasLost | None = None
    """Of a pretrained model."""

    @property
    def cost(self) -> str:
        """What the training took."""
        counts = plural(self.attempts, "attempt"), plural(self.forks, "fork"), plural(self.updates, "update")
        told = f"{', '.join(counts)}, {short(self.tokens)} tokens, {self.seconds:.0f} s"
        if self.lost is None:
            return told
        episodes, tokens = (sum(each) for each in zip(*((check.n, check.tokens) for check in self.lost.validations), strict=True))
        return f"{told}; besides, {plural(episodes, 'episode')} and {short(tokens)} tokens of validation"

    def sections(self) -> Iterable[Section]:
        """Before and after, what changed, the arms, and where to look next."""
        name = shlex.quote(self.run)
        both = (("before", self.before), ("after", self.after))
        rows = [(name, percent(one.success), percent_interval(one.interval)) for name, one in both]
        gain = f"Gain: {points(self.gain.success)} points, 95 % interval {points_interval(self.gain.interval)}."
        states = "".join(f"\n- {one.text}" for one in self.changes.states)
        verdict = f"{points(self.gain.success)} points {points_interval(self.gain.interval)}"
        yield Section.of(
            "",
            f"{verdict}; {self.lost.sentence}." if self.lost else "",
            table(("", "success", "95 % interval"), rows),
            f"{gain}\nCost: {self.cost}.",
            f"{self.changes.why}{states}",
            compared(self.compare) if self.compare else None,
            self.lost.grid() if self.lost else None,
            f"Report: {self.run}/{REPORT}, or `ramify show {name} --web`. The improved agent: {self.run}/agent.",
        )

    def __repr__(self) -> str:
        return (
            f"<improve: success {percent(self.before.success)} -> {percent(self.after.success)} (n = {self.gain.n}),\n"
            f" gain {points(self.gain.success)} points {points_interval(self.gain.interval)}, {self.tokens:,} tokens,"
            f" {self.seconds:.0f} s, {plural(len(self.changes.states), 'state')} with a change,\n run {clipped(self.run, 90)}>"
        )


def compared(arms: Mapping[str, ComparedArm]) -> Grid:
    """A table of the arms: success over tokens, and the gain."""
    last = max((point.tokens for arm in arms.values() for point in arm.curve), default=0)
    edges = [0.0, *(last * part / 3 for part in (1, 2, 3))]
    rows: list[tuple[Cell, ...]] = []
    for name, arm in arms.items():
        first, *rest, end = arm.curve
        cells = []
        for low, high in pairwise(edges):
            there = [point for point in rest if low < point.tokens <= high]
            cells.append(percent(sum(point.k for point in there) / sum(point.n for point in there) if there else None))
        gain = f"{points(arm.gain.success)} {points_interval(arm.gain.interval)}"
        rows.append((name, percent(first.rate), *cells, percent(end.rate), gain))
    thirds = (f"to {short(edge)} tokens" for edge in edges[1:])
    return table(("success of arm", "held out, before", *thirds, "held out, after", "gain, points"), rows)


@dataclass(frozen=True)
class TrialEpisodes:
    """What a dry run of ``improve`` tried: some episodes, one training step on them, and its bytes."""

    success: float
    interval: Interval
    n: int
    failed: int
    training_rows: int
    checkpoint: int
    weights: int
    agent: int
    cut: float = 0.0
    """Share of the replies that ``max_reply`` cut."""

    def __str__(self) -> str:
        sizes = [f"{name} {getattr(self, name) / 2**20:.1f} MiB" for name in ("checkpoint", "weights", "agent")]
        return (
            f"Trial: {round(self.success * self.n)} of {self.n} episodes succeeded ({percent(self.success)}, "
            f"95 % interval {percent_interval(self.interval)}).\n"
            f"One training step on {plural(self.training_rows, 'row')} was made and saved: {', '.join(sizes)}."
        )


@dataclass(frozen=True)
class ImprovePlan(Planned):
    """The cost estimate of ``improve``, and what came of its trial."""

    trial: TrialEpisodes

    def sections(self) -> Iterable[Section]:
        """Settings and cost, then the trial."""
        yield from super().sections()
        yield Section.of("", str(self.trial))


@dataclass(frozen=True)
class Collected(Result):
    """What ``rollout`` played. ``interval`` is None where a selector chose the attempts: they are no independent samples."""

    success: float | None
    interval: Interval | None
    successes: int
    n: int
    """Attempts that could be scored."""
    tasks: int
    solved: int
    failed: int
    failures: Mapping[str, int]
    """The most frequent reasons, and how often each."""
    missing: int | None
    """Attempts that were not played; None of trees, which have no number of attempts."""
    tokens: int
    turns: int
    workers_lost: int
    """Workers that died in the last call."""
    seconds: float
    spent: str | None
    """The budget that ended it."""
    run: str
    trees: TreeReport | None = None

    @property
    def exit_code(self) -> int:
        """3 where a budget ended it, 1 where every attempt failed."""
        return EXIT_BUDGET if self.spent is not None else EXIT_FAILED if self._none else super().exit_code

    @property
    def _none(self) -> bool:
        return bool(self.failed and not self.n)

    @property
    def ending(self) -> str:
        """Why it is not done, and what continues it; "" where it is done."""
        name = shlex.quote(self.run)
        if self.spent is not None:
            left = "no tree was sampled" if self.missing is None else f"{plural(self.missing, 'attempt')} not played"
            return (
                f"the budget of {self.spent} is spent, {left}: "
                f"raise --budget.{self.spent} and give the same command with --out {name} to continue"
            )
        if not self._none:
            return ""
        if all(why.startswith("provider (request)") for why in self.failures):
            refused = next(iter(self.failures)).partition(": ")[2]
            return (
                f"every attempt failed: {refused}; `ramify resume {name}` would send the same requests, so "
                "change what is sent first (the model's URL, the sampling options, the environment's tools)"
            )
        if all("do not fit the context" in why for why in self.failures):
            why = next(iter(self.failures)).removeprefix("engine: ")
            return (
                f"every attempt failed: {why}; `ramify resume {name}` would not change that, so play with a --model that "
                "takes longer prompts"
            )
        return f"every attempt failed; `ramify resume {name}` tries them again"

    def sections(self) -> Iterable[Section]:
        """The success rate with its interval, what failed, and where to look next."""
        name = shlex.quote(self.run)
        solved = f"{self.solved} of {self.tasks}"
        grid = table(("successes", "attempts", "tasks solved"), [(self.successes, self.n, solved)])
        if self.interval is not None:
            row = (percent(self.success), percent_interval(self.interval), self.successes, self.n, solved)
            grid = table(("success", "95 % interval", "successes", "attempts", "tasks solved"), [row])
        yield Section.of("", grid)
        if self.trees is not None:
            yield from self.trees.sections()
        reasons = "".join(f"\n  {count} x {why}" for why, count in self.failures.items())
        failed = f"{plural(self.failed, 'attempt')} ended in an infrastructure failure, not counted:{reasons}"
        lost = f"{plural(self.workers_lost, 'worker')} died; the attempts there were played again."
        spent = f"{short(self.turns)} turns, {short(self.tokens)} tokens, {self.seconds:.0f} s"
        yield Section.of(
            "",
            failed if self.failed else "",
            lost if self.workers_lost else "",
            f"{spent}. Look at them with `ramify show {name}`, or `ramify show {name} --web`.",
        )
