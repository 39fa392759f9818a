"""Credit a trace file I already have: one JSON line a step (task, attempt, step, state, action, reward)."""

from pathlib import Path

import ramify

graph = ramify.StateGraph.from_jsonl(Path(__file__).with_name("steps.jsonl"))
credit = graph.advantages(rule="g2po", gamma=0.95)
for attempt, step, advantage in zip(credit["attempt_id"], credit["step"], credit["A"], strict=True):
    print(f"attempt {attempt} step {step}: {advantage:+.4f}")
print(graph.why("maze", 2, 1))
