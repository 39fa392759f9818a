"""Gymnasium environments of the tests: one in words, one with a state of its own, one that cannot be copied."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
from gymnasium import spaces


class Lights(gymnasium.Env):
    """Switch on every light by saying its name."""

    observation_space = spaces.Text(200)
    action_space = spaces.Text(20, charset=frozenset("abcdefghijklmnopqrstuvwxyz "))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict]:
        super().reset(seed=seed)
        names = ["hall", "cellar", "attic", "garden"]
        self.dark = sorted(names[int(i)] for i in self.np_random.choice(4, 2, replace=False))
        self.turns, self.tip = 0, 0.0
        return f"dark: {', '.join(self.dark)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self.turns += 1
        hit = action.strip() in self.dark
        if hit:
            self.dark.remove(action.strip())
        if self.turns == 1:  # chance that a snapshot must hold
            self.tip = float(self.np_random.random())
        return f"dark: {', '.join(self.dark)}; {self.tip:.3f}", float(hit), not self.dark, False, {"is_success": not self.dark}


class Stateful(Lights):
    def get_state(self) -> dict:
        return {"dark": list(self.dark), "turns": self.turns, "tip": self.tip, "rng": self._rng()}

    def _rng(self) -> dict:
        return {k: v for k, v in self.np_random.bit_generator.state.items() if k != "state"} | {
            "state": {k: int(v) for k, v in self.np_random.bit_generator.state["state"].items()}
        }

    def set_state(self, state: dict) -> None:
        self.dark, self.turns, self.tip = list(state["dark"]), state["turns"], state["tip"]
        self.np_random.bit_generator.state = state["rng"]


class Locked(Lights):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Wide(Lights):
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


gymnasium.register("Lights-v0", Lights, max_episode_steps=5)
gymnasium.register("Stateful-v0", Stateful, max_episode_steps=5)
gymnasium.register("Locked-v0", Locked, max_episode_steps=5)
gymnasium.register("Wide-v0", Wide)
