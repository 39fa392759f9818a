"""``ramify test``: how reliable an agent is at its tasks or at a step, whether another version of it differs, and the test that
keeps a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.env.tools import read_effects
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.result import Cell, Result

if TYPE_CHECKING:
    from ramify.jobs.regression import StepQuestion, TestedStep
    from ramify.jobs.reliability import TestedRun, TestedVersions, TestPlan
    from ramify.rollout.stored import WhoPlays
    from ramify.stats.rates import RateTest
    from ramify.trace.db import Run

app = Verbs("test")
AT_LEAST = 0.8
"""The rate of a test that is written where none is stated."""


def cost(
    where: str, at_least: float | None, usual: float | None, confidence: float, n: int | None, against: str | None,
    write: Path | None, plan: bool,
) -> Mapping[str, Cell]:  # fmt: skip
    """What it takes at most."""
    if not where or plan:
        return {"samples": 0}
    most = _question(None, _rate(at_least, usual, confidence), n, against, write).most
    return {"samples": most * (1 if against is None else 2)}


@app.study(plan=cost, unit="samples at most", itself=True, run="run")
def tell(
    run: RunArgument,
    where: Annotated[
        str,
        argument(
            "STEP", help="A reply's id, or its first digits; the name of a tree is its task. Default: all tasks of the run."
        ),
    ] = "",
    expect: Annotated[
        str | None,
        option(
            metavar="TARGET",
            help="Of a step, what should happen: calls:TOOL, says:REGEX, same, or a judge, after not: the opposite; or outcome "
            "(the attempt succeeds). Default: its tool is called, or the same is said; of a task outcome.",
        ),
    ] = None,
    at_least: Annotated[float | None, option(help="The rate of success, 0 to 1, that has to be shown.")] = None,
    usual: Annotated[
        float | None, option(help="Of a step, the rate at which that passes 4 times in 5; default: 3/4 of the way to 1.")
    ] = None,
    confidence: Annotated[float, option(help="With which the rate has to be shown.")] = 0.95,
    n: Annotated[
        int | None,
        option("-n", "--n", help="Samples of a step; 0 asks no model. Default: until --at-least is settled, or 20.", min=0),
    ] = None,
    against: Annotated[
        str | None,
        option(metavar="RUN", help="The same tasks by another version (commit, model, prompt), or of a step its agent."),
    ] = None,
    difference: Annotated[float, option(help="Difference of success, 0 to 1, that the plan of attempts is to find.")] = 0.1,
    plan: Annotated[bool, option(help="How many runs it takes to tell versions apart; nothing is sampled.")] = False,
    write: Annotated[
        Path | None, option(metavar="FILE.py", help="Write a pytest file of the step, its data beside it; asks no model.")
    ] = None,
    junit: Annotated[Path | None, option(metavar="FILE", help="Write the result as JUnit XML, too.")] = None,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Result:
    """Tell how reliable a run's attempts are (pass^k, flip rate), and how many would tell another version apart.

    With a STEP: whether the agent asks what it asked when it was recorded, and how often a model then does what it should.
    With --against: whether two versions differ. Exit code 1: a stated rate is not shown, a version is worse, or other is asked.
    """
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run

    if not 0 < difference < 1:
        raise UserError(f"--difference lies between 0 and 1, as 0.1 for ten points, not {difference:g}")
    if not (at_least is None or 0 < at_least < 1) or not 0.5 < confidence < 1:
        raise UserError("--at-least lies between 0 and 1, --confidence between 0.5 and 1")
    rate = _rate(at_least, usual, confidence) if where else None
    _check(where, {"--expect": expect, "--usual": usual, "--n": n, "--write": write, "--model": model, "--env": env}, junit)
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    with Run.open(find_run(run), write=bool(where)) as opened:
        if where:
            question = _question(expect, rate, n, against, write)
            result: TestedRun | TestedVersions | TestPlan | TestedStep = _step(
                opened, where, question, who, against, difference, plan, write, confidence, scorer, bar
            )
        else:
            result = _whole(opened, against, scorer, difference, plan, at_least, confidence)
    if junit is not None and not plan:
        from ramify.jobs.junit import junit_of

        write_whole(junit, junit_of(f"ramify test {run}", result.junit()))  # type: ignore[union-attr]  # no plan
    return result


def _whole(
    run: Run, against: str | None, scorer: str | None, difference: float, plan: bool, at_least: float | None, confidence: float
) -> TestedRun | TestedVersions | TestPlan:
    from ramify.jobs.reliability import compared, planned, reliability
    from ramify.trace.db import Run

    if plan:
        return planned(run, scorer)
    if against is None:
        return reliability(run, scorer, difference, at_least, confidence)
    with Run.open(find_run(against)) as other:
        return compared(other, run, scorer, difference)


def _step(
    run: Run, where: str, question: StepQuestion, who: WhoPlays, against: str | None, difference: float, plan: bool,
    write: Path | None, confidence: float, scorer: str | None, bar: Progress,
) -> TestedVersions | TestPlan | TestedStep:  # fmt: skip
    from ramify.jobs.regression import asked_again, compared_step, planned_step, recorded_in, step_in, write_test
    from ramify.stats.rates import RateTest
    from ramify.trace.db import Run

    node, target = step_in(run, where, scorer, question.target)
    if plan:
        return planned_step(node, run, question.test)
    question = replace(question, target=target)
    bar.begin(question.most * (1 if against is None else 2))
    if against is not None:
        with Run.open(find_run(against)) as other:
            return compared_step(run, other, node, question, who, difference, bar.at)
    if write is None:
        return asked_again(run, node, question, who, bar.at)
    kept = question.test or RateTest(AT_LEAST, confidence)
    result = asked_again(run, node, question, who, bar.at)
    step = recorded_in(run, node, who)
    write_test(step, node, run, step.target(target), kept, write)
    return replace(result, wrote=str(write))


def _rate(at_least: float | None, usual: float | None, confidence: float) -> RateTest | None:
    from ramify.stats.rates import RateTest

    if at_least is None and usual is not None:
        raise UserError("--usual says at which rate --at-least is passed, so it needs that")
    return None if at_least is None else RateTest(at_least, confidence, usual or 0.0)


def _question(expect: str | None, rate: RateTest | None, n: int | None, against: str | None, write: Path | None) -> StepQuestion:
    from ramify.jobs.regression import StepQuestion

    if n and rate is not None and against is None:
        raise UserError("--at-least samples until it is settled, so it takes no --n but 0")
    if against is not None and (write is not None or rate is not None or n == 0):
        raise UserError("--against compares two versions by samples, so it takes no --write, --at-least or --n 0")
    return StepQuestion(expect, rate, 0 if write is not None and n is None else n)


def _check(where: str, of_steps: Mapping[str, object], junit: Path | None) -> None:
    """Raises UserError."""
    given = [name for name, value in of_steps.items() if value is not None]
    if given and not where:
        raise UserError(f"{given[0]} is about a step or a task: name one after the run")
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UserError(f"cannot write {junit}: there is no folder {junit.parent}")
