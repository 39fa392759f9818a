"""What a conformance battery finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing a part gets wrong: the check that found it, and one sentence."""

    check: str
    message: str
