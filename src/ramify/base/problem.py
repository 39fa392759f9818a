"""A fault of a component or of a store: what a check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a component: the check that found it, and one sentence."""

    check: str
    message: str
