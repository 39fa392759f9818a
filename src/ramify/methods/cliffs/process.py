"""Potentials without a model: a martingale whose every true drop is known, to see what a test on counts of forks reports.

Item 1 of section 7(a): replies of 150 tokens. At a token the sampler chooses among up to four, each with its own potential, whose
mean under the sampler is the potential before it; a fork ends right with the chance of its position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.cliffs.algorithm import H_STAR, KINDS, ZTest

TOKENS, FORKS, FRESH = 150, 64, 128
#: kind of choice: how often it comes, its Dirichlet (None: 0.995 and 0.005), the deviation of its potentials
CHOICES: tuple[tuple[float, tuple[float, ...] | None, float], ...] = (
    (0.80, None, 0.12),
    (0.13, (4.0, 1.0, 0.5), 0.12),
    (0.07, (1.5, 1.0, 0.7, 0.5), 0.35),
)


def _choice(kinds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of up to four tokens, shape (R, 4), and the deviation of their potentials, (R, 1), for kinds (R,)."""
    q = np.zeros((len(kinds), 4))
    for kind, (_, alpha, _) in enumerate(CHOICES):
        here = np.flatnonzero(kinds == kind)
        drawn = np.tile([0.995, 0.005], (len(here), 1)) if alpha is None else rng.dirichlet(alpha, len(here))
        q[here, : drawn.shape[1]] = drawn
    return q, np.array([spread for _, _, spread in CHOICES])[kinds][:, None]


def _potentials(v: np.ndarray, q: np.ndarray, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Potential behind each token, (R, 4): mean ``v`` (R,) under ``q``, normal deviations, shrunk where they would leave [0, 1]."""
    deviation = rng.normal(size=q.shape) * spread
    deviation = np.where(q > 0, deviation - (q * deviation).sum(axis=1, keepdims=True), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(deviation > 0, (1 - v)[:, None] / deviation, np.where(deviation < 0, v[:, None] / -deviation, np.inf))
    return np.asarray(v[:, None] + deviation * np.minimum(1.0, room.min(axis=1))[:, None]).clip(0.0, 1.0)


def simulate(traces: int, seed: int) -> dict[str, np.ndarray]:
    """Exact potentials ``v`` (R, 151), each token's probability ``pi`` and class ``kind`` (R, 150), outcome ``right`` (R,)."""
    rng, rows = generator(seed, "cliffs-process"), np.arange(traces)
    v = [rng.uniform(0.3, 0.95, traces)]
    pi, kinds = [], []
    for _ in range(TOKENS):
        q, spread = _choice(rng.choice(len(CHOICES), traces, p=[often for often, _, _ in CHOICES]), rng)
        after = _potentials(v[-1], q, spread, rng)
        token = (rng.random(traces)[:, None] > q.cumsum(axis=1)[:, :-1]).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(q * np.log(q)).sum(axis=1)
        greedy = q[rows, token] >= q.max(axis=1)
        v.append(after[rows, token])
        pi.append(q[rows, token])
        kinds.append(np.where(greedy, np.where(entropy <= H_STAR, 0, 1), np.where(entropy <= H_STAR, 3, 2)))
    right = rng.random(traces) < v[-1]
    return {"v": np.array(v).T, "pi": np.array(pi).T, "kind": np.array(kinds).T, "right": right}


def process_cell(traces: int, seed: int) -> dict[str, Any]:
    """Scan every token with 64 forks a position and confirm with 128 fresh ones; drops by class, deletion of first cliffs."""
    made, test, rng = simulate(traces, seed), ZTest(), generator(seed, "cliffs-process", "forks")
    v, kind, right = made["v"], made["kind"], made["right"]
    k, fresh = rng.binomial(FORKS, v), rng.binomial(FRESH, v)
    found = test.table(FORKS)[k[:, :-1], k[:, 1:]]
    held = test.table(FRESH)[fresh[:, :-1], fresh[:, 1:]]
    drop, true = (k[:, :-1] - k[:, 1:]) / FORKS, v[:, :-1] - v[:, 1:]
    first = [(row, int(found[row].argmax())) for row in np.flatnonzero(found.any(axis=1) & ~right)]
    at = np.array(first).reshape(-1, 2).T
    return {
        "cliffs": found.sum(axis=1).tolist(),
        "right": right.tolist(),
        "delete": rng.binomial(FORKS, v[at[0], at[1]]).tolist(),
        "keep": rng.binomial(FORKS, v[at[0], at[1] + 1]).tolist(),
        "by_class": {
            name: {
                "observed": drop[found & (kind == i)].tolist(),
                "true": true[found & (kind == i)].tolist(),
                "confirmed": held[found & (kind == i)].tolist(),
            }
            for i, name in enumerate(KINDS)
        },
    }
