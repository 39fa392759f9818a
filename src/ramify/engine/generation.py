"""Sampling settings of a checkpoint's ``generation_config.json``: defaults, as vLLM takes them, and the tokens that end a turn.

``do_sample`` is ignored: a checkpoint is sampled, greedily only where a temperature of 0 is requested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.files import read_record

FILE = "generation_config.json"


@dataclass(frozen=True)
class Generation:
    """The file's settings; empty where there is none."""

    sampling: dict[str, Any] = field(default_factory=dict)
    """``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty`` and ``max_tokens``, as far as it sets them."""
    eos: tuple[int, ...] | None = None


def read_generation(folder: Path) -> Generation:
    """Read the file of the checkpoint in ``folder``. Raises UserError naming file and field where it cannot be used."""
    file = folder / FILE
    if not file.is_file():
        return Generation()
    record = read_record(file, "the model's")
    settings: dict[str, Any] = {}
    for name, setting, least, most in (
        ("temperature", "temperature", 0.0, math.inf),
        ("top_p", "top_p", 0.0, 1.0),
        ("top_k", "top_k", -1, math.inf),
        ("min_p", "min_p", 0.0, 1.0),
        ("repetition_penalty", "repetition_penalty", 0.0, math.inf),
        ("max_new_tokens", "max_tokens", 1, math.inf),
    ):
        value = record.get(name)
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not least <= value <= most or (name in ("top_p", "repetition_penalty") and value == 0):
            raise UserError(f"{file}: '{name}' is {value!r}, which is not a value it can have")
        settings[setting] = max(0, int(value)) if isinstance(least, int) else float(value)
    eos = record.get("eos_token_id")
    ids = eos if isinstance(eos, list) else None if eos is None else [eos]
    if ids is not None and not all(type(i) is int and i >= 0 for i in ids):
        raise UserError(f"{file}: 'eos_token_id' is {eos!r}, which is not a token id or a list of them")
    return Generation(settings, None if ids is None else tuple(ids))
