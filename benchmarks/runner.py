"""CPU of the rollout runner itself beside inspect-ai's: scripted models, both stores on, episodes of 1 and of 9 turns.

    python benchmarks/runner.py [--rounds 7] [--save]

The slope between the two lengths is the cost of a further turn. Ours runs in chat and in token mode, inspect on its mock model
with a solver that asks and answers; the two take turns and the median of the pair ratios (inspect / ours, chat) counts. Needs
``ramify[serve]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import save, spread

from ramify.env.protocol import Observation, Task, TaskSet
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run

REPLY = "I look around the room and then I go north."
INSPECT = """
import json, time
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import solver
REPLY = "I look around the room and then I go north."
N = 200

@solver
def talk(turns):
    async def solve(state, generate):
        for turn in range(turns):
            state = await generate(state)
            if turn + 1 < turns:
                state.messages.append(ChatMessageUser(content=f"You are at step {turn + 1} of the corridor."))
        return state
    return solve

def reply():
    output = ModelOutput.from_content("mockllm/model", REPLY)
    # without it, it counts with a tokenizer that it would download
    output.usage = ModelUsage(input_tokens=20, output_tokens=10, total_tokens=30)
    return output

def once(n, turns):
    model = get_model("mockllm/model", custom_outputs=[reply() for _ in range(n * turns)])
    samples = [Sample(input=f"You stand in a corridor. Task {i}.", target="x") for i in range(n)]
    start = time.process_time()
    task = Task(dataset=samples, solver=talk(turns), scorer=match())
    log = eval(task, model=model, display="none", log_dir="logs", max_samples=50)[0]
    spent = time.process_time() - start
    assert log.status == "success" and len(log.samples) == n and len(log.samples[0].messages) == 2 * turns, log.status
    return spent

once(4, 1)
one, nine = once(N, 1) / N, once(N, 9) / N
print(json.dumps([one, (nine - one) / 8]))
"""


class Corridor:
    """An environment that answers the same for ``turns`` turns."""

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


class CorridorEnvironment:
    name = "corridor"

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def make(self) -> Corridor:
        return Corridor(self.turns)

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of(Task(f"{i:05d}") for i in range(n))


def per_rollout(turns: int, tokens: bool, rollouts: int = 500) -> float:
    """CPU seconds of one rollout, run file included."""
    environment = CorridorEnvironment(turns)
    model = ScriptedModel([REPLY] * turns, tokens=tokens)
    template = TagTemplate(model.tokenizer) if tokens else None
    stops = template.stop_tokens if template else ()
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", {}) as run:
        episodes = Episodes(Agent(model, template, Sampling(stop_tokens=stops)), environment, run)

        async def play() -> None:
            await asyncio.gather(*(episodes.attempt(task.id, task, 0) for task in environment.task_set("train", rollouts)))

        begun = time.process_time()
        asyncio.run(play())
        run.commit()
        return (time.process_time() - begun) / rollouts


def inspect() -> tuple[float, float]:
    """CPU seconds of a one-turn sample of inspect and of a further turn, its log written."""
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([sys.executable, "-c", INSPECT], capture_output=True, text=True, check=True, cwd=folder)
    one, further = json.loads(out.stdout.splitlines()[-1])
    return one, further


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    per_rollout(1, True, 50)
    for _ in range(args.rounds):
        now = {}
        for mode, tokens in (("chat", False), ("tokens", True)):
            one, nine = per_rollout(1, tokens), per_rollout(9, tokens)
            now[f"{mode} one"], now[f"{mode} further"] = one, (nine - one) / 8
        now["inspect one"], now["inspect further"] = inspect()
        for kind in ("one", "further"):
            found.setdefault(f"ratio {kind}", []).append(now[f"inspect {kind}"] / now[f"chat {kind}"])
        for name, value in now.items():
            found.setdefault(name, []).append(1e3 * value)
    names = {"one": "one-turn rollout", "further": "further turn"}
    rows = [
        [
            names[kind],
            *(spread(found[f"{who} {kind}"]) for who in ("chat", "tokens", "inspect")),
            spread(found[f"ratio {kind}"], 1),
        ]
        for kind in names
    ]
    columns = ["CPU ms", "ramify, chat", "ramify, tokens", "inspect-ai", "inspect / ramify chat"]
    for row in (columns, *rows):
        print("  ".join(f"{cell:26}" for cell in row))
    if args.save:
        note = (
            "Medians with quartiles over rounds in which the two took turns; 500 rollouts and 200 samples a round, store and "
            "log written. "
            "Target: at least 5 times less than inspect."
        )
        save("runner", "The runner compared with inspect-ai", columns, rows, note)


if __name__ == "__main__":
    main()
