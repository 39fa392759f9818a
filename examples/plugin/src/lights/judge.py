"""Counts how many replies named a switch at all."""

from __future__ import annotations

import re

from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.score.judge import Each, Item, Judgement

VERSION = 1


@register("judge", "switches")
class Switches(Each):
    """The share of the agent's messages that press a switch."""

    name = "switches"

    @property
    def identity(self) -> str:
        """Hash of all that can change a judgement."""
        return stable_hash(self.name, VERSION)

    async def one(self, item: Item) -> Judgement:
        """An attempt without messages scores 0."""
        said = [message.text for message in item.messages if message.role == "assistant"]
        good = sum(re.fullmatch(r"\s*press [0-9]\s*", text) is not None for text in said)
        return Judgement(good / len(said) if said else 0.0, evidence={"messages": len(said)})
