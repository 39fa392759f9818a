"""The verb of ``ramify tree-rollouts``; trees are grown by ``ramify rollout --tree``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ramify.kit import Verbs, argument, option
from ramify.methods.tree_rollouts.record import read_trees
from ramify.methods.tree_rollouts.run import LEVEL, TreeReport, against, report

app = Verbs("tree-rollouts", help="Spend a rollout budget on a tree of attempts.")


@app.verb("report", keeps="run")
def report_verb(
    run: Annotated[Path, argument(help="A run that `ramify rollout --tree` made, or a file that `ramify import` makes one of.")],
    other: Annotated[
        Path | None, option("--against", metavar="RUN", help="Another arm's run on the same tasks, to compare with.")
    ] = None,
    level: Annotated[float, option(min=0, max=1, help="With --against: chance of reporting a difference of equal arms.")] = LEVEL,
) -> TreeReport:
    """Groups with mixed outcomes, informativeness and cost of the trees of a run;
    with --against, whether they differ from another arm's."""
    trees = read_trees(run)
    described = replace(report(trees), run=str(run))
    if other is None:
        return described
    versus = against(trees, read_trees(other), level, str(other))
    caveat = "the arms cost {:g} and {:g} {}: only at equal cost does a difference speak for one of them"
    unequal = () if versus.equal_cost else (caveat.format(*versus.costs, described.unit),)
    return replace(described, against=versus, caveats=unequal)
