"""Training rows from sampled trees and their credit: each sampled token once.
How agents score the steps that were sampled, and the answer of their task before each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ramify.rollout.attempts import Attempt
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify.trace.tree import Tree
from ramify.train.batch import Row, rows_from_path
from ramify.train.loop import with_reference

if TYPE_CHECKING:
    from torch import nn


def training_rows(
    run: Run,
    trees: Mapping[str, Tree],
    attempts: Sequence[Attempt],
    credit: Mapping[str, np.ndarray],
    clip: float,
    longest: int | None = None,
) -> list[Row]:
    """Rows of attempts (several where one was compacted), each sampled token in one only: a shared message is trained on once.

    Messages without credit, or with credit 0, are context only. Credit is clipped to ``clip`` and stored as the per-token values
    ``advantage`` and ``weight``, of which a loss reads its own.
    ``longest``: the agent's context, as of :func:`rows_from_path`."""
    rows: list[Row] = []
    done: set[str] = set()
    for attempt in attempts:
        tree = trees[attempt.tree]
        path = tree.path(attempt.leaf)
        fresh = {n.id: credit[n.id] for n, _ in path.segments if n.id in credit and n.id not in done and credit[n.id].any()}
        if not fresh:
            continue
        done |= fresh.keys()
        for row in rows_from_path(path, tree.node, run.context, {"advantage": fresh}, longest):
            advantage = row.token_values["advantage"].clip(-clip, clip)
            mask = row.mask & (advantage != 0.0)
            if mask.any():
                rows.append(Row(row.tokens, mask, {**row.token_values, "advantage": advantage, "weight": advantage}))
    return rows


def log_ratios(
    agent: nn.Module,
    start: nn.Module,
    run: Run,
    trees: Mapping[str, Tree],
    ends: Sequence[Attempt],
    max_tokens: int,
    longest: int | None = None,
) -> dict[str, np.ndarray]:
    """Node -> float32 (T,): log-probability of each sampled token at temperature 1 under ``agent`` minus that under ``start``, 0
    elsewhere.

    Every step on the paths to ``ends``, scored once, in batches of ``max_tokens`` tokens. ``longest``: the agents' context, as of
    :func:`rows_from_path`."""
    rows, every = _marked(run, trees, ends, longest)
    before = with_reference(start, rows, max_tokens)
    kept = [
        Row(row.tokens, row.mask, {"node": row.token_values["node"], "start": row.token_values["reference"]}) for row in before
    ]
    out = {}
    for row in with_reference(agent, kept, max_tokens):
        ratio, number = row.token_values["reference"] - row.token_values["start"], row.token_values["node"] * row.mask
        for which in np.unique(number[number > 0]).astype(np.int64):
            node = every[which - 1]
            out[node.id] = np.zeros(len(node), np.float32)
            out[node.id][node.sampled_mask] = ratio[number == which]
    return out


def answer_values(
    start: nn.Module,
    answers: Mapping[str, Sequence[int]],
    run: Run,
    trees: Mapping[str, Tree],
    ends: Sequence[Attempt],
    max_tokens: int,
    longest: int | None = None,
) -> dict[str, float]:
    """Node -> mean log-probability, nats a token, that ``start`` gives to the task's answer instead of the step's reply.

    ``answers`` are the tokens of it by tree. Every step on the paths to ``ends`` once, in batches of ``max_tokens`` tokens. Steps
    of trees without an answer, and those that leave no room for it in ``longest`` tokens, are left out."""
    rows, every = _marked(run, trees, [end for end in ends if len(answers.get(end.tree, ()))], longest)
    asked = []
    for row in rows:
        numbers, firsts = np.unique(row.token_values["node"] * row.mask, return_index=True)
        for number, first in zip(numbers.astype(np.int64).tolist(), firsts.tolist(), strict=True):
            if number and first:
                tokens = np.concatenate([row.tokens[:first], np.asarray(answers[every[number - 1].tree], np.int32)])
                of = np.full(len(tokens), number, np.float32)
                asked.append(Row(tokens, np.arange(len(tokens)) >= first, {"node": of}))
    kept = [row for row in asked if longest is None or len(row.tokens) <= longest]
    scored = with_reference(start, kept, max_tokens)
    return {
        every[int(row.token_values["node"][0]) - 1].id: float(row.token_values["reference"][row.mask].mean()) for row in scored
    }


def _marked(run: Run, trees: Mapping[str, Tree], ends: Sequence[Attempt], longest: int | None) -> tuple[list[Row], list[Node]]:
    """The rows of the paths to ``ends``, and the steps on them, each masked in one row; the token value ``node`` is its number,
    from 1."""
    nodes: dict[str, Node] = {}
    rows: list[Row] = []
    for attempt in ends:
        path = trees[attempt.tree].path(attempt.leaf)
        fresh = [node for node, _ in path.segments if node.sampled_tokens and node.id not in nodes]
        marks = {node.id: np.full(len(node), len(nodes) + number, np.float32) for number, node in enumerate(fresh, 1)}
        nodes |= {node.id: node for node in fresh}
        for row in rows_from_path(path, trees[attempt.tree].node, run.context, {"node": marks}, longest) if fresh else ():
            mask = row.mask & (row.token_values["node"] > 0)
            rows.append(Row(row.tokens, mask, {"node": row.token_values["node"]}))
    return rows, list(nodes.values())
