"""The scheduler: which sequences have the slots of the cache. No clock, no network.

Who waits is in ``queues.py``, whose turn it is in ``fairness.py``; none of it changes what is sampled.

Requests that continue one prefix form a group; its prefix is run once, by the group's first sequence, and the others start as
copies of that sequence's slot. Running sequences sit at the front of the KV cache without holes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ramify.base.errors import BusyError
from ramify.engine.cache import KVCache
from ramify.engine.fairness import Fairness
from ramify.engine.queues import Waiting
from ramify.engine.sampling import key_uniforms
from ramify.engine.sequence import Request, Sequence, SequenceGroup, Stats
from ramify.engine.speculate import Speculator
from ramify.engine.taps import Taps


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
        self.max_sequences, self.max_waiting = max_sequences, max_waiting
        self.waiting = Waiting()
        self.fairness = Fairness(self.waiting, max_sequences, quantum)
        self.running: list[Sequence] = []
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
        if (slot := self.fairness.overdue(self.running, self._full)) is not None:
            self._preempt(slot)
        while self.cache.most is not None and len(self.running) > 1 and not self.cache.fits(len(self.running), self.length):
            self._preempt(self.fairness.youngest(self.running))
        self._full = False
        reading = [seq for seq in self.running if seq.computed < len(seq.group.prefix)]
        longest = self.length
        for group in self.fairness.order(self.running):
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
            longest = max(longest, len(seq.tokens))
            self._start(seq, known, longest)
            reading.append(seq)
            if pieces:
                featured = self.cache.load(len(self.running) - 1, pieces)
                if seq.draft is not None:
                    seq.draft.featured = featured
        self.cache.reserve(len(self.running), self.length)
        return self.running

    def fork(self, source: int) -> int:
        """Start waiting requests of a sequence's group as copies of it, as many as there is room for; returns how many."""
        seq, start, longest = self.running[source], len(self.running), self.length
        group, length = seq.group, len(seq.group.prefix)
        if self.speculator and seq.draft and group.requests:
            self.speculator.absorb_before_fork(self.cache, seq, source)  # or every copy would do it again
        while (
            group.requests
            and len(self.running) < self.max_sequences
            and self.cache.fits(len(self.running) + 1, longest)
            and self.fairness.is_first(group.client)
        ):
            twin = self._sequence(group, length)
            twin.states = {layer: dict(by_position) for layer, by_position in seq.states.items()}
            self._start(twin, length, longest)
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
        self.fairness.forget()
        self._rest()

    def reset(self) -> list[Request]:
        """Forget all sequences, groups and cached prefixes; returns the requests that were still to be done."""
        requests = [seq.request for seq in self.running] + self.waiting.clear()
        self.running.clear()
        self.fairness.clear()
        self.cache.clear()
        return requests

    # -- slots

    def _sequence(self, group: SequenceGroup, known: int) -> Sequence:
        """The sequence of a group's next request, of whose prefix ``known`` tokens are there."""
        request = self.waiting.pop(group)
        count = min(request.settings.max_tokens, self.context - len(group.prefix))
        self.stats.cached_tokens += known
        return Sequence(group, request, group.prefix.tolist(), key_uniforms(request.key, count), cached=known)

    def _start(self, seq: Sequence, computed: int, longest: int) -> None:
        """Give a sequence the next slot; ``longest``: tokens of the longest running one, itself included."""
        seq.computed, seq.entered = computed, len(seq.logprobs)
        seq.draft = self.speculator.admit(seq.request.key) if self.speculator else None
        self.running.append(seq)
        self.fairness.starts(seq.request.client)
        self.cache.reserve(len(self.running), longest)

    def _leave(self, slot: int) -> Sequence:
        """Take a sequence out; the last one takes its slot."""
        seq, last = self.running[slot], self.running.pop()
        if slot < len(self.running):
            self.cache.copy(len(self.running), slot, slot + 1, last.computed)
            self.running[slot] = last
        self.fairness.leaves(seq.request.client)
        return seq

    def _preempt(self, slot: int) -> None:
        """Preempt a sequence: keep its computed prefix and let it wait."""
        self.keep({slot: self.running[slot].computed})
        seq = self._leave(slot)
        self.waiting.put_back(seq)
        self.fairness.preempted(seq.request.client)
        seq.reached, seq.computed, seq.draft = seq.computed, 0, None
        self.stats.preempted += 1

    def _rest(self) -> None:
        if not self.busy:
            self.cache.rest()


def _makes_more(seq: Sequence, group: SequenceGroup, known: int) -> bool:
    """Whether ``seq``, once it has read its prefix, has more than the first ``known`` tokens of the prefix of ``group``."""
    if seq.group is group:
        return len(group.prefix) > known
    if seq.group.taps is not None or group.taps is not None or len(group.prefix) - 1 <= known:
        return False
    return seq.group.key.startswith(group.key[: (known + 1) * group.prefix.itemsize])
