"""What a user's type checker sees of the public names: a misspelt argument is an error, right use is not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ramify
from ramify.base.registry import builtin_methods

pytestmark = pytest.mark.slow

RIGHT = """
import ramify
from ramify import ImproveConfig, LocalModel, Observation, Sampling, Task


class Episode:
    system, max_turns = "Say yes.", 2

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation("?")

    def step(self, action: str) -> Observation:
        return Observation("ok", terminated=True, outcome=action == "yes")

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: object) -> None: ...

    def key(self) -> str | None:
        return None


def say(messages: list[dict[str, str]]) -> str:
    return "yes"


attempts = ramify.play(say, Episode, [{"id": "a"}], attempts=2, out="runs/a")
ramify.play(lambda messages, key: "yes", Episode, [Task("a", {})])
ramify.play("builtin", "household", sampling={"temperature": 0.5})
ramify.play(LocalModel.load("x"), "household", sampling=Sampling(max_tokens=3), seed=1)
fork = ramify.fork_run("runs/a", attempts[0].turns[0].node.id, n=2, model=say, env=Episode)
print(fork.difference)
print(ramify.improve(ImproveConfig(updates=2), "b", model=LocalModel.load("x"), env=Episode, tasks=[{"id": "a"}]).gain)
ramify.improve({"updates": 1})
"""
WRONG = """
ramify.play("builtin", "household", attemts=2)
ramify.play("builtin", "household", attempts="two")
ramify.improve(ramify.ImproveConfig(), outt="x")
ramify.ImproveConfig(upates=2)
ramify.improve({}, env=3)
ramify.fork_run("r", 3)
ramify.LocalModel.lod("x")
ramify.plya("builtin", "household")
"""
# as `mypy --strict`, without reading what takes long and has nothing to do with ramify's own signatures
SETTINGS = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,transformers.*,numpy.*,scipy.*]
follow_imports = skip
"""


def public() -> list[str]:
    """Every public name of the package, of its methods and of the sandbox."""
    found = [f"ramify.{name}" for name in sorted(ramify._NAMES)]
    for package in ("ramify.sandbox", *(f"ramify.methods.{slug.replace('-', '_')}" for slug in builtin_methods())):
        module = importlib.import_module(package)
        names = getattr(module, "__all__", None) or module._NAMES
        found += [f"{package}.{name}" for name in names]
    return found


def test_a_type_checker_finds_a_misspelt_argument_and_nothing_else(tmp_path: Path) -> None:
    names = public()
    packages = sorted({name.rpartition(".")[0] for name in names})
    every = "".join(f"import {package}\n" for package in packages) + "".join(f"reveal_type({name})\n" for name in names)
    (tmp_path / "user.py").write_text(RIGHT + every + WRONG)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--cache-dir=cache", "--hide-error-context", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    said = [line.split(":", 2)[1:] for line in done.stdout.splitlines() if line.startswith("user.py:")]
    found = {int(line): text for line, text in said if text.startswith(" error:")}
    first = (RIGHT + every).count("\n") + 2
    wanted = range(first, first + WRONG.count("\n") - 1)
    assert sorted(found) == list(wanted), done.stdout + done.stderr
    assert 'did you mean "attempts"' in found[first]
    untyped = [text for _, text in said if "Revealed type" in text and text.rstrip().endswith('"Any"')]
    assert untyped == []
    assert done.stdout.count("Revealed type") == len(names)
