"""``ramify rollout``: play tasks with any agent in any environment, here or on workers, and keep the trees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.progress import SILENT, Progress
from ramify.jobs.results import Collected
from ramify.kit import Verbs, option
from ramify.render.result import Planned

if TYPE_CHECKING:
    from ramify.jobs.collect import Collection
    from ramify.jobs.trees import TreeRolloutConfig

app = Verbs("rollout")


def _settings() -> type[TreeRolloutConfig]:
    from ramify.jobs.trees import TreeRolloutConfig

    return TreeRolloutConfig


def _collection(settings: TreeRolloutConfig, out: Path, tree: bool) -> Collection:
    from ramify.jobs import trees as job
    from ramify.jobs.collect import Collection
    from ramify.jobs.components import wanted_template

    template = wanted_template(settings.chat_template, out)
    return job.TreeCollection(settings, template) if tree else Collection(job.flat(settings), template)


def _plan(settings: TreeRolloutConfig, out: Path, tree: bool) -> Planned:
    collection = _collection(settings, out, tree)
    return Planned(collection.config.to_json(), collection.plan())


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
