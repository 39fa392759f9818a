"""What training cost a pretrained model: how well it still predicts general texts, and which checkpoint validation chooses.

Nothing here runs for a model that ramify made: what such a model knows can be trained again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.files import read_small
from ramify.engine.adapters import is_adapter
from ramify.jobs.keep_texts import TEXTS
from ramify.jobs.results import Validation
from ramify.jobs.settings import RANK, ImproveConfig, KeepConfig

POINTS = 4
"""Parts of the updates between which checkpoints are validated: the start, the quarters, and the end."""


def rank_of(config: ImproveConfig, pretrained: bool, start: Path) -> int:
    """Rank of the adapter to train, 0 for the checkpoint's own or all weights. Raises UserError where both are asked for."""
    if config.all_weights and config.lora:
        raise UserError(f"--lora {config.lora} trains an adapter and --all-weights everything: leave one out")
    if config.all_weights and is_adapter(start):
        raise UserError(f"the checkpoint {start} is an adapter, which goes on alone: leave --all-weights out")
    return config.lora or (RANK if pretrained and not config.all_weights and not is_adapter(start) else 0)


def texts_of(config: KeepConfig) -> tuple[str, ...]:
    """The texts that nothing is trained on: the user's, one a line, or those that come with ramify.
    Raises UserError where the file cannot be read or holds none."""
    if not config.texts:
        return TEXTS
    file = Path(config.texts).expanduser()
    try:
        lines = read_small(file, "the texts of keep.texts").decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"cannot read the texts of keep.texts {file}: it is not UTF-8 text") from None
    if not (texts := tuple(line for line in lines if line.strip())):
        raise UserError(f"keep.texts {file} holds no text: one a line is wanted")
    return texts


def milestones(updates: int) -> tuple[int, ...]:
    """After how many updates checkpoints are validated: none, the quarters, all."""
    return tuple(sorted({math.ceil(updates * part / POINTS) for part in range(POINTS + 1)}))


def chosen(validations: Sequence[Validation], config: KeepConfig) -> Validation:
    """The checkpoint that is kept: the one with the most success, of equals the earliest; or simply the last."""
    if config.checkpoint == "last":
        return max(validations, key=lambda entry: entry.updates)
    return max(validations, key=lambda entry: (entry.success, -entry.updates))
