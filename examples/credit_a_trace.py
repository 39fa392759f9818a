"""Credit a trace file I already have: one JSON line a step (task_id, attempt_id, step, anchor, action, reward)."""

from pathlib import Path

import ramify
from ramify.score.steps import read_steps

graph = ramify.StateGraph.from_steps(read_steps(Path(__file__).with_name("steps.jsonl")))
credit = graph.advantages(rule="g2po", gamma=0.95)
for row, advantage in zip(graph.rows(), credit["A"], strict=True):
    print(f"attempt {row['attempt_id']} step {row['step']}, {row['action']}: {advantage:+.4f}")
