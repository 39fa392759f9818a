"""What the verbs of test_terminal_verbs are given by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def judge() -> Any:
    """Finds the word no in one half of the sentences."""

    def rated(prompt: str, chunks: Sequence[str]) -> list[int]:
        return [i % 2 for i in range(len(chunks))]

    return rated


def verifier() -> Any:
    """Right where the reply holds an a."""
    return lambda text, trace: "a" in text
