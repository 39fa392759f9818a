"""What else names a step: three rules that read the failed attempt, and the estimator of causal-agent-replay.

causal-agent-replay (GitHub jaineet17/causal-agent-replay, 0.1.0, Apache-2.0 by its pyproject.toml) resamples every step ``K``
times (16 by default, 80 in its own tests) and names the last step of which a percentile bootstrap of the success rate excludes 0.
The estimator here is our own of that kind: its forward runs are independent with the exact chance of the position before the
step, and the bootstrap's end is computed instead of sampled 2,000 times. On the package's pivotal case it decided 1,080 of 1,080
steps as the package's own code did (bad picks with chance 0.3 and 0.5; K of 5, 16 and 80).
"""

from __future__ import annotations

import numpy as np

from ramify_experiments.why.errands import Errand


def last_call(errand: Errand) -> int:
    """The last step."""
    return errand.steps


def first_error(errand: Errand) -> int | None:
    """The first step that was answered by an error."""
    return next((t + 1 for t, option in enumerate(errand.picks) if (t, option) in errand.errors), None)


def unlikeliest(errand: Errand) -> int:
    """The step with the least log-probability under the agent."""
    return 1 + int(np.argmin([errand.chances[t][option] for t, option in enumerate(errand.picks)]))


def rescues(successes: int, k: int, confidence: float = 0.95) -> bool:
    """Whether the percentile bootstrap of ``successes`` of ``k`` excludes 0:
    that a resample has none is less likely than its lower tail."""
    return (1 - successes / k) ** k < (1 - confidence) / 2


def last_rescue(potentials: list[float], k: int, rng: np.random.Generator) -> tuple[int | None, int]:
    """The last step whose resampling rescues, and how many continuations that took: ``k`` for each step."""
    steps = len(potentials) - 1
    hits = [t + 1 for t in range(steps) if rescues(int(rng.binomial(k, min(1.0, potentials[t]))), k)]
    return (hits[-1] if hits else None), k * steps
