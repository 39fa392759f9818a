"""Formulas of tree-rollouts: probability of collapse, informativeness, UUCB selector, allocator, advantages. No I/O.

Source: Hu, Yu, Cheng, Li, Song, "Maximizing Rollout Informativeness under a Fixed Budget" (arXiv 2605.05262), sections of our
spec (``3.2`` ...) named at each formula. The paper's own equations could not be read: the decomposition (value + exploration +
entropy, the marginal gains of one monotone submodular objective) is the paper's, the algebra is derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.score.group import normalise

PRIOR = 0.5
"""Success rate of the prior at the root: neither outcome is the likelier one before any attempt has ended."""


class UUCB(Config):
    """Coefficients of the selector (3.4)."""

    alpha: float = Field(default=1.0, ge=0)
    """weight of the value term: the chance that one more completion from here ends in the minority outcome"""
    c: float = Field(default=0.1, ge=0)
    """weight of the exploration bonus"""
    lam: float = Field(default=1.0, ge=0)
    """weight of the policy's entropy at the node"""
    k0: float = Field(default=1.0, ge=0)
    """strength of the prior at the root, a success rate of one half, in leaves"""
    kappa: float = Field(default=2.0, ge=0)
    """shrinkage of a node's success rate towards its parent's, in leaves; raw rates dig below failed prefixes (trap T1)"""
    actions: int = Field(default=4, ge=2)
    """number of equally likely choices whose entropy counts as 1"""
    cost_aware: bool = False
    """divide the score by the expected cost of continuing from the node"""


class TreeConfig(Config):
    """How one prompt's tree is grown (3.5, 3.7)."""

    rule: Literal["uucb", "random", "flat"] = "uucb"
    """which node to expand: the UUCB selector, a random node, or always the root (independent attempts)"""
    selector: UUCB = UUCB()
    """coefficients of the UUCB rule"""
    unit: Literal["turns", "tokens"] = "turns"
    """unit of every budget and cost: agent turns, or generated tokens"""
    roots: int = Field(default=2, ge=1)
    """attempts from the root before any node is chosen"""
    least: float = Field(default=0.0, ge=0, le=1)
    """no node is chosen from where an attempt is expected to cost less than this share of one from the root: leaves of the last
    turns are alike"""
    parallel: int = Field(default=1, ge=1)
    """attempts of one tree in flight at once"""
    tau: int | None = Field(default=None, ge=0)
    """results a choice may miss; 0 makes any width sequential, unset means ``parallel``"""
    worst_attempt: float | None = Field(default=None, gt=0)
    """the most one attempt can cost; given, the budget is never exceeded, else attempts are admitted on their expected cost and
    the last one may run over"""
    truncated: Literal["outcome", "exclude"] = "outcome"
    """truncated leaves count by the verifier's outcome, or stay out of the group (trap T6)"""


class Allocation(Config):
    """How a total budget is moved between prompts (3.6)."""

    fraction: float = Field(default=0.5, gt=0, le=1)
    """share of its base budget that every prompt gets first"""
    overhead: float = Field(default=0.05, ge=0)
    """extra budget allowed on top of the total"""
    cap: float = Field(default=4.0, gt=0)
    """most a prompt may get, in base budgets; a prompt still uniform there is abandoned"""
    width: int = Field(default=16, ge=1)
    """chunks decided together on the same information; 1 is fully greedy"""
    a: float = Field(default=1.0, gt=0)
    """Beta prior of the closed form: pseudo-count of the outcome not seen"""
    b: float = Field(default=1.0, gt=0)
    """Beta prior of the closed form: pseudo-count of the outcome seen"""
    learned: bool = False
    """correct the closed form by online logistic regression"""
    floor: float = Field(default=0.1, ge=0, le=1)
    """share of chunks the learned form gives to a random uniform prompt"""
    rate: float = Field(default=0.3, ge=0)
    """step size of the regression"""


def p_mix(n: int, p: float) -> float:
    """Probability that ``n`` independent attempts of success probability ``p`` do not all agree: 1 - p^n - (1-p)^n (3.3)."""
    if n < 2 or p <= 0 or p >= 1:
        return 0.0
    return -math.expm1(n * math.log1p(-p)) - p**n


def l1_mass(k: int, n: int) -> float:
    """Mean |advantage| of ``k`` successes among ``n`` leaves: 2 sqrt(phat (1-phat)), 0 for a uniform or empty group (3.2)."""
    return 2 * math.sqrt(k * (n - k)) / n if n else 0.0


def is_mixed(k: int, n: int) -> bool:
    """Whether both outcomes occur. Decided on outcomes, never on the spread of shaped rewards (trap T7)."""
    return 0 < k < n


