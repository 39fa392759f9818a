"""Products with the matrices of a large model: through oneDNN, whose kernels read each weight once for a few rows, where MKL's
read it several times. Small models keep MKL, where starting a kernel is what costs.

oneDNN reads a matrix fastest that lies column by column: :func:`by_columns` is how such a model's weights are laid out. A row's
bits then do not depend on the number of rows, from 4 up, which the engine's probe confirms on each machine.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 1 << 25
"""Weights of a model from which it is a large one: 128 MiB in float32, more than the caches of a processor hold."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, [..., in] to [..., out]: by oneDNN in inference in float32 on a CPU, else as torch does it."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    if plain and torch.is_inference_mode_enabled():
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def by_columns(shape: torch.Size) -> Tensor:
    """An empty float32 matrix of ``shape`` [out, in] that lies in memory column by column."""
    return torch.empty(shape[1], shape[0]).t()
