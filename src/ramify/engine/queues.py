"""Who waits for a slot of the engine: a queue per client, of groups of requests that continue one prefix."""

from __future__ import annotations

from collections import deque

import numpy as np

from ramify.engine.sequence import Request, Sequence, SequenceGroup
from ramify.engine.taps import Taps


class Waiting:
    """Groups that wait, a queue for each client: first come, first served within one client."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[SequenceGroup]] = {}
        """By client; no queue is empty."""
        self.count = 0
        """Requests that wait for their first slot."""
        self._open: dict[tuple[str, bytes], SequenceGroup] = {}
        self._clock = 0

    def __bool__(self) -> bool:
        return bool(self.queues)

    def add(self, prefix: np.ndarray, requests: list[Request], taps: Taps | None) -> None:
        """Queue requests of one client; its waiting group with the same prefix and no taps takes them in."""
        client, key = requests[0].client, prefix.tobytes()
        group = self._open.get((client, key)) if taps is None else None
        if group is None:
            group = SequenceGroup(prefix, key, taps, client, self.tick())
            self.queues.setdefault(client, deque()).append(group)
            if taps is None:
                self._open[client, key] = group
        for request in requests:
            request.number = self.tick()
        group.requests.extend(requests)
        self.count += len(requests)

    def pop_preempted(self, group: SequenceGroup) -> Sequence | None:
        """The group's sequence that resumes next, if one was preempted."""
        seq = group.eldest
        if seq is not None:
            group.preempted.remove(seq)
            self._dequeue(group)
        return seq

    def pop(self, group: SequenceGroup) -> Request:
        """The group's next request that has no sequence yet."""
        request = group.requests.popleft()
        self.count -= 1
        self._dequeue(group)
        return request

    def put_back(self, seq: Sequence) -> None:
        """Let a preempted sequence wait, in the order of its group's arrival."""
        group = seq.group
        queue = self.queues.setdefault(group.client, deque())
        if group not in queue:
            queue.insert(sum(other.number < group.number for other in queue), group)
        group.preempted.append(seq)

    def drop_cancelled(self) -> None:
        """Take cancelled requests out of the queues."""
        for group in [group for queue in self.queues.values() for group in queue]:
            before = len(group.requests)
            group.requests = deque(request for request in group.requests if not request.cancelled)
            group.preempted = [seq for seq in group.preempted if not seq.request.cancelled]
            self.count -= before - len(group.requests)
            self._dequeue(group)

    def clear(self) -> list[Request]:
        """Forget everything; returns the requests that waited."""
        groups = [group for queue in self.queues.values() for group in queue]
        self.queues.clear()
        self._open.clear()
        self.count = 0
        return [request for group in groups for request in (*(seq.request for seq in group.preempted), *group.requests)]

    def tick(self) -> int:
        """The next number of a count that orders arrivals and turns."""
        self._clock += 1
        return self._clock

    def _dequeue(self, group: SequenceGroup) -> None:
        """Take a group that has nothing left to do out of its queue."""
        if group.requests or group.preempted:
            return
        queue = self.queues[group.client]
        queue.remove(group)
        if not queue:
            del self.queues[group.client]
        name = group.client, group.key
        if self._open.get(name) is group:
            del self._open[name]
