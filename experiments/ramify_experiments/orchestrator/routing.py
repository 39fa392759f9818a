"""Section 7(a) A1: a linear router over simulated workers whose single-step scores mislead in a harness of two phases.

Axis legend: E episodes, L workers, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import SepCma, population, soft_targets

DOMAINS, WORKERS, FEATURES, TURNS = 4, 5, 64, 5
ALL_ROUNDER = WORKERS - 1
EACH = 16
"""Episodes of a candidate in a generation [T]."""


class TwoPhases:
    """Episodes that build, then debug: each turn one worker tries; the episode succeeds when both are done within five turns."""

    def __init__(self, seed: int) -> None:
        rng = generator(seed, "workers")
        self.single = rng.uniform(0.25, 0.5, (DOMAINS, WORKERS))
        self.debug = rng.uniform(0.1, 0.3, (DOMAINS, WORKERS))
        for domain in range(DOMAINS):
            self.single[domain, domain], self.debug[domain, (domain + 2) % 4] = 0.8, 0.75
        self.single[:, ALL_ROUNDER], self.debug[:, ALL_ROUNDER] = 0.6, 0.35
        self.skill = np.stack([0.8 * self.single, self.debug], axis=1)  # (domain, phase, worker)
        self.vectors = [rng.standard_normal((n, FEATURES)) for n in (DOMAINS, 2, TURNS)]

    def features(self, domain: np.ndarray, phase: np.ndarray, turn: int, rng: np.random.Generator) -> np.ndarray:
        """(E, F): a domain, a phase and a turn vector and unit noise, of length 1."""
        of_domain, of_phase, of_turn = self.vectors
        x = of_domain[domain] + of_phase[phase] + of_turn[turn] + rng.standard_normal((len(domain), FEATURES))
        found: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True)
        return found

    def play(
        self, act: Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray], n: int, *key: Any
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """Rewards (E,) of ``n`` episodes, and (features, workers, live) of each turn.
        Equal keys give equal tasks and luck, whatever acts."""
        rng = generator(0, "episodes", *key)
        domain, phase = rng.integers(0, DOMAINS, n), np.zeros(n, int)
        turns = []
        for turn in range(TURNS):
            x, luck, live = self.features(domain, np.minimum(phase, 1), turn, rng), rng.random(n), phase < 2
            worker = act(x, domain, np.minimum(phase, 1), rng)
            turns.append((x, worker, live))
            phase = phase + (live & (luck < self.skill[domain, np.minimum(phase, 1), worker]))
        return (phase == 2).astype(float), turns

    def routed(self, theta: np.ndarray, n: int, *key: Any) -> np.ndarray:
        """Rewards of a linear head (L * F,) that takes the likeliest worker."""
        head = theta.reshape(WORKERS, FEATURES)
        return self.play(lambda x, *_: (x @ head.T).argmax(axis=1), n, *key)[0]


def fit(bench: TwoPhases, seed: int, tasks: int = 400, repeats: int = 8, tau: float = 0.3, steps: int = 400) -> np.ndarray:
    """The first stage on single-step tasks: AdamW's rate .05 on a linear head, the KL's gradient being pi - p."""
    rng = generator(seed, "single-step")
    domain = rng.integers(0, DOMAINS, tasks)
    x = bench.features(domain, np.zeros(tasks, int), 0, rng)
    target = soft_targets(rng.binomial(repeats, bench.single[domain]) / repeats, tau)
    head, first, second = np.zeros((3, WORKERS, FEATURES))
    for step in range(1, steps + 1):
        logits = x @ head.T
        pi = np.exp(logits - logits.max(axis=1, keepdims=True))
        pi /= pi.sum(axis=1, keepdims=True)
        slope = (pi - target).T @ x / tasks
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        head = head - 0.05 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    found: np.ndarray = head.ravel()
    return found


def evolved(bench: TwoPhases, seed: int, start: np.ndarray, sigma: float, episodes: int) -> np.ndarray:
    """Separable CMA-ES with common random numbers: 60 generations [T], as many episodes a candidate as the budget gives."""
    size = population(len(start), up=False)
    each = max(EACH, episodes // (60 * size))
    search = SepCma(start, sigma, seed, size)
    for generation in range(episodes // (size * each)):
        candidates = search.ask()
        search.tell(candidates, [bench.routed(one, each, seed, "fitness", generation).mean() for one in candidates])
    return search.mean


def searched(bench: TwoPhases, seed: int, episodes: int) -> np.ndarray:
    """The best of random heads by ``EACH`` episodes each."""
    rng = generator(seed, "random search")
    heads = rng.standard_normal((episodes // EACH, WORKERS * FEATURES))
    found: np.ndarray = heads[int(np.argmax([bench.routed(one, EACH, seed, "search").mean() for one in heads]))]
    return found


def reinforced(bench: TwoPhases, seed: int, episodes: int, batch: int = 112, lr: float = 0.3) -> np.ndarray:
    """REINFORCE with a batch baseline, Adam."""
    head, first, second = np.zeros((3, WORKERS, FEATURES))
    for step in range(1, episodes // batch + 1):
        probs: list[np.ndarray] = []

        def act(x: np.ndarray, domain: np.ndarray, phase: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            logits = x @ head.T  # noqa: B023 (called within this step)
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            probs.append(p)  # noqa: B023
            return np.asarray(np.minimum((p.cumsum(axis=1) < rng.random((len(x), 1))).sum(axis=1), WORKERS - 1))

        rewards, turns = bench.play(act, batch, seed, "reinforce", step)
        advantage = rewards - rewards.mean()
        slope = np.zeros_like(head)
        for (x, worker, live), p in zip(turns, probs, strict=True):
            slope += ((np.eye(WORKERS)[worker] - p) * (advantage * live)[:, None]).T @ x / batch
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        head = head + lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    found: np.ndarray = head.ravel()
    return found


def routing(seed: int, budgets: list[int], n: int = 4000) -> dict[str, Any]:
    """Every arm of A1 with its end-to-end success on ``n`` fresh episodes, by budget of training episodes."""
    bench = TwoPhases(seed)
    rng = generator(seed, "single-step test")
    domain = rng.integers(0, DOMAINS, n)
    x = bench.features(domain, np.zeros(n, int), 0, rng)
    sft = fit(bench, seed)
    picked = (x @ sft.reshape(WORKERS, FEATURES).T).argmax(axis=1)

    def told(theta: np.ndarray) -> float:
        return float(bench.routed(theta, n, seed, "test").mean())

    found: dict[str, Any] = {
        "single-step best worker": float(bench.single.mean(axis=0).max()),
        "single-step oracle": float(bench.single.max(axis=1).mean()),
        "single-step sft": float(bench.single[domain, picked].mean()),
        "random": float(bench.play(lambda x, d, p, r: r.integers(0, WORKERS, len(x)), n, seed, "test")[0].mean()),
        "best single": max(
            float(bench.play(lambda x, d, p, r, j=j: np.full(len(x), j), n, seed, "test")[0].mean())  # type: ignore[misc]
            for j in range(WORKERS)
        ),
        "oracle": float(bench.play(lambda x, d, p, r: bench.skill[d, p].argmax(axis=1), n, seed, "test")[0].mean()),
        "sft": told(sft),
    }
    rms = float(np.sqrt((sft**2).mean()))
    for episodes in budgets:
        found[f"es {episodes}"] = told(evolved(bench, seed, np.zeros_like(sft), 0.03, episodes))
        found[f"sft, es {episodes}"] = told(evolved(bench, seed, sft, 5 * rms, episodes))
        found[f"random search {episodes}"] = told(searched(bench, seed, episodes))
        found[f"reinforce {episodes}"] = told(reinforced(bench, seed, episodes))
    return found
