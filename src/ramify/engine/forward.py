"""One forward pass over a batch of tokens, each a row of its own with its own position and its own cached keys.

Every token, prompt, sampled or drafted, takes the same path: linear layers on a batch whose row count is a multiple of 4,
attention over the row's cached keys up to its own, with a multiple of 4 query rows for each key/value head. Matrix kernels treat
1, 2 and 3 rows in ways of their own. With ``MKL_CBWR`` pinned (see ``ramify.engine``), and in the kernels of large models
(:mod:`ramify.engine.products`), a row's result then has the same bits whatever else is in the batch, so keys and values do not
depend on how or when a position was computed. :func:`exactness` looks whether that holds here, and what to do where it does not.

Axis legend: M batch rows, S cached positions, D width, H query heads, G key/value heads, E head size, C = 2GE, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import asdict
from dataclasses import replace as with_fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.errors import RamifyError
from ramify.base.files import cache_folder, write_whole
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.processor import processor
from ramify.engine.batch import UNIT, ForwardBatch
from ramify.engine.cache import KVCache
from ramify.engine.products import LARGE, Int8, in_int8, linear
from ramify.engine.stack import Stack, replace, twice
from ramify.engine.tiny import Tap, TinyLM

CHUNK = 64
"""Most prompt tokens of one row in a batch."""
SMALL = 1 << 24
"""Multiplications of a batch (rows x weights) up to which one thread is fastest: half a millisecond of one core."""


def threads_for(work: int) -> AbstractContextManager[None]:
    """One thread for a batch of so few multiplications (0: in any case) that a second would cost more than it brings."""
    threads = torch.get_num_threads()
    return _AS_IT_IS if threads == 1 or work > SMALL else _one_thread(threads)


_AS_IT_IS = nullcontext()


@contextmanager
def _one_thread(threads: int) -> Iterator[None]:
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Forward(Protocol):
    """What the scheduler needs of a network."""

    layers: int
    kv_heads: int
    kv_size: int
    """C: numbers a position keeps in one layer."""
    vocab: int
    width: int
    """D."""
    context: int
    weights: int
    """Numbers a row is multiplied with, all layers together."""
    device: torch.device
    dtype: torch.dtype
    """Of the cache, and of the weights that are not int8."""
    unit: int
    """Row counts of :meth:`logits` are multiples of this."""
    shape: str
    """What its kernels depend on: the sizes of its matrices, as JSON."""

    def hidden(self, batch: ForwardBatch, tap: Tap | None = None) -> Tensor:
        """Run a batch; last hidden state [M, D]. ``tap`` as in :meth:`TinyLM.hidden`, with [M, D]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        ...

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """Ordinary causal forward over right-padded rows int64 [B, T]: last hidden state [B, T, D]."""
        ...

    def refresh(self) -> None:
        """Take over changed weights."""
        ...

    def shallow(self) -> Forward:
        """The same network with its first blocks alone, where it can be cut: their products have the shapes that all have."""
        ...


def numbers_of(module: nn.Module) -> int:
    """Weights of a model, with those in int8."""
    int8 = [part for part in module.modules() if isinstance(part, Int8)]
    biases = sum(part.outputs for part in int8 if part.bias is not None)
    return sum(part.inputs * part.outputs for part in int8) + biases + sum(weight.numel() for weight in module.parameters())


