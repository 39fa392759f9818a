"""Default verbs of the methods sample through the sampler: nothing else calls a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.engine.local import LocalModel
from ramify.model.function import FunctionModel
from ramify.model.scripted import ScriptedModel
from ramify.rollout import potential
from ramify.rollout.sampler import Sampler

CASE = """
question = "Why the shortcut?"
env = "factory:tests.methods.forensics.scripted_organisms:world"
model = "factory:tests.methods.forensics.scripted_organisms:tedious"
n = 10
sentences = "stops"
[fields.errors]
baseline = 258
"""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many samples the models made, how many of them a sampler asked for, and how many looks a potential took."""
    found = {"models": 0, "sampler": 0, "looks": 0}
    for kind in (LocalModel, ScriptedModel, FunctionModel):

        def sample(self: Any, prefix: Any, n: int, *rest: Any, inner: Any = kind.sample) -> Any:
            found["models"] += n
            return inner(self, prefix, n, *rest)

        monkeypatch.setattr(kind, "sample", sample)
    add = potential.Fixed.looks
    plain = Sampler._plain

    def asked(self: Any, prefix: Any, settings: Any, keys: Any, *rest: Any) -> Any:
        found["sampler"] += len(keys)
        return plain(self, prefix, settings, keys, *rest)

    def looks(self: Any, positions: Any) -> Any:
        found["looks"] += 1
        return add(self, positions)

    monkeypatch.setattr(Sampler, "_plain", asked)
    monkeypatch.setattr(potential.Fixed, "looks", looks)
    return found


def ran(counted: dict[str, int], *words: object) -> int:
    """Samples of one verb, all of which a sampler asked for; the looks of potentials it took."""
    before = dict(counted)
    assert main([*map(str, words)]) == 0
    models, sampler, looks = (counted[name] - before[name] for name in ("models", "sampler", "looks"))
    assert models == sampler > 0
    return looks


@pytest.mark.slow
def test_default_verbs_of_six_methods_sample_through_the_sampler(tmp_path: Path, counted: dict[str, int]) -> None:
    problems = tmp_path / "problems.jsonl"
    row = {"id": "p", "prompt_ids": [5, 6, 7], "prompt": "hm", "answer": "go"}
    problems.write_text(json.dumps(row) + "\n", encoding="utf-8")
    model, scan, study, case = ("--model", "builtin"), tmp_path / "scan", tmp_path / "study", tmp_path / "case"
    settings = ("--verifier", "exact", "--max-tokens", 4, "--n", 4, "--faithful", "true")
    assert ran(counted, "cliffs", "scan", *model, "--problems", problems, "--out", scan, *settings)
    settings = ("--label", "regex:o", "--k", 2, "--think-tokens", 4, "--answer-tokens", 2)
    ran(counted, "early-decision", "run", *model, "--prompts", problems, "--out", study, *settings)
    assert ran(counted, "early-decision", "continue", study, "--m", 1, "--n", 2, "--shares", "0.5,1")
    case.mkdir()
    (case / "case.toml").write_text(CASE, encoding="utf-8")
    ran(counted, "forensics", "run", case)
    assert ran(counted, "forensics", "resample", case, "--k", 8)
    ran(counted, "forensics", "ask", case, "why", "Why?", "fix", "--n", 2)
    ran(counted, "governance", "bench", "--out", tmp_path / "rows", "--tasks", "email", "--reps", 1)
    ran(counted, "rollout", *model, "--tree", "--tree-budget", 12, "--panel", 1, "--out", tmp_path / "trees")
    starts = tmp_path / "starts.jsonl"
    starts.write_text("".join(json.dumps({"prompt_ids": [5, 6, i]}) + "\n" for i in range(20)), encoding="utf-8")
    small = ("--sequences", 18, "--length", 20, "--steps", 2, "--rows", 4, "--anchors", 4, "--layers", 1, "--block", 3)
    ran(counted, "dspark", "train", "builtin", "--prompts", starts, "--out", tmp_path / "drafter", *small)
    ran(counted, "rollout", *model, "--panel", 1, "--out", tmp_path / "run")
