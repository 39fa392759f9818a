"""Products with the matrices of a large model: through oneDNN, whose kernels read each weight once for a few rows, where MKL's
read it several times. Small models keep MKL, where starting a kernel is what costs.

oneDNN reads a matrix fastest that lies column by column: :func:`by_columns` is how such a model's weights are laid out. A row's
bits then do not depend on the number of rows, from 4 up, which the engine's probe confirms on each machine.

:class:`Int8` is a matrix in int8, for users who ask for speed: a quarter of the bytes to read.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramify.base.errors import NeedsError, UserError

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


SCALED, MIDDLE = 32_600.0, 3.0 * (1 << 22) + 32_896.0
"""What the largest entry of an input row becomes, and where zero lies: there float32 has whole numbers only, and the last two
bytes of each are the number that it stands for, either of them 128 where it means zero."""
LONGEST = 1 << 16
"""Most inputs of a matrix in int8: a sum of so many products of a byte and an int8 fits 32 bits."""
CACHED = 1 << 22
"""Bytes of a matrix up to which it stays in a processor's cache from one row to the next."""
PIECE = 1 << 22
"""Weights that are rounded together."""


class Int8(nn.Module):
    """A linear layer whose matrix is int8 with a scale for each row (each output): y_i = s_i sum_j q_ij x_j + b_i, [..., in] to
    [..., out] in float32. The inputs are rounded, too, to 16 bits relative to the largest of their row.

    Two bytes of an input are two rows of one product, whose sums are whole numbers in 32 bits: they are the same bits in every
    batch, for any number of rows. On a CPU. Raises UserError on a matrix with too many inputs and where a gradient is asked for,
    NeedsError where this processor's kernels for bytes do not sum exactly.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.shape[1] > LONGEST:
            raise UserError(f"int8 takes matrices of at most {LONGEST} inputs, and one here has {weight.shape[1]}")
        if not sums_exactly():
            raise NeedsError("int8 needs a processor whose matrix kernels sum bytes exactly, such as one with VNNI; leave it out")
        self.outputs, self.inputs = weight.shape
        rounded, scale = _rounded(weight.detach())
        self.register_buffer("rounded", rounded)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._packed, self._zeros = _packed(rounded), torch.zeros(self.outputs, dtype=torch.int64)
        self.move(rounded)

    rounded: Tensor
    """q, int8 [out, in]."""
    scale: Tensor
    """s, float32 [out]."""
    bias: Tensor | None
    """b, float32 [out]."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        sums, heat = self.sums(x.reshape(-1, self.inputs))
        y = sums.mul_(heat)
        return (y if self.bias is None else y.add_(self.bias)).view(*x.shape[:-1], self.outputs)

    def sums(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows [M, in]: products [M, out] without the scale of each row and the bias, and that scale [M, 1]."""
        if x.requires_grad and torch.is_grad_enabled():  # rounding has none: what came through would be that of the scale alone
            raise UserError("the model's weights are int8, through which there is no gradient: open it in float32")
        packed, turned, scale, zeros, alone = self._parts
        rows = x.shape[0]
        largest = x.abs().amax(-1, True)
        whole = torch.mul(x, torch.div(_SCALED, largest)).add_(_MIDDLE).view(torch.int32)  # anything of zeros, whose scale is 0
        if rows == 1 and alone:
            low = whole.bitwise_xor_(_TOPS).to(torch.int8)
            high = whole.bitwise_right_shift_(_EIGHT).to(torch.int8)
            low, high = torch._int_mm(low, turned).mul(scale), torch._int_mm(high, turned).mul(scale)
        else:
            halves = torch.empty((2, rows, self.inputs), dtype=torch.uint8)
            high, low = halves.unbind(0)
            low.copy_(whole)
            high.copy_(whole.bitwise_right_shift_(_EIGHT))
            high, low = _product(halves.view(2 * rows, self.inputs), packed, scale, zeros).view(2, rows, self.outputs).unbind(0)
        return torch.add(low, high, alpha=256), largest

    def move(self, place: Tensor) -> None:
        """Lie in ``place``, int8 [out, in]."""
        self.rounded = place.copy_(self.rounded)
        alone = place.numel() <= CACHED  # then one row goes through a kernel for one row, twice, which takes half the time
        self._parts = self._packed, place.t(), self.scale / SCALED, self._zeros, alone

    def __deepcopy__(self, memo: object) -> Int8:
        return self  # nothing of it changes


_SCALED, _MIDDLE = torch.tensor(SCALED), torch.tensor(MIDDLE)
_EIGHT, _TOPS = torch.tensor([8, 0x8080], dtype=torch.int32).unbind(0)


def in_int8(module: nn.Module) -> bool:
    """Whether matrices of a model are int8."""
    return any(isinstance(part, Int8) for part in module.modules())


def refuse_int8(module: nn.Module) -> None:
    """Raises UserError where matrices of a model are int8."""
    if in_int8(module):
        raise UserError("the model's weights are int8, of which nothing is trained, added or saved: open it in float32")


def side_by_side(module: nn.Module) -> None:
    """Lay the int8 matrices of a model side by side: together they fill large pages, which are read faster than small ones."""
    parts = [part for part in module.modules() if isinstance(part, Int8)]
    sizes = [part.rounded.numel() for part in parts]
    for part, place in zip(parts, torch.empty(sum(sizes), dtype=torch.int8).split(sizes), strict=True):
        part.move(place.view(part.outputs, part.inputs))


@cache
def sums_exactly() -> bool:
    """Whether the largest bytes give exact sums here: older kernels add pairs of products in 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    signs = torch.full((16, 256), 127, dtype=torch.int8)
    signs[1::2] = -127
    bytes_ = torch.full((4, 256), 255, dtype=torch.uint8)
    bytes_[1] = 0
    try:
        single = [torch._int_mm(row[None], signs.t()) for row in bytes_.bitwise_xor(128).view(torch.int8)]
        got = _product(bytes_, _packed(signs), torch.ones(16), torch.zeros(16, dtype=torch.int64))
    except RuntimeError:  # no such kernel
        return False
    whole = (bytes_.double() - 128) @ signs.double().t()
    return torch.equal(got.double(), whole) and torch.equal(torch.cat(single).double(), whole)


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [out, in] and the scale of each row, float32 [out]."""
    rounded, scale = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    rows = max(1, PIECE // weight.shape[1])
    for part, into, step in zip(weight.split(rows), rounded.split(rows), scale.split(rows), strict=True):
        step.copy_(part.abs().amax(1)).clamp_min_(1e-30).div_(127)
        into.copy_((part / step[:, None]).round_())
    return rounded, scale


def _packed(rounded: Tensor) -> Tensor:
    packed: Tensor = torch.ops.onednn.qlinear_prepack.default(rounded, None)
    return packed


def _product(x: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """(x - 128) W^T, each output times its scale, float32."""
    product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        x, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product
