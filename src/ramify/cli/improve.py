"""``ramify improve``: the main job, its dry run, and how its result is shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress
from ramify.cli.show import write_report
from ramify.jobs.results import REPORT, Improved, ImprovePlan
from ramify.kit import Verbs, option

if TYPE_CHECKING:
    from ramify.jobs.settings import ImproveConfig

app = Verbs("improve")


def _settings() -> type[ImproveConfig]:
    from ramify.jobs.settings import ImproveConfig

    return ImproveConfig


def _plan(settings: ImproveConfig, out: Path, bar: Progress) -> ImprovePlan:
    from ramify.jobs import improve as job

    _check(out)
    return job.plan(settings, out, bar)


def _check(out: Path) -> None:
    from ramify.trace.connect import holds_run

    if holds_run(out):
        resume = f"ramify resume {shlex.quote(str(out))}"
        raise UserError(f"{out} holds a run already: continue with `{resume}`, or choose another --out")


@app.study(settings=_settings, plan=_plan, unit="episodes", itself=True, folder="improve", resumed=True, keeps=False)
def improve(
    settings: ImproveConfig,
    out: Annotated[
        Path | None, option(metavar="RUN", help="Folder of the run to make; default: the next free runs/improve-N.")
    ] = None,
    bar: Progress = SILENT,
) -> Improved:
    """Make an agent better: attempts, credit per step, training, a before/after report.

    Without settings it runs on the built-in agent and environment, offline, in minutes. --dry-run tries a few episodes and one
    training step, and keeps nothing.
    """
    from ramify.jobs import improve as job

    assert out is not None
    _check(out)
    improved = job.improve(settings, out, bar)
    write_report(out, out / REPORT)
    return improved
