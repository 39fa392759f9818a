"""``ramify detours``: find them in a run, continue from before them, mark them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lights.detours.algorithm import Detour, Detours, DetoursConfig, first_return, weigh
from ramify.base import codec
from ramify.base.progress import Progress, gathered
from ramify.base.waiting import wait_for
from ramify.kit import ForkEnv, ForkModel, RunArgument, Trust, Verbs, check_forks, find_run
from ramify.render.result import Cell
from ramify.rollout.attempts import Attempt
from ramify.rollout.stored import WhoPlays, by_player, episodes_in, task_of
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.node import Annotation, Finding
from ramify.trace.view import View, views

MAKER, PURPOSE = "detours find", "detours"

app = Verbs("detours", help="Where attempts came back to a state that they had been in, and what that costs.")


def plan(config: DetoursConfig, run: str) -> Mapping[str, Cell]:
    """What it takes at most."""
    with Run.open(find_run(run)) as opened:
        places = {found.before for _, found in attempts_of(opened, config) if found}
    return {"places": len(places), "continuations": config.fork * len(places)}


@app.study(settings=DetoursConfig, plan=plan, unit="continuations", run="run")
def find(
    config: DetoursConfig,
    run: RunArgument,
    model: ForkModel = None,
    env: ForkEnv = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Detours:
    """Find the first detour of every attempt of a run: do attempts with one succeed less often?

    With --fork N the agent continues N times from the state before each detour: how often does it succeed from there?
    """
    check_forks(config.fork or None, model, env, trust)
    with Run.open(find_run(run), write=True) as opened:
        attempts = attempts_of(opened, config)
        detours = [found for _, found in attempts if found]
        played = play(opened, detours, config.fork, WhoPlays(model, env, trust), bar) if config.fork else []
        outcomes: dict[str, list[bool | None]] = {}
        for attempt in played:
            outcomes.setdefault(attempt.start, []).append(attempt.outcome)
        without = [bool(view.success) for view, found in attempts if found is None]
        result = weigh(detours, without, {node: Counts.of(known) for node, known in outcomes.items()})
        failures = [attempt.failure for attempt in played if attempt.failure]
        if failures:
            result = replace(result, caveats=(f"{len(failures)} continuations failed, the first at {failures[0]}",))
        mark(opened, result, config)
    return result


def attempts_of(run: Run, config: DetoursConfig) -> list[tuple[View, Detour | None]]:
    """Every attempt that was judged, with its detour; what was forked to find something out is no attempt."""
    judged = (view for view in views(run, scorer=config.scorer) if view.success is not None and not view.fork)
    return [(view, detour_of(view)) for view in judged]


def detour_of(view: View) -> Detour | None:
    """The first detour of an attempt. A state is known by the environment's own key, else by what was observed."""
    steps = [step for step in view.steps if step.shown]  # of replies in a row the first
    states = [step.state_key or step.observation for step in steps]
    if view.end.role != "assistant":
        states.append(view.end.state_key or view.ending)
    back = first_return(states)
    if back is None:
        return None
    step = steps[back[0]]
    return Detour(view.task, step.observed[-1].nodes[-1].id, step.node, *back, bool(view.success))


def play(run: Run, detours: Sequence[Detour], n: int, who: WhoPlays, bar: Progress) -> list[Attempt]:
    """``n`` continuations from the state before each detour, by whom the run names; stored ones are loaded."""
    leaving = {one.before: one.reply for one in detours}  # of several that left one state, one
    before, played = {reply: node for node, reply in leaving.items()}, list[Attempt]()
    for group in by_player(run, map(run.node, before), who.model, who.env):
        episodes, _ = episodes_in(run, group[0], who)
        tasks = {reply.tree: task_of(run, reply.tree)[0] for reply in group}
        bar.begin(n * len(group), phase="fork")
        with episodes.committing():
            forks = [
                episodes.branch(reply.tree, tasks[reply.tree], before[reply.id], index, purpose=PURPOSE)
                for reply in group
                for index in range(n)
            ]
            played += wait_for(gathered(forks, bar))
    return played


def mark(run: Run, found: Detours, config: DetoursConfig) -> None:
    """A note at each detour, and findings, which replace those of an earlier call."""
    about = config.to_json()
    notes = [Annotation(one.reply, 0, "detour", MAKER, {"step": one.step, "since": one.since}) for one in found.detours]
    findings = [
        Finding("detour", MAKER, one.sentence, one.reply, 0, "", one.step + 1 - one.since, "steps", codec.to_json(one), about)
        for one in found.detours
    ]
    if found.costly and found.difference is not None:
        by = found.difference
        findings.append(Finding("costly detours", MAKER, found.verdict, None, 0, "", by.success, "share", by.interval, about))
    with run.transaction():
        run.add(*notes)
        run.conclude(MAKER, findings)
