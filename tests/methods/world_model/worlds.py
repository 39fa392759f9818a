"""Small environments and predictors of the tests of world-model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramify.env.protocol import Task
from ramify.methods.world_model import Effect, Prediction, SimulatedEnvironment, Situation, StateStore
from ramify.methods.world_model.environment import WorldRules
from ramify.methods.world_model.predict import Predictor

KV = tuple(Effect(do, do, "notes", "1", "2") for do in ("get", "set", "delete", "list", "search"))  # type: ignore[arg-type]


class Says:
    """Answers by a function of the situation; counts how often it was asked."""

    def __init__(self, say=lambda s: f"you said {s.action}", name: str = "says") -> None:  # type: ignore[no-untyped-def]
        self.say, self.name, self.identity, self.asked = say, name, name, 0

    async def predict(self, situation: Situation, attempt: int = 0) -> Prediction:
        self.asked += 1
        found = self.say(situation)
        return Prediction(found, found or "", "" if found is not None else "it says nothing")


TASKS = tuple(
    Task(f"t{i}", {"opening": f"Room {i}.", "split": split})
    for i, split in enumerate(("train", "train", "train", "eval", "eval", "tune"))
)


def talking(predictor: Predictor | None = None, cache: Path | None = None, **rules: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(predictor or Says(), WorldRules(**rules), tasks=TASKS, cache=cache)


def notes(**more: Any) -> SimulatedEnvironment:
    store = StateStore({"notes": {"a": "red", "b": "blue"}}, KV)
    return talking(store=store, **more)
