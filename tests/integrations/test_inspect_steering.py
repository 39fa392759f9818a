"""Real evaluations of inspect whose solver replies with a steered local model:
the handle works, its controls do not, nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: STEERING IN INSPECT IS NOT TESTED")

from ramify.base.errors import UserError
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.crosscoder.dictionary import Dictionary, DictionaryConfig
from ramify.methods.crosscoder.record import CapturedFrom
from ramify.model.tokenizer import HfTokenizer

CODE = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from ramify.integrations.inspect.steering import inspect_steering

made, logs, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
samples = [Sample(input=f"w{i} w{i + 1} w{i + 2}", target="w7", id=i) for i in range(10, 16)]
said = {}
for name, how in settings.items():
    solver = inspect_steering(made, raw=True, max_tokens=1, **how)
    (log,) = eval(Task(samples, solver=solver, scorer=includes()), model="none/none", log_dir=logs, display="none")
    assert log.status == "success", log.error
    said[name] = [[s.output.completion, s.scores["includes"].value, s.metadata["steering"]] for s in log.samples]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dictionary whose features 0 to 3 sum to the direction of the word w7 in a small model's last states, and do not alone."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("steering")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    module = TinyLM(TinyConfig(60, 48, 2, 2, 1, 12, 48, 32, eos=(0,)), seed=1)
    module.save(folder / "model", HfTokenizer(words))
    word = module.state_dict()["model.embed_tokens.weight"][7].numpy()
    aside = np.random.default_rng(0).normal(size=(4, 48))
    aside -= aside.mean(axis=0)
    dictionary = Dictionary(DictionaryConfig(width=48, features=16, k=4, exclusive=0.0))
    for i in range(4):
        own = word / np.linalg.norm(word) + aside[i] / 48**0.5
        dictionary.decoder.data[i, 0] = dictionary.decoder.new_tensor(own / np.linalg.norm(own))
    name = f"hf:{folder / 'model'}"
    dictionary.save(folder / "dictionary", CapturedFrom(name, name, 2))
    return folder


@pytest.mark.slow
def test_a_task_with_a_steered_model(made: Path, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "clean": {"features": [0, 1, 2, 3], "gain": 1},
        "set": {"features": [0, 1, 2, 3], "clamp": 0.4},
        "one": {"features": [0], "clamp": 0.4},
        **{f"random {i}": {"features": [0, 1, 2, 3], "clamp": 0.4, "random": i} for i in range(3)},
    }
    command = [sys.executable, "-c", CODE, str(made / "dictionary"), str(tmp_path), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows_of = json.loads(done.stdout.splitlines()[-1])
    right = {name: sum(score == "C" for _, score, _ in rows) for name, rows in rows_of.items()}
    assert (right["clean"], right["set"]) == (0, 6)
    assert max(right[f"random {i}"] for i in range(3)) < 6
    assert all(row[2]["size"] == 0 for row in rows_of["clean"])
    for set_, other in zip(rows_of["set"], rows_of["random 0"], strict=True):
        assert set_[2]["size"] == pytest.approx(other[2]["size"], rel=1e-4)  # the control is as long
    assert rows_of["set"][0][2]["change"] == "clamp 0.4 of 0,1,2,3"


def test_what_cannot_be_steered_is_refused_before_a_sample(made: Path) -> None:
    from ramify.integrations.inspect.steering import inspect_steering

    for wrong, sentence in (
        ({"features": [99], "gain": 2}, "feature 99 does not exist; the dictionary has 0 to 15"),
        ({"features": [0]}, "steering needs one of gain and clamp"),
        ({"features": [0], "gain": 2, "clamp": 3}, "steering needs one of gain and clamp"),
        ({"features": [0], "gain": 2, "target": "c"}, "neither a .tuned. nor b .base."),
    ):
        with pytest.raises(UserError, match=sentence):
            inspect_steering(made / "dictionary", **wrong)  # type: ignore[arg-type]
