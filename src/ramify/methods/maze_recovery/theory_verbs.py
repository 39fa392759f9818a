"""The verbs ``exact`` and ``train`` of ``ramify maze-recovery``: the maze of the theory in exact numbers, without sampling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError, nearest
from ramify.kit import Json, option
from ramify.methods.maze_recovery.algorithm import REGIMES, growth, search_steps, train_exact
from ramify.methods.maze_recovery.star import NAMED, Maze
from ramify.render.terminal import emit, table
from ramify.score.steps import write_rows

W = Annotated[int, option("--w", help="Branches.")]
K = Annotated[int, option("--k", help="Diamonds a branch.")]
L = Annotated[int, option("--l", help="Parallel edges a diamond.")]


def exact(w: W = 15, k: K = 15, l: L = 5, as_json: Json = False) -> None:  # noqa: E741
    """Expected steps through the maze: base model, limit of SFT on clean paths, optimum; alone and with a search wrapper."""
    maze = Maze(w, k, l)
    found: dict[str, Any] = {"W": w, "K": k, "L": l, "growth": float(growth(maze))}
    for name in NAMED:
        search = None if name == "base" else float(search_steps(maze, name))
        found[name] = {"steps": _finite(maze.expected_steps(name)), "log_steps": maze.log_steps(name), "search_steps": search}
    rows = [[name, *map(_digits, found[name].values())] for name in NAMED]
    text = table(["policy", "steps", "ln steps", "steps with a search wrapper"], rows)
    emit(found, as_json, f"{text}\n\none more diamond multiplies the golden SFT limit by {float(growth(maze)):.6g}")


def train(
    w: W = 15,
    k: K = 15,
    l: L = 5,  # noqa: E741
    regime: Annotated[str, option("--method", help="rlvr, sft, distill (of the rlvr policy) or distill-erased.")] = "rlvr",
    steps: Annotated[int, option(help="Gradient steps.", min=1)] = 1200,
    lr: Annotated[
        float, option(help="Learning rate; 0 takes 0.01 for rlvr and 10 for the others, whose gradient is per token.")
    ] = 0.0,
    out: Annotated[Path | None, option(help=".jsonl or .parquet: expected steps before every step.")] = None,
    as_json: Json = False,
) -> None:
    """Train the base model with exact gradients and show where it ends; distillation first trains its teacher."""
    maze = Maze(w, k, l)
    if regime not in REGIMES:
        raise UserError(f"unknown method '{regime}' ({nearest(regime, REGIMES)})")
    if not 0 <= lr < math.inf:
        raise UserError(f"lr is {lr}; it must be a number from 0 up")
    teacher = train_exact(maze, "rlvr")[0] if regime == "distill" else None
    policy, curve = train_exact(maze, regime, steps, lr or (0.01 if regime == "rlvr" else 10.0), teacher=teacher)
    families = {name: [float(p.min()), float(p.max())] for name, p in policy.families().items() if k}
    found = {"method": regime, "steps": steps, "before": _finite(curve[0]), "after": _finite(curve[-1]), "families": families}
    if out is not None:
        write_rows(out, [{"step": i, "expected_steps": _finite(value)} for i, value in enumerate(curve)])
    rows = [["expected steps before", _digits(curve[0])], ["expected steps after", _digits(curve[-1])]]
    rows += [["optimum", _digits(maze.expected_steps("optimal"))]]
    rows += [[f"{name}, lowest and highest", f"{low:.7f} {high:.7f}"] for name, (low, high) in families.items()]
    emit(found, as_json, table(["number", "value"], rows))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.8g}"
