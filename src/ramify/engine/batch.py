"""The scheduler: which tokens run in the next tile, and what happens to the rows they belong to.

Draws that continue one prefix form a group; its prefix is run once, by the group's first row, and the others start as copies of that
row. Active rows sit at the front of the arena without holes, so a decoding tile is a slice of it. Nothing here depends on time, and
no draw depends on which rows it shares a tile with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ramify.engine.cache import Arena
from ramify.engine.prefixes import PrefixStore
from ramify.engine.forward import TILE, Forward, Tile, padded, threads_for
from ramify.engine.sampling import draw_uniforms, pick
from ramify.engine.taps import States, Taps
from ramify.engine.tiny import Tap
from ramify.model.protocol import Sampling, Tokenizer

CHUNK = 64
"""Most prompt tokens of one row in a tile."""
FEW = 4
"""A row with at most so many tokens to catch up rides along in the decoding tile."""


@dataclass(slots=True)
class Stats:
    """What was computed, in tokens. ``forward_rows`` counts every row of every tile, padding included."""

    tiles: int = 0
    forward_rows: int = 0
    padded_rows: int = 0
    prompt_tokens: int = 0
    """Given tokens that were run."""
    cached_tokens: int = 0
    """Given tokens whose keys and values were found or copied instead."""
    drawn_tokens: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """One draw to make. ``done`` is called with the finished row, or with the error its ``until`` raised.

    ``told`` is called with the unfinished row whenever it has new tokens; it must not raise.
    """

    key: int
    settings: Sampling
    done: Callable[[Job, Row | Exception], None]
    told: Callable[[Row], None] | None = None
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """Draws that continue one prefix under the same taps."""

    prefix: np.ndarray
    taps: Taps | None
    jobs: deque[Job] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class Row:
    """An active draw. ``tokens`` is prefix and drawn tokens; the keys and values of the first ``computed`` are in the arena."""

    group: Group
    job: Job
    tokens: list[int]
    computed: int
    uniforms: np.ndarray
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: States = field(default_factory=dict)
    stop: str = ""
    found: int = 0
    """Prefix tokens whose keys and values were there already when the row began."""

    @property
    def drawn(self) -> list[int]:
        """Tokens drawn so far."""
        return self.tokens[len(self.group.prefix) :]

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still missing."""
        return len(self.tokens) - self.computed


