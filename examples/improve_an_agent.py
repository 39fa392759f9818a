"""Make an agent better, and see by how much. Drop the settings for the full job (minutes on two cores)."""

import ramify

if __name__ == "__main__":
    small = ramify.ImproveConfig(updates=2, tokens=1_000, tasks_per_update=4, eval_episodes=20)
    result = ramify.improve(small, out="runs/small")
    print(result.before.success, "->", result.after.success, result.gain.interval)
