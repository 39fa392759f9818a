"""How well a model still predicts general texts, against how it did before training."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.train import checkpoint
from ramify.train.loop import Trainer
from ramify.train.settings import Fidelity

LARGEST = 64
"""Tokens whose log-probabilities are kept of the start at every position; the others are one class."""
LONGEST = 256
"""Tokens of a text that are read; what follows is left out."""


class GeneralTexts:
    """How a model predicts texts, against how it did at the start.

    KL(start || now) is that of the start's :data:`LARGEST` likeliest tokens at each position with all others as one class.
    Lumping classes can only lower a KL, so it is a lower bound; what it leaves out is how the change is spread within the rest.
    Kept are these log-probabilities alone, float64 (T, 65), and not the start's weights; they are made again at a resume."""

    def __init__(self, model: LocalModel, texts: Iterable[str]) -> None:
        """``model`` is the start. Raises UserError where no text has two tokens."""
        if model.tokenizer is None:
            raise UserError(f"the model '{model.name}' has no tokenizer to read general texts with")
        longest = min(LONGEST, model.context)
        rows = [torch.tensor(model.tokenizer.encode(text)[:longest], dtype=torch.int64) for text in texts]
        self.rows = [row for row in rows if len(row) > 1]
        if not self.rows:
            raise UserError("no text of keep.texts has two tokens or more")
        self._kept = [self._largest(logprobs(model.module, row)) for row in self.rows]
        self.start = self.measured(model.module)

    @property
    def tokens(self) -> int:
        """Tokens that are predicted."""
        return sum(len(row) - 1 for row in self.rows)

    def measured(self, module: nn.Module) -> Fidelity:
        """Perplexity of the texts and mean KL to the start, nats a token."""
        surprise = apart = 0.0
        for row, (tokens, before) in zip(self.rows, self._kept, strict=True):
            now = logprobs(module, row)
            surprise -= float(now.gather(1, row[1:, None].to(now.device)).sum())
            apart += float(divergence(before, _with_rest(now.gather(1, tokens))).sum())
        mean = surprise / self.tokens
        perplexity = math.exp(mean) if mean < 700 else math.inf  # a model that is lost entirely
        finite = math.isfinite(perplexity) and math.isfinite(apart)
        return Fidelity(perplexity, max(0.0, apart / self.tokens)) if finite else Fidelity(1e300, 1e300)

    def _largest(self, before: Tensor) -> tuple[Tensor, Tensor]:
        top = before.topk(min(LARGEST, before.shape[1]), dim=1)
        return top.indices, _with_rest(top.values)


def logprobs(module: nn.Module, row: Tensor) -> Tensor:
    """Log-probability of every token after each but the last of ``row`` (T,): float64 (T - 1, V), without a gradient."""
    device = next(module.parameters()).device
    inputs = row[None, :-1].to(device)
    with torch.no_grad():
        if isinstance(module, TinyLM):
            logits = module(inputs)[0]
        else:
            logits = module(input_ids=inputs, use_cache=False).logits[0]
        logprobs: Tensor = logits.double().log_softmax(1)
        return logprobs


def _with_rest(chosen: Tensor) -> Tensor:
    """Log-probabilities (T, K) and of all other tokens together, (T, K + 1)."""
    rest = (1.0 - chosen.exp().sum(1, keepdim=True)).clamp(min=1e-12).log()
    return torch.cat((chosen, rest), 1)


def divergence(before: Tensor, now: Tensor) -> Tensor:
    """KL(before || now) of log-probabilities (T, K), nats (T,)."""
    return (before.exp() * (before - now)).sum(1)


def weights_packed(trainer: Trainer) -> bytearray:
    """The weights that ``trainer`` trains, without its moments: enough to be the agent, not to train on."""
    tensors, record = trainer.state()
    return checkpoint.pack({name: value for name, value in tensors.items() if not name.startswith("moment.")}, record)
