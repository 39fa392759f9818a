"""A scripted expert of the environment: reads the last row of lamps and presses the switch of the first one that is off."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramify.base.registry import register
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import Message


def reply(messages: Sequence[Message], key: int) -> str:
    """The expert's move for what the environment said last; now and then a random switch, which gets it out of circles."""
    off = re.findall(r"([0-9]):off", messages[-1].text if messages else "")
    return f"press {off[0]}" if off and key % 4 else f"press {key % 6}"


@register("model", "lights-expert")
class Expert(ScriptedModel):
    """Presses the switch of the first lamp that is off."""

    def __init__(self) -> None:
        super().__init__(reply, tokens=False, name="lights-expert")
