"""The halls of tests/halls.py with an agent that takes ``HALL_SECONDS`` for a reply. A run names both by this file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from ramify.base.seeds import generator
from ramify.model.scripted import ScriptedModel
from tests.halls import Halls as Halls


def agent() -> ScriptedModel:
    def reply(messages: Any, key: Any) -> str:
        time.sleep(float(os.environ.get("HALL_SECONDS", "0")))
        return "left" if generator(key, "hall").random() < 0.7 else "right"

    return ScriptedModel(reply)
