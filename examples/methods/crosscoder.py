"""What did training change inside my model? A dictionary of two checkpoints,
its features ranked by how well they indicate a behaviour, and one used for steering.

python examples/methods/crosscoder.py [TUNED BASE TOOL PLAIN LAYER]: two checkpoints that transformers loads (the model after
training and before), two files of prompts (JSON lines with "prompt"; the behaviour in question and anything else) and a block.
Without them: the built-in agent, and itself with one direction written into its second block, which the dictionary has to find.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from ramify import wait_for
from ramify.engine.checkpoints import load_model, model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.methods.crosscoder import Checkpoints, capture, rank_features
from ramify.methods.crosscoder.dictionary import Dictionary, DictionaryConfig, FitConfig, encode_rows, fit
from ramify.methods.crosscoder.run import prompts
from ramify.methods.crosscoder.steer import random_like, sample, scale
from ramify.model.protocol import Sampling


def mine(tuned, base, tool, plain, layer):
    models = Checkpoints.open(tuned, base, int(layer))
    return models, *([one.prompt_ids for one in prompts(Path(path), models)] for path in (tool, plain))


def small():
    (tuned, template), (base, _) = (load_model(model_folder("builtin")) for _ in range(2))
    with torch.no_grad():  # what "training" changed: the second block reads where it is asked to go, and writes a new direction
        down = tuned.module.model.layers[1].mlp.down_proj.weight
        down += 0.3 * torch.outer(torch.randn(len(down)), torch.rand(down.shape[1]))
    tuned.refresh()
    tasks = HouseholdEnvironment().task_set("train", 200)
    texts = [f"Go and {task.data}"[:80] for task in tasks], [f"Number {i} of {i * i}, please." for i in range(200)]
    lay = lambda text: [*template.render("user", text, "")[0], *template.open("assistant", "user")]  # noqa: E731
    return Checkpoints(tuned, base, 2), *([lay(text) for text in part] for part in texts)


def main(models, tool, plain):
    states = capture(models, [*tool, *plain])
    dictionary = Dictionary(DictionaryConfig(width=states.shape[2], features=256, k=12, exclusive=0.1))
    found = fit(dictionary, states, FitConfig(steps=200, batch=128, lr=2e-3))
    print(f"variance explained {np.round(found.fve, 2)}, active {found.l0}, dead {found.dead:.0%}")
    codes = encode_rows(dictionary, states)
    ranked = rank_features(dictionary, codes[: len(tool)], codes[len(tool) :], "a")
    for one in ranked[:5]:
        print(
            f"feature {one.feature}: d {one.d:.2f}, AUROC {one.auroc:.2f}, fires on {one.fires_tool:.0%} and "
            f"{one.fires_plain:.0%}"
        )
    if not ranked:
        return
    change = scale(dictionary, codes[:4], [ranked[0].feature], gain=16)
    settings = Sampling(temperature=0, max_tokens=12, stop_tokens=models.tuned.eos)
    for name, what in (("clean", None), ("steered", change), ("random", random_like(change, 0))):
        sampled = wait_for(sample(models.tuned, [np.array(row) for row in tool[:4]], models.layer, what, settings))
        print(f"{name:8s} {[reply.text[:30] for reply in sampled]}")


if __name__ == "__main__":
    main(*(mine(*sys.argv[1:]) if sys.argv[1:] else small()))
