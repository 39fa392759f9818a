"""Environments that misbehave in a worker: factory:ray_parts:NAME. The first task is played as it should be."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ramify.env.builtin.household import Household, HouseholdEnvironment
from ramify.env.protocol import Observation

FIRST = next(iter(HouseholdEnvironment().task_set("train", 1, 3))).data["start"]


def secret() -> str:
    """What is in this process's environment."""
    return os.environ.get("OPENAI_API_KEY", "no key here")


class Bad(Household):
    """Does what its class does in every task but those that start where the first does."""

    def step(self, action: str) -> Observation:
        if self._task["start"] == FIRST:
            return super().step(action)
        return self.misbehave(action)

    def misbehave(self, action: str) -> Any:
        raise NotImplementedError


class Raising(Bad):
    def misbehave(self, action: str) -> Any:
        raise RuntimeError(f"cannot reach https://user:hunter2-canary@host with {secret()}")


class Garbage(Bad):
    def misbehave(self, action: str) -> Any:
        return {"text": object(), "reward": "\ud800", "done": float("nan")}


class Printing(Bad):
    def misbehave(self, action: str) -> Any:
        print("printed", secret(), flush=True)
        print("printed", secret(), file=sys.stderr, flush=True)
        return Household.step(self, action)


class Exiting(Bad):
    def misbehave(self, action: str) -> Any:
        sys.exit(3)


class Dying(Bad):
    def misbehave(self, action: str) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Bad):
    def misbehave(self, action: str) -> Any:
        Path("hangs").touch()
        while True:
            time.sleep(0.1)


def environment(kind: type[Bad]) -> type[HouseholdEnvironment]:
    return type(f"{kind.__name__}World", (HouseholdEnvironment,), {"make": lambda self: kind(self.max_turns)})


raising, garbage, printing, exiting, dying, hanging = map(environment, (Raising, Garbage, Printing, Exiting, Dying, Hanging))
