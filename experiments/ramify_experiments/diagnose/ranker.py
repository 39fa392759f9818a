"""Localizer L2 of section 7: the rule policy with weights trained on faulty repositories, its causes with them.

Functions of one conversation compete (conditional logit); causes are told by a softmax.
Both are fitted by gradient descent in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.methods.diagnose.algorithm import LocalizeConfig
from ramify.methods.diagnose.loop import played
from ramify.methods.diagnose.policy import (
    CAUSE_FEATURES,
    CAUSES,
    FEATURES,
    Gathered,
    RulePolicy,
    Seen,
    Weights,
    cause_features,
    features,
    read,
    seen,
)
from ramify.methods.diagnose.tools import RepoTools
from ramify_experiments.diagnose.corpus import Instance

CERTAIN = 0.9
"""Share of belief that ends L2's search; chosen on training instances of seed 100."""
PENALTY = 1e-3


def conversation(one: Instance, policy: RulePolicy) -> tuple[list[Seen], Gathered]:
    """What a policy has seen of an instance at the end."""
    _, history = played(RepoTools(one.snapshot), one.issue, policy, LocalizeConfig())
    found = read(history)
    return seen(found), found


@dataclass(frozen=True)
class LabelledSearch:
    """What a policy that looks as long as it may has seen of an instance, and the truth."""

    issue: str
    functions: list[Seen]
    rows: np.ndarray
    """(functions, F): their features."""
    right: int
    """Index of the faulty function."""
    cause_row: np.ndarray
    """(C,): what its cause is told by."""
    cause: int
    """Index of its cause."""


def labelled(instances: Sequence[Instance]) -> list[LabelledSearch]:
    """What L1 had seen of each at the end of its search; instances whose faulty function it never saw are left out."""
    wide, made = RulePolicy(Weights(certain=2.0)), []  # never certain: it looks as long as it may
    for one in instances:
        functions, found = conversation(one, wide)
        index = next((at for at, s in enumerate(functions) if (s.file, s.name) == (one.gold[0], one.function)), None)
        if index is not None:
            cause = cause_features(functions[index], functions, one.issue)
            label = list(CAUSES).index(one.operator)
            made.append(LabelledSearch(one.issue, functions, features(functions, found), index, cause, label))
    return made


def train(learned: Sequence[LabelledSearch], rounds: int = 300) -> Weights:
    """Weights from labelled searches, by gradient descent."""
    w = np.zeros(len(FEATURES))
    for step in range(rounds):
        slope = PENALTY * w
        for one in learned:
            p = np.exp(one.rows @ w - (one.rows @ w).max())
            slope -= (one.rows[one.right] - (p / p.sum()) @ one.rows) / len(learned)
        w -= 2.0 / (1 + step / 100) * slope
    x, y = np.array([one.cause_row for one in learned]), np.eye(len(CAUSES))[[one.cause for one in learned]]
    v = np.zeros((len(CAUSES), len(CAUSE_FEATURES)))
    for _ in range(5 * rounds):
        p = np.exp(x @ v.T - (x @ v.T).max(axis=1, keepdims=True))
        v -= 2.0 * ((p / p.sum(axis=1, keepdims=True) - y).T @ x / len(x) + PENALTY * v)
    return Weights(tuple(map(float, w)), tuple(tuple(map(float, row)) for row in v), CERTAIN, "L2")
