"""The protocol of drafters: a drafter is a small network that proposes the next tokens of a target model,
which verifies them in one pass.

A drafter reads hidden states of some target layers (features) and keeps keys and values of its own in the same cache as the
target, as extra layers after the target's. Drafters are components: ``register("drafter", NAME)``; those of DSpark's paper are in
:mod:`ramify.methods.dspark.drafters`.

Axis legend: N context tokens, R rows, D width, m target layers, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.engine.cache import KVCache

Pick = Callable[[int, Tensor], Tensor]
"""The engine's sample at slot k: logits [R, V] to tokens int64 [R].
It knows settings and uniforms, and keeps the distributions it sampled from."""


class Shape(Protocol):
    """The fields of a drafter's configuration that the engine needs."""

    @property
    def vocab(self) -> int:
        """V of the target."""
        ...

    @property
    def width(self) -> int:
        """D of the target."""
        ...

    @property
    def kv_size(self) -> int:
        """Numbers a position keeps in one cache layer, the target's."""
        ...

    @property
    def target_layers(self) -> tuple[int, ...]:
        """Target layers whose outputs are the features: 0-based, rising, never the last."""
        ...

    @property
    def block(self) -> int:
        """Most tokens of one draft."""
        ...

    @property
    def confidence(self) -> bool:
        """Whether drafts come with a confidence; without, the schedule goes by what was accepted so far."""
        ...


@dataclass(frozen=True, slots=True)
class Drafts:
    """What one call drafted. ``tokens`` int64 [R, depth]; ``confidence`` float32 [R, depth]: the probability that a token is
    accepted given that those before it were, calibrated by the drafter's temperatures; nan where the drafter has no such head.
    ``scores`` float32 [R, depth] are the logits it comes from, before the temperatures.
    """

    tokens: Tensor
    confidence: Tensor
    scores: Tensor


class Drafter(nn.Module, ABC):
    """A drafter, as the engine uses it. ``eval()`` forgets what was made from weights before they changed in place."""

    config: Shape

    @property
    @abstractmethod
    def layers(self) -> int:
        """KVCache layers the drafter needs."""

    @abstractmethod
    def attach(self, embedding: Tensor, head: Tensor) -> None:
        """Take the target's embedding and output matrix, both [V, D]. Raises UserError where the shapes are not the drafter's."""

    @abstractmethod
    def absorb(self, cache: KVCache, first: int, slots: Tensor, positions: Tensor, features: Tensor, following: Tensor) -> None:
        """Write the draft keys and values of N context tokens into layers ``first`` and up of ``cache``, which must have room.

        ``slots`` int64 [N] are cache slots, ``positions`` int64 [N]; ``features`` [N, m*D] the outputs of the target layers
        there; ``following`` int64 [N] the token after each position. Tokens of a row may come in any portions, in order.
        """

    @abstractmethod
    def draft(
        self, cache: KVCache, first: int, slots: Tensor, anchors: Tensor, positions: Tensor, pick: Pick, depth: int
    ) -> Drafts:
        """Draft ``depth`` tokens (1 to block) for each of R rows.

        ``slots`` int64 [R] are cache slots, ascending, ``anchors`` int64 [R] the last token of each, ``positions`` int64 [R] its
        position (at least 1; every earlier one was absorbed). ``pick(k, logits)`` samples token k (from 0). Positions from the
        anchor's up to anchor + block + 3 of the draft layers are scratch,
        for which the cache must have room; nothing else is written.
        """

    @classmethod
    def load(cls, folder: Path, module: nn.Module) -> Drafter | None:
        """The drafter saved in ``folder``, attached to its target ``module``; None where the folder is not one of this kind.

        Raises UserError where it is damaged, or not the target's.
        """
        return None


def load_drafter(folder: Path | str, module: nn.Module) -> Drafter:
    """The drafter saved in ``folder``, by the registered component that reads it. Raises UserError where there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no drafter folder {folder}")
    names = registry.names("drafter")
    for name in names:
        part = registry.get("drafter", name)
        drafter = part.load(folder, module) if isinstance(part, type) and issubclass(part, Drafter) else None
        if drafter is not None:
            return drafter
    raise UserError(f"{folder} holds no drafter that a registered component reads (known: {', '.join(names)})")
