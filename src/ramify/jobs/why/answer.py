"""What `ramify why` says: of one attempt, and of one attempt of every tree."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ramify.base.errors import EXIT_BUDGET, EXIT_DONE
from ramify.base.words import plural
from ramify.jobs.why import tables
from ramify.jobs.why.alternatives import words
from ramify.jobs.why.parting import FirstParting, WholeDifference
from ramify.jobs.why.records import LEAST, Alternative, BrokenRule, Chance, Helped, LostByTool, Share, StepChance, ToolMove
from ramify.render.result import Result, Section
from ramify.rollout.commands import NOBODY, WHO, Commands

NOTHING_TO_CHANGE = "--do changes the step that lost the attempt, and none stands out: nothing was changed."


@dataclass(frozen=True, repr=False)
class Why(Result):
    """What was found out about one attempt. ``verdict`` is ``step`` where one stands out, else ``none``."""

    tree: str
    attempt: str
    """Its last node."""
    success: bool
    verdict: Literal["step", "none"]
    headline: str
    """One or two sentences for a person."""
    before: Chance
    """Of the step; of no step: at the attempt's start."""
    after: Chance
    node: str | None = None
    """The step's reply, None where no step stands out."""
    action: str | None = None
    conversation: int | None = None
    """The number of the step's conversation; None without a step, or where the attempt has one conversation alone."""
    alternatives: tuple[Alternative, ...] = ()
    steps: tuple[StepChance, ...] = ()
    share: Share | None = None
    """Credit shared over the steps, where it was asked for."""
    samples: int = 0
    """Continuations that were played for it, now or earlier."""
    free: int = 0
    """Attempts that were there and were counted with them."""
    failed: int = 0
    """Continuations that an infrastructure failure ended: not counted, and tried again by the next call."""
    counterfactual: bool = True
    """False where nothing was run again: attempts that did other things may differ in more than that."""
    spent: bool = False
    """The budget ended the search."""
    run: str = ""
    """The folder of the run."""
    commands: Commands = NOBODY
    """Those of the run, with who played."""
    do: tuple[Helped, ...] | None = None
    """What would have helped; None where no change was asked for."""
    named_by: Literal["", "forks", "attempts", "rule"] = ""
    """What names the step: forks, a comparison of the attempts that are there, or a rule that the step breaks."""
    broken: tuple[BrokenRule, ...] = ()
    """Of a log alone: steps that break a rule, the rarest first."""
    moves: tuple[ToolMove, ...] = ()
    """Where the attempts of all tasks part, in a run of several that was asked about as a whole."""

    def at_step(self, t: int, before: Chance, after: Chance, others: tuple[Alternative, ...]) -> Why:
        """The same with step ``t``, from 1, as the one that stands out. The headline is still to be said."""
        step, talks = self.steps[t - 1], any(one.conversation for one in self.steps)
        return replace(
            self,
            verdict="step",
            named_by="forks" if self.counterfactual else "attempts",
            node=step.node,
            action=step.action,
            conversation=step.conversation if talks else None,
            before=before,
            after=after,
            alternatives=others,
        )

    @property
    def change(self) -> float | None:
        """Success after the step minus success before it; None without a step, and of one that a rule names."""
        return None if self.verdict == "none" or self.named_by == "rule" else (self.after.p or 0.0) - (self.before.p or 0.0)

    @property
    def several(self) -> bool:
        """Whether success changed beyond chance on the way, though no single step stands out: then credit can be shared."""
        before, after = (self.before, self.after) if not self.success else (self.after, self.before)
        return self.counterfactual and self.verdict == "none" and before.interval[0] > after.interval[1] + LEAST

    @property
    def command(self) -> str:
        """What changes or shows it."""
        return (self.verdict == "step" and self.commands.fork(self.node or "")) or self.commands.show

    @property
    def exit_code(self) -> int:
        """That of a spent budget where it was."""
        return EXIT_BUDGET if self.spent else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """The headline with the steps, the shares, the alternatives, what would have helped, what to do next."""
        return [one for one in self._sections() if one.parts]

    def _sections(self) -> Iterable[Section]:
        steps = tables.steps(self.steps, self.before, self.verdict, self.counterfactual)
        yield Section.of("", self.headline, *steps, self._counted())
        if self.share is not None:
            yield tables.shares(self.share)
        yield tables.broken(self.broken)
        yield tables.alternatives(self.alternatives)
        if self.do is not None:
            yield tables.changes(self.do) if self.do else Section.of("what would have helped", NOTHING_TO_CHANGE)
        yield tables.moves(self.moves)
        yield Section.of("what to do next", "\n".join(self._next()))

    def _counted(self) -> str:
        sampled = self.samples + (0 if self.share is None else self.share.samples)
        counted = f"{plural(sampled, 'continuation')} sampled, {plural(self.free, 'attempt')} that were there counted with them"
        failed = f"; {plural(self.failed, 'continuation')} failed, not counted: the same command tries them again"
        compared = f"{plural(self.free, 'other attempt')} compared"
        counts = (counted if self.counterfactual else compared) + (failed if self.failed else "")
        return f"Attempt {self.attempt[:12]} of {self.tree}: {counts}."

    def _next(self) -> Iterable[str]:
        able, attempt = self.commands, self.attempt[:12]
        if not self.counterfactual and not self.free:
            yield f"It is the only judged attempt at its task. Of a log, add others: `ramify import FILE --run {able.name}`"
        if not self.counterfactual:
            yield f"Ask models, which give an opinion: `{able.why(attempt)}` with --judge and the name of a model"
        if not able.plays:
            objects = "; in Python give ramify.why and ramify.fork_run the same model= and env= again"
            yield f"`ramify why` samples its steps: {WHO}" + objects * self.counterfactual
        elif not self.counterfactual:
            yield f"Sample its steps again: `{able.why(attempt)}`"
        elif self.verdict == "step" and self.do is None:
            best = next((one.action for one in self.alternatives if one.repeatable), "")
            said = f"action={best}" if best == words(best) else "action"  # of several lines: the best one, which is this
            yield f"Change it: `{able.why(attempt, ' --do ' + (shlex.quote(said) if best else 'resample'))}`"
        elif self.verdict == "none" and self.several and self.share is None:
            yield f"Several steps may have lost it together: `{able.why(attempt, ' --share')}`"
        if able.plays and self.verdict == "step":
            yield f"Go on from there: `{self.command}`"
        elif able.plays and self.steps:
            ids = ", ".join(f"{t}: {step.node[:12]}" for t, step in list(enumerate(self.steps, 1))[-8:])
            yield f"Go on from its last step, or from another ({ids}): `{able.fork(self.steps[-1].node)}`"
        yield f"Look at it: `{able.show}`"

    def __repr__(self) -> str:
        return f"<why {self.tree!r}:\n {self.headline}>"