class Scheduler:
    """Groups wait in a queue, rows are active; :meth:`step` moves everything on by one token."""

    def __init__(
        self, forward: Forward, tokenizer: Tokenizer | None, eos: Sequence[int], max_rows: int, cache_bytes: int
    ) -> None:
        self.forward, self.tokenizer, self.eos = forward, tokenizer, frozenset(eos)
        self.max_rows = max_rows
        self.store = PrefixStore(cache_bytes)
        self.stats = Stats()
        self.rows: list[Row] = []
        self.queue: deque[Group] = deque()
        self._open: dict[bytes, Group] = {}
        self._arena: Arena | None = None

    @property
    def busy(self) -> bool:
        """Whether any draw is waiting or active."""
        return bool(self.rows or self.queue)

    def add(self, prefix: np.ndarray, jobs: Sequence[Job], taps: Taps | None = None) -> None:
        """Queue draws; a waiting group with the same prefix and no taps takes them in."""
        name = prefix.tobytes()
        group = self._open.get(name) if taps is None else None
        if group is None:
            group = Group(prefix, taps)
            self.queue.append(group)
            if taps is None:
                self._open[name] = group
        group.jobs.extend(jobs)

    def drop_cancelled(self) -> None:
        """Free the rows and the places in the queue of cancelled jobs."""
        with torch.inference_mode():  # the arena may have been made in it, and rows move up
            for slot in reversed(range(len(self.rows))):
                if self.rows[slot].job.cancelled:
                    self._remove(slot)
        for group in list(self.queue):
            group.jobs = deque(job for job in group.jobs if not job.cancelled)
            if not group.jobs:
                self._dequeue(group)

    def reset(self) -> list[Job]:
        """Forget all rows, groups and cached prefixes; returns the jobs that were still to be done."""
        jobs = [row.job for row in self.rows] + [job for group in self.queue for job in group.jobs]
        self.rows.clear()
        self.queue.clear()
        self._open.clear()
        self.store.clear()
        self._arena = None
        return jobs

    def step(self) -> bool:
        """Admit, run prompt tiles, run one decoding tile, sample; True when a draw finished."""
        with torch.inference_mode():
            self._admit()
            if not self.rows:
                return False
            arena = self._arena_for(len(self.rows), max(len(row.tokens) for row in self.rows) + TILE)
            for slot, row in enumerate(self.rows):
                if row.pending > FEW:
                    self._run_prompt(arena, slot, row)
            with threads_for(padded(len(self.rows)) * self.forward.weights):
                hidden = self._run_decode(arena)
                ready = [slot for slot, row in enumerate(self.rows) if row.computed == len(row.tokens)]
                return bool(ready) and self._sample(self.forward.logits(hidden), ready)

    # -- rows in and out

    def _arena_for(self, rows: int, positions: int) -> Arena:
        if self._arena is None:
            self._arena = Arena(self.forward.layers, self.forward.kv_size, self.forward.device)
        self._arena.reserve(padded(rows), positions)
        return self._arena

    def _admit(self) -> None:
        for group in list(self.queue):
            if len(self.rows) >= self.max_rows:
                return
            limit = len(group.prefix) - 1  # the last token runs again: its logits are not kept
            if group.taps is not None:
                limit = min(limit, group.taps.start)
            pieces = self.store.match(group.prefix, limit)
            found = sum(piece.shape[1] for piece in pieces)
            if any(self._shared(row, group) > found for row in self.rows if row.computed < len(row.group.prefix)):
                continue  # an active row is about to make more of this prefix than is known now
            slot = len(self.rows)
            arena = self._arena_for(slot + 1, len(group.prefix) + TILE)
            if pieces:
                arena.write(slot, torch.cat(pieces, dim=1))
            job = self._next_job(group)
            self.rows.append(Row(group, job, group.prefix.tolist(), found, self._uniforms(group, job), found=found))
            self.stats.cached_tokens += found

    def _shared(self, row: Row, group: Group) -> int:
        """Prefix tokens that ``group`` could take over from ``row`` once they are made."""
        if row.group is group:
            return len(group.prefix)
        if row.group.taps is not None or group.taps is not None:
            return 0
        length = min(len(row.group.prefix), len(group.prefix) - 1)
        differ = np.flatnonzero(row.group.prefix[:length] != group.prefix[:length])
        return int(differ[0]) if len(differ) else length

    def _next_job(self, group: Group) -> Job:
        job = group.jobs.popleft()
        if not group.jobs:
            self._dequeue(group)
        return job

    def _dequeue(self, group: Group) -> None:
        self.queue.remove(group)
        if group.taps is None:
            del self._open[group.prefix.tobytes()]

    def _uniforms(self, group: Group, job: Job) -> np.ndarray:
        return draw_uniforms(job.key, min(job.settings.max_tokens, self.forward.context - len(group.prefix)))

    def _fork(self, source: int) -> None:
        """Start waiting draws of a row's group as copies of that row, as many as there is room for."""
        row = self.rows[source]
        start, length = len(self.rows), len(row.group.prefix)
        count = min(len(row.group.jobs), self.max_rows - start)
        if count <= 0:
            return
        self._arena_for(start + count, 0).copy(source, start, start + count, length)
        for _ in range(count):
            job = self._next_job(row.group)
            states = {layer: dict(by_position) for layer, by_position in row.states.items()}
            self.rows.append(
                Row(
                    row.group, job, row.group.prefix.tolist(), length, self._uniforms(row.group, job), states=states, found=length
                )
            )
        self.stats.cached_tokens += count * length

    def _park(self, slot: int, length: int) -> None:
        """Keep the first ``length`` positions of a row for later; rows under taps keep what came before their first tap."""
        row, arena = self.rows[slot], self._arena
        if arena is None:
            return
        if row.group.taps is not None:
            length = min(length, row.group.taps.start)
        self.store.insert(np.array(row.tokens[:length], dtype=np.int32), lambda start, stop: arena.read(slot, start, stop))

    def _remove(self, slot: int) -> None:
        last = len(self.rows) - 1
        if slot != last and self._arena is not None:
            self._arena.copy(last, slot, slot + 1, self.rows[last].computed)
            self.rows[slot] = self.rows[last]
        self.rows.pop()
        idle = not self.rows and not self.queue
        if idle and self._arena is not None and self._arena.kv.nbytes > self.store.budget:
            self._arena = None  # one long row must not hold its memory for good

    # -- tiles

    def _tap(self, rows: Sequence[Row], positions: Sequence[int]) -> Tap | None:
        tapped = [(m, row.group.taps, row.states) for m, row in enumerate(rows) if row.group.taps is not None]
        if not tapped:
            return None

        def tap(layer: int, x: Tensor) -> Tensor:
            for m, taps, states in tapped:
                taps.apply(layer, x, m, positions[m], states)
            return x

        return tap

    def _run_prompt(self, arena: Arena, slot: int, row: Row) -> None:
        """Run up to CHUNK pending tokens of one row, all but the last, as one tile."""
        start, count = row.computed, min(row.pending - 1, CHUNK)
        where = range(start, start + count)
        tile = Tile(arena, self.forward.kv_heads, row.tokens[start : start + count], where, slot)
        self.forward.hidden(tile, self._tap([row] * count, where))
        row.computed += count
        self._count(tile, count)

    def _run_decode(self, arena: Arena) -> Tensor:
        """Run the next token of every active row as one tile."""
        rows = self.rows
        where = [row.computed for row in rows]
        prompt = sum(row.computed < len(row.group.prefix) for row in rows)
        tile = Tile(arena, self.forward.kv_heads, [row.tokens[row.computed] for row in rows], where)
        hidden = self.forward.hidden(tile, self._tap(rows, where))
        for row in rows:
            row.computed += 1
        self._count(tile, prompt)
        return hidden

    def _count(self, tile: Tile, prompt: int) -> None:
        self.stats.tiles += 1
        self.stats.forward_rows += tile.size
        self.stats.padded_rows += tile.size - tile.used
        self.stats.prompt_tokens += prompt

    # -- tokens

    def _sample(self, logits: Tensor, ready: list[int]) -> bool:
        sources = list(ready)
        for slot in ready:
            row = self.rows[slot]
            if not row.logprobs:
                self._park(slot, row.computed)
                if row.group.jobs:
                    before = len(self.rows)
                    self._fork(slot)
                    sources += [slot] * (len(self.rows) - before)
        slots = ready + list(range(len(self.rows) - (len(sources) - len(ready)), len(self.rows)))
        rows = [self.rows[slot] for slot in slots]
        if sources != list(range(len(logits))):
            logits = logits[: len(sources)] if sources == list(range(len(sources))) else logits[sources]
        picked = pick(
            logits,
            [row.job.settings for row in rows],
            [not row.logprobs for row in rows],
            [float(row.uniforms[len(row.logprobs)]) for row in rows],
        )
        self.stats.drawn_tokens += len(rows)
        finished: list[tuple[int, Row, Exception | None]] = []
        for i, row in enumerate(rows):
            row.tokens.append(picked.tokens[i])
            row.logprobs.append(picked.logprobs[i])
            row.model_logprobs.append(picked.model_logprobs[i])
            row.entropy.append(picked.entropy[i])
            failure = self._judge(row)
            if row.stop or failure:
                finished.append((slots[i], row, failure))
            elif row.job.told is not None:
                row.job.told(row)
        for slot, row, failure in sorted(finished, key=lambda f: -f[0]):
            self._park(slot, row.computed)
            self._remove(slot)
            row.job.done(row.job, failure or row)
        return bool(finished)

    def _judge(self, row: Row) -> Exception | None:
        """Set the row's stop reason if its last token ends it; returns what its ``until`` raised."""
        settings, token = row.job.settings, row.tokens[-1]
        if token in self.eos:
            row.stop = "eos"
        elif token in settings.stop_tokens or (settings.stop_texts and self._has_stop_text(row)):
            row.stop = "stop"
        elif settings.until is not None:
            try:
                row.stop = "stop" if settings.until(np.array(row.drawn, dtype=np.int32)) else ""
            except Exception as error:  # the caller's own function; it fails that caller's draw only
                return error
        if not row.stop and len(row.logprobs) == len(row.uniforms):
            row.stop = "length"
        return None

    def _has_stop_text(self, row: Row) -> bool:
        if self.tokenizer is None:
            return False
        texts = row.job.settings.stop_texts
        # a character is at most 4 tokens (bytes); the rest of the draw was looked at before
        tail = self.tokenizer.decode(row.drawn[-4 * (max(map(len, texts)) + 1) :])
        return any(text in tail for text in texts)