def grpo(rewards: Sequence[float], ddof: int = 0) -> np.ndarray:
    """Group-relative advantages (r - mean)/std, shape (G,); exactly 0 when all rewards are equal (3.2).

    ``ddof=0`` (population) gives the closed forms of 3.2; torch.std computes ``ddof=1``.
    """
    r = np.asarray(rewards, dtype=np.float64)
    if len(r) < 2 or (r == r[0]).all():
        return np.zeros(len(r))
    return normalise(r, ddof=ddof, eps=0.0)


def tree_grpo(rewards: Sequence[float], trees: Sequence[int]) -> np.ndarray:
    """Tree-GRPO: normalised over all leaves of the prompt plus normalised within each leaf's own tree, shape (G,) (3.8)."""
    advantage = grpo(rewards)
    r, tree = np.asarray(rewards, dtype=np.float64), np.asarray(trees)
    for number in np.unique(tree):
        advantage[tree == number] += grpo(r[tree == number].tolist())
    return advantage


def edge_advantage(leaf_advantages: Sequence[float]) -> float:
    """Advantage of an edge from the leaves below it: their mean times sqrt(how many) (TreeRL's weighting, 3.8)."""
    return float(np.mean(leaf_advantages)) * math.sqrt(len(leaf_advantages))


def shrunk(n: Sequence[int], s: Sequence[int], parent: Sequence[int], rule: UUCB) -> list[float]:
    """Success rates mu_v = (kappa mu_parent + s)/(kappa + n), root (k0 PRIOR + s)/(k0 + n); nodes in topological order (3.4)."""
    mu: list[float] = []
    for v, above in enumerate(parent):
        weight, prior = (rule.kappa, mu[above]) if above >= 0 else (rule.k0, PRIOR)
        mu.append((weight * prior + s[v]) / (weight + n[v]) if weight + n[v] else prior)
    return mu


def uucb(mu: np.ndarray, n: np.ndarray, entropy: np.ndarray, k: int, total: int, rule: UUCB) -> np.ndarray:
    """Weighted score terms (value, explore, entropy) of nodes, shape (V, 3); their sum is UUCB(v) (3.4).

    ``n`` counts leaves below plus pending ones; ``k`` successes among ``total`` leaves of the root are frozen for the round
    (trap T3); ``entropy`` is in nats. Every term is clipped to [0, 1] before it is weighted.
    """
    value = mu if 2 * k <= total else 1 - mu
    explore = np.sqrt(math.log1p(total) / np.maximum(n, 1e-9))
    diverse = entropy / math.log(rule.actions)
    terms = np.clip(np.stack([value, explore, diverse], axis=1), 0, 1)
    return np.asarray(terms * np.array([rule.alpha, rule.c, rule.lam]))


def proxy(
    counts: np.ndarray, flips: np.ndarray, weights: np.ndarray, policy: np.ndarray, total: int, rule: UUCB
) -> tuple[float, float, float]:
    """The objective F(S) whose marginal gains UUCB approximates, as its three weighted terms (3.4).

    ``counts`` (V,) expansions chosen at each node, ``flips`` (V, W) probability that one expansion at v shows event w,
    ``weights`` (W,) worth of each event, ``policy`` (V, A) next-action probabilities. ``total`` is frozen.
    """
    missed = np.prod((1 - flips) ** counts[:, None], axis=0)
    value = rule.alpha * float(weights @ (1 - missed))
    explore = 2 * rule.c * math.sqrt(math.log1p(total)) * float(np.sqrt(counts).sum())
    diverse = rule.lam * float((1 - (1 - policy) ** counts[:, None]).sum())
    return value, explore, diverse


def tie_break(n: int, m: float, a: float = 1.0, b: float = 1.0) -> float:
    """Probability that ``m`` more leaves break a tie of ``n`` equal outcomes: 1 - B(a, b+n+m)/B(a, b+n) (3.6).

    For a = b = 1 it is m/(n+m+1).
    """

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    return -math.expm1(log_beta(a, b + n + m) - log_beta(a, b + n))


def learned_tie_break(weights: np.ndarray, features: np.ndarray, closed: float) -> float:
    """The learned form: sigmoid(logit(closed form) + weights . features); equal to the closed form at zero weights (3.6)."""
    closed = min(max(closed, 1e-9), 1 - 1e-9)
    return 1 / (1 + math.exp(-(math.log(closed / (1 - closed)) + float(weights @ features))))


def learn(weights: np.ndarray, features: np.ndarray, closed: float, broke: bool, rate: float) -> np.ndarray:
    """One online logistic step on whether the tie broke; returns the new weights (3.6)."""
    return np.asarray(weights - rate * (learned_tie_break(weights, features, closed) - float(broke)) * features)
