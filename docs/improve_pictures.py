"""Draw the pictures of docs/improve.md from the cells of the comparison: python docs/improve_pictures.py."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from picture_files import save

from ramify.render.charts import Curve, curves_svg
from ramify.stats.intervals import mean_t
from ramify_experiments.improve import MAIN, RUNNER_UP, ArmGrid, comparisons, complete, kept, known_cells
from ramify_experiments.lab import ResultCache

SEEDS = tuple(range(10))


def thousands(tokens: float) -> str:
    """A place on the axis of tokens."""
    return f"{tokens / 1000:g}k" if tokens else "0"


def band(name: str, x: Sequence[float], columns: Sequence[Sequence[float]]) -> Curve:
    """Means over seeds with Student's 95 % intervals, cut at 0, of what cannot be less: one column of seeds a place."""
    ends = [mean_t(column) for column in columns]
    means = [float(np.mean(column)) for column in columns]
    return Curve(name, x, means, [max(0.0, low) for low, _ in ends], [high for _, high in ends])


def percent(runs: Mapping[int, Mapping[str, Any]], arm: str) -> list[float]:
    """Held-out success of an arm, one number a seed."""
    return [100 * one[arm]["success"] for one in runs.values()]


def drawn(small: ArmGrid, large: ArmGrid, again: Sequence[ArmGrid] = ()) -> dict[str, str]:
    """An environment's held-out success by budget, with imitation's runner-up where its grids are given, and tasks won over
    generated tokens; nothing where a budget has no complete seed."""
    with tempfile.TemporaryDirectory() as folder:
        cells = kept(ResultCache(Path(folder)))
        found = {grid: complete(grid, known_cells(cells, grid)) for grid in (small, large, *again)}
    if not (found[small] and found[large]):
        return {}
    arms = MAIN[large.env]
    curves = dict.fromkeys(arms, (small, large)) | ({RUNNER_UP: again} if again else {})
    starts = percent(found[large], "start")
    success = [
        band(arm, (0, 40_000, 150_000), [starts, *(percent(found[grid], arm) for grid in grids)]) for arm, grids in curves.items()
    ]
    won = []
    for arm in arms:
        told = np.array([one[arm]["curve"] for one in found[large].values()])
        tokens, solved = told[:, :, 0].mean(axis=0), told[:, :, 2].cumsum(axis=1)
        won.append(band(arm, np.minimum(tokens, 150_000).tolist(), solved.T.tolist()))
    axis = {"x_name": "generated tokens", "percent": False, "x_text": thousands}
    return {
        "success": curves_svg(success, f"Held-out success by budget, {large.env}", y_name="held-out success, %", **axis),
        "won": curves_svg(won, f"Tasks won while training, {large.env}", y_name="tasks won so far", **axis),
    }


def pictures() -> dict[str, str]:
    """Both environments: the long household's names begin with ``long-``."""
    grids = {(grid.env, grid.budget, grid.part): grid for grid in comparisons(SEEDS)}
    again = [grids["household", budget, RUNNER_UP] for budget in ("40k", "150k")]
    found = drawn(grids["household", "40k", ""], grids["household", "150k", ""], again)
    rare = drawn(grids["long-household", "40k", ""], grids["long-household", "150k", ""])
    return found | {f"long-{name}": picture for name, picture in rare.items()}


if __name__ == "__main__":
    save("improve", pictures())
