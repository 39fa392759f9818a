"""Merged weights of two checkpoints: a reference moved towards the policy.

``reference + alpha (policy - reference)``: with one task vector TIES is "trim, then add" and DARE-TIES is DARE. All in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import derive_key
from ramify.engine.local import LocalModel
from ramify.model.pair import IncompatiblePairError

Method = Literal["linear", "ties", "dare"]
METHODS: tuple[Method, ...] = ("linear", "ties", "dare")


def merge(
    reference: Mapping[str, Tensor],
    policy: Mapping[str, Tensor],
    alpha: float,
    method: Method = "linear",
    *,
    density: float = 0.2,
    seed: int = 0,
) -> dict[str, Tensor]:
    """``reference + alpha tau`` by name, tau = policy - reference, after ``method``.

    ties keeps the ``density`` of tau that is largest in size, tensor by tensor; dare keeps each entry with that probability and
    divides by it, a sample keyed by ``seed`` and the weight's name. A matrix with fewer rows than its sibling (a smaller
    vocabulary) is filled up by repeating its last row. Raises IncompatiblePairError where the weights are not those of one
    architecture.
    """
    if not 0 <= alpha <= 1 or not 0 < density <= 1:
        raise UserError(f"alpha must lie in [0, 1] and density in (0, 1], not {alpha} and {density}")
    if method not in METHODS:
        raise UserError(f"unknown way to merge '{method}' (known: {', '.join(METHODS)})")
    if reference.keys() != policy.keys():
        odd = sorted(reference.keys() ^ policy.keys())[0]
        raise IncompatiblePairError(f"the checkpoints cannot be merged: only one of them has the weight '{odd}'")
    out = {}
    for name, start in reference.items():
        left, right = _alike(name, start.float(), policy[name].float())
        tau = right - left
        if method == "ties":
            tau = _trim(tau, density)
        elif method == "dare":
            generator = torch.Generator().manual_seed(derive_key(seed, "dare", name))
            tau = tau * (torch.rand(tau.shape, generator=generator) < density) / density
        out[name] = left + alpha * tau
    return out


def _alike(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.shape == b.shape:
        return a, b
    if a.dim() != b.dim() or a.dim() == 0 or a.shape[1:] != b.shape[1:]:
        raise IncompatiblePairError(
            f"the checkpoints cannot be merged: '{name}' is {tuple(a.shape)} in one and {tuple(b.shape)} in the other"
        )
    rows = max(len(a), len(b))
    return tuple(torch.cat((x, x[-1:].expand(rows - len(x), *x.shape[1:]))) for x in (a, b))  # type: ignore[return-value]


def _trim(tau: Tensor, density: float) -> Tensor:
    kept = max(1, round(density * tau.numel()))
    least = tau.abs().flatten().kthvalue(tau.numel() - kept + 1).values
    return torch.where(tau.abs() >= least, tau, torch.zeros_like(tau))


def merged_model(reference: Path, policy: Path, alpha: float, method: Method = "linear", density: float = 0.2) -> LocalModel:
    """The merged reference of two checkpoint folders, in memory. Raises UserError where they do not fit each other."""
    models = [LocalModel.load(folder, dtype="float32", max_sequences=1, cache_bytes=0) for folder in (reference, policy)]
    start, end = (model.module.state_dict() for model in models)
    weights = merge(start, end, alpha, method, density=density)
    wide = max(models, key=lambda model: model.forward.vocab)  # the one whose vocabulary both fit in
    wide.module.load_state_dict(weights)
    wide.refresh()
    wide.name = f"{reference.name}+{alpha:g}({policy.name}-{reference.name})"
    return wide
