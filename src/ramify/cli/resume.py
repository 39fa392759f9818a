"""``ramify resume``: continue an interrupted run."""

from __future__ import annotations

import shlex

from ramify.base.errors import UserError
from ramify.cli.show import write_report
from ramify.jobs.results import REPORT, Collected, Improved
from ramify.kit import RunArgument, Trust, Verbs, find_run
from ramify.render.terminal import progress

app = Verbs("resume")


@app.itself()
def resume(run: RunArgument, trust: Trust = False) -> Improved | Collected:
    """Continue an interrupted run; the result equals that of an uninterrupted one. A finished run prints its result again."""
    folder = find_run(run)
    from ramify.jobs import collect, recording, trees
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        kind = opened.kind
    again = {
        trees.TreeCollection.kind: trees.resume,
        collect.Collection.kind: collect.resume,
        recording.Recording.kind: recording.resume,
    }
    if kind != "improve" and kind not in again:
        made = f"; the same `ramify {kind}` again continues it" if kind not in ("", "import", "play", "cliffs show --run") else ""
        raise UserError(f"{folder} was not made by `ramify improve`, `ramify rollout` or `ramify record`{made}")
    with progress(folder.name, kept=f"finished work is kept: continue with `ramify resume {shlex.quote(str(folder))}`") as bar:
        bar.begin(0, phase="load")
        if kind != "improve":
            return again[kind](folder, bar, trust)
        from ramify.jobs import improve as job

        resumed = job.resume(folder, bar, trust)
    write_report(folder, folder / REPORT)
    return resumed
