"""``ramify resume``: continue an interrupted run."""

from __future__ import annotations

from ramify.base.errors import UserError
from ramify.cli.improve import finish
from ramify.cli.rollout import collected
from ramify.kit import Json, RunArgument, Trust, Verbs, find_run

app = Verbs("resume")


@app.itself()
def resume(run: RunArgument, trust: Trust = False, as_json: Json = False) -> None:
    """Continue an interrupted run; the result equals that of an uninterrupted one. A finished run prints its result again."""
    folder = find_run(run)
    from ramify.jobs import collect, trees
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        kind = opened.kind
    if kind == "improve":
        from ramify.jobs import improve as job

        finish(folder, as_json, lambda bar: job.resume(folder, bar, trust))
    elif kind == trees.TreeCollection.kind:
        collected(folder, as_json, lambda bar: trees.resume(folder, bar, trust))
    elif kind == collect.Collection.kind:
        collected(folder, as_json, lambda bar: collect.resume(folder, bar, trust))
    else:
        made = f"; the same `ramify {kind}` again continues it" if kind not in ("", "import", "play", "cliffs show --run") else ""
        raise UserError(f"{folder} was not made by `ramify improve` or `ramify rollout`{made}")
