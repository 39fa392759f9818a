"""Run my agent on my environment and store the tree: any function of the messages is an agent,
any class with five methods an environment."""

import ramify


def my_agent(messages, key):  # messages as in a chat request; `key` (leave it out) is the sample's place: same place, same reply
    return "go hall" if key % 2 else "take lamp"


for attempt in ramify.play(my_agent, "household", attempts=4, out="runs/mine"):
    print(attempt.task.id, attempt.index, attempt.outcome, len(attempt.turns), attempt.leaf)
