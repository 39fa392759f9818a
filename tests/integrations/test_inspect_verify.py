"""A real evaluation of inspect whose solver rewrites and verifies as planned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: VERIFYING IN INSPECT IS NOT TESTED")

CODE = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from ramify.integrations.inspect.verify import inspect_verify
from ramify.methods.verify_or_ship import ControlConfig, Critic, Tables
from ramify.methods.verify_or_ship.algorithm import Kernel, Likelihood
from ramify.score.judge import find_judge

tables = Tables(prior=0.4, critics={"digits": Likelihood.of(0.95, 0.05)}, kernel=Kernel(fix=0.2, broken=0.08))
solver = inspect_verify([Critic("digits", find_judge("regex:[0-9]"), cost=2)], find_judge("exact"), tables, ControlConfig())
said = ["no idea", "42"]
choices = [ModelOutput.from_content("mockllm/model", text).choices for text in said]
outputs = [ModelOutput(model="mockllm/model", usage=ModelUsage(), choices=one) for one in choices]
model = get_model("mockllm/model", custom_outputs=outputs)
task = Task([Sample(input="6 x 7?", target="42", id=1)], solver=solver, scorer=includes())
(log,) = eval(task, model=model, log_dir=sys.argv[1], display="none")
assert log.status == "success", log.error
(sample,) = log.samples
score, kept = sample.scores["includes"].value, sample.metadata["verify_or_ship"]
print(json.dumps([sample.output.completion, score, kept, [m.text for m in sample.messages]]))
"""


def test_the_solver_rewrites_what_a_critic_failed_and_delivers_what_was_verified(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    completion, score, about, messages = json.loads(done.stdout.splitlines()[-1])
    assert (completion, score) == ("42", "C")
    assert about["actions"] == ["digits", "rewrite", "digits", "verify"]
    assert (about["delivered"], about["verified"], about["cost"]) == (True, True, 2 + 5 + 2 + 30)
    assert messages[2] == "These checks failed: digits. Write it again."
