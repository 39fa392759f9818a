"""``ramify why``: which step lost an attempt, what else was possible there, and what would have helped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.env.tools import read_effects
from ramify.jobs.context.answer import WhyContext
from ramify.jobs.log.answer import WhyJudged, WhyJudgedAll
from ramify.jobs.log.ways import Way
from ramify.jobs.tokens.answer import WhyTokens
from ramify.jobs.why.answer import Why, WhyAll
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, only_for, option
from ramify.render.result import Cell
from ramify.render.terminal import say

if TYPE_CHECKING:
    from ramify.jobs.context.ask import ContextQuestion
    from ramify.jobs.log.ask import JudgeQuestion
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.attempts import Attempt
    from ramify.rollout.stored import WhoPlays

app = Verbs("why")
MOST_SAMPLES = 300
"""Samples of a step with parts of its context left out, unless another number is asked for."""

Target = Annotated[
    str | None,
    option(
        "--target",
        metavar="TARGET",
        help="With --context and --tokens, what counts as taking the step again: same, calls:TOOL, says:REGEX or a judge. "
        "Default: its tool is called, or the same is said.",
    ),
]
Outcome = Annotated[bool, option(help="With --context and --tokens: play on and count success, instead of the decision alone.")]
Judges = Annotated[
    list[str] | None,
    option(
        "--judge",
        metavar="MODEL",
        help="Ask a model, or any judge, which step of a log lost it: an opinion, no counterfactual; repeatable.",
    ),
]
Ways = Annotated[
    list[Way] | None,
    option(
        "--way",
        help="With --judge, how it is asked: whole (the default), steps (one after another), halving, or answer (a local model: "
        "after which step the task's known answer was less likely to it for good); repeatable.",
    ),
]
AlsoSuccesses = Annotated[
    int,
    option(
        "--successes",
        help="With --judge, ask about so many successful attempts too: a step is more than an opinion where at most --level of "
        "them would have one (from 19 on at 0.05).",
        min=0,
    ),
]


def plan(
    run: str, where: str, samples: int | None, n: int, first: int, share: bool, do: list[str] | None, every: bool,
    scorer: str | None, model: str | None, env: str | None, context: bool, tokens: bool, target: str | None, outcome: bool,
    trust: bool, judge: list[str] | None, way: list[Way] | None, successes: int, level: float,
) -> Mapping[str, Cell]:  # fmt: skip
    """What it takes at most."""
    from ramify.jobs.why.ask import most_samples, plays_again
    from ramify.jobs.why.attempts import asked
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    _check(where, do or [], every)
    if judge:
        from ramify.jobs.log.ask import JudgeQuestion, counted

        asking = JudgeQuestion(tuple(judge), _ways(way), successes, level, scorer)
        with Run.open(find_run(run)) as opened:
            attempts, questions = counted(opened, settled(opened, scorer), asking, where, every)
        return {"attempts": attempts, "questions": questions, "counterfactual": False}
    if context or tokens:
        return _plan_step(run, where, samples, target, outcome, model, env, trust, context)
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
    tokens: Annotated[
        bool,
        option(
            help="At which tokens of the step's reply (a NODE; default: the step that was named) another one leads elsewhere."
        ),
    ] = False,
    target: Target = None,
    outcome: Outcome = False,
    judge: Judges = None,
    way: Ways = None,
    successes: AlsoSuccesses = 0,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Why | WhyAll | WhyContext | WhyTokens | WhyJudged | WhyJudgedAll:
    """Which step of an attempt lost it, what else was possible there, and what would have helped.

    Steps are sampled again under the unchanged agent, most where success fell; what is there is loaded. Where the agent cannot be
    run again the attempts that are there are compared, and the log is checked by rules; --judge asks models about it.
    """
    from ramify.jobs.context.ask import ContextQuestion
    from ramify.jobs.log.ask import JudgeQuestion
    from ramify.jobs.why.question import WhyQuestion
    from ramify.rollout.stored import WhoPlays

    changes = do or []
    question = WhyQuestion(n, first, samples, level, least, describe, share, scorer)
    _check(where, changes, every)
    if judge:
        only_for("--judge", do=do, share=share, context=context, tokens=tokens, target=target, outcome=outcome, samples=samples)
        only_for("--judge", model=model, env=env, effect=effect, **_unusual(question))
        return _judged(run, where, every, JudgeQuestion(tuple(judge), _ways(way), successes, level, scorer), bar)
    _check_rest(way or successes, not (context or tokens) and (target or outcome))
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    if context or tokens:
        _check_one_step(context and tokens, question, changes, every)
        return _step(run, where, context, ContextQuestion(target, outcome, _most(samples), level), who, bar)
    return _steps(run, where, every, question, who, changes, bar)


def _check_rest(asking: object, counting: object) -> None:
    """Raises UserError where options are given without what they are about."""
    if asking:
        raise UserError("--way and --successes say how --judge MODEL is asked, so they go with it")
    if counting:
        raise UserError("--target and --outcome say what is counted with --context or --tokens")


def _steps(
    run: str, where: str, every: bool, question: WhyQuestion, who: WhoPlays, changes: list[str], bar: Progress
) -> Why | WhyAll:
    """Which step, of one attempt or of one of every tree."""
    from ramify.jobs.helped import helped_in
    from ramify.jobs.judged import judge
    from ramify.jobs.log.rarity import successes
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
        among = None if plays_again(opened, question, who) else successes(opened, deciding)
        found = [explained(opened, view, deciding, question, who, *told, among) for view in views]
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


def _plan_step(
    run: str, where: str, samples: int | None, target: str | None, outcome: bool, model: str | None, env: str | None,
    trust: bool, context: bool,
) -> Mapping[str, Cell]:  # fmt: skip
    from ramify.jobs.context.ask import ContextQuestion, counted_parts, step_of
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run

    with Run.open(find_run(run), write=True) as opened:
        node = step_of(opened, where)
        parts = counted_parts(opened, node, ContextQuestion(target, outcome), WhoPlays(model, env, trust)) if context else None
    inside = {"tokens": node.sampled_tokens} if parts is None else {"parts": parts}
    return {"step": node.id[:12], **inside, "samples": _most(samples)}


def _step(run: str, where: str, context: bool, question: ContextQuestion, who: WhoPlays, bar: Progress) -> WhyContext | WhyTokens:
    """What caused one step, or where its reply forks."""
    from ramify.jobs.context.ask import explained_context, step_of
    from ramify.jobs.tokens.ask import explained_tokens
    from ramify.trace.db import Run

    with Run.open(find_run(run), write=True) as opened:
        bar.begin(question.samples)
        explained = explained_context if context else explained_tokens
        return explained(opened, step_of(opened, where), question, who, bar.at)


def _judged(run: str, where: str, every: bool, question: JudgeQuestion, bar: Progress) -> WhyJudged | WhyJudgedAll:
    """What judges name, in one attempt or in one of every tree."""
    from ramify.jobs.log.ask import counted, judged_attempts, together
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    with Run.open(find_run(run), write=True) as opened:
        deciding = settled(opened, question.scorer)
        bar.begin(counted(opened, deciding, question, where, every)[1], unit="questions at most")
        answers = judged_attempts(opened, deciding, question, where, every, bar.at)
        return together(answers) if every else answers[0]


def _ways(ways: Sequence[Way] | None) -> tuple[Way, ...]:
    return tuple(dict.fromkeys(ways or ("whole",)))


def _unusual(question: WhyQuestion) -> dict[str, bool]:
    """Options of the search for a step, and whether they were given."""
    usual = type(question)()
    return {name: getattr(question, name) != getattr(usual, name) for name in ("n", "first", "least", "describe")}


def _most(samples: int | None) -> int:
    return MOST_SAMPLES if samples is None else samples


def _check_one_step(both: bool, question: WhyQuestion, changes: list[str], every: bool) -> None:
    """Raises UserError where options of other questions are given with --context or --tokens."""
    if both:
        raise UserError("--context and --tokens are two questions: ask one at a time")
    given = {"--do": changes, "--share": question.share, "--all": every, "--scorer": question.scorer}
    given |= {f"--{name}": value for name, value in _unusual(question).items()}
    if wrong := [name for name, value in given.items() if value]:
        raise UserError(f"--context and --tokens ask about one step and take no {' or '.join(wrong)}; --samples says how much")


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
