"""Checkpoints: tensors as safetensors bytes, the rest as JSON. No pickle anywhere, so a checkpoint can hold no code."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError

_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_TYPES = {name: kind for kind, name in _NAMES.items()}


def pack(tensors: Mapping[str, Tensor | np.ndarray], record: dict[str, Any]) -> bytearray:
    """One safetensors blob; ``record`` travels in its header. Besides the blob one tensor at a time is copied."""
    given = {name: torch.as_tensor(value) for name, value in tensors.items()}
    ordered = sorted(given.items(), key=lambda entry: (-entry[1].element_size(), entry[0]))  # so that all of them are aligned
    header: dict[str, Any] = {"__metadata__": {"record": json.dumps(record)}}
    end = 0
    for name, value in ordered:
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    blob = bytearray(8 + len(text) + end)
    blob[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
    for name, value in ordered:
        start, end = (8 + len(text) + at for at in header[name]["data_offsets"])
        if end > start:
            torch.frombuffer(blob, dtype=value.dtype, count=value.numel(), offset=start).view(value.shape).copy_(value)
    return blob


def unpack(blob: bytes | bytearray) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of :func:`pack`; the tensors lie in the blob and are to be copied from, not written to. Raises UserError on
    anything that is not such a blob."""
    try:
        view = memoryview(blob)
        start = 8 + int.from_bytes(view[:8], "little")
        header = json.loads(bytes(view[8:start]))
        record = json.loads(header.pop("__metadata__")["record"])
        return {name: _tensor(view, start, **entry) for name, entry in header.items()}, record
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise UserError(f"not a checkpoint written by ramify: {error}") from error


def _tensor(view: memoryview, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    kind, count, (first, end) = _TYPES[dtype], math.prod(shape), data_offsets
    if not 0 <= first <= end <= len(view) - start or end - first != count * kind.itemsize or min(shape, default=0) < 0:
        raise ValueError("a tensor does not lie where it should")
    if not count:
        return torch.zeros(shape, dtype=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that bytes cannot be written to
        return torch.frombuffer(view, dtype=kind, count=count, offset=start + first).view(shape)
