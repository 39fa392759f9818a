"""Calibration of the confidence head, and schedules on recorded rounds. Pure functions of numpy arrays.

Axis legend: N rounds, G = gamma drafted positions (the block),
R requests of a step. What a round is: :mod:`ramify.methods.dspark.rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ramify.base.errors import UserError
from ramify.engine.schedules import Costs, Schedule
from ramify.methods.dspark.calibration import calibration_error, calibration_floor, standard_error
from ramify.methods.dspark.record import Calibration
from ramify.methods.dspark.rounds import Rounds
from ramify.stats.ranking import auroc

GRID = np.exp(np.linspace(np.log(0.25), np.log(8.0), 61))
"""Temperatures that are tried (derived: the paper names no grid)."""


# -- calibration (section 3.3.1 of the paper)


def logits_of(confidence: np.ndarray) -> np.ndarray:
    """z with sigma(z) = c; probabilities of 0 and 1 are taken for 1e-7 from it."""
    c = np.clip(confidence.astype(np.float64), 1e-7, 1 - 1e-7)
    return np.asarray(np.log(c) - np.log1p(-c))


def survival(logits: np.ndarray, temperatures: np.ndarray | float = 1.0) -> np.ndarray:
    """a_k = prod_{i<=k} sigma(z_i / T_i), [N, G]."""
    return np.cumprod(1 / (1 + np.exp(-logits / temperatures)), axis=1)


def sequential_temperatures(logits: np.ndarray, rounds: Rounds) -> np.ndarray:
    """T_k, float [G], fitted left to right: T_k makes the survival at k calibrated, with the earlier ones as they are.

    Of the grid the temperature nearest 1 is taken whose calibration error is within one standard error of the least: a single
    least value is noise (derived). Positions without rounds keep 1.
    """
    found = np.ones(rounds.block)
    before = np.ones(len(rounds))
    nearest = np.argsort(np.abs(np.log(GRID)), kind="stable")
    for k in range(rounds.block):
        seen = rounds.judged[:, k]
        if seen.any():
            y = rounds.survived[seen, k]
            tried = [before[seen] / (1 + np.exp(-logits[seen, k] / t)) for t in GRID]
            errors = np.array([calibration_error(p, y) for p in tried])
            least = int(errors.argmin())
            limit = errors[least] + standard_error(tried[least], y)
            found[k] = next(GRID[i] for i in nearest if errors[i] <= limit)
        before = before / (1 + np.exp(-logits[:, k] / found[k]))
    return found


def calibration(logits: np.ndarray, rounds: Rounds, temperatures: np.ndarray | float = 1.0) -> list[Calibration]:
    """One entry for each position that any round proposed."""
    a, found = survival(logits, temperatures), []
    for k in range(rounds.block):
        seen = rounds.judged[:, k]
        if seen.any():
            p, y = a[seen, k], rounds.survived[seen, k]
            found.append(Calibration(k + 1, len(p), calibration_error(p, y), calibration_floor(p, seed=k), auroc(p, y)))
    return found


def halves(rounds: Rounds) -> tuple[Rounds, Rounds]:
    """Rounds of even and of odd prompts: to fit on, and to test on."""
    return rounds.pick(rounds.prompt % 2 == 0), rounds.pick(rounds.prompt % 2 == 1)


def scaled(rounds: Rounds, heat: float = 1.0) -> tuple[np.ndarray, list[Calibration], list[Calibration]]:
    """Temperatures [G] fitted on one half with confidence logits times ``heat``;
    the other half's calibration without and with them.

    Raises UserError where a half has no rounds.
    """
    fit, test = halves(rounds)
    if not len(fit) or not len(test):
        raise UserError(f"{len(rounds)} rounds are too few for two halves: give more prompts")
    found = sequential_temperatures(heat * logits_of(fit.confidence), fit)
    z = heat * logits_of(test.confidence)
    return found, calibration(z, test), calibration(z, test, found)


# -- schedules on recorded rounds (section 4.2 of the paper without an engine)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """T(B) = start + B, with B rounded up to a multiple of ``stair``; drafting and the host are free.
    :class:`ramify.engine.schedules.Costs`."""

    start: float = 64.0
    stair: int = 1

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        """Time of one step over ``tokens`` tokens, float64 of their shape."""
        return np.asarray(self.start + np.ceil(np.asarray(tokens) / self.stair) * self.stair)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A schedule at one load."""

    throughput: float
    """Tokens per unit of time, over that of decoding without drafts."""
    budget: float
    """Drafts verified per request and step."""
    tokens: float
    """Tokens per request and step."""


def simulate(rounds: Rounds, schedule: Schedule, costs: Costs, requests: int, steps: int, seed: int = 0) -> Simulated:
    """Run ``steps`` steps of ``requests`` requests, each of which meets a recorded round sampled at random at every step.

    Nothing of a round's difficulty persists to the next step, the hard case for a budget from confidences of two steps ago.
    Rounds cut short are left out, since a longer draft was never judged there. Raises UserError where none is left.
    """
    whole = rounds.pick((rounds.proposed == rounds.block) & ~rounds.ended)
    if not len(whole):
        raise UserError("no round was verified at full length, so there is nothing to simulate")

    def seconds(tokens: int, depth: int) -> float:
        return float(costs.cycle(requests, np.array([float(tokens)]), depth)[0])

    rng = np.random.Generator(np.random.Philox(seed))
    emitted = verified = 0
    spent = 0.0
    for _ in range(steps):
        at = rng.integers(0, len(whole), requests)
        depth = schedule.depth(requests)
        lengths = np.zeros(requests, np.int64)
        if depth:
            lengths = schedule.admit(whole.confidence[at, :depth], np.full(requests, depth))
        emitted += int(np.minimum(whole.accepted[at], lengths).sum()) + requests
        verified += int(lengths.sum())
        spent += seconds(requests + int(lengths.sum()), depth)
    each = steps * requests
    return Simulated(emitted / spent / (requests / seconds(requests, 0)), verified / each, emitted / each)
