"""``ramify why``: which step lost an attempt, what else was possible there, and what would have helped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.env.tools import read_effects
from ramify.jobs.why.answer import Why, WhyAll
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.result import Cell
from ramify.render.terminal import say

if TYPE_CHECKING:
    from ramify.rollout.attempts import Attempt

app = Verbs("why")


def plan(
    run: str, where: str, samples: int | None, n: int, first: int, share: bool, do: list[str] | None, every: bool,
    scorer: str | None, model: str | None, env: str | None,
) -> Mapping[str, Cell]:  # fmt: skip
    """What it takes at most."""
    from ramify.jobs.why.ask import most_samples, plays_again
    from ramify.jobs.why.attempts import asked
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    _check(where, do or [], every)
    question = WhyQuestion(n, first, samples, share=share)
    with Run.open(find_run(run)) as opened:
        views = asked(opened, settled(opened, scorer), where, every)
        again = plays_again(opened, question, WhoPlays(model, env))
    most = most_samples(views, again, question, len(do or []))
    steps = sum(len(view.steps) for view in views)
    return {"attempts": len(views), "steps": steps, "samples": most, "counterfactual": again}


@app.study(plan=plan, unit="continuations at most", itself=True, run="run")
def why(
    run: RunArgument,
    where: Annotated[
        str,
        argument(
            "TREE-or-NODE",
            help="Name of a tree, or a node of an attempt: its id or the first digits. Default: a failed attempt at the task "
            "with most successes.",
        ),
    ] = "",
    samples: Annotated[
        int | None,
        option(help="At most this many continuations in all; 0 runs nothing and compares the attempts that are there.", min=0),
    ] = None,
    n: Annotated[int, option(help="At most this many continuations from one position.", min=1)] = 48,
    first: Annotated[int, option(help="This many continuations from a position to begin with.", min=1)] = 4,
    level: Annotated[float, option(help="Chance of naming a step where none stands out.", min=1e-9, max=0.5)] = 0.05,
    least: Annotated[float, option(help="Change of success that a step must exceed to stand out.", min=0, max=0.99)] = 0.05,
    describe: Annotated[
        int, option(help="Continuations from before that step, to say what else was possible there.", min=0)
    ] = 16,
    share: Annotated[
        bool, option(help="Also share the change of success over the steps: at most --n walks, Shapley values.")
    ] = False,
    do: Annotated[
        list[str] | None,
        option(
            metavar="CHANGE",
            help="What if, there: resample, action[=TEXT], observation=TEXT, context=FILE (an edit) or policy=MODEL; repeatable.",
        ),
    ] = None,
    every: Annotated[bool, option("--all", help="One failed attempt of every tree, and what their tools lost.")] = False,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Why | WhyAll:
    """Which step of an attempt lost it, what else was possible there, and what would have helped.

    Steps are sampled again under the unchanged agent, most where success fell; what is there is loaded. Where the agent cannot be
    run again the attempts that are there are compared.
    """
    from ramify.jobs.helped import helped_in
    from ramify.jobs.judged import judge
    from ramify.jobs.why.ask import explained, most_samples, plays_again
    from ramify.jobs.why.attempts import asked
    from ramify.jobs.why.moves import lost_by_tool, worst_moves
    from ramify.jobs.why.parting import first_partings, judged, whole_differences
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    changes = do or []
    _check(where, changes, every)
    question = WhyQuestion(n, first, samples, level, least, describe, share, scorer)
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    with Run.open(find_run(run), write=True) as opened:
        judge(opened, who)
        deciding = settled(opened, scorer)
        views = asked(opened, deciding, where, every)
        bar.begin(most_samples(views, plays_again(opened, question, who), question, len(changes)))
        told = _counting(bar), cache(say)  # each note once, however many attempts it is about
        found = [explained(opened, view, deciding, question, who, *told) for view in views]
        if every:
            caveats = dict.fromkeys(caveat for one in found for caveat in one.caveats)
            tasks = judged(opened, deciding)
            partings, differences = first_partings(tasks), whole_differences(tasks)
            return WhyAll(tuple(found), lost_by_tool(found), partings, differences, caveats=tuple(caveats))
        answer = found[0]
        if changes and answer.counterfactual and answer.node is None:
            answer = replace(answer, do=())
        elif changes:
            answer = replace(answer, do=helped_in(opened, answer, changes, n, who, told[0]))
        if where or len(opened.trees()) == 1:
            return answer
        return replace(answer, moves=worst_moves(opened, deciding))


def _check(where: str, changes: list[str], every: bool) -> None:
    from ramify.jobs.helped import change_of

    for text in changes:
        change_of(text)
    if every and (where or changes):
        raise UserError("--all asks about every tree, so it takes no tree, node or --do")


def _counting(bar: Progress) -> Callable[[Attempt], Any]:
    from ramify.rollout.attempts import Success

    success = Success()

    def on_attempt(attempt: Attempt) -> None:
        success.add(attempt)
        bar.at(success.ended, success.note)

    return on_attempt
