"""The engine's loop: the tiles of a step and the tokens they give.

A step runs one tile over all active rows, each with the tokens it has to catch up (one, as a rule) and, where a drafter is there, the
drafts to verify; longer stretches of given tokens run before, in tiles of their own. Nothing here depends on time, and no draw depends
on which rows it shares a tile with: where this machine's kernels make it, every token runs in a tile of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ramify.engine.cache import Arena
from ramify.engine.ends import end
from ramify.engine.forward import CHUNK, Exactness, Forward, Tile, threads_for
from ramify.engine.rows import Row
from ramify.engine.sampling import Picked, pick
from ramify.engine.seats import Seats
from ramify.engine.speculate import Speculator
from ramify.engine.tiny import Tap
from ramify.model.protocol import Tokenizer

RECALL = 4 * CHUNK
"""Most tokens of all rows in a tile that runs for their features."""
FEW = 4
"""A row with at most so many tokens to catch up rides along in the tile of all rows."""


class Batch:
    """Runs the rows of ``seats`` on ``forward``, as ``exactness`` says."""

    def __init__(
        self, seats: Seats, forward: Forward, tokenizer: Tokenizer | None, eos: Sequence[int], exactness: Exactness
    ) -> None:
        self.seats, self.forward, self.tokenizer, self.eos = seats, forward, tokenizer, frozenset(eos)
        self.speculator, self.stats = seats.speculator, seats.stats
        self.alone = exactness is Exactness.ALONE
        self.any_threads = exactness in (Exactness.TOGETHER, Exactness.UNPROVEN)

    def step(self) -> bool:
        """Admit rows, move every one on by at least one token; True when a draw finished."""
        with torch.inference_mode():
            self.seats.admit()
            rows = self.seats.rows
            if not rows:
                return False
            arena = self.seats.arena
            for slot, row in enumerate(rows):
                if row.pending > FEW:
                    self._run_prompt(arena, slot, row)
            drafts = self._propose(arena)
            counts = [row.pending if row.pending <= FEW else 1 for row in rows]
            return self._run_rows(arena, counts, drafts)

    def _propose(self, arena: Arena) -> list[list[int]]:
        """Drafts for every row, none for most reasons: taps, tokens to catch up, forks that wait for this row's next token."""
        rows, speculator = self.seats.rows, self.speculator
        drafts: list[list[int]] = [[] for _ in rows]
        if speculator is not None:
            able = [
                slot
                for slot, row in enumerate(rows)
                if row.pending == 1 and row.group.taps is None and (row.logprobs or not row.group.jobs)
            ]
            if depth := speculator.depth([rows[slot] for slot in able]):
                self._recall(arena, able, speculator)
                with threads_for(len(able) * speculator.block * self.forward.weights):
                    made = speculator.propose(arena, [rows[slot] for slot in able], able, depth)
                for slot, draft in zip(able, made, strict=True):
                    drafts[slot] = draft
        return drafts

    def _recall(self, arena: Arena, slots: Sequence[int], speculator: Speculator) -> None:
        """Run again what steps without drafts have computed of these rows, for its features. Keys and values come out the same."""
        rows = self.seats.rows
        missing = [(slot, p) for slot in slots if (kept := rows[slot].kept) for p in range(kept.featured, rows[slot].computed)]
        for at in range(0, len(missing), RECALL):  # whole tiles but for the last, whose padding lies past the end of its row
            owners, where = zip(*missing[at : at + RECALL], strict=True)
            tokens = [rows[slot].tokens[p] for slot, p in zip(owners, where, strict=True)]
            self._run(arena, tokens, where, owners, watched=True)
        for slot, p in missing:
            _book(rows[slot], p, 1)
        speculator.stats.recalled += len(missing)

    # -- tiles

    def _run(
        self, arena: Arena, tokens: Sequence[int], where: Sequence[int], owners: Sequence[int], watched: bool
    ) -> list[Tensor]:
        """Run ``tokens`` at positions ``where`` of the rows at ``owners``; the hidden states [M, D] of its tiles, one or one an entry.

        Under the taps of the rows, and, where ``watched``, with the features that go to the drafter.
        """
        rows = self.seats.rows
        size = 1 if self.alone else len(tokens)
        found = []
        for at in range(0, len(tokens), size):
            part = slice(at, at + size)
            mine = owners[part]
            one_each = len(mine) == len(rows) and all(slot == i for i, slot in enumerate(mine))
            tile = Tile(arena, self.forward.kv_heads, tokens[part], where[part], None if one_each else mine)
            with threads_for(tile.size * self.forward.weights if self.any_threads else 0):
                found.append(
                    self.forward.hidden(tile, self._tap(arena, tile, [rows[slot] for slot in mine], where[part], watched))
                )
            self._count(tile)
        return found

    def _logits(self, tiles: list[Tensor]) -> Tensor:
        """Logits of the entries of :meth:`_run`, row by row."""
        if self.alone:
            with threads_for(0):
                return torch.cat([self.forward.logits(hidden)[:1] for hidden in tiles])
        (hidden,) = tiles
        with threads_for(len(hidden) * self.forward.weights if self.any_threads else 0):
            return self.forward.logits(hidden)

    def _tap(self, arena: Arena, tile: Tile, rows: Sequence[Row], positions: Sequence[int], watched: bool) -> Tap | None:
        """What the tile runs under."""
        tapped = [(m, row.group.taps, row.states) for m, row in enumerate(rows) if row.group.taps is not None]
        watch = self.speculator.watch(arena, tile) if self.speculator and watched else None

        def tap(layer: int, x: Tensor) -> Tensor:
            for m, taps, states in tapped:
                taps.apply(layer, x, m, positions[m], states)
            return x if watch is None else watch(layer, x)

        return tap if tapped else watch

    def _run_prompt(self, arena: Arena, slot: int, row: Row) -> None:
        """Run up to CHUNK pending tokens of one row, all but the last."""
        start, count = row.computed, min(row.pending - 1, CHUNK)
        self._run(arena, row.tokens[start : start + count], range(start, start + count), [slot] * count, watched=True)
        self._ran(row, count, watched=True)

    def _run_rows(self, arena: Arena, counts: Sequence[int], drafts: Sequence[list[int]]) -> bool:
        """Run the next ``counts[slot]`` tokens of every row and its drafts, and draw for the rows that are caught up."""
        rows = self.seats.rows
        where = [row.computed for row in rows]
        tokens = [row.tokens[p] for row, p in zip(rows, where, strict=True)]
        owners = firsts = list(range(len(rows)))
        if max(counts) > 1 or any(drafts):
            tokens, where, owners, firsts = [], [], [], []
            for slot, (row, n, draft) in enumerate(zip(rows, counts, drafts, strict=True)):
                firsts.append(len(tokens))
                tokens += row.tokens[row.computed : row.computed + n]
                tokens += draft
                where += range(row.computed, row.computed + n + len(draft))
                owners += [slot] * (n + len(draft))
        watched = self.speculator is not None and self.speculator.drafting
        tiles = self._run(arena, tokens, where, owners, watched)
        ready, entries = [], []
        for slot, (row, n) in enumerate(zip(rows, counts, strict=True)):
            last = row.pending == n
            self._ran(row, n, watched)
            if last:
                ready.append(slot)
                entries.append(firsts[slot] + n - 1)
        return bool(ready) and self._draw(self._logits(tiles), ready, entries, [drafts[slot] for slot in ready])

    def _ran(self, row: Row, count: int, watched: bool) -> None:
        """Book ``count`` tokens of a row that ran."""
        self.stats.prompt_tokens += max(0, min(count, len(row.group.prefix) - row.computed))
        if watched:
            _book(row, row.computed, count)
        row.computed += count

    def _count(self, tile: Tile) -> None:
        self.stats.tiles += 1
        self.stats.forward_rows += tile.size
        self.stats.padded_rows += tile.size - tile.used

    # -- tokens

    def _draw(self, logits: Tensor, slots: list[int], entries: list[int], drafts: list[list[int]]) -> bool:
        """Draw for the rows at ``slots``, whose last known tokens are ``entries`` of the tile, and for those that fork off here."""
        seats = self.seats
        keep = {}
        for i, slot in enumerate(list(slots)):
            row = seats.rows[slot]
            if not row.logprobs:
                keep[slot] = row.computed
                start = len(seats.rows)
                forks = seats.fork(slot) if row.group.jobs else 0
                slots += range(start, start + forks)
                entries += [entries[i]] * forks
                drafts += [[] for _ in range(forks)]
        rows = [seats.rows[slot] for slot in slots]
        index = [e for entry, draft in zip(entries, drafts, strict=True) for e in range(entry, entry + len(draft) + 1)]
        if index != list(range(len(logits))):
            logits = logits[: len(index)] if index == list(range(len(index))) else logits[index]
        emitted = self._emitted(logits, rows, drafts)
        finished: list[tuple[int, Row, Exception | None]] = []
        taken = []
        for slot, row, made in zip(slots, rows, emitted, strict=True):
            count, failure = self._take(row, made)
            taken.append(count)
            if row.stop or failure:
                finished.append((slot, row, failure))
                keep[slot] = row.computed
        if self.speculator is not None:
            self.speculator.settle(rows, drafts, emitted, taken)
        seats.keep(keep)
        for slot, row, failure in sorted(finished, key=lambda f: -f[0]):
            seats.remove(slot)
            row.job.done(row.job, failure or row)
        return bool(finished)

    def _emitted(self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[list[int]]) -> list[Picked]:
        """What each row draws: the drafts that are accepted and one token more. ``logits`` [rows and drafts, V], row by row."""
        if self.speculator is not None and any(drafts):
            return self.speculator.verify(logits, rows, drafts)
        settings, first = [row.job.settings for row in rows], [not row.logprobs for row in rows]
        picked = pick(logits, settings, first, [float(row.uniforms[len(row.logprobs)]) for row in rows])
        each = zip(picked.tokens, picked.logprobs, picked.model_logprobs, picked.entropy, strict=True)
        return [Picked([token], [logprob], [model], [entropy]) for token, logprob, model, entropy in each]

    def _take(self, row: Row, made: Picked) -> tuple[int, Exception | None]:
        """Append what a row drew, up to the token that ends it; returns how many, and what its ``until`` raised."""
        failure = None
        count = 0
        for token, logprob, model, entropy in zip(made.tokens, made.logprobs, made.model_logprobs, made.entropy, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.model_logprobs.append(model)
            row.entropy.append(entropy)
            count += 1
            failure = end(row, self.eos, self.tokenizer)
            if row.stop or failure:
                break
        _book(row, row.computed, count - 1)
        row.computed += count - 1  # the drafts among them; the last is the next to run
        self.stats.drawn_tokens += count
        if row.job.told is not None:
            row.job.told(row)
        return count, failure


def _book(row: Row, start: int, count: int) -> None:
    """The features of ``count`` positions from ``start`` are in the arena; they count where those before them are, too."""
    if row.kept is not None and row.kept.featured == start:
        row.kept.featured += count
