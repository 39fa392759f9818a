"""``ramify why``: which step lost an attempt, what else was possible there, and what would have helped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.env.tools import read_effects
from ramify.jobs.context.answer import WhyContext
from ramify.jobs.why.answer import Why, WhyAll
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.result import Cell
from ramify.render.terminal import say

if TYPE_CHECKING:
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.attempts import Attempt
    from ramify.rollout.stored import WhoPlays

app = Verbs("why")
MOST_SAMPLES = 300
"""Samples of a step with parts of its context left out, unless another number is asked for."""


def plan(
    run: str, where: str, samples: int | None, n: int, first: int, share: bool, do: list[str] | None, every: bool,
    scorer: str | None, model: str | None, env: str | None, context: bool, target: str | None, outcome: bool, trust: bool,
) -> Mapping[str, Cell]:  # fmt: skip
    """What it takes at most."""
    from ramify.jobs.why.ask import most_samples, plays_again
    from ramify.jobs.why.attempts import asked
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    _check(where, do or [], every)
    if context:
        return _plan_context(run, where, samples, target, outcome, model, env, trust)
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
    context: Annotated[
        bool,
        option(help="Which parts of what the agent was shown caused the step (a NODE; default: the step that was named)."),
    ] = False,
    target: Annotated[
        str | None,
        option(
            metavar="TARGET",
            help="With --context, what counts as taking the step again: same, calls:TOOL, says:REGEX or a judge. "
            "Default: its tool is called, or the same is said.",
        ),
    ] = None,
    outcome: Annotated[bool, option(help="With --context: play on and count success, instead of the decision alone.")] = False,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Why | WhyAll | WhyContext:
    """Which step of an attempt lost it, what else was possible there, and what would have helped.

    Steps are sampled again under the unchanged agent, most where success fell; what is there is loaded. Where the agent cannot be
    run again the attempts that are there are compared.
    """
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays

    changes = do or []
    _check(where, changes, every, context and (changes or share or every or scorer), not context and (target or outcome))
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    if context:
        return _context(run, where, samples, level, target, outcome, who, bar)
    question = WhyQuestion(n, first, samples, level, least, describe, share, scorer)
    return _steps(run, where, every, question, who, changes, bar)


def _steps(
    run: str, where: str, every: bool, question: WhyQuestion, who: WhoPlays, changes: list[str], bar: Progress
) -> Why | WhyAll:
    """Which step, of one attempt or of one of every tree."""
    from ramify.jobs.helped import helped_in
    from ramify.jobs.judged import judge
    from ramify.jobs.why.ask import explained, most_samples, plays_again
    from ramify.jobs.why.attempts import asked
    from ramify.jobs.why.moves import lost_by_tool, worst_moves
    from ramify.jobs.why.parting import first_partings, judged, whole_differences
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    with Run.open(find_run(run), write=True) as opened:
        judge(opened, who)
        deciding = settled(opened, question.scorer)
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
            answer = replace(answer, do=helped_in(opened, answer, changes, question.n, who, told[0]))
        if where or len(opened.trees()) == 1:
            return answer
        return replace(answer, moves=worst_moves(opened, deciding))


def _plan_context(
    run: str, where: str, samples: int | None, target: str | None, outcome: bool, model: str | None, env: str | None, trust: bool
) -> Mapping[str, Cell]:
    from ramify.jobs.context.ask import ContextQuestion, counted_parts, step_of
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run

    with Run.open(find_run(run), write=True) as opened:
        node = step_of(opened, where)
        parts = counted_parts(opened, node, ContextQuestion(target, outcome), WhoPlays(model, env, trust))
    return {"step": node.id[:12], "parts": parts, "samples": MOST_SAMPLES if samples is None else samples}


def _context(
    run: str, where: str, samples: int | None, level: float, target: str | None, outcome: bool, who: WhoPlays, bar: Progress
) -> WhyContext:
    from ramify.jobs.context.ask import ContextQuestion, explained_context, step_of
    from ramify.trace.db import Run

    most = MOST_SAMPLES if samples is None else samples
    with Run.open(find_run(run), write=True) as opened:
        bar.begin(most)
        question = ContextQuestion(target, outcome, most, level)
        return explained_context(opened, step_of(opened, where), question, who, bar.at)


def _check(where: str, changes: list[str], every: bool, steps: object = False, counts: object = False) -> None:
    from ramify.jobs.helped import change_of

    for text in changes:
        change_of(text)
    if steps:
        raise UserError("--context asks about one step, so it takes no --do, --share, --all or --scorer")
    if counts:
        raise UserError("--target and --outcome say what is counted with --context")
    if every and (where or changes):
        raise UserError("--all asks about every tree, so it takes no tree, node or --do")


def _counting(bar: Progress) -> Callable[[Attempt], Any]:
    from ramify.rollout.attempts import Success

    success = Success()

    def on_attempt(attempt: Attempt) -> None:
        success.add(attempt)
        bar.at(success.ended, success.note)

    return on_attempt
