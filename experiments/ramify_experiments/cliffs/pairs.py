"""Training rows of pairs of tokens: what stands before them, the token to prefer, and its rival in the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.train.batch import Row


def pair_rows(pairs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row a pair for the loss ``preference``: ``prompt_ids``, then ``chosen_id``, which alone is trained on, with its rival.

    ``pairs`` are records with ``prompt_ids``, ``chosen_id`` and ``rejected_id``, all token ids. Nothing is appended (an end of turn
    would enter the loss), put in front or cut. Rows still need the reference: :func:`ramify.train.loop.with_reference`.
    Raises UserError naming the pair that is not one.
    """
    rows = []
    for number, pair in enumerate(pairs, 1):
        prompt, chosen, rejected = (pair.get(name) for name in ("prompt_ids", "chosen_id", "rejected_id"))
        if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt or not all(map(_is_token, prompt)):
            raise UserError(f"pair {number}: 'prompt_ids' must be a list of token ids, at least one")
        if not _is_token(chosen) or not _is_token(rejected):
            raise UserError(f"pair {number}: 'chosen_id' and 'rejected_id' must be token ids")
        if chosen == rejected:
            raise UserError(f"pair {number}: token {chosen} is both chosen and rejected")
        tokens = np.array([*prompt, chosen], np.int32)
        rival = np.array([*[0] * len(prompt), rejected], np.float32)
        rows.append(Row(tokens, np.arange(len(tokens)) == len(prompt), {"rival": rival}))
    return rows


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24  # a float32 stream holds these exactly