class TinyForward:
    """A :class:`TinyLM` as a :class:`ramify.engine.stack.Stack`.

    Of a small model its fused matrices are copies (about two thirds of the weights again); :meth:`refresh` makes them anew.
    A large one runs on its own.
    """

    def __init__(self, module: TinyLM) -> None:
        c = module.config
        self.module, self.c = module, c
        self.layers, self.kv_heads, self.kv_size = c.layers, c.kv_heads, 2 * c.kv_heads * c.head_size
        self.vocab, self.width, self.context = c.vocab, c.width, c.context
        self.weights = numbers_of(module)
        self.device, self.dtype = module.device, module.model.norm.weight.dtype
        self._large = c.large and self.device.type == "cpu"
        self._int8 = in_int8(module)
        self.unit = 1 if self._int8 else UNIT
        self.shape = canonical_json(asdict(with_fields(c, layers=0, eos=())) | {"int8": self._int8})
        self.refresh()

    def refresh(self) -> None:
        """Fuse the weights anew."""
        with torch.inference_mode():
            blocks = self.module.model.layers[: self.layers]
            copies = not (self._large or self._int8)
            self._stack = Stack(blocks, self.c, self.device, UNIT, copies)  # padding may run past the context
            self._last = twice(self.module.model.norm.weight)

    def shallow(self) -> TinyForward:
        """See :class:`Forward`."""
        other = copy(self)
        other.layers = min(2, self.layers)
        other.refresh()
        return other

    def hidden(self, batch: ForwardBatch, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        buffers = self._stack.buffers(batch.size)
        buffers.x.copy_(F.embedding(batch.tokens, self.module.model.embed_tokens.weight))
        if tap is not None:
            replace(buffers.x, tap(0, buffers.x))
        self._stack.run(batch, buffers, tap=tap)
        return self._stack.rms(buffers, self._last)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] to [M, V]."""
        if isinstance(self.module.lm_head, Int8):
            return self.module.lm_head.forward(hidden)
        return (linear if self._large else F.linear)(hidden, self.module.head)

    def full(self, tokens: Tensor, tap: Tap | None = None) -> Tensor:
        """See :class:`Forward`."""
        return self.module.hidden(tokens, tap=tap)


class Exactness(StrEnum):
    """How sequences have to run on this machine so that results are batch-invariant."""

    TOGETHER = "together"
    """In one batch, on as many threads as there are."""
    ONE_THREAD = "one thread"
    """In one batch, on one thread."""
    ALONE = "alone"
    """Each token in a batch of its own, on one thread: every product then always has the same shape."""
    UNPROVEN = "unproven"
    """They run together, and their bits may depend on it: an accelerator,
    or kernels for which not even a batch of one row repeats itself."""

    @property
    def caution(self) -> str:
        """A caution for the user, in one sentence; empty where samples are batch-invariant."""
        if self is Exactness.ALONE:
            return (
                "this processor's matrix kernels are not batch-invariant, so sequences run alone: samples are exact, and "
                "several times slower"
            )
        if self is Exactness.UNPROVEN:
            return "a sample may depend on its batch: the same seed may give another tree at another concurrency"
        return ""


def exactness(forward: Forward) -> Exactness:
    """The cheapest way of running rows that :func:`probe` confirms; without one, or on an accelerator, unproven.

    For a large model, of which two blocks are probed, the answer is kept in ramify's cache, by all that it depends on.
    """
    if forward.weights < LARGE:
        return _probed(forward)
    file = cache_folder() / "engine" / f"exactness-{_probed_on(forward)}"
    with suppress(OSError, ValueError):
        return Exactness(file.read_text(encoding="utf-8").strip())
    score = _probed(forward.shallow())
    with suppress(OSError, RamifyError):  # a cache that cannot be written to costs the next start a probe
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{score}\n".encode())
    return score


def _probed_on(forward: Forward) -> str:
    """A hash of what decides it: shapes, type, threads, torch, the kernels that it may choose, processor, this code."""
    chosen = [os.environ.get(name, "") for name in ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")]
    chosen += [torch.__version__, torch.backends.cpu.get_cpu_capability(), processor()]
    where = f"{forward.device} {forward.dtype} {torch.get_num_threads()}"
    return stable_hash(type(forward).__name__, forward.shape, where, *chosen, _code())


@cache
def _code() -> str:
    names = ("forward", "stack", "batch", "cache", "products", "generic")
    return stable_hash(*(Path(__file__).with_name(f"{name}.py").read_bytes() for name in names))


def _probed(forward: Forward) -> Exactness:
    if probe(forward):
        return Exactness.TOGETHER
    if forward.device.type == "cpu":
        with threads_for(0):
            if probe(forward):
                return Exactness.ONE_THREAD
            if probe(forward, alone=True):
                return Exactness.ALONE
    return Exactness.UNPROVEN


def probe(forward: Forward, alone: bool = False) -> bool:
    """Whether this machine keeps a row's bits apart from its batch, at the number of threads set: rows computed in several ways
    on the real weights, against one token at a time in the smallest batch on one thread.

    A short row as one prompt batch; token by token as the sixth row of a full batch, alongside a row far longer than itself;
    several tokens at a time beside rows with other numbers of tokens; the end of a prompt batch of the largest size; a short and
    a long prompt in one batch; and a token far along its row alone and beside rows that are longer. ``alone``: all of them with
    every token in a batch of its own."""
    generator = torch.Generator().manual_seed(0)
    long = min(forward.context, CHUNK)
    ids = torch.randint(forward.vocab, (long,), generator=generator).tolist()
    short, far = min(8, long), min(forward.context, 600) - 1
    caches = [KVCache(forward.layers, forward.kv_size, forward.device) for _ in range(5)]

    def run(cache: KVCache, tokens: Sequence[int], positions: Sequence[int], rows: int | Sequence[int] | None = None) -> Tensor:
        size = 1 if alone else len(tokens)
        owners = [rows] * len(tokens) if isinstance(rows, int) else range(len(tokens)) if rows is None else rows
        logits = []
        for at in range(0, len(tokens), size):
            part = slice(at, at + size)
            batch = ForwardBatch(cache, forward.kv_heads, tokens[part], positions[part], owners[at] if alone else rows)
            logits.append(forward.logits(forward.hidden(batch))[: batch.used])
        return torch.cat(logits)

    def one_by_one(cache: KVCache, start: int, stop: int) -> Tensor:
        with threads_for(0):
            return torch.cat([run(cache, [ids[t]], [t]) for t in range(start, stop)])

    def random_ints(count: int, below: int) -> list[int]:
        return torch.randint(below, (count,), generator=generator).tolist()

    with torch.inference_mode():
        for cache in caches[2:4]:
            cache.reserve(12, far + 1 + UNIT)
            cache.kv[:, 6].normal_()
            cache.kv[:, 7].normal_(generator=generator)
        for cache in (caches[0], caches[1], caches[4]):
            cache.reserve(1, long + UNIT)
        crowd, ragged = [], []
        single = one_by_one(caches[1], 0, short)
        for t in range(short):
            tokens, positions = random_ints(12, forward.vocab), random_ints(12, far)
            tokens[5], positions[5], positions[6] = ids[t], t, far
            crowd.append(run(caches[2], tokens, positions)[5:6])
        for start, stop in ((0, 1), (1, 4), (4, 8)):
            if part := ids[:short][start:stop]:
                tokens = [*random_ints(2, forward.vocab), *part, *random_ints(1, forward.vocab)]
                rows, where = [4, 4, *[5] * len(part), 6], [7, 8, *range(start, start + len(part)), far]
                ragged.append(run(caches[3], tokens, where, rows)[2:-1])
        prompt = run(caches[4], ids[:short], range(short), 0)
        results = [single, prompt, torch.cat(crowd), torch.cat(ragged)]
        kept = [cache.kv[:, row, :short] for cache, row in zip(caches[1:], (0, 5, 5, 0), strict=True)]
        if not all(torch.equal(single, r) for r in results) or not all(torch.equal(kept[0], k) for k in kept):
            return False
        whole = run(caches[0], ids, range(long), 0)
        caches[4].kv[:, 0, :long] = caches[0].kv[:, 0, :long]
        end = one_by_one(caches[4], long - short, long)
        for p, other in ((p, other) for p in (100, 200, 350) for other in (270, 400, far) if p < other <= far):
            alone_there = run(caches[2], [ids[0]], [p], 6)
            if not torch.equal(run(caches[2], [ids[0], ids[1]], [p, other], [6, 7])[:1], alone_there):
                return False
        both = run(caches[2], [*ids, *ids[:short]], [*range(long), *range(short)], [*[2] * long, *[5] * short])
        return (
            torch.equal(whole[:short], single)
            and torch.equal(caches[0].kv[:, 0, :short], kept[0])
            and torch.equal(whole[long - short :], end)
            and torch.equal(caches[0].kv[:, 0, :long], caches[4].kv[:, 0, :long])
            and torch.equal(both, torch.cat((whole, single)))
            and torch.equal(caches[2].kv[:, 2, :long], caches[0].kv[:, 0, :long])
        )
