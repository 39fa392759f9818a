"""The losses' battery: every built-in loss passes; each broken promise is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.testing import check_loss
from ramify.train.batch import Batch
from ramify.train.losses import LossConfig, Scores


@pytest.mark.parametrize("name", registry.names("loss"))
def test_built_in_losses_conform(name: str) -> None:
    assert check_loss(registry.get("loss", name)) == []


def summed(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs.sum()


def detached(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs.detach()


def flat(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return scores.logprobs * 0.0


def whitened(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs - (-scores.logprobs).mean()


def by_width(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs / scores.logprobs.shape[1]


def noisy(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs * torch.rand_like(scores.logprobs)


def in_place(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    batch.token_values["advantage"].mul_(2.0)
    return -scores.logprobs


def divides(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs / batch.mask.sum(-1, keepdim=True) / scores.logprobs.abs()


def overflows(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return torch.exp(-10 * scores.logprobs)


def key_error(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
    return -scores.logprobs * batch.token_values["advantage"]


def numbers(batch: Batch, scores: Scores, config: LossConfig) -> Any:
    return [0.0]


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (summed, "shape", "one value a token"),
        (numbers, "shape", "returns list, not a tensor"),
        (detached, "gradient", "no gradient"),
        (flat, "gradient", "0 everywhere"),
        (whitened, "rows", "rows alongside it"),
        (by_width, "padding", "padding"),
        (noisy, "repeats", "different values"),
        (in_place, "leaves_the_batch", "changes the batch"),
        (divides, "nothing_trained", "not finite"),
        (overflows, "finite", "tiny"),
        (key_error, "missing", "KeyError"),
    ],
)
def test_each_broken_promise_is_found(broken: Any, check: str, message: str) -> None:
    found = [p for p in check_loss(broken) if p.check == check]
    assert any(message in p.message for p in found), found


def test_a_loss_with_a_stream_of_its_own_conforms() -> None:
    def own(batch: Batch, scores: Scores, config: LossConfig) -> Tensor:
        if "potential" not in batch.token_values:
            raise UserError("loss 'own' needs the token values 'potential'")
        return -scores.logprobs * batch.token_values["potential"]

    assert check_loss(own) == []
