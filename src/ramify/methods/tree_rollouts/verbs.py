"""The verbs of ``ramify tree-rollouts``; trees are grown by ``ramify rollout --tree``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ramify.base.errors import UserError
from ramify.kit import Json, Verbs, argument, option
from ramify.methods.tree_rollouts import algorithm
from ramify.methods.tree_rollouts.record import read_trees
from ramify.methods.tree_rollouts.run import LEVEL, against, report, report_text
from ramify.render.terminal import emit, say, table

app = Verbs("tree-rollouts", help="Spend a rollout budget on a tree of attempts.")


@app.verb("report")
def report_verb(
    run: Annotated[Path, argument(help="A run that `ramify rollout --tree` made, or a file that `ramify import` makes one of.")],
    other: Annotated[
        Path | None, option("--against", metavar="RUN", help="Another arm's run on the same tasks, to compare with.")
    ] = None,
    level: Annotated[float, option(min=0, max=1, help="With --against: chance of reporting a difference of equal arms.")] = LEVEL,
    as_json: Json = False,
) -> None:
    """Groups with mixed outcomes, informativeness and cost of the trees of a run;
    with --against, whether they differ from another arm's."""
    trees = read_trees(run)
    found = report(trees)
    text = report_text(found)
    if other is not None:
        versus = against(trees, read_trees(other), level)
        rows = [
            [name, one["difference"], "{:.3f} to {:.3f}".format(*one["interval"]), one["p_corrected"]]
            for name, one in versus["compared"].items()
        ]
        text += "\n\n" + table(["number", "difference", "95 % interval", "p, corrected"], rows, f"{run} - {other}")
        text += f"\n{versus['verdict']}"
        if not versus["equal_cost"]:
            say(
                "warning: the arms cost {:g} and {:g} {}: only at equal cost does a difference speak for one of them".format(
                    *versus["costs"], found["unit"]
                )
            )
        found |= {"against": versus}
    emit(found, as_json, text)


@app.verb()
def collapse(
    p: Annotated[float, option(help="Success probability of one attempt.")],
    n: Annotated[int, option(min=1, max=100_000, help="Independent attempts per task.")],
    as_json: Json = False,
) -> None:
    """How often N independent attempts at one task all end alike (exact)."""
    if not 0 <= p <= 1:
        raise UserError(f"--p must lie in [0, 1], not {p}")
    mix = algorithm.p_mix(n, p)
    found = {"p": p, "n": n, "mixed": mix, "collapsed": 1 - mix, "bound": algorithm.p_mix_bound(n, p)}
    found["l1_mass"] = algorithm.expected_l1(n, p)
    emit(found, as_json, table(["number", "value"], list(map(list, found.items()))))


@app.verb()
def sweep(
    prompts: Annotated[int, option(help="Prompts of the toy per cell.")] = 60,
    seed: Annotated[int, option(help="Seed of the prompts and samples.")] = 0,
    as_json: Json = False,
) -> None:
    """Selector coefficients on a 5x5x5 grid, on the toy of the reproduction, each against the defaults."""
    from ramify.methods.tree_rollouts.toy import sweep_grid

    if prompts < 1:
        raise UserError(f"--prompts must be at least 1, not {prompts}")
    found = sweep_grid(prompts, seed)
    columns = ["alpha", "c", "lam", "mixed", "l1_mass", "p_corrected"]
    cells = sorted(found["cells"], key=lambda cell: -cell["l1_mass"])
    text = table(columns, [[cell[name] for name in columns] for cell in cells])
    text += f"\nwithin {found['margin']} of the best L1 mass: {found['plateau']:.0%} of the cells"
    differ = [cell for cell in cells if cell["p_corrected"] <= LEVEL]
    better = sum(cell["l1_mass"] > found["default"]["l1_mass"] for cell in differ)
    sentence = f"{better} cells are better than the defaults and {len(differ) - better} worse by more than chance"
    if not better:
        sentence = f"nothing stands out: no cell is better than the defaults by more than chance, {len(differ)} are worse"
    found["verdict"] = f"{sentence}, at level {LEVEL:g}, corrected over all cells"
    emit(found, as_json, f"{text}\n{found['verdict']}")
