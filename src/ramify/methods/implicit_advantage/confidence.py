"""How sure a model is of what it wrote: Self-Certainty and DeepConf's confidence. Higher means more peaked, for all of them.

The orientation is a trap: the mean of the top-k log-probs is *minus* DeepConf's confidence, so taken as a score it prefers the
attempts the model was least sure of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramify.base.errors import NeedsError
from ramify.model.protocol import Model, TokenScores

TOP_K = 20
"""Alternatives a token's confidence looks at (DeepConf's setting)."""


def token_confidence(scores: TokenScores) -> np.ndarray:
    """DeepConf's confidence of each token, (T,): minus the mean of the top-k log-probs (Fu et al. 2025). Needs
    ``top_logprobs``."""
    if scores.top_logprobs is None:
        raise NeedsError("a token's confidence needs the log-probs of its likeliest alternatives")
    confidence: np.ndarray = -scores.top_logprobs.mean(axis=1)
    return confidence


async def token_columns(model: Model, rows: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """``confidence`` (DeepConf) and ``certainty`` (Self-Certainty, Kang et al.
    2025: KL from the uniform distribution) of every token.

    Raises NeedsError where the model does not give the whole distribution (servers do not).
    """
    return [confidences(score, model.identity.name) for score in await model.logprobs(rows, top_k=TOP_K)]


def confidences(scores: TokenScores, name: str) -> dict[str, np.ndarray]:
    """``confidence`` and ``certainty`` of every token, from scores with alternatives.
    Raises NeedsError as :func:`token_columns`."""
    if scores.certainty is None:
        raise NeedsError(f"'{name}' does not give what self-certainty needs: the whole distribution")
    return {"confidence": token_confidence(scores), "certainty": scores.certainty}


def tail(per_step: np.ndarray) -> float:
    """DeepConf's tail: the mean confidence of the last step, from means by step (n,)."""
    return float(per_step[-1])


def bottom10(per_step: np.ndarray) -> float:
    """DeepConf's bottom 10 %: the mean of the least confident tenth of the steps, one at least, from means by step (n,)."""
    return float(np.sort(per_step)[: max(1, -(-len(per_step) // 10))].mean())
