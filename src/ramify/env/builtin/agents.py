"""Which built-in agent goes with which built-in environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN = ("long-household",)
"""Environments with an agent of their own, ``builtin:NAME``; in all others ``builtin`` is the household's."""


def with_agent(settings: Any) -> Any:
    """Settings in which the model ``builtin`` is the agent of the environment ``env``, where it has one of its own."""
    if isinstance(settings, Mapping) and settings.get("env") in OWN and settings.get("model", "builtin") == "builtin":
        return {**settings, "model": f"builtin:{settings['env']}"}
    return settings
