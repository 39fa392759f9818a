"""The conformance battery every loss must pass: what the trainer relies on, each point one check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.problem import Problem
from ramify.base.seeds import generator
from ramify.testing.probe import run_checks
from ramify.train.batch import Batch
from ramify.train.losses import Loss, LossConfig, Scores

LENGTHS = (12, 3, 7, 9)
NAMES = ("advantage", "logprobs", "reference", "weight")
LOGPROBS = ("logprobs", "reference", "policy", "rival_reference", "rival_policy")


def check_loss(loss: Loss, config: LossConfig | None = None, seed: int = 0) -> list[Problem]:
    """Run every check on made-up batches; no problem means the loss conforms.

    Whatever per-token values the loss needs are there; its values are standard normal, below 0 for the log-probs ``logprobs``,
    ``reference`` and ``rival_reference``."""
    return run_checks(CHECKS, _Probe(loss, config or LossConfig(), seed))


class _TokenValues(dict[str, Tensor]):
    """Token values by name: the usual ones, and any other as soon as it is requested.
    ``rows`` are the rows' numbers in the whole batch."""

    def __init__(self, seed: int, mask: Tensor, rows: Sequence[int]) -> None:
        self.seed, self.mask, self.rows = seed, mask, rows
        super().__init__({name: self.made(name) for name in NAMES})

    def made(self, name: str) -> Tensor:
        width = self.mask.shape[1]
        sampled = [generator(self.seed, "loss-battery", name, row).normal(size=max(LENGTHS)) for row in self.rows]
        values = np.stack([np.resize(row, width) for row in sampled])
        below = -np.abs(values) - 0.1 if name in LOGPROBS else values
        return torch.where(self.mask, torch.as_tensor(below, dtype=torch.float32), torch.zeros(()))

    def __missing__(self, name: str) -> Tensor:
        self[name] = self.made(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def get(self, name: str, default: object = None) -> Tensor:
        return self[name]


@dataclass(frozen=True)
class _Probe:
    loss: Loss
    config: LossConfig
    seed: int

    def batch(self, rows: Sequence[int] = range(len(LENGTHS)), padding: int = 0) -> tuple[Batch, Tensor]:
        """Rows of different lengths and the log-probs of their tokens under the policy."""
        mask = torch.zeros((len(rows), max(LENGTHS) + padding), dtype=torch.bool)
        for at, row in enumerate(rows):
            sampled = generator(self.seed, "loss-mask", row).random(LENGTHS[row] - 1) < 0.7
            mask[at, 1 : LENGTHS[row]] = torch.as_tensor(sampled)
        mask[:, 1] = True
        token_values = _TokenValues(self.seed, mask, rows)
        return Batch(mask.to(torch.int64) * 7, mask, token_values), token_values.made("policy")

    def value(self, batch: Batch, logprobs: Tensor) -> Tensor:
        rivals = batch.token_values.get("rival_policy")
        return self.loss(batch, Scores(logprobs, rivals), self.config)


def _shape(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    values = probe.value(batch, logprobs)
    if not isinstance(values, Tensor):
        yield f"it returns {type(values).__name__}, not a tensor"
    elif values.shape != batch.mask.shape:
        yield f"it returns shape {tuple(values.shape)} for a batch of {tuple(batch.mask.shape)}: one value a token is needed"
    elif not values.is_floating_point():
        yield f"it returns {values.dtype}, not floating point numbers"


def _finite(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    for what, policy in (("usual", logprobs), ("certain", torch.zeros_like(logprobs)), ("tiny", logprobs - 30 * batch.mask)):
        if not torch.isfinite(probe.value(batch, policy)[batch.mask]).all():
            yield f"it is not finite where probabilities are {what}"


def _gradient(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    logprobs.requires_grad_(True)
    total = probe.value(batch, logprobs)[batch.mask].sum()
    if not total.requires_grad:
        yield "no gradient reaches the policy's log-probs (is it detached?)"
        return
    total.backward()
    gradient = logprobs.grad
    if gradient is None or not gradient[batch.mask].any():
        yield "the gradient of the policy's log-probs is 0 everywhere"
    elif not torch.isfinite(gradient).all():
        yield "a gradient of the policy's log-probs is not finite"


def _rows(probe: _Probe) -> Iterator[str]:
    """The trainer packs rows into passes by length: a row's loss must not depend on its company."""
    batch, logprobs = probe.batch()
    together = probe.value(batch, logprobs)
    for row in range(len(LENGTHS)):
        alone, alone_logprobs = probe.batch([row])
        if not _same(probe.value(alone, alone_logprobs)[0], together[row], alone.mask[0]):
            yield "a row's loss changes with the rows alongside it in the batch"


def _padding(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    wide, policy = probe.batch(padding=5)
    width = batch.mask.shape[1]
    if not _same(probe.value(wide, policy)[:, :width], probe.value(batch, logprobs), batch.mask):
        yield "padding a row changes its loss"


def _repeats(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    if not _same(probe.value(batch, logprobs), probe.value(batch, logprobs), batch.mask, exactly=True):
        yield "two looks at one batch give different values"


def _leaves_the_batch(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    kept = {name: values.clone() for name, values in batch.token_values.items()} | {
        "": logprobs.clone(),
        "mask": batch.mask.clone(),
    }
    probe.value(batch, logprobs)
    now: Mapping[str, Tensor] = {**batch.token_values, "": logprobs, "mask": batch.mask}
    if not all(torch.equal(now[name], values) for name, values in kept.items()):
        yield "it changes the batch or the scores it is given"


def _nothing_trained(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    empty = Batch(
        batch.tokens, torch.zeros_like(batch.mask), _TokenValues(probe.seed, torch.zeros_like(batch.mask), range(len(LENGTHS)))
    )
    if not torch.isfinite(probe.value(empty, torch.zeros_like(logprobs))).all():
        yield "it is not finite on rows without a trained token"


def _missing(probe: _Probe) -> Iterator[str]:
    batch, logprobs = probe.batch()
    try:
        probe.value(Batch(batch.tokens, batch.mask, {}), logprobs)
    except UserError as error:
        if "\n" in str(error):
            yield "its error on missing token values is more than one sentence"
    except Exception as error:  # whichever it is, it is not the sentence a user should read
        yield f"missing token values raise {type(error).__name__} instead of a UserError that names it"


def _same(left: Tensor, right: Tensor, mask: Tensor, exactly: bool = False) -> bool:
    if left.shape != right.shape or left.shape != mask.shape:
        return False
    a, b = left[mask], right[mask]
    return torch.equal(a, b) if exactly else torch.allclose(a, b, atol=1e-5, rtol=1e-5, equal_nan=True)


CHECKS: tuple[Callable[[_Probe], Iterator[str]], ...] = (
    _shape, _finite, _gradient, _rows, _padding, _repeats, _leaves_the_batch, _nothing_trained, _missing,
)  # fmt: skip
