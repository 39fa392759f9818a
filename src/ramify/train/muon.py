"""AdamW, but for some matrices Muon: momentum whose step has singular values near 1 (Jordan and others 2024, "Muon: an optimizer
for hidden layers in neural networks"; the size of a step as in arXiv 2502.16982, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, DECAY, MATCHED = 0.95, 0.1, 0.2
"""Of a matrix: momentum (Nesterov's), decoupled weight decay, and the size of a step's entries, which is AdamW's, so that one
learning rate serves both."""
QUINTIC = (3.4445, -4.775, 2.0315)
"""Coefficients of the iteration, and five rounds of it: singular values end between 0.7 and 1.2."""


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """About U V^T of ``matrix`` = U S V^T, by Newton and Schulz's iteration."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = QUINTIC
    for _ in range(rounds):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T


def matrices_of(module: nn.Module, but: tuple[str, ...] = ()) -> list[Tensor]:
    """Weights of ``module`` that Muon is for: trained matrices, without those whose names hold one of ``but``."""
    return [
        weight
        for name, weight in module.named_parameters()
        if weight.requires_grad and weight.ndim == 2 and min(weight.shape) > 1 and not any(part in name for part in but)
    ]


class Muon(torch.optim.AdamW):
    """Muon for ``matrices``, AdamW for the other ``weights``."""

    def __init__(self, weights: Iterable[Tensor], matrices: Iterable[Tensor], **settings: Any) -> None:
        super().__init__(weights, **settings)
        self.matrices = list(matrices)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of all weights that have a gradient."""
        rate = self.param_groups[0]["lr"]
        for weight in self.matrices:
            if (grad := weight.grad) is None:
                continue
            state = self.state[weight]
            if not state:
                state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight)}
            state["step"] += 1
            mean = state["exp_avg"].lerp_(grad, 1 - MOMENTUM)
            weight.mul_(1 - rate * DECAY)
            weight.add_(orthogonal(grad.lerp(mean, MOMENTUM)), alpha=-rate * MATCHED * max(weight.shape) ** 0.5)
            weight.grad = None  # what is left is AdamW's
        return super().step(closure)
