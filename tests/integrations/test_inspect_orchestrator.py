"""A real evaluation of inspect whose samples are answered by a composer and by a router."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: ROUTING IN INSPECT IS NOT TESTED")

CODE = """
import json, sys
import numpy as np
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from ramify.integrations.inspect.orchestrator import inspect_orchestrator
from ramify.methods.orchestrator import Composer, ModelPool, PoolWorker
from ramify.model.scripted import ScriptedModel

class ToTheSecond:
    workers, roles = ("wrong", "right"), False
    def logits(self, messages):
        return np.array([0.0, 1.0]), np.array([])

pool = ModelPool([PoolWorker("wrong", lambda messages: "41"), PoolWorker("right", lambda messages: "42")])
plan = json.dumps({"subtasks": ["Guess.", "Answer."], "workers": [0, 1], "access": [[], "all"]})
found = []
for system in (Composer(ScriptedModel([plan], tokens=False), pool), ToTheSecond()):
    task = Task([Sample(input="6 x 7?", target="42", id=1)], solver=inspect_orchestrator(system, pool), scorer=includes())
    (log,) = eval(task, model="mockllm/model", log_dir=sys.argv[1], display="none")
    assert log.status == "success", log.error
    (sample,) = log.samples
    workers = [call["worker"] for call in sample.metadata["orchestrator"]["calls"]]
    found.append([sample.output.completion, sample.scores["includes"].value, workers])
print(json.dumps(found))
"""


def test_the_solver_answers_with_the_pool(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["42", "C", ["wrong", "right"]], ["42", "C", ["right"]]]
