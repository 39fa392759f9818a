"""Training rows and their padded batches. Rows are made from what the model was shown and drew; nothing is tokenised again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError

if TYPE_CHECKING:
    from ramify.trace.path import Path


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence to train on. ``tokens`` int32 (T,), ``mask`` bool (T,): tokens with a loss; streams float32 (T,) by name."""

    tokens: np.ndarray
    mask: np.ndarray
    streams: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("mask", self.mask), *self.streams.items()):
            if len(values) != len(self.tokens):
                raise UserError(f"training row: {name} has {len(values)} entries for {len(self.tokens)} tokens")
            if name != "mask" and not np.isfinite(values).all():
                raise UserError(f"training row: stream '{name}' holds a value that is not finite")


def row_from_path(path: Path, streams: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> Row:
    """The row of a path: drawn tokens are trained on, given ones are shown.

    ``streams``: name -> node id -> values along that node's tokens; nodes left out are 0. The behaviour log-probs are always there
    as stream ``logprobs``. Raises NeedsError on a path of text-only nodes.
    """
    along = {name: path.along(by_node) for name, by_node in (streams or {}).items()}
    return Row(path.tokens, path.sampled, {"logprobs": path.logprobs, **along})


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows padded on the right to one length. Every array is [B, T]; entry t of a stream belongs to token t."""

    tokens: Tensor
    mask: Tensor
    streams: Mapping[str, Tensor]


def collate(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    """Pad ``rows`` to their longest; a stream missing from a row is 0 there."""
    width = max(len(row.tokens) for row in rows)
    names = sorted({name for row in rows for name in row.streams})
    tokens = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), np.bool_)
    streams = {name: np.zeros((len(rows), width), np.float32) for name in names}
    for i, row in enumerate(rows):
        n = len(row.tokens)
        tokens[i, :n], mask[i, :n] = row.tokens, row.mask
        for name, values in row.streams.items():
            streams[name][i, :n] = values
    mask[:, 0] = False  # nothing precedes the first token, so nothing predicts it
    return Batch(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(mask).to(device),
        {name: torch.from_numpy(values).to(device) for name, values in streams.items()},
    )


def micro_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Rows in order of length, cut where the padded size would pass ``max_tokens``: little padding, bounded memory."""
    pack: list[Row] = []
    for row in sorted(rows, key=lambda r: len(r.tokens)):
        if pack and (len(pack) + 1) * len(row.tokens) > max_tokens:
            yield pack
            pack = []
        pack.append(row)
    if pack:
        yield pack
