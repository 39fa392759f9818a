"""Test blame by forks: continue from before and from after a blamed step, and test whether success fell there.

Grades say what training made less likely. Forks say what it cost: the potential before the step, where it is sampled anew,
against the potential after it, with it and the environment's answer kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.methods.implicit_advantage.records import ForkTest
from ramify.methods.implicit_advantage.report import LEVEL
from ramify.rollout.attempts import Attempt
from ramify.rollout.potential import Fixed, RunCounts, potential
from ramify.rollout.run import Episodes
from ramify.rollout.steps import StepForks, StepTrace
from ramify.rollout.stored import by_player, named_components, open_episodes, task_of
from ramify.stats.drops import Counts
from ramify.stats.evidence import each_against
from ramify.trace.db import Run


@dataclass(frozen=True)
class BlamedStep:
    """A blamed step in its attempt: position ``t`` of ``trace`` is before it, ``t + 1`` after it."""

    trace: StepTrace
    t: int


@dataclass(frozen=True)
class Who:
    """Who plays on in a run: by default the agent and the environment that it names
    (:func:`ramify.rollout.stored.open_episodes`)."""

    folder: Path
    model: str | None = None
    env: str | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        """Raises UserError where the run cannot be played."""
        with Run.open(self.folder) as run:
            named_components(run, self.model, self.env)


def confirm(
    who: Who,
    blamed: Mapping[str, tuple[str, bool | None]],
    n: int,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
) -> tuple[dict[str, ForkTest], str]:
    """For each node of a ``blamed`` step (with the end of its attempt, and whether that succeeded) what ``n`` attempts from
    before it and ``n`` from after it show; the first failure of one.

    ``before`` and ``after`` hold successes, how many attempts have an outcome, rate and 95 % interval (Wilson), ``difference``
    after minus before with its interval (Newcombe), ``p`` Fisher's exact two-sided one, ``p_corrected`` by Holm over all steps.
    ``confirmed``: success fell, at ``LEVEL`` of the corrected p; None where one side has no outcome. Counts are kept in the run,
    so a second call loads them. What a limit of turns ended counts as the environment says.
    Raises UserError on a step without an observation before it.
    """
    counts: dict[str, tuple[Counts, Counts]] = {}
    failure = ""
    with Run.open(who.folder) as run:
        groups = by_player(run, map(run.node, blamed), who.model, who.env)
    for group in groups:
        with open_episodes(who.folder, group[0], who.model, who.env, trust=who.trust) as (episodes, _):
            episodes.on_attempt = on_attempt
            forks, purpose = StepForks(episodes, "graded"), f"blame {episodes.provenance.hash[:12]}"
            with episodes.committing():
                for node in (one.id for one in group):
                    place = _place(episodes, node, *blamed[node])
                    both, _ = wait_for(
                        potential(forks, place.trace, (place.t, place.t + 1), Fixed(n), purpose, RunCounts(episodes.run))
                    )
                    counts[node] = both[place.t], both[place.t + 1]
            failure = failure or forks.first_failure
    return weighed(counts), failure


def _place(episodes: Episodes, node: str, end: str, success: bool | None) -> BlamedStep:
    """The step that ``node`` belongs to in the attempt that ends at ``end``.
    Agent's messages without an observation between are one step."""
    tree = episodes.run.node(end).tree
    seen, steps, actions, at = "", list[str](), list[str](), -1
    for one, _ in episodes.load(tree).path(end).segments:
        if one.role in ("user", "tool"):
            seen = one.id
        elif one.role == "assistant":
            if seen:
                steps.append(seen)
                actions.append("")
            elif not steps:
                raise UserError(
                    f"{episodes.run.folder} does not say what the agent was shown before node {one.id[:12]}, so there is no "
                    "position to continue from"
                )
            actions[-1] += one.text
            seen, at = "", len(steps) - 1 if one.id == node else at
    if at < 0:
        raise UserError(f"node {node} is not a step of the attempt that ends at {end}")
    task, _ = task_of(episodes.run, tree)
    trace = StepTrace(end, tree, task, (*steps, seen or end), tuple(actions), success, success is not None)
    return BlamedStep(trace, at)


def weighed(counts: Mapping[str, tuple[Counts, Counts]]) -> dict[str, ForkTest]:
    """Counts before and after each step as the result of :func:`confirm`."""
    rows = each_against({node: ((b.k, b.n), (a.k, a.n)) for node, (b, a) in counts.items()})
    found = {}
    for row, (before, after) in zip(rows, counts.values(), strict=True):
        known = bool(before.n and after.n)
        found[row.intervention] = ForkTest(
            before=before.share,
            after=after.share,
            difference=row.difference if known else None,
            difference_interval=row.difference_interval,
            p=row.p,
            p_corrected=row.p_corrected,
            confirmed=(row.p_corrected <= LEVEL and row.difference < 0) if known else None,
        )
    return found
