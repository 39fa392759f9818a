"""The KL-regularised optimum of a small stochastic decision process, exactly (section 3.1):
what the log-ratio of two policies means.

Axis legend: H layers, S states a layer, A actions, K successors of an action, E episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layered:
    """A process of H layers; an action moves to one of K states of the next layer.
    State numbers mean a state of the present layer."""

    successors: np.ndarray
    """(H, S, A, K) states of the next layer."""
    chances: np.ndarray
    """(H, S, A, K) their probabilities."""
    reward: np.ndarray
    """(H, S, A), paid at once."""
    final: np.ndarray
    """(S,), paid for the state of layer H where the episode ends."""
    reference: np.ndarray
    """(H, S, A) the reference policy."""

    @classmethod
    def sample(
        cls, rng: np.random.Generator, layers: int = 6, states: int = 40, actions: int = 4, successors: int = 3
    ) -> Layered:
        """Section 7(a)1: Dirichlet(1) transitions, a final reward of 1 in 40 % of the last states, a Dirichlet(2) reference."""
        shape = (layers, states, actions)
        reached = rng.integers(0, states, (*shape, successors))
        chances = rng.dirichlet(np.ones(successors), shape)
        final = (rng.permutation(states) < 0.4 * states).astype(np.float64)
        return cls(reached, chances, np.zeros(shape), final, rng.dirichlet(np.full(actions, 2.0), shape[:2]))

    def expected(self, layer: int, value: np.ndarray) -> np.ndarray:
        """(S, A): mean of ``value`` (S,) of the next layer over where an action of ``layer`` leads."""
        return np.asarray((self.chances[layer] * value[self.successors[layer]]).sum(axis=-1))


@dataclass(frozen=True)
class Solution:
    """``value`` (H + 1, S), the last row being the final reward;
    ``q``, ``policy`` and ``advantage`` = q - value are (H, S, A)."""

    value: np.ndarray
    q: np.ndarray
    policy: np.ndarray
    advantage: np.ndarray


def optimum(mdp: Layered, beta: float) -> Solution:
    """The optimum of return minus ``beta`` KL to the reference, by backward induction: V = beta log E_ref exp(Q / beta)."""
    value = np.vstack([np.zeros(mdp.reward.shape[:2]), mdp.final[None]])
    q, policy = np.zeros_like(mdp.reward), np.zeros_like(mdp.reward)
    for layer in reversed(range(len(q))):
        q[layer] = mdp.reward[layer] + mdp.expected(layer, value[layer + 1])
        top = q[layer].max(axis=1, keepdims=True)
        weights = mdp.reference[layer] * np.exp((q[layer] - top) / beta)
        total = weights.sum(axis=1, keepdims=True)
        value[layer] = (top + beta * np.log(total))[:, 0]
        policy[layer] = weights / total
    return Solution(value, q, policy, q - value[:-1, :, None])


def evaluate(mdp: Layered, policy: np.ndarray, beta: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(V, Q) of ``policy`` with a price of ``beta`` log(policy / reference) on each action (Q: on those after it); shapes as in
    :class:`Solution`."""
    value = np.vstack([np.zeros(mdp.reward.shape[:2]), mdp.final[None]])
    q = np.zeros_like(mdp.reward)
    price = beta * np.log(policy / mdp.reference) if beta else np.zeros_like(policy)
    for layer in reversed(range(len(q))):
        q[layer] = mdp.reward[layer] + mdp.expected(layer, value[layer + 1])
        value[layer] = (policy[layer] * (q[layer] - price[layer])).sum(axis=1)
    return value, q


def ascend(mdp: Layered, rounds: int, beta: float, step: float = 1.0) -> list[np.ndarray]:
    """log(policy / reference) after 0..``rounds`` rounds of exponentiated gradient from the reference, each (H, S, A).

    ``beta`` > 0 pays KL to the reference; 0 anchors each round to the policy before it only,
    as a clipped surrogate does (Proposition 2).
    """
    ratio = np.zeros_like(mdp.reference)
    path = [ratio]
    for _ in range(rounds):
        # the least probable action of a long run lies below the smallest float: its log-ratio is what is kept
        logits = np.log(mdp.reference) + ratio
        policy = np.maximum(np.exp(logits), 1e-300)
        _, q = evaluate(mdp, policy, beta)
        logits = logits + step * (q - beta * ratio)
        top = logits.max(axis=2, keepdims=True)
        logits = logits - top - np.log(np.exp(logits - top).sum(axis=2, keepdims=True))
        ratio = logits - np.log(mdp.reference)
        path.append(ratio)
    return path


@dataclass(frozen=True)
class MdpWalks:
    """``state`` (E, H + 1), ``action`` (E, H), ``final`` (E,) the final reward."""

    state: np.ndarray
    action: np.ndarray
    final: np.ndarray

    def along(self, table: np.ndarray) -> np.ndarray:
        """(E, H): entries of a table (H, S, A) at the actions taken."""
        return np.asarray(table[np.arange(table.shape[0]), self.state[:, :-1], self.action])


def walk(mdp: Layered, policies: np.ndarray, start: np.ndarray, rng: np.random.Generator) -> MdpWalks:
    """Episodes from the states ``start`` (E,) of layer 0. ``policies``: (H, S, A), or (E, H, S, A) with one for each episode."""
    episodes, layers = len(start), mdp.reward.shape[0]
    every = np.arange(episodes)
    state, action = np.zeros((episodes, layers + 1), np.int64), np.zeros((episodes, layers), np.int64)
    state[:, 0] = start
    for layer in range(layers):
        here = state[:, layer]
        p = policies[layer, here] if policies.ndim == 3 else policies[every, layer, here]
        action[:, layer] = _pick(p, rng)
        taken = layer, here, action[:, layer]
        state[:, layer + 1] = mdp.successors[taken][every, _pick(mdp.chances[taken], rng)]
    return MdpWalks(state, action, mdp.final[state[:, -1]])


def luck(mdp: Layered, value: np.ndarray, walks: MdpWalks) -> np.ndarray:
    """(E, H): V(s') - E V(s') of each transition. Along an episode sum A = return - V(s_0) - sum luck (section 3.1)."""
    expected = np.stack([mdp.expected(layer, value[layer + 1]) for layer in range(mdp.reward.shape[0])])
    layers = np.arange(mdp.reward.shape[0])
    return np.asarray(value[layers + 1, walks.state[:, 1:]] - walks.along(expected))


def _pick(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index a row of probabilities (E, n)."""
    return np.asarray(np.minimum((rng.random((len(p), 1)) > p.cumsum(axis=1)).sum(axis=1), p.shape[1] - 1))
