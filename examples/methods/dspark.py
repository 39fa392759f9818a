"""Replies sooner, and the same ones: train a drafter for a checkpoint, calibrate it,
and see whether samples are those without it.

python examples/methods/dspark.py [hf:FOLDER PROMPTS OUT [STEPS]]: a checkpoint that transformers loads, a file of prompts (JSON
lines with "prompt") and a folder for the drafter. Without them:
the built-in agent, and a drafter trained for seconds. `ramify dspark` does the same.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from ramify import wait_for
from ramify.engine.local import LocalModel
from ramify.methods.dspark import Target, TrainOptions, calibrate, train
from ramify.methods.dspark.run import text
from ramify.model.protocol import Prefix, Sampling


def main(name="builtin", file=None, out=None, steps=40):
    target, prompts = Target.open(name), None if file is None else Path(file)
    folder = Path(out or tempfile.mkdtemp()) / "drafter"
    small = {} if file else {"layers": 1, "sequences": 60, "rows": 6}
    options = TrainOptions(steps=int(steps), **small)
    given = target.prompts(prompts, options.sequences, False, 0, "train")
    rows = text(target, given, options, folder)  # what the target itself says after each prompt
    found = train(target, rows, options, folder)
    print(f"trained for {found.step} steps, mask token {found.mask_token}")

    others = target.prompts(prompts, 24, False, 0, "calibrate")
    report = calibrate(target, folder, others, Sampling(max_tokens=32), seed=0)
    print(f"{report.tokens_a_pass:.2f} tokens a pass, temperatures {np.round(report.temperatures, 2)}")

    plain, fast = LocalModel.load(target.folder), LocalModel.load(target.folder, drafter=folder)
    completions = [wait_for(model.sample(Prefix(others[0]), 4, Sampling(max_tokens=32), [1, 2, 3, 4])) for model in (plain, fast)]
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(*completions, strict=True))  # the same samples with and without
    print(f"the same samples; now: ramify dspark profile {name} {folder}, then ramify serve {name} --drafter {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
