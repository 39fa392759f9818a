"""Which rule does my agent follow when options compete? Two rival theories, experiments between them,
and a claim tested on fresh choices.

python examples/methods/explain_my_agents_choices.py [PARTICIPANTS [FOLDER]]: agent:chat:MODEL@URL, agent:hf:PATH,
simulated:THEORY, or FILE.py:FUNCTION, which gets a design, the order of its pairs for each subject, and a seed, and returns
choices (0 or 1). Without arguments this file's own agent takes part:
it looks at the most valid cue alone, and slips once in ten times.
"""

import random
import sys
from pathlib import Path

from ramify.cli.main import main as ramify
from ramify.methods.theory_loop import LoopConfig, loop_of


def my_agent(design, orders, seed):
    """Choices of each subject: a row of 0 (A) and 1 (B)."""
    rng, best = random.Random(seed), max(range(len(design["validities"])), key=design["validities"].__getitem__)

    def choose(pair):
        a, b = (design[f"trial_{side}_ratings"][pair][best] for side in "ab")
        return rng.randrange(2) if a == b or rng.random() < 0.1 else int(b > a)

    return [[choose(pair) for pair in order] for order in orders]


def main(participants="", folder="runs/my-agents-choices"):
    config = LoopConfig(
        participants=participants or f"{Path(__file__).resolve()}:my_agent",
        rounds=2,
        iterations=5,
        people=10,
        runs=30,
        searched=20,
    )
    found = loop_of(config, ["tallying", "wadd"], folder, allow_unsandboxed=False)
    for row in found.leaderboard:
        print(f"{row.label}  score {row.score:.2f}  {row.theory}")
    claim = f"{folder}/claim.json"
    ramify(["theory-loop", "confirm", folder, claim, "--register", "--people", "30"])
    ramify(["theory-loop", "confirm", folder, claim])


if __name__ == "__main__":
    main(*sys.argv[1:])
