"""Localizer L2 of section 7: the rule policy with weights trained on faulty repositories, its causes with them.

Functions of one conversation compete (conditional logit); causes are told by a softmax. Both are fitted by gradient descent in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramify.methods.diagnose.loop import LocalizeConfig, played
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


def train(instances: Sequence[Instance], rounds: int = 300) -> Weights:
    """Weights from instances whose truth is known: what L1 had seen of each at the end of its search."""
    rows, right, causes = [], [], []
    wide = RulePolicy(Weights(certain=2.0))  # never certain: it looks as long as it may
    for one in instances:
        functions, found = conversation(one, wide)
        index = next((at for at, s in enumerate(functions) if (s.file, s.name) == (one.gold[0], one.function)), None)
        if index is None:
            continue
        rows.append(features(functions, found))
        right.append(index)
        causes.append((cause_features(functions[index], functions, one.issue), list(CAUSES).index(one.operator)))
    w = np.zeros(len(FEATURES))
    for step in range(rounds):
        slope = PENALTY * w
        for x, at in zip(rows, right, strict=True):
            p = np.exp(x @ w - (x @ w).max())
            slope -= (x[at] - (p / p.sum()) @ x) / len(rows)
        w -= 2.0 / (1 + step / 100) * slope
    x, y = np.array([row for row, _ in causes]), np.eye(len(CAUSES))[[label for _, label in causes]]
    v = np.zeros((len(CAUSES), len(CAUSE_FEATURES)))
    for _ in range(5 * rounds):
        p = np.exp(x @ v.T - (x @ v.T).max(axis=1, keepdims=True))
        v -= 2.0 * ((p / p.sum(axis=1, keepdims=True) - y).T @ x / len(x) + PENALTY * v)
    return Weights(tuple(map(float, w)), tuple(tuple(map(float, row)) for row in v), CERTAIN, "L2")
