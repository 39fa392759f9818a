"""A small run of the shape that ``improve`` writes, made through the real store."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from ramify.jobs.results import Changes, Evaluation, Improved, SuccessGain
from ramify.methods.graph_credit.rules import NUMBERS
from ramify.score.credit.protocol import JOURNAL
from ramify.trace.db import Run
from ramify.trace.node import Annotation, AttemptRecord, Provenance, Score, make_node


def same(text: str) -> str:
    return text


def make_run(
    folder: Path,
    updates: int = 3,
    tasks: int = 2,
    attempts: int = 6,
    seed: int = 0,
    finished: bool = True,
    twist: Callable[[str], str] = same,
) -> Path:
    """Write a run; ``twist`` changes every text, task id and name that comes from outside (hostile tests)."""
    rng = random.Random(seed)
    config = {"arm": "ours", "train": {"lr": 3e-4, "updates": updates}, "env": "keydoor", "note": twist("plain")}
    with Run.create(folder, config) as run:
        provenance = Provenance("tiny", "w0", {"temperature": 1.0}, seed)
        run.add(provenance)
        run.log("environment", "versions", {"version": "0.1.0", "weights": "w0", "machine": twist("cpu")})
        run.log(JOURNAL, "graph-credit", {"numbers": [list(pair) for pair in NUMBERS.items()]})
        run.log("eval", "before", {"success": 0.15, "interval": [0.118, 0.188], "n": 400, "tokens": 61234, "seconds": 9.4})
        _tree(run, f"eval-before/{twist('task-0')}", "eval-before", twist, rng, 30, provenance.hash, 0.5)
        for u in range(updates):
            for t in range(tasks):
                _tree(
                    run,
                    f"ours-{u:04d}/{twist(f'task-{t}')}",
                    f"ours-{u:04d}",
                    twist,
                    rng,
                    attempts,
                    provenance.hash,
                    u / updates,
                )
            run.log(
                "update",
                f"ours/{u:05d}",
                {
                    "update": u,
                    "arm": "ours",
                    "tokens": 9000 * (u + 1),
                    "success": min(1.0, 0.15 + 0.6 * u / max(1, updates)),
                    "mixed": 0.4 + 0.2 * rng.random(),
                    "l1": 0.8,
                    "groups": 16,
                    "leaves": 128,
                    "independent": [round(128 * min(1.0, 0.15 + 0.6 * u / max(1, updates))), 128],
                    "train": {"policy": 0.1, "grad_norm": 0.7, "tokens": 900},
                    "abandoned": [twist("task-7")] if u % 2 else [],
                    "seconds": {"sample": 3.1, "credit": 0.05, "train": 1.4},
                },
            )
        if finished:
            run.log("eval", "after", {"success": 0.525, "interval": [0.476, 0.573], "n": 400, "tokens": 48210, "seconds": 7.9})
            _tree(run, f"grpo-0000/{twist('task-0')}", "grpo-0000", twist, rng, 30, provenance.hash, 0.5)
            run.log(
                "update",
                "grpo/00000",
                {
                    "update": 0,
                    "arm": twist("grpo"),
                    "tokens": 8000,
                    "success": 0.2,
                    "mixed": 0.3,
                    "l1": 0.5,
                    "groups": 16,
                    "leaves": 128,
                    "independent": [26, 128],
                    "abandoned": ["task-99"],
                    "train": {"policy": 0.1},
                    "seconds": {"sample": 100.0},
                },
            )
            run.log("compare", twist("grpo"), {
                "before": {"success": 0.15, "interval": [0.118, 0.188], "n": 400, "tokens": 61234, "seconds": 9.4},
                "after": {"success": 0.36, "interval": [0.314, 0.408], "n": 400, "tokens": 52000, "seconds": 8.1},
            })  # fmt: skip
            before, after = (run.memo("eval", Evaluation)[name] for name in ("before", "after"))
            gain, changes = SuccessGain(0.375, (0.31, 0.44), 400), Changes(twist("Nothing changed."), ())
            run.log(
                "result", "improve", Improved(before, after, gain, 9000 * updates, 84, 3, updates, 31.4, changes, twist("runs/1"))
            )
    return folder


def _tree(
    run: Run, name: str, group: str, twist: Callable[[str], str], rng: random.Random, attempts: int, by: str, skill: float
) -> None:
    run.add_tree(name, {"id": twist("task"), "data": {"goal": twist("open the door")}}, group)
    root = make_node(name, None, 0, "root", "")
    start = make_node(
        name, root.id, len(root), "user", twist("You are in the hall. Find the key, open the door."), state_key="hall|nothing"
    )
    run.add(root, start)
    open_ends = [(start, 0)]
    for attempt in range(attempts):
        node, depth = start if attempt < 3 else rng.choice(open_ends)[0], 0
        depth = next(d for n, d in open_ends if n.id == node.id)
        length = rng.randint(depth + 1, 8)
        for step in range(depth, length):
            action = rng.choice(["take key", "go kitchen", "go hall", "open door", "look"])
            reply = make_node(name, node.id, 1, "assistant", twist(action), provenance=by, index=attempt)
            won = step == length - 1 and rng.random() < 0.3 + 0.5 * skill
            room = rng.choice(["hall", "kitchen", "garden"])
            text = twist(f"You {action}. You are in the {room}.")
            key = f"{room}|{min(step, 4) // 2}"
            stop = "" if step < length - 1 else "terminated" if rng.random() < 0.7 or won else "truncated"
            node = make_node(name, reply.id, 1, "user", text, state_key=key, stop=stop)
            run.add(reply, node)
            value, after = rng.random(), rng.random()
            run.add(Annotation(reply.id, 0, "why", "graph-credit", {
                "A": rng.gauss(0, 1), "A_ep": 0.4, "A_nc": -0.1, "A_ec": 0.2, "V": value, "V_next": after, "delta": after - value,
                "group": twist(key), "group_size": 4, "next_group": twist(key), "attempt": twist("first"),
            }))  # fmt: skip
            if stop:
                ended = {"outcome": won, "reward": float(won), "truncated": stop == "truncated"}
                run.add(Score(node.id, "env", float(won)), AttemptRecord(node.id, name, index=attempt, **ended))
            else:
                open_ends.append((node, step + 1))
