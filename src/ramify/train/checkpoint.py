"""Checkpoints: tensors as safetensors bytes, the rest as JSON. No pickle anywhere, so a checkpoint can hold no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ramify.base.errors import UserError


def pack(tensors: Mapping[str, Tensor | np.ndarray], record: dict[str, Any]) -> bytes:
    """One safetensors blob; ``record`` travels in its header."""
    return bytes(save({k: torch.as_tensor(v).contiguous() for k, v in tensors.items()}, metadata={"record": json.dumps(record)}))


def unpack(blob: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of :func:`pack`. Raises UserError on anything that is not such a blob."""
    try:
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8 : 8 + size])
        return load(blob), json.loads(header["__metadata__"]["record"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"not a checkpoint written by ramify: {error}") from error
