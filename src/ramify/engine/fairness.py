"""Whose turn it is: which client gets a free slot of the engine, and which running sequence gives way.

A free slot goes to the client with the fewest running sequences, among equals to the one served longest ago. A sequence that has
sampled its quantum gives way where all slots are taken and a client with fewer of them waits. What gives way for memory is the
youngest sequence of the client that has most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Row

from ramify.engine.queues import Waiting
from ramify.engine.sequence import Sequence, SequenceGroup


class Fairness:
    """Counts what each client has, of those that wait in ``waiting`` or run."""

    def __init__(self, waiting: Waiting, max_sequences: int, quantum: int) -> None:
        self.waiting, self.max_sequences, self.quantum = waiting, max_sequences, quantum
        self._active: Counter[str] = Counter()
        """Running sequences by client."""
        self._served: dict[str, int] = {}
        """When a client was last given a slot, or lost one."""

    def starts(self, client: str) -> None:
        """A sequence of ``client`` gets a slot."""
        self._active[client] += 1
        self._served[client] = self.waiting.tick()

    def leaves(self, client: str) -> None:
        """A sequence of ``client`` gives its slot back."""
        self._active[client] -= 1
        self.forget(client)

    def preempted(self, client: str) -> None:
        """A sequence of ``client`` had to give way."""
        self._served[client] = self.waiting.tick()

    def forget(self, client: str | None = None) -> None:
        """Forget a client without requests, or all such."""
        for name in list(self._served) if client is None else [client]:
            if not self._active[name] and name not in self.waiting.queues:
                del self._active[name]
                self._served.pop(name, None)

    def clear(self) -> None:
        """Forget all clients."""
        self._active.clear()
        self._served.clear()

    def order(self, running: Row[Sequence]) -> Iterator[SequenceGroup]:
        """Waiting groups in the order of their right to a slot, which is looked at anew after each;
        none where all slots are taken."""
        if not self.waiting or len(running) >= self.max_sequences:
            return
        left = {client: iter(list(groups)) for client, groups in self.waiting.queues.items()}
        while left and len(running) < self.max_sequences:
            client = min(left, key=self._rank)
            group = next(left[client], None)
            if group is None:
                del left[client]
            else:
                yield group

    def is_first(self, client: str) -> bool:
        """Whether no other client that waits has a better right to a slot."""
        return all(self._rank(client) <= self._rank(other) for other in self.waiting.queues if other != client)

    def overdue(self, running: Row[Sequence], full: bool) -> int | None:
        """The slot that must go to a client with fewer: of a sequence past its quantum, of the client with most. ``full``: the
        memory holds no further sequence."""
        if not self.waiting or (len(running) < self.max_sequences and not full):
            return None
        fewest = min(self._active[client] for client in self.waiting.queues)
        past = [i for i, seq in enumerate(running) if seq.turn >= self.quantum and self._active[seq.request.client] > fewest]
        return max(past, key=lambda i: (self._active[running[i].request.client], running[i].turn), default=None)

    def youngest(self, running: Row[Sequence]) -> int:
        """The slot that gives way for memory. Sequences under taps, which cannot be stored whole, go last."""

        def key(slot: int) -> tuple[bool, int, int]:
            seq = running[slot]
            return seq.group.taps is None, self._active[seq.request.client], seq.request.number

        return max(range(len(running)), key=key)

    def _rank(self, client: str) -> tuple[int, int]:
        return self._active[client], self._served.get(client, 0)
