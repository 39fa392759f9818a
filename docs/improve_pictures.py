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
from ramify_experiments.improve import MAIN, RUNNER_UP, comparisons, kept, known_cells
from ramify_experiments.lab import ResultCache

SEEDS = tuple(range(10))


def thousands(tokens: float) -> str:
    """A place on the axis of tokens."""
    return f"{tokens / 1000:g}k" if tokens else "0"


def band(name: str, x: Sequence[float], columns: Sequence[Sequence[float]]) -> Curve:
    """Means over seeds with Student's 95 % intervals: one column of seeds a place."""
    ends = [mean_t(column) for column in columns]
    return Curve(name, x, [float(np.mean(column)) for column in columns], [low for low, _ in ends], [high for _, high in ends])


def percent(runs: Mapping[int, Mapping[str, Any]], arm: str) -> list[float]:
    """Held-out success of an arm, one number a seed."""
    return [100 * one[arm]["success"] for one in runs.values()]


def pictures() -> dict[str, str]:
    """Held-out success by budget, and tasks won so far, over generated tokens."""
    with tempfile.TemporaryDirectory() as folder:
        cells = kept(ResultCache(Path(folder)))
        small, large, *again = (known_cells(cells, grid) for grid in comparisons(SEEDS)[:4])
    success, won = [], []
    for arm in (*MAIN, RUNNER_UP):
        ends = [percent(runs, arm) for runs in (again if arm == RUNNER_UP else (small, large))]
        success.append(band(arm, (0, 40_000, 150_000), [percent(large, "start"), *ends]))
    for arm in MAIN:
        curves = np.array([one[arm]["curve"] for one in large.values()])
        tokens, solved = curves[:, :, 0].mean(axis=0), curves[:, :, 2].cumsum(axis=1)
        won.append(band(arm, np.minimum(tokens, 150_000).tolist(), solved.T.tolist()))
    axis = {"x_name": "generated tokens", "percent": False, "x_text": thousands}
    return {
        "success": curves_svg(success, "Held-out success by budget", y_name="held-out success, %", **axis),
        "won": curves_svg(won, "Tasks won while training", y_name="tasks won so far", **axis),
    }


if __name__ == "__main__":
    save("improve", pictures())
