"""Run my agent on my world and store the tree: any callable is an agent, any class with five methods is a world."""

import ramify


def my_agent(messages, key):  # `key` is the draw's place: same place, same reply
    return "go hall" if key % 2 else "take lamp"


model = ramify.ScriptedModel(my_agent, tokens=False)
for attempt in ramify.play(model, "household", attempts=4, out="runs/mine"):
    print(attempt.task.id, attempt.index, attempt.outcome, len(attempt.turns), attempt.leaf)
