"""Where a draw ends."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ramify.engine.rows import Row
from ramify.model.protocol import Tokenizer


def end(row: Row, eos: Collection[int], tokenizer: Tokenizer | None) -> Exception | None:
    """Set the row's stop reason if its last token ends it; returns what its ``until`` raised."""
    settings, token = row.job.settings, row.tokens[-1]
    if token in eos:
        row.stop = "eos"
    elif token in settings.stop_tokens or (settings.stop_texts and _has_stop_text(row, tokenizer)):
        row.stop = "stop"
    elif settings.until is not None:
        try:
            row.stop = "stop" if settings.until(np.array(row.drawn, dtype=np.int32)) else ""
        except Exception as error:  # the caller's own function; it fails that caller's draw only
            return error
    if not row.stop and len(row.logprobs) == len(row.uniforms):
        row.stop = "length"
    return None


def _has_stop_text(row: Row, tokenizer: Tokenizer | None) -> bool:
    if tokenizer is None:
        return False
    texts = row.job.settings.stop_texts
    # a character is at most 4 tokens (bytes); the rest of the draw was looked at before
    tail = tokenizer.decode(row.drawn[-4 * (max(map(len, texts)) + 1) :])
    return any(text in tail for text in texts)
