"""Discounted returns of attempts. Rows are steps; the steps of one attempt are contiguous and in time order."""

from __future__ import annotations

import numpy as np


def remaining(attempts: np.ndarray) -> np.ndarray:
    """How many steps follow each step in its attempt, int64 (N,): 0 for the last.
    ``attempts`` (N,) is the attempt of each row."""
    n = len(attempts)
    last = np.append(np.flatnonzero(attempts[1:] != attempts[:-1]), n - 1) if n else np.zeros(0, dtype=np.int64)
    lengths = np.diff(last, prepend=-1)
    return np.repeat(last, lengths) - np.arange(n)


def terminal_returns(rewards: np.ndarray, left: np.ndarray, gamma: float) -> np.ndarray:
    """Value of the state before each step when the attempt's reward comes at its end: ``gamma^(T-j+1) R``, float64 (N,).

    ``rewards`` (N,) the attempt's terminal reward on every row, ``left`` as given by :func:`remaining`;
    the last step carries gamma^1.
    """
    return np.asarray(rewards * np.power(gamma, left + 1.0))
