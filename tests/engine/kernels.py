"""Matrix products whose bits depend on how many rows they have, as some processors' kernels have them:
faults to test the engine with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ramify.engine.forward import Exactness

aten = torch.ops.aten
#: product -> its query rows.
ROWS: dict[Any, Callable[[Sequence[Any]], int]] = {
    aten.mm: lambda args: args[0].shape[0],
    aten.addmm: lambda args: args[1].shape[0],
    aten.bmm: lambda args: args[0].shape[1],
    aten.baddbmm: lambda args: args[1].shape[1],
    aten.mv: lambda args: 1,
    aten.linear: lambda args: args[0].shape[:-1].numel(),
    aten.matmul: lambda args: args[0].shape[-2],
    aten.scaled_dot_product_attention: lambda args: args[0].shape[-2],
    aten._scaled_dot_product_flash_attention_for_cpu: lambda args: args[0].shape[-2],
}


class Kernels(TorchDispatchMode):
    """Products of 1, of 2 or 3, and of 4 or more rows round differently, as was seen on a processor with AVX-512.

    ``repeats=False``: no product gives the same bits twice.
    ``fewest`` is the smallest number of rows asked for, ``products`` counts them by name.
    """

    def __init__(self, repeats: bool = True) -> None:
        super().__init__()
        self.repeats, self.fewest = repeats, 1 << 30
        self.products: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        rows_of = ROWS.get(function.overloadpacket)
        if rows_of is not None:
            rows = rows_of(args)
            self.products[function.overloadpacket.__name__] += 1
            self.fewest = min(self.fewest, rows)
            off = {1: 2.0, 2: 1.0, 3: 1.0}.get(rows, 0.0) if self.repeats else float(self.products.total() % 97)
            (result[0] if isinstance(result, tuple) else result).mul_(1 + off * 2**-22)
        return result


def needs_tiles(exactness: Exactness) -> None:
    """Skip a test of what rows in one batch cost or share, where this machine's kernels make rows run alone."""
    if exactness is not Exactness.TOGETHER:
        pytest.skip(exactness.caution or "rows run together on one thread here")
