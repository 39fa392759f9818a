"""May my agent be trained in a simulation of my environment? Record it, simulate it, let an agent play there, and check that against the real one.

python examples/methods/world_model.py: my environment is a safe with a two-step combination. The simulation answers with the nearest recorded
turn; `ramify world-model train` would put a trained model in its place, and `verify` a function over the state where success must be real.
"""

import random
import tempfile
from pathlib import Path

from ramify.base.ids import canonical_json
from ramify.cli.main import main
from ramify.env.protocol import Observation
from ramify.env.task_sets import generated_task_set
from ramify.methods.world_model import read_trajectories
from ramify.methods.world_model.trajectories import tasks_of

TURNS = ("left", "right", "push")


class Safe:
    """Opens after the right two turns in a row; the third turn is the last."""

    max_turns, system = 3, ""

    def reset(self, task, seed):
        self.code, self.done = list(task.data["code"]), []
        return Observation(f"Safe {task.data['number']}.")

    def step(self, action):
        self.done.append(action.strip())
        opens = self.done[-2:] == self.code
        text = "click" if self.done[-1] == self.code[0] else "nothing"
        return Observation("It opens." if opens else text, float(opens), terminated=opens, outcome=True if opens else None)

    def snapshot(self):
        return {"done": list(self.done)}

    def restore(self, snapshot):
        self.done = list(snapshot["done"])

    def key(self):
        return canonical_json(self.snapshot())


class Safes:
    """Numbered safes; the explorer of `record` asks it what may be done."""

    name, make = "safes", Safe

    def task_set(self, split, n, seed=0):
        return generated_task_set(
            "safes",
            split,
            n,
            seed,
            lambda rng: {"code": rng.choice(TURNS, 2).tolist(), "number": int(rng.integers(999))},
            kind="safe",
        )

    def actions(self, task, snapshot):
        return TURNS


def agent(messages, key):
    """Turns something, at random."""
    return random.Random(key).choice(TURNS)


def run(folder):
    real = f"{__file__}:Safes"
    for split, count in (("train", "40"), ("eval", "10")):
        main(
            [
                "world-model",
                "record",
                "--env",
                real,
                "--episodes",
                count,
                "--split",
                split,
                "--turns",
                "3",
                "--out",
                f"{folder}/{split}",
            ]
        )
    tasks = "".join(canonical_json(one) + "\n" for one in tasks_of(read_trajectories(folder / "train")))
    (folder / "tasks.jsonl").write_text(tasks)
    (folder / "world.toml").write_text('model = "retrieval:train"\ntasks = "tasks.jsonl"\nmax_turns = 3\nverify = "model"\n')
    main(
        [
            "world-model",
            "eval",
            f"{folder}/world.toml",
            "--data",
            f"{folder}/eval",
            "--train",
            f"{folder}/train",
            "--judge",
            "none",
        ]
    )
    main(
        [
            "rollout",
            "--env",
            f"simulated:{folder}/world.toml",
            "--model",
            f"{__file__}:agent",
            "--count",
            "15",
            "--out",
            f"{folder}/played",
        ]
    )
    main(["world-model", "audit", f"{folder}/played", "--env", real])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(Path(made))
