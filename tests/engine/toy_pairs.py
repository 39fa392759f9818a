"""Small target and drafter distributions over a few tokens,
and cycles of speculation on them through the engine's own functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ramify.engine.sampling import distributions
from ramify.engine.schedules import GreedySchedule, Schedule, rates
from ramify.engine.verify import rejection, residual
from ramify.model.protocol import Sampling


class Linear:
    """Seconds of a cycle: ``fixed`` + tokens x ``each``, and ``draft`` for each drafted position."""

    def __init__(self, fixed: float, each: float, draft: float = 0.0) -> None:
        self.fixed, self.each, self.draft = fixed, each, draft

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return self.fixed + self.each * tokens + self.draft * depth


class Table:
    """Seconds by number of tokens in the target's pass, from 1 on; no drafting cost."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = np.array(seconds)

    def cycle(self, requests: int, tokens: np.ndarray, depth: int) -> np.ndarray:
        return np.interp(tokens, np.arange(1, len(self.seconds) + 1), self.seconds)


class Biased(GreedySchedule):
    """The search that must not be made: the best total over this step's own confidences."""

    def budget(self, values: np.ndarray, requests: int, seconds: np.ndarray) -> int:
        return int(np.argmax(rates(values, requests, seconds)))


class Pair:
    """Random distributions: the target's and the drafter's next-token probabilities, and confidences,
    by (request, tokens so far)."""

    def __init__(self, vocab: int, seed: int = 0, zeros: bool = False) -> None:
        self.vocab, self.seed, self.zeros = vocab, seed, zeros
        self._made: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, float]] = {}

    def distributions(self, request: int, seen: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, float]:
        """(target p [V], drafter q [V], confidence of the next draft, known before it)."""
        key = (request, *seen)
        if key not in self._made:
            rng = np.random.default_rng((self.seed, *[k + 1 for k in key]))
            p, q = rng.dirichlet(np.full(self.vocab, 0.7)), rng.dirichlet(np.full(self.vocab, 0.7))
            q = 0.5 * p + 0.5 * q
            if self.zeros:
                p[rng.integers(self.vocab)] = 0.0
                q[rng.integers(self.vocab)] = 0.0
                p, q = p / p.sum(), q / q.sum()
            self._made[key] = p, q, float(rng.uniform(0.05, 0.95))
        return self._made[key]


def acceptance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Probability of accepting each token, min(1, p / q)."""
    return np.minimum(1.0, np.divide(p, q, out=np.ones_like(p), where=q > 0))


def left_over(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The normalised residual, by the engine's own function."""
    weights = residual(torch.from_numpy(p)[None], torch.from_numpy(q)[None])[0].numpy()
    return np.asarray(weights / weights.sum())


def one_cycle(pair: Pair, requests: int, gamma: int, schedule: Callable[[], Schedule], length: int) -> np.ndarray:
    """Exact joint distribution of the first ``length`` tokens of every request after one cycle,
    by enumeration: [V] * (requests * length).

    What the cycle leaves open is sampled from the target.
    """
    V = pair.vocab
    blocks = list(itertools.product(range(V), repeat=gamma))
    distribution = np.zeros((V,) * (requests * length))
    for drafts in itertools.product(blocks, repeat=requests):
        chance = 1.0
        confidence = np.zeros((requests, gamma))
        for r, block in enumerate(drafts):
            for k, token in enumerate(block):
                _, q, confidence[r, k] = pair.distributions(r, block[:k])
                chance *= q[token]
        if chance:
            lengths = schedule().admit(confidence, np.full(requests, gamma))
            parts = [_output(pair, r, block, int(n), length) for r, (block, n) in enumerate(zip(drafts, lengths, strict=True))]
            joint = parts[0]
            for part in parts[1:]:
                joint = np.multiply.outer(joint, part)
            distribution += chance * joint
    return distribution


def _output(pair: Pair, request: int, block: tuple[int, ...], admitted: int, length: int) -> np.ndarray:
    """Distribution of the request's first tokens given its drafts, the first ``admitted`` of which are verified."""
    distribution = np.zeros((pair.vocab,) * length)

    def emit(seen: tuple[int, ...], chance: float, k: int) -> None:
        """``seen`` is out; draft k is next, or none is left."""
        if not chance:
            return
        if len(seen) == length:
            distribution[seen] += chance
            return
        p, q, _ = pair.distributions(request, seen)
        if k < admitted:
            stays = acceptance(p, q)[block[k]]
            emit((*seen, block[k]), chance * stays, k + 1)
            for token, weight in enumerate(left_over(p, q)):
                emit((*seen, token), chance * (1 - stays) * weight, gone)
        else:
            for token, weight in enumerate(p):
                emit((*seen, token), chance * weight, gone)

    gone = admitted  # nothing of the block is left to verify
    emit((), 1.0, 0)
    return distribution


def plain_distribution(pair: Pair, requests: int, length: int) -> np.ndarray:
    """The same from the target alone."""
    parts = [_output(pair, r, (), 0, length) for r in range(requests)]
    joint = parts[0]
    for part in parts[1:]:
        joint = np.multiply.outer(joint, part)
    return joint


def bigrams(
    pair: Pair, schedule: Schedule, gamma: int, count: int, rows: int = 1000, settings: Sampling | None = None, seed: int = 0
) -> np.ndarray:
    """Counts [V, V] of two-token outputs made in cycles of ``rows`` requests through the engine's ``rejection``.

    Every row starts anew once it has two tokens. The target's logits go through ``settings``; so do the drafter's.
    """
    V, rng = pair.vocab, np.random.default_rng(seed)
    settings = settings or Sampling()
    contexts = [(), *((a,) for a in range(V)), *itertools.product(range(V), repeat=2)]
    contexts += list(itertools.product(range(V), repeat=3)) if gamma > 2 else []
    at = {context: i for i, context in enumerate(contexts)}
    nodes = [pair.distributions(0, context) for context in contexts]
    target = torch.from_numpy(np.log(np.array([n[0] for n in nodes])))
    raw = torch.from_numpy(np.log(np.array([n[1] for n in nodes])))
    draft = distributions(raw, [settings] * len(raw), [False] * len(raw))[1].exp()
    cdf = np.cumsum(draft.double().numpy(), axis=1)
    c = np.array([n[2] for n in nodes])
    child = np.array([[at.get((*context, v), 0) for v in range(V)] for context in contexts])
    found = np.zeros((V, V), np.int64)
    state = np.zeros(rows, np.int64)  # the context of every row: nothing or one token
    while found.sum() < count:
        depth = gamma
        here, tokens, where = state, np.zeros((rows, depth), np.int64), np.zeros((rows, depth + 1), np.int64)
        where[:, 0] = here
        for k in range(depth):
            u = rng.random(rows) * cdf[here, -1]
            tokens[:, k] = (cdf[here] <= u[:, None]).sum(axis=1)
            here = child[here, tokens[:, k]]
            where[:, k + 1] = here
        lengths = schedule.admit(c[where[:, :depth]], np.full(rows, depth))
        drafts = [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
        entries = np.concatenate([row[: n + 1] for row, n in zip(where, lengths, strict=True)])
        emitted = rejection(
            target[entries].float(),
            [settings] * rows,
            [False] * rows,
            list(rng.random((rows, depth + 1))),
            drafts,
            draft[torch.from_numpy(where[:, :depth])],
            rng.random((rows, depth)),
        )
        for r, made in enumerate(emitted):
            seen = (*contexts[state[r]], *made.tokens)
            if len(seen) >= 2:
                found[seen[0], seen[1]] += 1
                state[r] = 0
            else:
                state[r] = at[seen]
    return found
