"""How much memory ``improve`` takes for a pretrained model, and how much there is."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.base.errors import UserError
from ramify.engine.adapters import Adapter
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyLM
from ramify.jobs.settings import ImproveConfig

FLOAT = 4
"""Bytes."""
PACKING = 5
"""Copies of the weights that exist while a checkpoint with moments is packed, besides gradients and moments."""
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
    """The adapter's base, or moments; gradients."""
    activations: int
    """Of one pass of a training step."""
    packing: int
    """Copies that exist while a checkpoint is written, when there are no activations."""
    cache: int
    """Keys and values of the texts that are sampled."""

    @property
    def peak(self) -> int:
        """The most at once."""
        return self.loaded + self.held + self.cache + max(self.activations, self.packing)


def needed(
    model: LocalModel, config: ImproveConfig, adapter: Adapter | None, loaded: int, shown: float = SHOWN, share: float = SHARE
) -> NeededMemory:
    """What a job takes with ``model``: training rows have ``shown`` tokens for each that is trained on, and of the tokens sampled
    a ``share`` is trained on.

    ``loaded`` is measured, the rest by formula. Held: with an adapter once more the matrices it is for, their gradients, and
    what replaces them; with all weights gradients and both moments. Activations of a pass (bounded by ``train.micro_tokens``):
    what a decoder block keeps for its gradient (7 widths, 3 of keys or values, 4 of the inner layer a token), and three copies
    of the logits of trained tokens."""
    weights = FLOAT * sum(weight.numel() for weight in model.module.parameters())
    linear = FLOAT * sum(weight.numel() for weight in adapter.base.values()) if adapter else 0
    sampled = config.tokens / config.updates
    trained = sampled * share
    tokens = min(config.train.micro_tokens, trained * shown)
    activations = tokens * _a_token(model) + FLOAT * 3 * min(trained, tokens) * model.forward.vocab
    position = FLOAT * model.forward.layers * model.forward.kv_size
    played = max(sampled, config.eval_episodes * config.max_reply) * shown
    return NeededMemory(
        loaded=loaded,
        held=3 * linear if adapter else 3 * weights,
        activations=int(activations),
        packing=0 if adapter else PACKING * weights,
        cache=int(min(1 << 30, position * played)),
    )


def _a_token(model: LocalModel) -> float:
    """Bytes that one token keeps for the gradient in all blocks."""
    config = model.module.config
    if isinstance(model.module, TinyLM):
        width, inner = model.module.config.width, model.module.config.ffn
    else:
        width = int(getattr(config, "hidden_size", 0) or getattr(config, "n_embd", 0))
        inner = int(getattr(config, "intermediate_size", 0) or getattr(config, "n_inner", 0) or 4 * width)
    return float(FLOAT * model.forward.layers * (7 * width + 1.5 * model.forward.kv_size + 4 * inner))


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


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    with suppress(OSError, AttributeError, ValueError):
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024  # type: ignore[union-attr]
    return 0
