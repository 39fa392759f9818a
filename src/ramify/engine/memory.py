"""Keys and values of the rows of one model: the arena of those that are active, the store of what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ramify.engine.cache import POSITIONS, ROWS, Arena, fits
from ramify.engine.prefixes import PrefixStore
from ramify.engine.rows import Row
from ramify.engine.taps import Taps


class Memory:
    """Arena row i belongs to active row i. ``most`` bounds the arena's places (rows x positions); ``spare`` positions past every row
    are kept free for what a tile writes there. The store takes the first ``stored`` layers of positions whose features are there, else
    ``bare`` (by default all layers either way).
    """

    def __init__(
        self,
        layers: int,
        size: int,
        device: torch.device,
        cache_bytes: int,
        spare: int,
        most: int | None = None,
        bare: int | None = None,
        stored: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.store = PrefixStore(cache_bytes)
        self._shape, self._spare, self.most, self._dtype = (layers, size, device), spare, most, dtype
        self._bare, self._stored = bare or layers, stored or layers
        self._arena: Arena | None = None

    @property
    def bytes(self) -> int:
        """Memory of the arena and the store."""
        return self.store.bytes + (0 if self._arena is None else self._arena.kv.nbytes)

    @property
    def longest(self) -> int | None:
        """Longest row that one row alone may become; None: no bound."""
        if self.most is None:
            return None
        S = POSITIONS
        while fits(ROWS, 2 * S, self.most):
            S *= 2
        return S - self._spare if fits(ROWS, S, self.most) else 0

    def room(self, rows: int, length: int) -> bool:
        """Whether so many rows fit, the longest of ``length`` tokens."""
        return fits(rows, length + self._spare, self.most)

    def arena(self, rows: int, length: int) -> Arena:
        """The arena, with room for so many rows of so many tokens."""
        if self._arena is None:
            self._arena = Arena(*self._shape, self.most, self._dtype)
        self._arena.reserve(rows, length + self._spare)
        return self._arena

    def match(self, tokens: np.ndarray, taps: Taps | None) -> list[torch.Tensor]:
        """What the store has of a row about to start. Its last token runs again: logits are not kept."""
        limit = len(tokens) - 1
        return self.store.match(tokens, limit if taps is None else min(limit, taps.start))

    def keep(self, slot: int, row: Row, length: int) -> None:
        """Store the first ``length`` positions of a row; of a row under taps what came before its first tap."""
        arena = self._arena
        if arena is None:
            return
        if row.group.taps is not None:
            length = min(length, row.group.taps.start)

        def layers(stop: int) -> int:
            return self._stored if row.kept is None or stop <= row.kept.featured else self._bare

        tokens = np.array(row.tokens[:length], dtype=np.int32)
        self.store.insert(tokens, lambda start, stop: arena.read(slot, start, stop, layers(stop)), layers)

    def give(self, arena: Arena, slot: int, row: Row, pieces: Sequence[torch.Tensor]) -> None:
        """Put what the store had of a row at its front."""
        whole = next((i for i, piece in enumerate(pieces) if len(piece) < self._stored), len(pieces))
        start = 0
        for some, layers in ((pieces[:whole], self._stored), (pieces[whole:], self._bare)):
            if some:
                kv = torch.cat([piece[:layers] for piece in some], dim=1)
                arena.write(slot, start, kv)
                start += kv.shape[1]
            if row.kept is not None and layers == self._stored:
                row.kept.featured = start

    def move(self, source: int, slot: int, length: int) -> None:
        """Move the first ``length`` positions of row ``source`` to row ``slot``."""
        if source != slot and self._arena is not None:
            self._arena.copy(source, slot, slot + 1, length)

    def rest(self) -> None:
        """No row is active or waits: one long row must not hold its memory for good."""
        if self._arena is not None and self._arena.kv.nbytes > self.store.budget:
            self._arena = None

    def clear(self) -> None:
        """Forget everything."""
        self.store.clear()
        self._arena = None
