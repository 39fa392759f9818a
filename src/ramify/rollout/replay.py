"""Put a world back into an earlier state: from its snapshot, or by replaying the recorded actions and checking what it answers."""

from __future__ import annotations

import json

from ramify.base.errors import BoundaryError
from ramify.env.protocol import Env, Task
from ramify.trace.db import Run
from ramify.trace.node import Node
from ramify.trace.tree import Tree


def restore(env: Env, task: Task, seed: int, node: Node, tree: Tree, run: Run) -> None:
    """Bring ``env``, reset to ``task``, to its state after ``node``.

    Raises BoundaryError("env") naming the first step at which a replay answers otherwise than recorded.
    """
    if node.snapshot is not None:
        blob = node.snapshot.startswith("blob:")
        env.restore(run.get_blob(node.snapshot[5:]) if blob else json.loads(node.snapshot))
        return
    seen, reply, step = env.reset(task, seed), "", 0
    for role, text, _ in tree.path(node.id).messages():
        if role == "assistant":
            reply = text
        elif role not in ("root", "system"):
            if step:
                seen = env.step(reply)
            if seen.text != text:
                raise BoundaryError("env", f"replay of '{task.id}' differs at step {step}: recorded {text!r}, now {seen.text!r}")
            step += 1
