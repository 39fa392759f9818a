"""CPU of the rollout runner itself: the scripted model, the store on, episodes of 1 and of 9 turns, in chat and in token mode.

The slope between the two lengths is the cost of a further turn. Targets: 1 ms a one-turn rollout, 0.5 ms a further turn. With
``--inspect PYTHON`` (an interpreter that has inspect-ai) the same one-turn sample runs on inspect's mock model, in turn with ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from ramify.env.protocol import Observation, Panel, Task
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.run import Agent, Episodes
from ramify.trace.db import Run

REPLY = "I look around the room and then I go north."
INSPECT = """
import json, time
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
N = 200
def once(n):
    start = time.process_time()
    eval(Task(dataset=[Sample(input=f"question {i}", target="x") for i in range(n)], scorer=match()),
         model="mockllm/model", display="none", log_dir="logs")
    return time.process_time() - start
once(2)
print(json.dumps((once(N) - once(2)) / (N - 2)))
"""


class Corridor:
    """A world that answers the same for ``turns`` turns."""

    system = ""

    def __init__(self, turns: int) -> None:
        self.max_turns, self.at = turns, 0

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(f"You stand in a corridor. Task {task.id}.")

    def step(self, action: str) -> Observation:
        self.at += 1
        done = self.at >= self.max_turns
        return Observation(f"You are at step {self.at} of the corridor.", float(done), terminated=done, outcome=done or None)

    def snapshot(self) -> dict[str, int]:
        return {"at": self.at}

    def restore(self, snapshot: dict[str, int]) -> None:
        self.at = snapshot["at"]

    def key(self) -> str:
        return str(self.at)


class CorridorWorld:
    name = "corridor"

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def make(self) -> Corridor:
        return Corridor(self.turns)

    def panel(self, split: str, n: int, seed: int = 0) -> Panel:
        return Panel.of(Task(f"{i:05d}") for i in range(n))


def per_rollout(turns: int, tokens: bool, rollouts: int = 500) -> float:
    """CPU seconds of one rollout, run file included."""
    world = CorridorWorld(turns)
    model = ScriptedModel([REPLY] * turns, tokens=tokens)
    template = TagTemplate(model.tokenizer) if tokens else None
    stops = template.stop_tokens if template else ()
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", {}) as run:
        episodes = Episodes(Agent(model, template, Sampling(stop_tokens=stops)), world, run)

        async def play() -> None:
            await asyncio.gather(*(episodes.attempt(task.id, task, 0) for task in world.panel("train", rollouts)))

        begun = time.process_time()
        asyncio.run(play())
        run.commit()
        return (time.process_time() - begun) / rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inspect", metavar="PYTHON", help="interpreter with inspect-ai installed")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    per_rollout(1, True, 50)
    for _ in range(args.rounds):
        for mode, tokens in (("chat", False), ("tokens", True)):
            one, nine = per_rollout(1, tokens), per_rollout(9, tokens)
            found.setdefault(f"{mode}: one-turn rollout, ms", []).append(1e3 * one)
            found.setdefault(f"{mode}: further turn, ms", []).append(1e3 * (nine - one) / 8)
        if args.inspect:
            with tempfile.TemporaryDirectory() as folder:
                out = subprocess.run([args.inspect, "-c", INSPECT], capture_output=True, text=True, check=True, cwd=folder)
            found.setdefault("inspect: one-turn sample, ms", []).append(1e3 * json.loads(out.stdout.splitlines()[-1]))
            ratio = found["inspect: one-turn sample, ms"][-1] / found["chat: one-turn rollout, ms"][-1]
            found.setdefault("inspect / ours", []).append(ratio)
    for name, values in found.items():
        print(f"{name:32s} {statistics.median(values):8.3f}  [{min(values):.3f}, {max(values):.3f}]")
    print(json.dumps({name: round(statistics.median(values), 3) for name, values in found.items()}))


if __name__ == "__main__":
    main()
