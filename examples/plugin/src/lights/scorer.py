"""Counts how many replies named a switch at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.env.protocol import Task
from ramify.trace.node import Stream, Verdict
from ramify.trace.path import Path

VERSION = 1


@register("scorer", "switches")
class Switches:
    """The share of the agent's messages that press a switch."""

    name = "switches"

    @property
    def judge(self) -> str:
        """Hash of all that can change a verdict."""
        return stable_hash(self.name, VERSION)

    async def score(self, path: Path, task: Task) -> Sequence[Verdict | Stream]:
        """One verdict; an attempt without messages scores 0."""
        said = [message.text for message in path.messages() if message.role == "assistant"]
        good = sum(re.fullmatch(r"\s*press [0-9]\s*", text) is not None for text in said)
        share = good / len(said) if said else 0.0
        return [
            Verdict(path.segments[-1][0].id, self.name, share, evidence={"messages": len(said)}, judges={self.name: self.judge})
        ]
