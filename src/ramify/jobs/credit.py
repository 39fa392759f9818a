"""Training rows from sampled trees and their credit: each sampled token once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ramify.rollout.attempts import Attempt
from ramify.trace.db import Run
from ramify.trace.tree import Tree
from ramify.train.batch import Row, rows_from_path


def training_rows(
    run: Run,
    trees: Mapping[str, Tree],
    attempts: Sequence[Attempt],
    credit: Mapping[str, np.ndarray],
    clip: float,
) -> list[Row]:
    """Rows of attempts (several where one was compacted), each sampled token in one only: a shared message is trained on once.

    Messages without credit, or with credit 0, are context only. Credit is clipped to ``clip`` and stored as the per-token values
    ``advantage`` and ``weight``, of which a loss reads its own."""
    rows: list[Row] = []
    done: set[str] = set()
    for attempt in attempts:
        tree = trees[attempt.tree]
        path = tree.path(attempt.leaf)
        fresh = {n.id: credit[n.id] for n, _ in path.segments if n.id in credit and n.id not in done and credit[n.id].any()}
        if not fresh:
            continue
        done |= fresh.keys()
        for row in rows_from_path(path, tree.node, run.context, {"advantage": fresh}):
            advantage = row.token_values["advantage"].clip(-clip, clip)
            mask = row.mask & (advantage != 0.0)
            if mask.any():
                rows.append(Row(row.tokens, mask, {**row.token_values, "advantage": advantage, "weight": advantage}))
    return rows
