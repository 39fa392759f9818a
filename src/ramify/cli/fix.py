"""``ramify fix``: which edit of what the agent is shown makes it better, beyond luck and beyond one task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.cli.fork import read_edit
from ramify.env.tools import read_effects
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ramify.render.result import Cell
    from ramify.rollout.attempts import Attempt

app = Verbs("fix")


def plan(
    run: str, where: str, edit: list[Path] | None, rule: list[str] | None, n: int, tasks: int, attempts: int, scorer: str | None
) -> Mapping[str, Cell]:
    """What it takes at most."""
    from ramify.jobs.fix import FixQuestion, beginnings, place_of
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    candidates = _candidates(edit, rule)
    with Run.open(find_run(run)) as opened:
        step = place_of(opened, where)
        others = beginnings(opened, settled(opened, scorer), step, tasks)
    most = FixQuestion(n, tasks, attempts).most(len(candidates), len(others))
    return {"candidates": len(candidates), "other tasks": len(others), "attempts": most}


@app.study(plan=plan, unit="attempts at most", itself=True, run="run")
def fix(
    run: RunArgument,
    where: Annotated[
        str, argument("NODE", help="The step to fix: a node's id or its first digits. Default: the step that `ramify why` named.")
    ] = "",
    edit: Annotated[
        list[Path] | None,
        option("--try", metavar="FILE", help="JSON file with a candidate: an edit rule or insert, as `ramify fork` takes it."),
    ] = None,
    rule: Annotated[list[str] | None, option(metavar="TEXT", help="A candidate: this rule, added to the system message.")] = None,
    n: Annotated[int, option(help="Continuations of the step for each candidate, and without one.", min=2)] = 16,
    tasks: Annotated[int, option(help="Other tasks of the run to confirm at.", min=1)] = 8,
    attempts: Annotated[int, option(help="Whole attempts at each of them at most, with and without the edit each.", min=1)] = 8,
    level: Annotated[float, option(help="Chance of accepting any edit that changes nothing.", min=1e-9, max=0.5)] = 0.05,
    write: Annotated[
        Path | None, option(metavar="FILE", help="Write the accepted edit here, as `ramify fork --edit` takes it.")
    ] = None,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    *,
    bar: Progress,
) -> Result:
    """Try edits of what the agent is shown: at the step that lost an attempt, then in whole attempts at other tasks.

    An edit is accepted where attempts with it succeed more often than as many unedited ones that begin at the same place, beyond
    chance over all candidates. Nothing is written without --write.
    """
    from dataclasses import replace

    from ramify.jobs.fix import FixQuestion
    from ramify.jobs.fix import fix as fixed
    from ramify.jobs.judged import judge
    from ramify.rollout.attempts import Success
    from ramify.rollout.stored import WhoPlays
    from ramify.trace.db import Run
    from ramify.trace.outcome import settled

    candidates = _candidates(edit, rule)
    if write is not None and not write.parent.is_dir():
        raise UserError(f"cannot write {write}: there is no folder {write.parent}")
    question, success = FixQuestion(n, tasks, attempts, level), Success()
    who = WhoPlays(model, env, trust, read_effects(effect or []))
    bar.begin(question.most(len(candidates), tasks), 0, "", "attempts at most")

    def on_attempt(attempt: Attempt) -> None:
        success.add(attempt)
        bar.at(success.ended, success.note)

    with Run.open(find_run(run), write=True) as opened:
        judge(opened, who)
        result = fixed(opened, candidates, settled(opened, scorer), where, question, who, on_attempt)
    if write is not None and result.accepted is not None:
        write_whole(write, json.dumps(dict(result.edits[result.accepted]), ensure_ascii=False, indent=1) + "\n")
        result = replace(result, wrote=str(write))
    return result


def _candidates(edit: list[Path] | None, rule: list[str] | None) -> dict[str, dict[str, Any]]:
    from ramify.jobs.fix import check_candidates

    if any(not text.strip() for text in rule or []):
        raise UserError("--rule needs the text of a rule")
    given: dict[str, Any] = {file.name: read_edit(file) for file in edit or []}
    if len(given) < len(edit or []):
        raise UserError("--try: two files have the same name, which would name two rows of the table")
    return check_candidates(given | {f"rule {i}": {"rule": {"add": text}} for i, text in enumerate(rule or [], 1)})
