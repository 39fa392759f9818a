"""Read and patch hidden states while a model samples or scores.

Layers are counted as in :meth:`TinyLM.hidden`: 0 is the embedding, i the output of block i. Positions count from the start of the
row, prefix included. The hidden state at position p is the one that predicts token p + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash

States = dict[int, dict[int, np.ndarray]]
"""layer -> position -> float32 (D,)."""


@dataclass(frozen=True, slots=True)
class Read:
    """Report the hidden state at ``layer`` for positions ``start`` up to, not including,
    ``stop`` (None: to the end of the row)."""

    layer: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """Change the hidden state at ``layer`` for positions ``start`` to ``stop``: add ``vector`` (D,), or put it in place."""

    layer: int
    start: int
    vector: np.ndarray
    stop: int | None = None
    replace: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """What to read and what to patch. Edits at one place apply in order; a read sees the state after them."""

    reads: tuple[Read, ...] = ()
    edits: tuple[Edit, ...] = ()

    def check(self, layers: int, width: int) -> None:
        """Raises UserError where a layer, a position or a vector does not fit the model."""
        for tap in self._all:
            if not 0 <= tap.layer <= layers:
                raise UserError(f"layer {tap.layer} does not exist; the model has 0 (embedding) to {layers}")
            if tap.start < 0 or (tap.stop is not None and tap.stop <= tap.start):
                raise UserError(f"positions {tap.start} to {tap.stop} at layer {tap.layer} are empty or start below 0")
        for edit in self.edits:
            if edit.vector.shape != (width,):
                raise UserError(f"the edit at layer {edit.layer} has shape {edit.vector.shape}; the model's width is {width}")

    @property
    def _all(self) -> tuple[Read | Edit, ...]:
        return (*self.reads, *self.edits)

    @property
    def start(self) -> int:
        """First position that must be computed under these taps; positions before it may come from the cache."""
        return min((tap.start for tap in self._all), default=1 << 62)

    def to_json(self) -> dict[str, object]:
        """The edits as stored with a provenance: places and hashes of the vectors."""
        return {
            "edits": [
                {
                    "layer": e.layer,
                    "start": e.start,
                    "stop": e.stop,
                    "replace": e.replace,
                    "vector": stable_hash(np.ascontiguousarray(e.vector, dtype=np.float32).tobytes()),
                }
                for e in self.edits
            ]
        }

    def apply(self, layer: int, x: Tensor, row: int, position: int, states: States) -> None:
        """Patch ``x[row]`` [M, D] in place and read it, for the token at ``position``."""
        for edit in self.edits:
            if edit.layer == layer and _covers(edit, position):
                vector = torch.as_tensor(edit.vector, dtype=x.dtype, device=x.device)
                x[row] = vector if edit.replace else x[row] + vector
        for read in self.reads:
            if read.layer == layer and _covers(read, position):
                states.setdefault(layer, {})[position] = x[row].float().cpu().numpy().copy()

    def apply_row(self, layer: int, x: Tensor, length: int, states: States) -> None:
        """Patch and read a whole row ``x`` [T, D] of which the first ``length`` positions are real."""
        for position in range(min(self.start, length), length):
            self.apply(layer, x, position, position, states)


def _covers(tap: Read | Edit, position: int) -> bool:
    return tap.start <= position and (tap.stop is None or position < tap.stop)
