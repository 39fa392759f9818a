"""Follow a conversation as it grows: log-probs of each new stretch of tokens, with the keys and values of all before it kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramify.base.errors import InfrastructureError, UserError
from ramify.engine.batch import ForwardBatch
from ramify.engine.cache import KVCache
from ramify.engine.local import SCORE_LOGITS, LocalModel

_STRETCH = 256  # tokens of one batch


class Follower:
    """A growing sequence. The model computes every token once, whatever is queried; memory is the sequence's KV cache."""

    def __init__(self, model: LocalModel) -> None:
        self.model, self._forward = model, model.forward
        self._cache = KVCache(self._forward.layers, self._forward.kv_size, self._forward.device)
        self._last: Tensor | None = None  # hidden state before the next token, [1, D]
        self.length = 0
        """Tokens so far."""

    def extend(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Log-probs of ``tokens`` given all before them, float32 (T,); that of a row's first token is 0.

        Raises UserError on ids the model does not know, InfrastructureError("engine") where the row outgrows its context.
        """
        row = self.checked(tokens)
        found = [np.zeros(0, np.float32)]
        width = min(_STRETCH, max(1, SCORE_LOGITS // self._forward.vocab))
        with torch.inference_mode():
            for start in range(0, len(row), width):
                found.append(self._stretch(row[start : start + width]))
        return np.concatenate(found)

    def checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """``tokens`` (T,) if they can be followed. Raises what :meth:`extend` raises; nothing has moved then."""
        row = np.asarray(tokens, np.int64)
        if len(row) and (row.min() < 0 or row.max() >= self._forward.vocab):
            raise UserError(f"'{self.model.name}' knows the tokens 0 to {self._forward.vocab - 1}, and a row holds another")
        if self.length + len(row) > self._forward.context:
            raise InfrastructureError(
                "engine", f"the row outgrows the context of {self._forward.context} tokens of '{self.model.name}'"
            )
        return row

    def _stretch(self, row: np.ndarray) -> np.ndarray:
        n, forward = len(row), self._forward
        self._cache.reserve(1, self.length + n + 8)  # a batch is filled up past its end
        positions = range(self.length, self.length + n)
        hidden = forward.hidden(ForwardBatch(self._cache, forward.kv_heads, row.tolist(), positions, 0))[:n].clone()
        before = hidden[:-1] if self._last is None else torch.cat((self._last, hidden[:-1]))
        first, self._last, self.length = self._last is None, hidden[-1:], self.length + n
        scores = np.zeros(n, np.float32)
        if len(before):
            chosen = torch.from_numpy(row[int(first) :]).to(before.device)[:, None]
            logprobs = F.log_softmax(forward.logits(before).float(), -1)
            scores[int(first) :] = logprobs.gather(1, chosen)[:, 0].cpu().numpy()
        return scores
