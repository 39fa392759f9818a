"""What training changed: where the agent now does something else on held-out tasks, and what comes of it.

How likely an action was and is in a state is exact: both agents score the replies of the held-out attempts. How often the state
now leads to success is measured by continuations, as many of each agent, which had no part in choosing the state; what differs by
no more than chance says so (Fisher's test, corrected over the states by Holm's method).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ramify.base import codec
from ramify.engine.local import LocalModel
from ramify.env.protocol import Task
from ramify.jobs.grown import gather_all
from ramify.jobs.results import ChangedState
from ramify.model.protocol import Sampling
from ramify.rollout.backends import Player, Unit
from ramify.stats.drops import Counts, SuccessDifference
from ramify.stats.evidence import holm
from ramify.stats.intervals import difference_of_proportions
from ramify.stats.tests import fisher
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.node import Finding
from ramify.trace.view import View, views
from ramify.train.batch import Row, rows_from_path

MAKER = "improve"
LEAST = 0.2
"""Least rise of an action's probability that is named."""
FORKS = 20
"""Continuations of each agent from a state that is named."""
SCREEN, POOL = 3, 3
"""Continuations of each agent from a state that may be named,
and how many times as many of these there are. None of them counts later."""
THIN = 10
"""Of fewer continuations that could be scored nothing is said."""
LEVEL = 0.05
MOST = 400
"""Attempts of each evaluation that are looked at."""


@dataclass(frozen=True)
class BehaviourChange:
    """One state in which the agent now does something else."""

    tree: str
    task: str
    state: str
    """What the agent was shown last."""
    at: str
    """Node of that observation: :func:`ramify.fork_run` continues from it."""
    action: str
    before: float
    """Probability of the action under the agent that training began with, at the run's temperature,
    after all that was shown before."""
    after: float
    """The same under the improved agent."""
    success_before: Counts | None = None
    """Continuations from the state by the agent that training began with; None where none were sampled."""
    success_after: Counts | None = None
    """The same by the improved agent."""
    p: float | None = None
    """Of so large a difference in success by chance, corrected over the states that are named."""

    @property
    def rise(self) -> float:
        """Change in the action's probability."""
        return self.after - self.before

    @property
    def difference(self) -> tuple[float, tuple[float, float]] | None:
        """Change in success from the state with its 95 % interval; None where too few continuations say."""
        first, then = self.success_before, self.success_after
        if first is None or then is None or min(first.n, then.n) < THIN:
            return None
        return then.rate - first.rate, difference_of_proportions(then.k, then.n, first.k, first.n)

    @property
    def matters(self) -> bool:
        """Whether success from the state changed by more than chance."""
        return self.p is not None and self.p <= LEVEL

    def __str__(self) -> str:
        text = (
            f"In `{short(self.state, 90)}` the agent now does `{short(self.action, 60)}` ({self.before:.0%} -> {self.after:.0%})"
        )
        if self.difference is None or self.success_before is None or self.success_after is None:
            return f"{text}."
        low, high = (f"{100 * end:+.0f}" for end in self.difference[1])
        success = f"{self.success_before.rate:.0%} -> {self.success_after.rate:.0%} ({low} to {high} points)"
        return f"{text}; success from there {success}{'' if self.matters else ', no more than chance'}."

    @property
    def told(self) -> ChangedState:
        """As results and findings hold it."""
        first, then = (None if counts is None else counts.share for counts in (self.success_before, self.success_after))
        difference = None if self.difference is None else SuccessDifference(*self.difference)
        where = (str(self), self.tree, self.task, self.state, self.at, self.action)
        return ChangedState(*where, self.before, self.after, self.p, first, then, difference, self.matters)

    def finding(self) -> Finding:
        """As the run keeps it."""
        value = None if self.difference is None else self.difference[0]
        unit, evidence = "" if value is None else "success", codec.to_json(self.told)
        return Finding("change", MAKER, str(self), self.at, value=value, unit=unit, evidence=evidence)


