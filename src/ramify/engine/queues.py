"""Draws that wait, a queue for each client, in groups that continue one prefix."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from ramify.engine.rows import Group, Job, Row
from ramify.engine.taps import Taps


class Queues:
    """First come, first served within one owner; who of the owners is served next is for the scheduler to say."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[Group]] = {}
        """Waiting groups by owner; no queue is empty."""
        self.waiting = 0
        """Draws that wait for their first row."""
        self._open: dict[tuple[str, bytes], Group] = {}
        self._active: Counter[str] = Counter()
        """Active rows by owner."""
        self._served: dict[str, int] = {}
        """When an owner was last given a row, or lost one."""
        self._clock = 0

    def enqueue(self, prefix: np.ndarray, jobs: Sequence[Job], taps: Taps | None) -> None:
        """Queue draws of one owner; its waiting group with the same prefix and no taps takes them in."""
        owner, name = jobs[0].owner, prefix.tobytes()
        group = self._open.get((owner, name)) if taps is None else None
        if group is None:
            group = Group(prefix, taps, owner, self._tick())
            self.queues.setdefault(owner, deque()).append(group)
            if taps is None:
                self._open[owner, name] = group
        for job in jobs:
            job.number = self._tick()
        group.jobs.extend(jobs)
        self.waiting += len(jobs)

    def take(self, group: Group) -> Job | Row:
        """The group's next draw: a parked row, or a job that has none yet."""
        row = group.eldest
        if row is None:
            return self.take_job(group)
        group.parked.remove(row)
        self._dequeue(group)
        return row

    def take_job(self, group: Group) -> Job:
        """The group's next draw that has no row yet."""
        job = group.jobs.popleft()
        self.waiting -= 1
        self._dequeue(group)
        return job

    def drop_waiting(self) -> None:
        """Take cancelled draws out of the queues."""
        for group in [group for queue in self.queues.values() for group in queue]:
            before = len(group.jobs)
            group.jobs = deque(job for job in group.jobs if not job.cancelled)
            group.parked = [row for row in group.parked if not row.job.cancelled]
            self.waiting -= before - len(group.jobs)
            self._dequeue(group)

    def _dequeue(self, group: Group) -> None:
        """Take a group that has nothing left to do out of its queue."""
        if group.jobs or group.parked:
            return
        queue = self.queues[group.owner]
        queue.remove(group)
        if not queue:
            del self.queues[group.owner]
            self._forget(group.owner)
        name = group.owner, group.prefix.tobytes()
        if self._open.get(name) is group:
            del self._open[name]

    def _forget(self, owner: str) -> None:
        """Keep nothing of an owner that has nothing to do."""
        if not self._active[owner] and owner not in self.queues:
            del self._active[owner]
            self._served.pop(owner, None)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
