"""How much memory ``improve`` takes for a pretrained model, and how much there is."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.base.errors import UserError
from ramify.engine.adapters import Adapter
from ramify.engine.local import LocalModel
from ramify.jobs.settings import ImproveConfig
from ramify.train.large import FLOAT, most_tokens, pass_bytes

PACKING = 3
"""Copies of the weights that exist while a checkpoint of all weights with both moments is packed or read."""
SHOWN, SHARE = 3.0, 1 / 3
"""Assumed before anything was played: tokens of a training row for each trained on, and the share of sampled tokens trained
on (imitation trains on attempts that succeed)."""
CLEARLY = 1.25
"""A job is refused where its estimate is this many times what is there: the estimate may be off by as much."""


@dataclass(frozen=True)
class NeededMemory:
    """Bytes that a job takes at most, by what they are for."""

    loaded: int
    """The process with the model, before anything is trained."""
    held: int
    """The adapter's base and parts, or moments; the reference of a KL."""
    activations: int
    """Of one pass of a training step, and gradients of all weights."""
    packing: int
    """Copies that exist while a checkpoint is written, when there are no activations."""
    cache: int
    """Keys and values of what is sampled at once and of finished texts, when nothing is trained."""

    @property
    def peak(self) -> int:
        """The most at once."""
        return self.loaded + self.held + max(self.activations, self.packing, self.cache)


def needed(
    model: LocalModel, config: ImproveConfig, adapter: Adapter | None, loaded: int, shown: float = SHOWN, share: float = SHARE
) -> NeededMemory:
    """What a job takes with ``model``: training rows have ``shown`` tokens for each that is trained on, and of the tokens sampled
    a ``share`` is trained on.

    ``loaded`` is measured, the rest by formula. Held: with an adapter once more the matrices it is for, and its parts with their
    gradients and moments; with all weights both moments. Activations of a pass: those of as many tokens as it may have
    (:mod:`ramify.train.large`), and three pieces of logits, and freed pieces that leave holes."""
    weights = FLOAT * sum(weight.numel() for weight in model.module.parameters())
    sampled = config.tokens / config.updates
    trained = sampled * share
    tokens = min(most_tokens(model.module, config.train.micro_tokens), trained * shown)
    played = max(sampled, config.eval_episodes * config.max_reply) * shown
    rows = min(config.concurrency, config.eval_episodes)
    held = 2 * weights
    if adapter:
        parts = sum(half.numel() for pair in adapter.parts.values() for half in pair)
        held = FLOAT * (sum(weight.numel() for weight in adapter.base.values()) + 4 * parts)
    return NeededMemory(
        loaded=loaded,
        held=held + (weights if config.kl else 0),
        activations=pass_bytes(model.module, tokens, trained, model.forward.vocab) + (0 if adapter else weights),
        packing=0 if adapter else PACKING * weights,
        cache=model.sampling_bytes(rows, int(shown * config.max_reply), int(played)) - weights,
    )


def available(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take: of the machine, or of its control group where that has less; None where neither
    says."""
    limits: list[int] = []
    with suppress(OSError, AttributeError, ValueError):
        text = (root / "proc/meminfo").read_text()
        limits.append(int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) * 1024)  # type: ignore[union-attr]
    for most, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        for folder in _groups(root):
            with suppress(OSError, ValueError):  # "max" is not a number
                limits.append(int((folder / most).read_text()) - int((folder / used).read_text()))
    return max(0, min(limits)) if limits else None


def _groups(root: Path) -> list[Path]:
    """The folders in which the limits of this process and of what it lies in may be."""
    top = root / "sys/fs/cgroup"
    group = ""
    with suppress(OSError, IndexError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        group = next((line.split(":", 2)[2] for line in lines if line.startswith("0:")), "").strip("/")
    here = top / group
    return [here, *(folder for folder in here.parents if folder == top or top in folder.parents)]


def check_room(need: NeededMemory, config: ImproveConfig, adapter: bool, free: int | None, resident: int) -> None:
    """Raises UserError where ``free`` bytes and those that the process holds already are clearly too few."""
    if free is None or need.peak <= CLEARLY * (free + resident):
        return
    ways = [] if adapter else ["leave --all-weights out, which trains an adapter"]
    if need.activations > need.held // 2:
        ways.append(f"--train.micro-tokens {max(256, config.train.micro_tokens // 8)}")
    ways.append("more --updates for the same tokens")
    there = (free + resident) / 2**30
    raise UserError(f"training takes about {need.peak / 2**30:.1f} GiB of memory, and {there:.1f} are there: {' or '.join(ways)}")
