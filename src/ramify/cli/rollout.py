"""``ramify rollout``: play tasks with any agent in any environment, here or on workers, and keep the trees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.progress import SILENT, Progress
from ramify.base.words import plural
from ramify.jobs.results import Collected
from ramify.kit import Verbs, option
from ramify.render.result import Cell, Planned

if TYPE_CHECKING:
    from ramify.jobs.collect import Collection
    from ramify.jobs.trees import TreeRolloutConfig
    from ramify.trace.db import Run

app = Verbs("rollout")


def _settings() -> type[TreeRolloutConfig]:
    from ramify.jobs.trees import TreeRolloutConfig

    return TreeRolloutConfig


def _collection(settings: TreeRolloutConfig, out: Path, tree: bool, weights: bool = True) -> Collection:
    from ramify.jobs import trees as job
    from ramify.jobs.collect import Collection
    from ramify.jobs.components import wanted_template

    template = wanted_template(settings.chat_template, out)
    return job.TreeCollection(settings, template, weights) if tree else Collection(job.flat(settings), template, weights)


def seconds_left(run: Run, attempts: int) -> dict[str, Cell]:
    """Seconds that the rest of ``attempts`` takes, by what those in the run took; nothing where it holds none."""
    from ramify.jobs.results import AttemptEntry, Stretch

    done = len(run.memo("attempt", AttemptEntry))
    seconds = sum(stretch.seconds for stretch in run.memo("stretch", Stretch).values())
    if not done or not seconds:
        return {}
    left = max(0, attempts - done) * seconds / done
    return {"seconds, about": round(left), "seconds from": f"{plural(done, 'attempt')} that the run holds"}


def _plan(settings: TreeRolloutConfig, out: Path, tree: bool) -> Planned:
    from ramify.trace.connect import holds_run
    from ramify.trace.db import Run

    collection = _collection(settings, out, tree, weights=False)  # counted, and not loaded
    costs: dict[str, Cell] = {**collection.plan(), **collection.memory()}
    if holds_run(out):
        with Run.open(out) as run:
            costs |= seconds_left(run, collection.plan()["attempts"])
    return Planned(collection.config.to_json(), costs)


@app.study(settings=_settings, plan=_plan, unit="attempts", itself=True, folder="rollout", resumed=True, keeps=False)
def rollout(
    settings: TreeRolloutConfig,
    out: Annotated[
        Path | None,
        option(metavar="RUN", help="Folder of the run to make or continue; default: the next free runs/rollout-N."),
    ] = None,
    tree: Annotated[
        bool, option("--tree", help="Grow a tree of attempts per task under --tree-budget (see `ramify tree-rollouts`).")
    ] = False,
    bar: Progress = SILENT,
) -> Collected:
    """Play tasks with any agent in any environment, here or on workers, and keep the trees.

    Exit code 3 when a budget ended it before every attempt was played; the same command with --out and a larger budget continues.
    """
    assert out is not None
    return _collection(settings, out, tree).collect(out, bar)
