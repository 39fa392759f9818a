"""Rows and their memory together: who is admitted starts from what is known of its tokens, who leaves is kept for later.

Draws that continue one prefix form a group; its prefix is run once, by the group's first row, and the others start as copies of that
row. Active rows sit at the front of the arena without holes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ramify.engine.cache import Arena
from ramify.engine.memory import Memory
from ramify.engine.prefixes import PrefixStore
from ramify.engine.rows import Group, Job, Row, Stats
from ramify.engine.sampling import draw_uniforms
from ramify.engine.scheduler import Scheduler
from ramify.engine.speculate import Speculator


class Seats(Scheduler):
    """A scheduler whose rows have keys and values. ``context``: the longest row, in tokens; other options as in its parts."""

    def __init__(
        self, memory: Memory, context: int, max_rows: int, quantum: int, max_waiting: int | None, speculator: Speculator | None
    ) -> None:
        super().__init__(max_rows, quantum, max_waiting)
        self.memory, self.speculator, self.stats = memory, speculator, Stats()
        self.context = context if memory.longest is None else min(context, memory.longest)
        self._full = False

    @property
    def store(self) -> PrefixStore:
        """What rows left behind."""
        return self.memory.store

    @property
    def length(self) -> int:
        """Tokens of the longest active row."""
        return max((len(row.tokens) for row in self.rows), default=0)

    @property
    def arena(self) -> Arena:
        """The arena, with room for the active rows."""
        return self.memory.arena(len(self.rows), self.length)

    def drop_cancelled(self) -> None:
        """Free the rows and the places in the queue of cancelled jobs."""
        with torch.inference_mode():  # the arena may have been made in it, and rows move up
            for slot in reversed(range(len(self.rows))):
                if self.rows[slot].job.cancelled:
                    self._vacate(slot)
                    self.leave(slot)
        self.drop_waiting()
        self._rest()

    def reset(self) -> list[Job]:
        """Forget all rows, groups and cached prefixes; returns the jobs that were still to be done."""
        self.memory.clear()
        return super().reset()

    def admit(self) -> None:
        """Make the room that others have a right to, then give rows to waiting draws while there are any."""
        slot = self.overdue(self._full)
        if slot is not None:
            self._preempt(slot)
        while self.memory.most is not None and len(self.rows) > 1 and not self.memory.room(len(self.rows), self.length):
            self._preempt(self.youngest())
        self._full = False
        for group in self.fair():
            parked = group.eldest
            tokens = group.prefix if parked is None else np.array(parked.tokens, np.int32)
            pieces = self.memory.match(tokens, group.taps)
            found = sum(piece.shape[1] for piece in pieces)
            if any(_shared(row, group) > found for row in self.rows if row.computed < len(row.group.prefix)):
                continue  # an active row is about to make more of this prefix than is known now
            if self.rows and not self.memory.room(len(self.rows) + 1, max(self.length, len(tokens))):
                self._full = True
                return
            taken = self.take(group)
            row = taken if isinstance(taken, Row) else self._row(group, taken, found)
            self.stats.again_tokens += max(0, row.reached - found)
            self._start(row, found)
            if pieces:
                self.memory.give(self.arena, len(self.rows) - 1, row, pieces)

    def fork(self, source: int) -> int:
        """Start waiting draws of a row's group as copies of that row, as many as there is room for; returns how many."""
        row, start = self.rows[source], len(self.rows)
        length = len(row.group.prefix)
        if self.speculator and row.kept and row.kept.featured == row.computed and self.speculator.drafting and row.group.jobs:
            self.speculator.absorb(self.arena, [row], [source])  # or every copy would do it again
        while (
            row.group.jobs
            and len(self.rows) < self.max_rows
            and self.memory.room(len(self.rows) + 1, self.length)
            and self.first_of_all(row.job.owner)
        ):
            twin = self._row(row.group, self.take_job(row.group), length)
            twin.states = {layer: dict(by_position) for layer, by_position in row.states.items()}
            self._start(twin, length)
            if self.speculator and row.kept:
                twin.kept = self.speculator.fork(row.kept, twin.job.key)
        if len(self.rows) > start:
            self.arena.copy(source, start, len(self.rows), length)
        return len(self.rows) - start

    def keep(self, lengths: Mapping[int, int]) -> None:
        """Store the first ``lengths[slot]`` positions of rows."""
        if self.store.budget <= 0:
            return
        for slot, length in lengths.items():
            self.memory.keep(slot, self.rows[slot], length)

    def remove(self, slot: int) -> None:
        """Free a finished row."""
        self._vacate(slot)
        self.leave(slot)
        self._rest()

    def _preempt(self, slot: int) -> None:
        row = self.rows[slot]
        self.keep({slot: row.computed})
        self._vacate(slot)
        self.park(slot)
        row.reached, row.computed, row.kept = row.computed, 0, None
        self.stats.preempted += 1

    def _row(self, group: Group, job: Job, found: int) -> Row:
        count = min(job.settings.max_tokens, self.context - len(group.prefix))
        self.stats.cached_tokens += found
        return Row(group, job, group.prefix.tolist(), draw_uniforms(job.key, count), found=found)

    def _start(self, row: Row, computed: int) -> None:
        row.computed = computed
        row.kept = self.speculator.admit_row(row.job.key) if self.speculator else None
        self.enter(row)

    def _vacate(self, slot: int) -> None:
        last = len(self.rows) - 1
        self.memory.move(last, slot, self.rows[last].computed)

    def _rest(self) -> None:
        if not self.busy:
            self.memory.rest()


def _shared(row: Row, group: Group) -> int:
    """Prefix tokens that ``group`` could take over from ``row`` once they are made."""
    if row.group is group:
        return len(group.prefix)
    if row.group.taps is not None or group.taps is not None:
        return 0
    length = min(len(row.group.prefix), len(group.prefix) - 1)
    differ = np.flatnonzero(row.group.prefix[:length] != group.prefix[:length])
    return int(differ[0]) if len(differ) else length
