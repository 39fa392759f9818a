"""Training rows and their padded batches. Rows are made from what the model was shown and sampled; nothing is tokenised again.

What makes rows for other trainers needs no torch, so it is loaded where batches are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.trace.context import context_of_parts, resolve, whole_tokens
from ramify.trace.node import Insert

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ramify.engine.sharing import SharedRows
    from ramify.trace.node import Context, Node
    from ramify.trace.path import Part, Path


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence to train on. ``tokens`` int32 (T,), ``mask`` bool (T,):
    tokens with a loss; ``token_values`` float32 (T,) by name."""

    tokens: np.ndarray
    mask: np.ndarray
    token_values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in (("mask", self.mask), *self.token_values.items()):
            if len(values) != len(self.tokens):
                raise UserError(
                    f"training row: {name} has {plural(len(values), 'entry')} for {plural(len(self.tokens), 'token')}"
                )
            if name != "mask" and not np.isfinite(values).all():
                raise UserError(f"training row: '{name}' holds a value that is not finite")


def rows_from_path(
    path: Path,
    node_of: Callable[[str], Node],
    context_of: Callable[[str], Context],
    token_values: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    longest: int | None = None,
) -> list[Row]:
    """The rows of a path, each sampled token in exactly one of them, after what the model was shown when it sampled it.

    Sampled tokens are trained on, given ones are shown. One row where nothing was compacted; a new row starts wherever a node's
    explicit context does not simply continue. A row of more than ``longest`` tokens ends with its last sampled one: the model was
    never shown what came after it. ``token_values``: name -> node id -> values along that node's tokens; nodes left out are 0.
    The behaviour log-probs are always there as ``logprobs``. ``node_of`` and ``context_of`` are those of a Run. Raises NeedsError
    where something shown has text only.
    """
    groups: list[list[tuple[Part, bool]]] = [[]]
    for node, kept in path.segments:
        if node.context is not None:
            parts = resolve(context_of(node.context), node_of, node)
            if context_of_parts(part for part, _ in groups[-1]) != context_of_parts(parts):
                groups.append([(part, False) for part in parts])
        if kept:
            groups[-1].append(((node, 0, kept), True))
    rows = [_row(parts, token_values or {}) for parts in groups]
    if longest is not None:
        rows = [row if len(row.tokens) <= longest else _ended(row) for row in rows]
    return [row for row in rows if len(groups) == 1 or row.mask.any()]


def _row(parts: Sequence[tuple[Part, bool]], token_values: Mapping[str, Mapping[str, np.ndarray]]) -> Row:
    """``parts`` laid end to end; only those marked True are trained on and carry token values."""
    tokens = whole_tokens(part for part, _ in parts)
    mask = np.zeros(len(tokens), np.bool_)
    along = {name: np.zeros(len(tokens), np.float32) for name in ("logprobs", *token_values)}
    at = 0
    for part, trained in parts:
        if isinstance(part, Insert):
            at += len(part.tokens or ())
            continue
        node, start, end = part
        here = slice(at, at + end - start)
        at += end - start
        if trained:
            by_name = {name: by_node.get(node.id) for name, by_node in token_values.items()} | {"logprobs": node.logprobs}
            mask[here] = False if node.sampled is None else node.sampled[start:end]
            for name, values in by_name.items():
                along[name][here] = 0.0 if values is None else values[start:end]
    return Row(tokens, mask, along)


def _ended(row: Row) -> Row:
    """The row up to its last token with a loss."""
    end = int(np.flatnonzero(row.mask).max(initial=-1)) + 1
    return Row(row.tokens[:end], row.mask[:end], {name: values[:end] for name, values in row.token_values.items()})


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows padded on the right to one length. Every array is [B, T]; entry t of a column belongs to token t."""

    tokens: Tensor
    mask: Tensor
    token_values: Mapping[str, Tensor]
    shared: SharedRows | None = None
    """Their tokens (the last of each row left out) with what rows share once, where they are computed like that."""
    source: Tensor | None = None
    """For each masked token, row after row, the place in ``shared`` of the token before it; int64 [N]."""


def collate(rows: Sequence[Row], device: torch.device | str = "cpu", share: bool = False) -> Batch:
    """Pad ``rows`` to their longest; token values missing from a row are 0 there.
    ``share``: lay out what neighbours share once."""
    import torch

    from ramify.engine.sharing import SharedRows

    width = max(len(row.tokens) for row in rows)
    names = sorted({name for row in rows for name in row.token_values})
    tokens = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), np.bool_)
    token_values = {name: np.zeros((len(rows), width), np.float32) for name in names}
    for i, row in enumerate(rows):
        n = len(row.tokens)
        tokens[i, :n], mask[i, :n] = row.tokens, row.mask
        for name, values in row.token_values.items():
            token_values[name][i, :n] = values
    mask[:, 0] = False  # nothing precedes the first token, so nothing predicts it
    shared = SharedRows.of([row.tokens[:-1] for row in rows], device) if share else None
    source = None
    if shared is not None:
        places = [place[row.mask[1:]] for place, row in zip(shared.places, rows, strict=True)]
        source = torch.from_numpy(np.concatenate(places)).to(device)
    return Batch(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(mask).to(device),
        {name: torch.from_numpy(values).to(device) for name, values in token_values.items()},
        shared,
        source,
    )


def in_tree_order(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of their tokens, in which rows that share a prefix are neighbours."""
    from ramify.engine.sharing import in_order

    return [rows[i] for i in in_order([row.tokens for row in rows])]


def shared_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Rows (:func:`in_tree_order`) cut where their distinct tokens would pass ``max_tokens``,
    or the tokens they look at eight times that."""
    from ramify.engine.sharing import common

    pack: list[Row] = []
    distinct = looked = 0
    for row in rows:
        new = len(row.tokens) - (common(pack[-1].tokens, row.tokens) if pack else 0)
        if pack and (distinct + new > max_tokens or looked + len(row.tokens) > 8 * max_tokens):
            yield pack
            pack, distinct, looked, new = [], 0, 0, len(row.tokens)
        pack.append(row)
        distinct, looked = distinct + new, looked + len(row.tokens)
    if pack:
        yield pack


def share_of_rows(rows: Sequence[Row]) -> float:
    """Share of the tokens of ``rows`` (:func:`in_tree_order`) that a row has in common with an earlier one."""
    from ramify.engine.sharing import common

    shared = sum(common(a.tokens, b.tokens) for a, b in pairwise(rows))
    return shared / max(1, sum(len(row.tokens) for row in rows))


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
