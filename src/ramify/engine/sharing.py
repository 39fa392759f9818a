"""Rows that share a prefix, computed as a tree: each shared token goes through the model once, forward and backward.

All distinct tokens of the rows lie in one sequence of T tokens without padding. A token keeps its position in its row, and its
attention sees the tokens before it in its row, wherever these lie; everything else in a decoder works token by token. So its
hidden state is the one that it has in a row of its own, and the gradient of a sum over rows is the same sum. The idea is that of
"Tree Training: Accelerating Agentic LLMs Training via Shared Prefix Reuse" (arXiv 2511.00413); the layout is ours.

Axis legend: T distinct tokens, S segments (what a row does not share with the row before it), Q and K tokens of the longest
segment and row of a chunk, H query heads, G key and value heads, E head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_PADDING = 1.5
"""A chunk's padded attention costs at most this much of what its segments need."""
_CHUNK = 1 << 22
"""Most pairs of tokens in the attention of a chunk: bounds memory."""


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Segments attended together: ``queries`` int64 [S Q] and ``keys`` int64 [S K] are places in the sequence; ``mask`` bool [S,
    1, Q, K]."""

    queries: Tensor
    keys: Tensor
    mask: Tensor


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The distinct tokens of some rows. ``tokens`` and ``positions`` int64 [T]; ``places``:
    for each row, where its tokens lie."""

    tokens: Tensor
    positions: Tensor
    places: list[np.ndarray]
    _chunks: list[_Chunk]
    _back: Tensor

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], device: torch.device | str = "cpu") -> SharedRows:
        """The layout of ``rows`` of token ids, none empty. What rows share is found between neighbours: sort them
        (:func:`in_order`)."""
        places, fresh, size = [], [], 0
        before, at = np.zeros(0, np.int32), np.zeros(0, np.int64)
        for row in rows:
            shared = common(before, row)
            at = np.concatenate((at[:shared], np.arange(size, size + len(row) - shared)))
            size += len(row) - shared
            places.append(at)
            fresh.append(shared)
            before = row
        tokens, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for row, place in zip(rows, places, strict=True):
            tokens[place], positions[place] = row, np.arange(len(row))
        chunks, back, done = [], np.zeros(size, np.int64), 0
        for many in _alike([(i, len(rows[i]), len(rows[i]) - fresh[i]) for i in range(len(rows)) if len(rows[i]) > fresh[i]]):
            longest, wide = max(k for _, k, _ in many), max(q for _, _, q in many)
            queries, keys = np.zeros((len(many), wide), np.int64), np.zeros((len(many), longest), np.int64)
            mask = np.zeros((len(many), 1, wide, longest), np.bool_)
            mask[..., 0] = True  # padding looks at something: a row of nothing has no softmax
            for s, (i, k, q) in enumerate(many):
                keys[s, :k], queries[s, :q] = places[i], places[i][k - q :]
                mask[s, 0, :q, :k] = np.tri(q, k, k - q, dtype=np.bool_)
                back[queries[s, :q]] = done + s * wide + np.arange(q)
            done += queries.size
            chunks.append(_Chunk(*(torch.from_numpy(a).to(device) for a in (queries.ravel(), keys.ravel(), mask))))
        on = [torch.from_numpy(array).to(device) for array in (tokens, positions, back)]
        return cls(on[0], on[1], places, chunks, on[2])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Causal attention within every row: ``q`` [1, H, T, E], ``k`` and ``v`` [1, G, T, E] to [1, H, T, E]."""
        rows = [x[0].transpose(0, 1) for x in (q, k, v)]  # [T, heads, E]
        mixed = []
        for chunk in self._chunks:
            s = chunk.mask.shape[0]
            asks, keys, values = (
                x.index_select(0, at).unflatten(0, (s, -1)).transpose(1, 2)
                for x, at in zip(rows, (chunk.queries, chunk.keys, chunk.keys), strict=True)
            )
            gqa = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(asks, keys, values, chunk.mask, scale=scale, enable_gqa=gqa)
            mixed.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(mixed).index_select(0, self._back).transpose(0, 1)[None]


shared_rows: ContextVar[SharedRows | None] = ContextVar("ramify_shared_rows", default=None)
"""The rows that a transformers model's attention calls are for; None outside of :func:`sharing`."""


@contextmanager
def sharing(rows: SharedRows) -> Iterator[None]:
    """Within, the attention of a transformers model is that of ``rows``."""
    token = shared_rows.set(rows)
    try:
        yield
    finally:
        shared_rows.reset(token)


def in_order(rows: Sequence[np.ndarray]) -> list[int]:
    """Indices of rows in the order of their tokens, in which rows that share a prefix are neighbours."""
    return sorted(range(len(rows)), key=lambda i: rows[i].astype(">u4").tobytes())


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _alike(segments: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Segments (row, its length, tokens of its own) in chunks of like sizes, so that little of their attention is padding."""
    chunk: list[tuple[int, int, int]] = []
    wide = longest = needed = 0
    for segment in sorted(segments, key=lambda s: (s[2], s[1])):
        _, k, q = segment
        padded = (len(chunk) + 1) * max(wide, q) * max(longest, k)
        if chunk and (padded > _CHUNK or padded > _PADDING * (needed + q * k)):
            yield chunk
            chunk, wide, longest, needed = [], 0, 0, 0
        chunk.append(segment)
        wide, longest, needed = max(wide, q), max(longest, k), needed + q * k
    if chunk:
        yield chunk
