"""Parts that workers make by name: factory:worker_parts:NAME. Found because the tests put this folder on the path of modules."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ramify.env.builtin.household import Household, HouseholdEnvironment
from ramify.env.protocol import Observation
from ramify.model.protocol import Completion
from ramify.model.scripted import ScriptedModel


def step(messages: Any, key: int) -> str:
    """A walk decided by the place's key."""
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else "wait"


def guess(messages: Any, key: int) -> str:
    """An answer to a chain, decided by the place's key."""
    return f"answer {key % 23}"


def walker() -> ScriptedModel:
    return ScriptedModel(step)


def slow_walker() -> ScriptedModel:
    """Takes SLOW seconds a reply, except where a conversation begins with QUICK."""

    def slow(messages: Any, key: int) -> str:
        if messages[0].text != os.environ.get("QUICK"):
            time.sleep(float(os.environ.get("SLOW", "0")))
        return step(messages, key)

    return ScriptedModel(slow)


def hosted() -> ScriptedModel:
    """Takes messages, returns text, and says how many tokens that was, as a hosted model does."""
    return ScriptedModel(
        lambda messages, key: Completion(step(messages, key), "eos", data={"usage": {"completion_tokens": 7}}), tokens=False
    )


def guesser() -> ScriptedModel:
    return ScriptedModel(guess)


def speechless() -> ScriptedModel:
    return ScriptedModel(["one reply only"])


def other_everywhere() -> ScriptedModel:
    """Another model in every process."""
    return ScriptedModel([f"I am process {os.getpid()}"] * 20)


class Deadly(Household):
    """In a task that starts in the room DOOMED it kills the process it is in, really, as often as ``doom`` allows."""

    def step(self, action: str) -> Observation:
        if os.environ.get("DOOMED") == self._task["start"] and doom():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def doom() -> bool:
    """True as often as the file named by DOOM_COUNT says, over all processes."""
    path = Path(os.environ["DOOM_COUNT"])
    left = len(path.read_bytes())
    if left:
        path.write_bytes(b"." * (left - 1))
    return left > 0


class DeadlyEnvironment(HouseholdEnvironment):
    def make(self) -> Household:
        return Deadly(self.max_turns)


class Bytes(Household):
    """Its snapshots are bytes, so they are blobs of the run."""

    def snapshot(self) -> Any:
        return json.dumps(super().snapshot()).encode()

    def restore(self, snapshot: Any) -> None:
        super().restore(json.loads(snapshot))


class BytesEnvironment(HouseholdEnvironment):
    def make(self) -> Household:
        return Bytes(self.max_turns)
