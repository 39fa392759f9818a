"""The verbs of ``ramify tree-rollouts``; trees are grown by ``ramify rollout --tree``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from ramify.base.errors import UserError
from ramify.kit import Verbs, argument, option
from ramify.methods.tree_rollouts import algorithm
from ramify.methods.tree_rollouts.record import read_trees
from ramify.methods.tree_rollouts.run import LEVEL, TreeReport, against, report
from ramify.methods.tree_rollouts.toy import Sweep, sweep_grid
from ramify.render.result import Result, Section, numbers

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
    found = replace(report(trees), run=str(run))
    if other is None:
        return found
    versus = against(trees, read_trees(other), level, str(other))
    caveat = "the arms cost {:g} and {:g} {}: only at equal cost does a difference speak for one of them"
    unequal = () if versus.equal_cost else (caveat.format(*versus.costs, found.unit),)
    return replace(found, against=versus, caveats=unequal)


@dataclass(frozen=True)
class Collapse(Result):
    """How often n independent attempts at one task all end alike (exact)."""

    p: float
    n: int
    mixed: float
    collapsed: float
    bound: float
    l1_mass: float

    def sections(self) -> Iterable[Section]:
        """The numbers."""
        yield Section.of("", numbers({name: value for name, value in asdict(self).items() if name != "caveats"}))


@app.verb()
def collapse(
    p: Annotated[float, option(help="Success probability of one attempt.")],
    n: Annotated[int, option(min=1, max=100_000, help="Independent attempts per task.")],
) -> Collapse:
    """How often N independent attempts at one task all end alike (exact)."""
    if not 0 <= p <= 1:
        raise UserError(f"--p must lie in [0, 1], not {p}")
    mix = algorithm.p_mix(n, p)
    return Collapse(p, n, mix, 1 - mix, algorithm.p_mix_bound(n, p), algorithm.expected_l1(n, p))


@app.verb()
def sweep(
    prompts: Annotated[int, option(help="Prompts of the toy per cell.")] = 60,
    seed: Annotated[int, option(help="Seed of the prompts and samples.")] = 0,
) -> Sweep:
    """Selector coefficients on a 5x5x5 grid, on the toy of the reproduction, each against the defaults."""
    if prompts < 1:
        raise UserError(f"--prompts must be at least 1, not {prompts}")
    return sweep_grid(prompts, seed, level=LEVEL)
