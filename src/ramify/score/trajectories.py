"""Attempts as token rows with their actions marked: what a grader that reads log-probs needs, from a run, JSON lines or plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One attempt. A step is one action (an agent's message: text and tool calls); everything else is what it was shown."""

    id: str
    task: str
    tokens: np.ndarray
    """int32 (T,): the whole row of ids, as the policy saw it."""
    step: np.ndarray
    """int32 (T,): which step each token belongs to, 0 to n-1; -1 for tokens that are no action."""
    n: int
    """How many steps there are, those without a token included."""
    reward: float | None = None
    success: bool | None = None
    """None where nobody said how the attempt ended."""
    policy_logprobs: np.ndarray | None = None
    """float32 (T,) that a trainer stored, or None. Only under the model itself: temperature 1, nothing cut."""
    reference_logprobs: np.ndarray | None = None
    actions: tuple[str, ...] = ()
    """Text of each step where it is known."""
    nodes: tuple[str, ...] = ()
    """Node of a run that each step ends at, where it comes from a run."""


def trajectory(
    id: str,
    task: str,
    steps: Sequence[tuple[Sequence[int] | np.ndarray, bool]],
    reward: float | None = None,
    success: bool | None = None,
    actions: Sequence[str] = (),
) -> Trajectory:
    """An attempt from (token ids, is an action) pieces in order. An empty action is a step of its own with no token.

    Raises UserError where no piece is an action: without them a grade would be that of what the agent was shown.
    """
    pieces = [np.asarray(ids, np.int32) for ids, _ in steps]
    marks, n = [], 0
    for piece, (_, is_action) in zip(pieces, steps, strict=True):
        marks.append(np.full(len(piece), n if is_action else -1, np.int32))
        n += bool(is_action)
    if not n:
        raise UserError(f"attempt '{id}' marks no step as an action (is_action), so there is nothing to grade")
    tokens = np.concatenate(pieces)
    if success is None and reward is not None:
        success = reward > 0
    return Trajectory(id, task, tokens, np.concatenate(marks), n, reward, success, actions=tuple(actions))
