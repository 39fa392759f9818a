"""Two questions to the theory and the toy: ``python -m ramify_experiments.tree_rollouts collapse`` and ``sweep``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Annotated

import numpy as np

from ramify.base.errors import UserError
from ramify.kit import Verbs, option
from ramify.methods.tree_rollouts.algorithm import UUCB, l1_mass, p_mix
from ramify.methods.tree_rollouts.run import LEVEL
from ramify.render.numbers import percent
from ramify.render.result import Result, Section, numbers, table
from ramify.stats.evidence import holm
from ramify.stats.tests import paired_permutation
from ramify_experiments.tree_rollouts.toy import grow, make_prompts

app = Verbs("tree-rollouts", help="How often independent attempts agree, and how far the selector's coefficients matter.")


def p_mix_bound(n: int, p: float) -> float:
    """Upper bound n * min(p, 1-p) = n * exp(-hardness) of :func:`p_mix` (3.3)."""
    return n * min(p, 1 - p)


def expected_l1(n: int, p: float) -> float:
    """E[2 sqrt(phat (1-phat))] over phat = Binomial(n, p)/n: the L1 mass that independent sampling expects (3.2)."""
    if not 0 < p < 1:
        return 0.0
    total = 0.0
    for k in range(1, n):
        log_binomial = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(log_binomial + k * math.log(p) + (n - k) * math.log1p(-p)) * l1_mass(k, n)
    return total


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
    mix = p_mix(n, p)
    return Collapse(p, n, mix, 1 - mix, p_mix_bound(n, p), expected_l1(n, p))


@dataclass(frozen=True)
class SweptCell:
    """One setting of the selector on the toy; ``p_corrected`` is of an L1 mass equal to that of the defaults."""

    alpha: float
    c: float
    lam: float
    mixed: float
    l1_mass: float
    p_corrected: float


@dataclass(frozen=True)
class Sweep(Result):
    """A grid of settings: ``plateau`` is the share of cells within ``margin`` of the best."""

    cells: tuple[SweptCell, ...]
    default: SweptCell
    margin: float
    plateau: float
    verdict: str

    def sections(self) -> Iterable[Section]:
        """The cells, best first, and the verdict."""
        rows = [astuple(cell) for cell in sorted(self.cells, key=lambda cell: -cell.l1_mass)]
        yield Section.of(
            "",
            table([one.name for one in fields(SweptCell)], rows),
            f"within {self.margin} of the best L1 mass: {percent(self.plateau, 0)} of the cells\n{self.verdict}",
        )


def sweep_grid(prompts: int, seed: int, margin: float = 0.05, level: float = 0.05) -> Sweep:
    """Mixed ratio and L1 mass over a 5x5x5 grid of (alpha, c, lambda). P-values by permutation within prompts (Holm over the
    grid)."""
    prompts_table = make_prompts(prompts, seed)
    grown, masses = [], []
    for alpha, c, lam in itertools.product((0.25, 0.5, 1.0, 2.0, 4.0), (0.025, 0.05, 0.1, 0.2, 0.4), (0.25, 0.5, 1.0, 2.0, 4.0)):
        trees = grow(prompts_table, "uucb", seed, alpha=alpha, c=c, lam=lam)
        masses.append(np.array([l1_mass(tree.root.s, tree.root.n) for tree in trees]))
        grown.append((alpha, c, lam, float(np.mean([tree.mixed for tree in trees])), float(masses[-1].mean())))
    usual = UUCB()
    default = next(i for i, one in enumerate(grown) if one[:3] == (usual.alpha, usual.c, usual.lam))
    p = holm([paired_permutation(mass, masses[default], samples=10_000) for mass in masses])
    cells = tuple(SweptCell(*one, p_corrected) for one, p_corrected in zip(grown, p, strict=True))
    best = max(cell.l1_mass for cell in cells)
    plateau = float(np.mean([cell.l1_mass >= best - margin for cell in cells]))
    return Sweep(cells, cells[default], margin, plateau, _verdict(cells, cells[default], level))


def _verdict(cells: Sequence[SweptCell], default: SweptCell, level: float) -> str:
    """Whether any cell differs from the defaults by more than chance."""
    differ = [cell for cell in cells if cell.p_corrected <= level]
    better = sum(cell.l1_mass > default.l1_mass for cell in differ)
    sentence = f"{better} cells are better than the defaults and {len(differ) - better} worse by more than chance"
    if not better:
        sentence = f"nothing stands out: no cell is better than the defaults by more than chance, {len(differ)} are worse"
    return f"{sentence}, at level {level:g}, corrected over all cells"


@app.verb()
def sweep(
    prompts: Annotated[int, option(help="Prompts of the toy per cell.")] = 60,
    seed: Annotated[int, option(help="Seed of the prompts and samples.")] = 0,
) -> Sweep:
    """Selector coefficients on a 5x5x5 grid, on the toy of the reproduction, each against the defaults."""
    if prompts < 1:
        raise UserError(f"--prompts must be at least 1, not {prompts}")
    return sweep_grid(prompts, seed, level=LEVEL)
