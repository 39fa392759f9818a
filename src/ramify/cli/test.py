"""``ramify test``: how reliable an agent is at its tasks, and whether another version of it differs."""

from __future__ import annotations

from typing import Annotated

from ramify.base.errors import UserError
from ramify.kit import RunArgument, Verbs, find_run, option
from ramify.render.result import Result

app = Verbs("test")


@app.itself(keeps="run")
def tell(
    run: RunArgument,
    against: Annotated[
        str | None,
        option(metavar="RUN", help="The same tasks by another version (commit, model, prompt): does RUN differ from it?"),
    ] = None,
    difference: Annotated[float, option(help="Difference of success, 0 to 1, that the plan of attempts is to find.")] = 0.1,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
) -> Result:
    """Tell how reliable the attempts of a run are (pass^k, flip rate), and how many would tell another version apart.

    With --against: whether two runs differ at the tasks that both played, which tasks, and how many attempts it would take.
    """
    if not 0 < difference < 1:
        raise UserError(f"--difference lies between 0 and 1, as 0.1 for ten points, not {difference:g}")
    from ramify.jobs.reliability import compared, reliability
    from ramify.trace.db import Run

    with Run.open(find_run(run)) as opened:
        if against is None:
            return reliability(opened, scorer, difference)
        with Run.open(find_run(against)) as other:
            return compared(other, opened, scorer, difference)
