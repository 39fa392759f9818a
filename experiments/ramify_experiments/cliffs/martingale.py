"""Potentials without a model: a bounded martingale whose every true drop is known, to see what a test on counts of forks reports.

A reply is a walk: at each token a sampler chooses among up to four, each with its own potential (the chance to end right from
there), whose mean under the sampler is the potential before.
Most tokens are forced, some are choices that matter little, few matter much.
"""

from __future__ import annotations

import numpy as np

from ramify.base.seeds import generator

#: kind of choice: how often it comes, its Dirichlet (None: 0.995 and 0.005), deviation of its potentials
CHOICES: tuple[tuple[float, tuple[float, ...] | None, float], ...] = (
    (0.80, None, 0.12),
    (0.13, (4.0, 1.0, 0.5), 0.12),
    (0.07, (1.5, 1.0, 0.7, 0.5), 0.35),
)


def simulate(replies: int, tokens: int, seed: int) -> dict[str, np.ndarray]:
    """R replies of T tokens: exact potentials ``v`` (R, T + 1), the outcome ``right`` (R,), and of each token (R, T) its
    probability ``pi``, the ``entropy`` before it in nats, and whether it was the likeliest (``greedy``)."""
    rng, rows = generator(seed, "potential-martingale"), np.arange(replies)
    v = [rng.uniform(0.3, 0.95, replies)]
    columns: dict[str, list[np.ndarray]] = {"pi": [], "entropy": [], "greedy": []}
    for _ in range(tokens):
        q, spread = choices(rng.choice(len(CHOICES), replies, p=[often for often, _, _ in CHOICES]), rng)
        after = potential_after(v[-1], q, spread, rng)
        token = (rng.random(replies)[:, None] > q.cumsum(axis=1)[:, :-1]).sum(axis=1)
        chosen = q[rows, token]
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(q * np.log(q)).sum(axis=1)
        v.append(after[rows, token])
        for name, values in (("pi", chosen), ("entropy", entropy), ("greedy", chosen >= q.max(axis=1))):
            columns[name].append(values)
    made = {name: np.array(values).T for name, values in columns.items()}
    return made | {"v": np.array(v).T, "right": rng.random(replies) < v[-1]}


def choices(kinds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of up to four tokens (R, 4), and the deviation of their potentials (R, 1), for kinds (R,)."""
    q = np.zeros((len(kinds), 4))
    for kind, (_, alpha, _) in enumerate(CHOICES):
        here = np.flatnonzero(kinds == kind)
        sampled = np.tile([0.995, 0.005], (len(here), 1)) if alpha is None else rng.dirichlet(alpha, len(here))
        q[here, : sampled.shape[1]] = sampled
    return q, np.array([spread for _, _, spread in CHOICES])[kinds][:, None]


def potential_after(v: np.ndarray, q: np.ndarray, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Potential after each token (R, 4): mean ``v`` (R,) under ``q``, normal deviations, shrunk where one would leave [0, 1]."""
    deviation = rng.normal(size=q.shape) * spread
    deviation = np.where(q > 0, deviation - (q * deviation).sum(axis=1, keepdims=True), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(deviation > 0, (1 - v)[:, None] / deviation, np.where(deviation < 0, v[:, None] / -deviation, np.inf))
    return np.asarray(v[:, None] + deviation * np.minimum(1.0, room.min(axis=1))[:, None]).clip(0.0, 1.0)
