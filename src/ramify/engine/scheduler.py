"""Who runs next: a queue for each client, rows that are active, and which of them must make room. No tensors, no clock.

A free row goes to the client with the fewest active rows, among equals to the one served longest ago; within a client to who came first.
A row that has drawn its quantum gives way where all rows are taken and a client with fewer of them waits. What gives way for memory
is the youngest row of the client that has most. None of this changes what is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from ramify.base.errors import BusyError
from ramify.engine.queues import Queues
from ramify.engine.rows import Group, Job, Row
from ramify.engine.taps import Taps


class Scheduler(Queues):
    """Groups wait, rows are active. ``max_waiting`` bounds the draws that wait for their first row (None: no bound)."""

    def __init__(self, max_rows: int, quantum: int, max_waiting: int | None = None) -> None:
        super().__init__()
        self.max_rows, self.quantum, self.max_waiting = max_rows, quantum, max_waiting
        self.rows: list[Row] = []
        """Active rows; their place here is their row of the arena."""

    @property
    def busy(self) -> bool:
        """Whether any draw is waiting or active."""
        return bool(self.rows or self.queues)

    def add(self, prefix: np.ndarray, jobs: Sequence[Job], taps: Taps | None = None) -> None:
        """Queue draws of one owner. Raises BusyError where the queue is full."""
        if self.max_waiting is not None and self.waiting + len(jobs) > self.max_waiting + max(0, self.max_rows - len(self.rows)):
            raise BusyError(f"{self.waiting} draws wait already; the queue holds {self.max_waiting}")
        self.enqueue(prefix, jobs, taps)

    def fair(self) -> Iterator[Group]:
        """Waiting groups in the order of their right to a row, which is looked at anew after each; none where all rows are taken."""
        if not self.queues or len(self.rows) >= self.max_rows:
            return
        left = {owner: iter(list(groups)) for owner, groups in self.queues.items()}
        while left and len(self.rows) < self.max_rows:
            owner = min(left, key=self._rank)
            group = next(left[owner], None)
            if group is None:
                del left[owner]
            else:
                yield group

    def first_of_all(self, owner: str) -> bool:
        """Whether no other owner that waits has a better right to a row."""
        return all(self._rank(owner) <= self._rank(other) for other in self.queues if other != owner)

    def enter(self, row: Row) -> None:
        """Make a row active."""
        row.entered = len(row.logprobs)
        self.rows.append(row)
        self._active[row.job.owner] += 1
        self._served[row.job.owner] = self._tick()

    def leave(self, slot: int) -> Row:
        """Take a row out; the last row takes its place."""
        row, last = self.rows[slot], self.rows.pop()
        if slot < len(self.rows):
            self.rows[slot] = last
        self._active[row.job.owner] -= 1
        self._forget(row.job.owner)
        return row

    def park(self, slot: int) -> None:
        """Take a row out and let it wait again, at the place of its group's arrival."""
        row = self.rows[slot]
        group, owner = row.group, row.job.owner
        queue = self.queues.setdefault(owner, deque())
        if group not in queue:
            queue.insert(sum(other.number < group.number for other in queue), group)
        group.parked.append(row)
        self.leave(slot)
        self._served[owner] = self._tick()

    def overdue(self, full: bool) -> int | None:
        """The row that must give way to an owner with fewer rows: one past its quantum, of the owner with most.

        ``full``: there is no memory for another row, though there may be rows.
        """
        if not self.queues or (len(self.rows) < self.max_rows and not full):
            return None
        fewest = min(self._active[owner] for owner in self.queues)
        past = [i for i, row in enumerate(self.rows) if row.turn >= self.quantum and self._active[row.job.owner] > fewest]
        return max(past, key=lambda i: (self._active[self.rows[i].job.owner], self.rows[i].turn), default=None)

    def youngest(self) -> int:
        """The row that gives way for memory. Rows under taps, which cannot be parked whole, go last."""
        rows = self.rows
        return max(
            range(len(rows)), key=lambda i: (rows[i].group.taps is None, self._active[rows[i].job.owner], rows[i].job.number)
        )

    def reset(self) -> list[Job]:
        """Forget all rows and groups; returns the jobs that were still to be done."""
        jobs = [row.job for row in self.rows]
        for group in [group for queue in self.queues.values() for group in queue]:
            jobs += [*(row.job for row in group.parked), *group.jobs]
        for held in (self.rows, self.queues, self._open, self._active, self._served):
            held.clear()
        self.waiting = 0
        return jobs

    def _rank(self, owner: str) -> tuple[int, int]:
        return self._active[owner], self._served.get(owner, 0)