@dataclass(frozen=True)
class WhyAll(Result):
    """What was found out about one failed attempt of every tree, and what their tools lost."""

    all: tuple[Why, ...]
    tools: tuple[LostByTool, ...]
    """The tool that loses most first."""
    partings: tuple[FirstParting, ...] = ()
    """Of each task, the first step where its attempts part."""
    differences: tuple[WholeDifference, ...] = ()
    """What attempts as a whole have or lack, the strongest first."""

    @property
    def exit_code(self) -> int:
        """That of a spent budget where one was."""
        return EXIT_BUDGET if any(one.spent for one in self.all) else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """How many have a step that stands out, where each was lost, which tool loses most, and the worst of them."""
        lost = sum(one.verdict == "step" for one in self.all)
        rows = (
            (one.tree, one.action, f"{one.before} -> {one.after}", next(iter(one.alternatives), None), one.node)
            for one in self.all
        )
        has = "has" if len(self.all) == 1 else "have"
        count = f"{lost} of {plural(len(self.all), 'failed attempt')} {has} a step that stands out."
        yield Section.of("", count, tables.lost(rows))
        if self.tools:
            yield tables.tools(self.tools)
        if self.partings:
            yield tables.partings(self.partings)
        if self.differences:
            yield tables.differences(self.differences)
        worst = min(self.all, key=lambda one: (one.verdict == "none", one.change or 0.0))
        yield Section.of("the worst of them", worst.headline, f"Look at it: `{worst.command}`")
