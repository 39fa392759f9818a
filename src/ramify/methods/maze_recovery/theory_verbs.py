"""The verbs ``exact`` and ``train`` of ``ramify maze-recovery``: the maze of the theory in exact numbers, without sampling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.kit import option
from ramify.methods.maze_recovery.algorithm import REGIMES, growth, search_steps, train_exact
from ramify.methods.maze_recovery.star import NAMED, Maze
from ramify.render.result import Result, Section, table
from ramify.score.steps import write_rows
from ramify.stats.intervals import Interval

W = Annotated[int, option("--w", help="Branches.")]
K = Annotated[int, option("--k", help="Diamonds a branch.")]
L = Annotated[int, option("--l", help="Parallel edges a diamond.")]


@dataclass(frozen=True)
class PolicySteps:
    """Expected steps of a policy, their logarithm, and the expected cost with a search wrapper where that is known."""

    steps: float
    log_steps: float
    search_steps: float | None


@dataclass(frozen=True)
class MazeSteps(Result):
    """Expected steps through a maze; ``growth`` is what one more diamond multiplies the golden SFT limit by."""

    W: int
    K: int
    L: int
    growth: float
    base: PolicySteps
    golden_sft: PolicySteps
    optimal: PolicySteps

    def sections(self) -> Iterable[Section]:
        """The policies, and the growth."""
        each = {name: getattr(self, name) for name in NAMED}
        rows = [(name, _digits(of.steps), _digits(of.log_steps), _digits(of.search_steps)) for name, of in each.items()]
        yield Section.of(
            "",
            table(("policy", "steps", "ln steps", "steps with a search wrapper"), rows),
            f"one more diamond multiplies the golden SFT limit by {self.growth:.6g}",
        )


def exact(w: W = 15, k: K = 15, l: L = 5) -> MazeSteps:  # noqa: E741
    """Expected steps through the maze: base model, limit of SFT on clean paths, optimum; alone and with a search wrapper."""
    maze = Maze(w, k, l)

    def of(name: str) -> PolicySteps:
        search = None if name == "base" else float(search_steps(maze, name))
        return PolicySteps(float(maze.expected_steps(name)), maze.log_steps(name), search)

    return MazeSteps(w, k, l, float(growth(maze)), of("base"), of("golden_sft"), of("optimal"))


@dataclass(frozen=True)
class ExactTraining(Result):
    """Expected steps before and after training; the lowest and highest probability of each family's desired move after it."""

    method: str
    steps: int
    before: float
    after: float
    optimal: float
    families: Mapping[str, Interval]

    def sections(self) -> Iterable[Section]:
        """The numbers."""
        rows = [("expected steps before", _digits(self.before)), ("expected steps after", _digits(self.after))]
        rows += [("optimum", _digits(self.optimal))]
        rows += [(f"{name}, lowest and highest", f"{low:.7f} {high:.7f}") for name, (low, high) in self.families.items()]
        yield Section.of("", table(("number", "value"), rows))


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
) -> ExactTraining:
    """Train the base model with exact gradients and show where it ends; distillation first trains its teacher."""
    maze = Maze(w, k, l)
    if regime not in REGIMES:
        raise UserError(f"unknown method '{regime}' ({nearest(regime, REGIMES)})")
    if not 0 <= lr < math.inf:
        raise UserError(f"lr is {lr}; it must be a number from 0 up")
    teacher = train_exact(maze, "rlvr")[0] if regime == "distill" else None
    policy, curve = train_exact(maze, regime, steps, lr or (0.01 if regime == "rlvr" else 10.0), teacher=teacher)
    families = {name: (float(p.min()), float(p.max())) for name, p in policy.families().items() if k}
    if out is not None:
        write_rows(out, codec.to_json([{"step": i, "expected_steps": value} for i, value in enumerate(curve)]))
    return ExactTraining(regime, steps, curve[0], curve[-1], float(maze.expected_steps("optimal")), families)


def _digits(value: float | None) -> str | None:
    """Eight digits, since these numbers are exact."""
    return None if value is None else f"{value:.8g}"
