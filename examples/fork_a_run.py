"""Fork a run of mine at a step: what would have happened if the agent had said something else there?"""

import ramify

attempt = ramify.play("builtin", "household", out="runs/forked")[0]
step = attempt.turns[0].node
fork = ramify.fork_run("runs/forked", step.id, n=32, edit={"replace": "go hall"})
print(f"instead of {step.text!r}:", fork.difference)