def states_for(count: int, episodes: int) -> int:
    """Of ``count`` named states those from which both agents continue:
    together that takes about what one evaluation of ``episodes`` does."""
    return min(count, episodes // (2 * FORKS))


def replies(run: Run, group: str) -> list[View]:
    """The attempts of an evaluation, in order, :data:`MOST` of them."""
    unfailed = []
    for view in views(run, group, "env"):
        if view.failure is None:
            unfailed.append(view)
        if len(unfailed) == MOST:
            break
    return unfailed


async def probabilities(model: LocalModel, run: Run, attempts: Sequence[View], temperature: float) -> dict[str, float]:
    """Node of each reply of ``attempts`` -> its probability under ``model`` in its place."""
    names: list[str] = []
    rows: list[Row] = []
    for view in attempts:
        fresh = [node for node, _ in view.path.segments if node.sampled_tokens]
        marks = {node.id: np.full(len(node), len(names) + number, np.float32) for number, node in enumerate(fresh, 1)}
        names += [node.id for node in fresh]
        rows += rows_from_path(view.path, view.tree.node, run.context, {"reply": marks}, model.context)
    scores = await model.logprobs([row.tokens for row in rows], settings=Sampling(temperature=temperature), entropy=False)
    total = np.zeros(len(names) + 1)
    for row, score in zip(rows, scores, strict=True):
        assert score.sampler_logprobs is not None
        number = (row.token_values["reply"] * row.mask).astype(np.int64)
        total += np.bincount(number, score.sampler_logprobs, minlength=len(total))
    return dict(zip(names, np.exp(total[1:]).tolist(), strict=True))


def named(attempts: Sequence[View], before: Mapping[str, float], after: Mapping[str, float], count: int) -> list[BehaviourChange]:
    """Up to ``count`` states in which an action's probability rose by :data:`LEAST` or more from ``before`` to ``after`` (by
    node), one a task.

    Of attempts that succeeded the largest rise, the largest first; then, of attempts that failed at tasks where another
    succeeded, the first rise: there something may have been unlearned.
    In the other failed attempts all may have been lost before."""
    won = {view.task for view in attempts if view.success}
    gains: dict[str, BehaviourChange] = {}
    losses: dict[str, BehaviourChange] = {}
    for view in attempts:
        into = gains if view.success else losses if view.task in won else {}
        for step in view.steps:
            at = str(view.tree.node(step.node).parent)
            change = BehaviourChange(
                view.info.name, view.task, step.observation, at, step.action, before[step.node], after[step.node]
            )
            best = into.get(view.task)
            if change.rise >= LEAST and (best is None or (view.success and change.rise > best.rise)):
                into[view.task] = change
    firm = sorted(gains.values(), key=lambda behaviour: (-behaviour.rise, behaviour.task))
    rest = sorted(
        (behaviour for behaviour in losses.values() if behaviour.task not in gains),
        key=lambda behaviour: (-behaviour.rise, behaviour.task),
    )
    few = min(len(rest), count // 3)
    return [*firm[: count - few], *rest[: max(few, count - len(firm))]][:count]


async def continued(
    player: Player, tasks: Mapping[str, Task], changes: Sequence[BehaviourChange], first: int, n: int
) -> list[Counts]:
    """Successes of ``n`` continuations from each state by the player's agent, the samples from number ``first`` on."""
    units = [
        Unit(change.tree, tasks[change.task], first + i, change.at, purpose="changes") for change in changes for i in range(n)
    ]
    played = await gather_all(player.tried(unit) for unit in units)
    outcomes = [attempt.outcome for attempt in played]
    return [Counts.of(outcomes[i * n : (i + 1) * n]) for i in range(len(changes))]


def screened(
    changes: Sequence[BehaviourChange], before: Sequence[Counts], after: Sequence[Counts], count: int
) -> list[BehaviourChange]:
    """The ``count`` states at which a few continuations of both agents differ most; of equal ones the first."""
    gaps = [abs(then.k / max(1, then.n) - first.k / max(1, first.n)) for first, then in zip(before, after, strict=True)]
    order = sorted(range(len(gaps)), key=lambda i: -gaps[i])
    return [changes[i] for i in sorted(order[:count])]


def judged(changes: Sequence[BehaviourChange], before: Sequence[Counts], after: Sequence[Counts]) -> list[BehaviourChange]:
    """``changes`` with these successes, p-values corrected over them (Holm); those that matter come first, by how much."""
    ends = zip(changes, before, after, strict=True)
    measured = [replace(change, success_before=first, success_after=then) for change, first, then in ends]
    told = [change for change in measured if change.difference is not None]
    pairs = [(change.success_after or Counts(0, 0), change.success_before or Counts(0, 0)) for change in told]
    corrected = iter(holm([fisher(then.k, then.n, first.k, first.n) for then, first in pairs]) if told else ())
    corrected_changes = [replace(change, p=None if change.difference is None else next(corrected)) for change in measured]
    return sorted(
        corrected_changes, key=lambda change: (not change.matters, -abs(change.difference[0]) if change.difference else 0.0)
    )


def sentence(changes: Sequence[BehaviourChange], wanted: int) -> str:
    """What the list of at most ``wanted`` changes comes to, in one sentence."""
    if not wanted:
        return "What training changed was not looked for: changes is 0."
    if not changes:
        return f"No action in a state of the held-out attempts became likelier by {100 * LEAST:.0f} points or more."
    told = [change for change in changes if change.difference is not None]
    what = f"The {len(changes)} strongest changes, each" if len(changes) > 1 else "The strongest change,"
    text = f"{what} in a state of a held-out attempt"
    if not told:
        return f"{text}:"
    matter = sum(change.matters for change in told)
    return f"{text}; both agents continued from {len(told)}, {FORKS} times each, and success from there changed in {matter}:"
