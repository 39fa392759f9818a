"""The scheduler: a queue per client, the running sequences, and which of them is preempted. No clock, no network.

A free slot goes to the client with the fewest running sequences, among equals to the one served longest ago; within a client to
who came first. A sequence that has sampled its quantum gives way where all slots are taken and a client with fewer of them waits.
What gives way for memory is the youngest sequence of the client that has most. None of this changes what is sampled.

Requests that continue one prefix form a group; its prefix is run once, by the group's first sequence, and the others start as
copies of that sequence's slot. Running sequences sit at the front of the KV cache without holes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ramify.base.errors import BusyError
from ramify.engine.cache import KVCache
from ramify.engine.sampling import key_uniforms
from ramify.engine.sequence import Request, Sequence, SequenceGroup, Stats
from ramify.engine.speculate import Speculator
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


class Scheduler:
    """Groups wait, sequences run: ``running[i]`` has slot i of ``cache``. ``context``: the longest sequence, in tokens.

    ``max_waiting`` bounds the requests that wait for their first slot (None: no bound).
    """

    def __init__(
        self,
        cache: KVCache,
        context: int,
        max_sequences: int,
        quantum: int,
        max_waiting: int | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self.cache, self.speculator, self.stats = cache, speculator, Stats()
        self.context = context if cache.longest is None else min(context, cache.longest)
        self.max_sequences, self.quantum, self.max_waiting = max_sequences, quantum, max_waiting
        self.waiting = Waiting()
        self.running: list[Sequence] = []
        self._active: Counter[str] = Counter()
        """Running sequences by client."""
        self._served: dict[str, int] = {}
        """When a client was last given a slot, or lost one."""
        self._full = False

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.running or self.waiting)

    @property
    def length(self) -> int:
        """Tokens of the longest running sequence."""
        return max((len(seq.tokens) for seq in self.running), default=0)

    def add(self, prefix: np.ndarray, requests: list[Request], taps: Taps | None = None) -> None:
        """Queue requests of one client. Raises BusyError where the queue is full."""
        free = max(0, self.max_sequences - len(self.running))
        if self.max_waiting is not None and self.waiting.count + len(requests) > self.max_waiting + free:
            raise BusyError(f"{self.waiting.count} samples wait already; the queue holds {self.max_waiting}")
        self.waiting.add(prefix, requests, taps)

    def schedule(self) -> list[Sequence]:
        """Preempt sequences for other clients, then give slots to waiting requests while there are any; the running sequences."""
        if (slot := self._overdue()) is not None:
            self._preempt(slot)
        while self.cache.most is not None and len(self.running) > 1 and not self.cache.fits(len(self.running), self.length):
            self._preempt(self._youngest())
        self._full = False
        reading = [seq for seq in self.running if seq.computed < len(seq.group.prefix)]
        longest = self.length
        for group in self._fair():
            resumed = group.eldest
            tokens = group.prefix if resumed is None else np.array(resumed.tokens, np.int32)
            limit = len(tokens) - 1  # the last token runs again: logits are not kept
            pieces = self.cache.match(tokens, limit if group.taps is None else min(limit, group.taps.start))
            known = sum(piece.shape[1] for piece in pieces)
            if any(_makes_more(seq, group, known) for seq in reading):
                continue  # a running sequence is about to make more of this prefix than is known now
            if self.running and not self.cache.fits(len(self.running) + 1, max(longest, len(tokens))):
                self._full = True
                break
            seq = self.waiting.pop_preempted(group) or self._sequence(group, known)
            self.stats.again_tokens += max(0, seq.reached - known)
            self._start(seq, known)
            reading.append(seq)
            longest = max(longest, len(seq.tokens))
            if pieces:
                featured = self.cache.load(len(self.running) - 1, pieces)
                if seq.draft is not None:
                    seq.draft.featured = featured
        self.cache.reserve(len(self.running), self.length)
        return self.running

    def fork(self, source: int) -> int:
        """Start waiting requests of a sequence's group as copies of it, as many as there is room for; returns how many."""
        seq, start = self.running[source], len(self.running)
        group, length = seq.group, len(seq.group.prefix)
        if self.speculator and seq.draft and group.requests:
            self.speculator.absorb_before_fork(self.cache, seq, source)  # or every copy would do it again
        while (
            group.requests
            and len(self.running) < self.max_sequences
            and self.cache.fits(len(self.running) + 1, self.length)
            and self._first_of_all(group.client)
        ):
            twin = self._sequence(group, length)
            twin.states = {layer: dict(by_position) for layer, by_position in seq.states.items()}
            self._start(twin, length)
            if twin.draft and seq.draft:
                twin.draft.featured, twin.draft.absorbed = seq.draft.featured, seq.draft.absorbed
        if len(self.running) > start:
            self.cache.copy(source, start, len(self.running), length)
        return len(self.running) - start

    def keep(self, lengths: Mapping[int, int]) -> None:
        """Store the first ``lengths[slot]`` positions of running sequences; under taps what came before the first of them."""
        for slot, length in lengths.items():
            seq = self.running[slot]
            stop = length if seq.group.taps is None else min(length, seq.group.taps.start)
            self.cache.store(slot, seq.tokens[:stop], stop if seq.draft is None else seq.draft.featured)

    def finish(self, slot: int) -> None:
        """Free the slot of a finished sequence."""
        self._leave(slot)
        self._rest()

    def drop_cancelled(self) -> None:
        """Remove cancelled requests from slots and queues."""
        with torch.inference_mode():  # the cache may have been made in it, and slots move up
            for slot in reversed(range(len(self.running))):
                if self.running[slot].request.cancelled:
                    self._leave(slot)
        self.waiting.drop_cancelled()
        for client in list(self._served):
            self._forget(client)
        self._rest()

    def reset(self) -> list[Request]:
        """Forget all sequences, groups and cached prefixes; returns the requests that were still to be done."""
        requests = [seq.request for seq in self.running] + self.waiting.clear()
        for held in (self.running, self._active, self._served):
            held.clear()
        self.cache.clear()
        return requests

    # -- slots

    def _sequence(self, group: SequenceGroup, known: int) -> Sequence:
        """The sequence of a group's next request, of whose prefix ``known`` tokens are there."""
        request = self.waiting.pop(group)
        count = min(request.settings.max_tokens, self.context - len(group.prefix))
        self.stats.cached_tokens += known
        return Sequence(group, request, group.prefix.tolist(), key_uniforms(request.key, count), cached=known)

    def _start(self, seq: Sequence, computed: int) -> None:
        """Give a sequence the next slot."""
        seq.computed, seq.entered = computed, len(seq.logprobs)
        seq.draft = self.speculator.admit(seq.request.key) if self.speculator else None
        self.running.append(seq)
        self._active[seq.request.client] += 1
        self._served[seq.request.client] = self.waiting.tick()
        self.cache.reserve(len(self.running), len(seq.tokens))

    def _leave(self, slot: int) -> Sequence:
        """Take a sequence out; the last one takes its slot."""
        seq, last = self.running[slot], self.running.pop()
        if slot < len(self.running):
            self.cache.copy(len(self.running), slot, slot + 1, last.computed)
            self.running[slot] = last
        self._active[seq.request.client] -= 1
        self._forget(seq.request.client)
        return seq

    def _preempt(self, slot: int) -> None:
        """Preempt a sequence: keep its computed prefix and let it wait."""
        self.keep({slot: self.running[slot].computed})
        seq = self._leave(slot)
        self.waiting.put_back(seq)
        self._served[seq.request.client] = self.waiting.tick()
        seq.reached, seq.computed, seq.draft = seq.computed, 0, None
        self.stats.preempted += 1

    def _rest(self) -> None:
        if not self.busy:
            self.cache.rest()

    # -- fairness

    def _fair(self) -> Iterator[SequenceGroup]:
        """Waiting groups in the order of their right to a slot, which is looked at anew after each;
        none where all slots are taken."""
        if not self.waiting or len(self.running) >= self.max_sequences:
            return
        left = {client: iter(list(groups)) for client, groups in self.waiting.queues.items()}
        while left and len(self.running) < self.max_sequences:
            client = min(left, key=self._rank)
            group = next(left[client], None)
            if group is None:
                del left[client]
            else:
                yield group

    def _first_of_all(self, client: str) -> bool:
        """Whether no other client that waits has a better right to a slot."""
        return all(self._rank(client) <= self._rank(other) for other in self.waiting.queues if other != client)

    def _rank(self, client: str) -> tuple[int, int]:
        return self._active[client], self._served.get(client, 0)

    def _overdue(self) -> int | None:
        """The slot that must go to a client with fewer: of a sequence past its quantum, of the client with most."""
        if not self.waiting or (len(self.running) < self.max_sequences and not self._full):
            return None
        fewest = min(self._active[client] for client in self.waiting.queues)
        past = [i for i, seq in enumerate(self.running) if seq.turn >= self.quantum and self._active[seq.request.client] > fewest]
        return max(past, key=lambda i: (self._active[self.running[i].request.client], self.running[i].turn), default=None)

    def _youngest(self) -> int:
        """The slot that gives way for memory. Sequences under taps, which cannot be stored whole, go last."""

        def key(slot: int) -> tuple[bool, int, int]:
            seq = self.running[slot]
            return seq.group.taps is None, self._active[seq.request.client], seq.request.number

        return max(range(len(self.running)), key=key)

    def _forget(self, client: str) -> None:
        """Forget a client without requests."""
        if not self._active[client] and client not in self.waiting.queues:
            del self._active[client]
            self._served.pop(client, None)


def _makes_more(seq: Sequence, group: SequenceGroup, known: int) -> bool:
    """Whether ``seq``, once it has read its prefix, has more than the first ``known`` tokens of the prefix of ``group``."""
    if seq.group is group:
        return len(group.prefix) > known
    if seq.group.taps is not None or group.taps is not None or len(group.prefix) - 1 <= known:
        return False
    return seq.group.key.startswith(group.key[: (known + 1) * group.prefix.itemsize])
