"""Change a model's hidden state at one position of one layer while it reads its prompt, along features of a dictionary.

Every change is a vector added to the state after a block at a prompt's last token (:func:`scale`, :func:`clamp`,
:func:`reconstruct`, or a fixed direction, :func:`along`); tokens that are sampled afterwards are never touched. A feature's
activation is a function of all the dictionary's models, so steering one of them needs the others' states on the same prompts.

Layers count as everywhere in ramify: 0 is the embedding, l the output of block l.
Axis legend: N prompts, M models, D width, F features.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.engine.local import LocalModel
from ramify.engine.taps import Edit, Taps
from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows
from ramify.methods.crosscoder.record import Steering
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.rollout.sampler import Sampler


@dataclass(frozen=True, slots=True, eq=False)
class StateChange:
    """What is added to one model's states at N prompts: ``delta`` float32 [N, D],
    and where the features ``fired`` before, bool [N]."""

    delta: np.ndarray
    fired: np.ndarray

    @property
    def moved(self) -> np.ndarray:
        """Prompts whose state changes at all, bool [N]."""
        return np.asarray(np.abs(self.delta).max(axis=1, initial=0.0) > 0)

    def size(self, states: np.ndarray) -> np.ndarray:
        """Length of the change over that of the state [N, D] it is added to, (N,): above about 1 it is not a nudge."""
        return np.asarray(np.linalg.norm(self.delta, axis=1) / np.maximum(np.linalg.norm(states, axis=1), 1e-12))


def scale(dictionary: Dictionary, codes: np.ndarray, features: Sequence[int], gain: float, target: int = 0) -> StateChange:
    """Multiply the activations of ``features`` by ``gain``: delta = sum_i (gain - 1) f_i W_dec[i, target] (3.5).

    ``codes`` are the prompts' activations [N, F]. A gain of 1 changes nothing, 0 takes the features out; a prompt on which none
    of them fires is left as it was. Raises UserError on a feature the dictionary does not have.
    """
    return _change(dictionary, codes, features, lambda f: (gain - 1) * f, target)


def clamp(dictionary: Dictionary, codes: np.ndarray, features: Sequence[int], value: float, target: int = 0) -> StateChange:
    """Set the activations of ``features`` to ``value``, also where they did not fire:
    delta = sum_i (value - f_i) W_dec[i, target]."""
    return _change(dictionary, codes, features, lambda f: value - f, target)


def _change(d: Dictionary, codes: np.ndarray, features: Sequence[int], by: Any, target: int) -> StateChange:
    chosen = np.asarray(features, dtype=np.int64).reshape(-1)
    wrong = chosen[(chosen < 0) | (chosen >= d.config.features)]
    if len(wrong):
        raise UserError(f"feature {wrong[0]} does not exist; the dictionary has 0 to {d.config.features - 1}")
    if not 0 <= target < d.config.models:
        raise UserError(f"model {target} does not exist; the dictionary has {d.config.models}")
    f = codes[:, chosen]
    directions = d.directions(target)[torch.from_numpy(chosen)].float().cpu().numpy()
    return StateChange(np.asarray(by(f) @ directions, dtype=np.float32), np.asarray((f > 0).any(axis=1)))


def reachless(dictionary: Dictionary, features: Sequence[int], target: int) -> list[int]:
    """Those of ``features`` that belong to the other model alone: steering ``target`` with them changes nothing, exactly."""
    other = "b" if target == 0 else "a"
    return [int(i) for i in features if dictionary.partition_of(int(i)) == other]


def reconstruct(dictionary: Dictionary, states: np.ndarray, target: int = 0) -> StateChange:
    """Replace a model's states [N, M, D] by the dictionary's reconstruction of them."""
    codes = encode_rows(dictionary, states)
    with torch.no_grad():
        back = dictionary.decode(torch.from_numpy(codes).to(dictionary.encoder)).float().cpu().numpy()
    return StateChange(np.asarray(back[:, target] - states[:, target], dtype=np.float32), np.asarray((codes > 0).any(axis=1)))


def along(direction: np.ndarray, lengths: np.ndarray | float, n: int) -> StateChange:
    """``direction`` [D] at the given ``lengths``, (N,) or one for all of ``n`` prompts.
    Raises UserError where it has no length."""
    norm = float(np.linalg.norm(direction))
    if not norm > 0:
        raise UserError("a steering direction of length 0 points nowhere")
    each = np.broadcast_to(np.asarray(lengths, dtype=np.float32), (n,))
    return StateChange(np.asarray(each[:, None] * (direction / norm), dtype=np.float32), np.ones(n, dtype=bool))


def random_like(change: StateChange, seed: int, *position: str | int) -> StateChange:
    """The control: one random direction for all prompts, as long at each prompt as ``change`` is there."""
    n, width = change.delta.shape
    direction = generator(seed, "random direction", *position).normal(size=(width,))
    lengths = np.asarray(np.linalg.norm(change.delta, axis=1))
    return StateChange(along(direction, lengths, n).delta, change.fired)


def random_set(
    dictionary: Dictionary,
    amounts: np.ndarray,
    features: Sequence[int],
    like: StateChange,
    seed: int,
    completion: int,
    target: int = 0,
) -> StateChange:
    """The control of a set: instead of each feature's direction a random one of the same norm,
    by the same ``amounts`` [N, n] at each prompt.

    The sum is as long at each prompt as ``like``, the set's own change. Sample ``draw`` gives a feature one random direction,
    whichever set it is in, so that sets that share features have controls that share directions.
    """
    chosen = torch.as_tensor(np.asarray(features, dtype=np.int64))
    norms = dictionary.directions(target)[chosen].float().norm(dim=1).cpu().numpy()
    width = like.delta.shape[1]
    random = np.stack([generator(seed, "random direction", completion, int(i)).normal(size=(width,)) for i in features])
    mixed = amounts @ (random / np.linalg.norm(random, axis=1, keepdims=True) * norms[:, None])
    lengths = np.linalg.norm(like.delta, axis=1, keepdims=True)
    own = np.linalg.norm(mixed, axis=1, keepdims=True)
    return StateChange(np.asarray(mixed / np.where(own > 0, own, 1) * lengths, dtype=np.float32), like.fired)


def static_vector(dictionary: Dictionary, codes: np.ndarray, feature: int, gain: float, target: int = 0) -> np.ndarray:
    """v = (gain - 1) E[f | these prompts] W_dec[feature, target], float32 [D],
    for engines that can only add a fixed vector (section 6)."""
    return np.asarray(scale(dictionary, codes, [feature], gain, target).delta.mean(axis=0))


async def sample(
    model: LocalModel, rows: Sequence[np.ndarray], layer: int, change: StateChange | None, settings: Sampling, seed: int = 0
) -> list[Completion]:
    """One continuation of each of N ``rows`` of token ids with ``change`` added at its last token, after block ``layer``.

    None samples the clean one; so does a prompt whose delta is 0, bit for bit. Raises UserError where layer or width do not fit.
    """
    if change is not None and len(change.delta) != len(rows):
        raise UserError(f"{len(rows)} prompts need as many steering vectors; there are {len(change.delta)}")
    moved = np.zeros(len(rows), bool) if change is None else change.moved

    sampler = Sampler(model, seed)

    async def one(i: int) -> Completion:
        prefix = Prefix(np.asarray(rows[i], np.int32))
        if change is None or not moved[i]:
            return await sampler.one(prefix, settings, ("steer",), i, "clean")
        last = len(rows[i]) - 1
        taps = Taps(edits=(Edit(layer, last, change.delta[i], last + 1),))
        return await sampler.one(prefix, settings, ("steer",), i, "steered", taps)

    return list(await asyncio.gather(*(one(i) for i in range(len(rows)))))


@contextmanager
def patched(module: nn.Module, layer: int, delta: np.ndarray | Tensor, positions: Sequence[int] | None = None) -> Iterator[None]:
    """Within the block, a transformers model adds ``delta`` [B, D] to the state after block ``layer`` when it reads B prompts.

    For a caller's own ``generate``: only a pass over more than one token is changed, so decoding with a cache is left alone, and
    a second ``generate`` is changed again. ``positions`` are each row's column (default: the last, right for padding on the
    left). The hook goes when the block ends, however it ends. Raises UserError where layer, width or number of rows do not fit.
    """
    from ramify.engine.generic import blocks_of

    config: Any = module.config.get_text_config()  # type: ignore[operator, union-attr]
    count, width = int(config.num_hidden_layers), int(config.hidden_size)
    vectors = torch.as_tensor(delta)
    if not 1 <= layer <= count:
        raise UserError(f"layer {layer} does not exist; the model's blocks are 1 to {count}")
    if vectors.dim() != 2 or vectors.shape[1] != width:
        raise UserError(f"steering vectors are {tuple(vectors.shape)}; the model takes rows of {width}")

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        x = output[0] if isinstance(output, tuple) else output
        if x.shape[1] < 2:
            return output
        if len(x) != len(vectors):
            raise UserError(f"{len(x)} prompts need as many steering vectors; there are {len(vectors)}")
        columns = torch.full((len(x),), x.shape[1] - 1) if positions is None else torch.as_tensor(positions)
        x = x.clone()
        x[torch.arange(len(x)), columns] += vectors.to(x)
        return (x, *output[1:]) if isinstance(output, tuple) else x

    handle = blocks_of(module, count)[layer - 1].register_forward_hook(leave)
    try:
        yield
    finally:
        handle.remove()


def change_of(cell: Steering, dictionary: Dictionary, codes: np.ndarray, target: int = 0) -> StateChange:
    """What a way to steer adds at prompts with these activations [N, F]."""
    return (scale if cell.mode == "scale" else clamp)(dictionary, codes, cell.features, cell.amount, target)


def random_change(
    cell: Steering, dictionary: Dictionary, codes: np.ndarray, seed: int, completion: int, target: int = 0
) -> StateChange:
    """The same with a random direction of the same norm instead of each feature's, as long at each prompt as the change."""
    active = codes[:, list(cell.features)]
    amounts = (cell.amount - 1) * active if cell.mode == "scale" else cell.amount - active
    change = change_of(cell, dictionary, codes, target)
    return random_set(dictionary, amounts, cell.features, change, seed, completion, target)
