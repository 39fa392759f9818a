"""What ramify does, on the built-in agent: train it, see which step lost what it still loses, and change that step.

./demo [SETTING ...]    # settings of `ramify improve`, such as --seed 1
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import textwrap
from collections.abc import Sequence

from ramify.cli.main import main
from ramify.jobs.why.answer import Why, WhyAll
from ramify.jobs.why.findings import found
from ramify.render.terminal import show
from ramify.trace.db import Run
from ramify.trace.sources import next_run

SHORT = "--tokens 45000 --updates 20 --eval-episodes 200 --changes 0"
"""A short training: `ramify improve` without settings takes 150,000 tokens."""
OWN = """
Your own agent, in its git repository, with a check that decides:
  ramify record -n 8 --check "pytest -q" --model chat:MODEL@URL -- COMMAND
  ramify why runs/record-1
  ramify fix runs/record-1 --rule "Run the tests before you edit."
Run it eight times as it is; which step lost it; which change helps."""
WIDE = 78


def step(number: int, says: str, *words: str, shown: bool = True) -> None:
    """Say what comes, and run one command as if it were typed. Ends the program where it fails."""
    lines = ["$ ramify"]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) + 3 > WIDE:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    print("", *textwrap.wrap(f"{number}. {says}", WIDE), *lines, sep="\n", flush=True)
    with contextlib.nullcontext() if shown else contextlib.redirect_stdout(io.StringIO()):
        code = main(list(words))
    if code:
        sys.exit(code)


def lost_in(run: str) -> Sequence[Why]:
    """What was found out about the attempts of a run."""
    with Run.open(run) as opened:
        return found(opened)


def demo(settings: Sequence[str]) -> None:
    """The four steps."""
    run = str(next_run("demo"))
    tries = f"{run}/tries"
    step(
        1,
        "Make an agent better. It fetches a treasure in a text adventure, and trains on its own attempts that won.",
        *("improve", *SHORT.split(), *settings, "--out", run),
    )
    step(
        2,
        "Let the trained agent try twelve new tasks, eight times each.",
        *("rollout", "--model", f"hf:{run}/agent", "--env", "household", "--count", "12", "--attempts", "8", "--out", tries),
    )
    step(
        3,
        "Take an attempt at each task that still fails, go back to its steps, let the agent go on: which step lost it?",
        *("why", tries, "--all"),
        shown=False,
    )
    # the last step of an attempt that ran out of turns is no choice that could have been another
    answers = [one for one in lost_in(tries) if one.verdict == "none" or one.node != one.steps[-1].node]
    show(WhyAll(tuple(answers), ()), as_json=False)
    worst = min((one for one in answers if one.verdict == "step"), key=lambda one: one.change or 0.0, default=None)
    if worst is not None:
        best = next((one.action for one in worst.alternatives if one.repeatable), "")
        edit = ["--edit", json.dumps({"replace": best})] if best else []
        edit += ["--n", "64"]
        step(
            4,
            "Go back there and do the other thing: does it win more often than the agent left alone?",
            "fork",
            tries,
            str(worst.node)[:12],
            *edit,
        )
        anew = (
            "The fork above sampled both anew and more often, and what stood out tends to stand out less then: go by its figures."
        )
        print("", *textwrap.wrap(worst.headline.replace("`", ""), WIDE), *textwrap.wrap(anew, WIDE), sep="\n")
    print(f"\nSee it, step by step: .venv/bin/ramify show {shlex.quote(tries)} --web\n{OWN}", flush=True)


if __name__ == "__main__":
    demo(sys.argv[1:])
