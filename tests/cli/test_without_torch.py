"""What an install without extras can do: the command line in an environment without their packages, made of links to this one.
``.ci/slim`` does the same, and more, in a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify.base.errors import NeedsError
from ramify.base.extras import EXTRAS, missing, needed, told

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(ramify.__file__).parents[1]
LACKING = {name for _, names in EXTRAS.values() for name in names}
LOCAL = (
    "models, tokenizers and tensors in this process need the package '{}', which is not installed: pip install \"ramify[local]\""
)
Slim = Callable[[str], Any]

CALLS = """
import contextlib, io, json
from ramify.cli.main import main

def called(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return [code, out.getvalue(), err.getvalue()]
"""


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Slim:
    """Runs a program where the packages of :data:`EXTRAS` are not installed; what it prints, as JSON."""
    packages = tmp_path_factory.mktemp("packages")
    for site in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for path in site.iterdir():
            if path.name.partition("-")[0].lower() not in LACKING and not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    env = os.environ | {"PYTHONPATH": f"{packages}:{SOURCES}:{SOURCES.parent / 'experiments'}", "OMP_NUM_THREADS": "1"}

    def run(code: str) -> Any:
        command = [sys.executable, "-S", "-c", CALLS + code]
        folder = tmp_path_factory.mktemp("work")
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_components_are_listed_and_a_local_model_names_its_extra(slim: Slim) -> None:
    found = slim("""
found = {kind: called("list", kind) for kind in ("model", "judge", "sampling", "middleware", "loss")}
found |= {name: called("list", name) for name in ("g2po", "cross_entropy")}
found["rollout"] = called("rollout", "--model", "builtin", "--env", "household")
found["serve"] = called("serve", "hf:nowhere")
found["improve"] = called("improve", "--dry-run")
found["check"] = called("check", "drafter", "dspark")
print(json.dumps(found))
""")
    assert {name: found[name][0] for name in ("model", "judge", "sampling", "middleware", "g2po")} == dict.fromkeys(
        ("model", "judge", "sampling", "middleware", "g2po"), 0
    )
    assert "completions" in found["model"][1]
    assert "splitting" in found["sampling"][1]
    assert "route" in found["middleware"][1], "the router is loaded when it is used"
    for name, package in (("loss", "torch"), ("check", "torch"), ("rollout", "safetensors"), ("serve", "safetensors")):
        assert found[name] == [4, "", f"ramify: {LOCAL.format(package)}\n"], name
    assert found["improve"][0] == 4
    code, out, err = found["cross_entropy"]
    assert (code, out) == (2, "")
    assert "there is no component 'cross_entropy'" in err
    assert err.endswith(f"; {LOCAL.format('torch')}\n")


def test_help_of_what_trains_needs_no_torch(slim: Slim) -> None:
    """So the settings of a verb are apart from the code that uses them."""
    verbs = [
        "improve",
        "orchestrator train",
        "dspark train",
        "crosscoder train",
        "crosscoder show",
    ]
    verbs += ["early-decision probe", "world-model train"]
    found = slim(f"print(json.dumps([called(*verb.split(), '--help') for verb in {verbs}]))")
    for verb, (code, out, err) in zip(verbs, found, strict=True):
        assert (code, err) == (0, ""), verb
        assert f"Usage: ramify {verb}" in " ".join(out.split())


def test_doctor_calls_absent_parts_absent(slim: Slim) -> None:
    code, out, err = slim("print(json.dumps(called('doctor', '--json')))")
    record = json.loads(out)
    rows = {(row["topic"], row["name"]): row for row in record["findings"]}
    assert [row for row in record["findings"] if row["status"] == "broken"] == []
    assert (code, record["ok"], err) == (0, True, "")
    assert rows["engine", "local models"]["status"] == "absent"
    assert rows["engine", "local models"]["text"] == LOCAL.format("torch")
    for extra in EXTRAS:
        assert rows["extra", extra]["status"] == "absent"
        assert f"pip install 'ramify[{extra}]'" in rows["extra", extra]["text"]


def test_names_of_the_library_say_what_they_need(slim: Slim) -> None:
    said = slim("""
import ramify
from ramify.base.errors import NeedsError

said = []
for use in (lambda: ramify.LocalModel, lambda: ramify.improve, lambda: ramify.play("builtin", "household", out="runs/mine")):
    try:
        use()
    except NeedsError as error:
        said.append(str(error))
print(json.dumps(said))
""")
    assert said == [LOCAL.format(package) for package in ("torch", "safetensors", "safetensors")]


def test_everything_but_the_engine_and_what_trains_loads(slim: Slim) -> None:
    failed = slim("""
import importlib, pkgutil

failed = []
tops = "base trace stats render model env rollout sandbox score integrations web cli"
for top in tops.split():
    package = importlib.import_module("ramify." + top)
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".inside" not in info.name and ".child" not in info.name and not info.name.endswith("battery"):
            try:
                importlib.import_module(info.name)
            except ModuleNotFoundError as error:
                failed.append([info.name, error.name])
print(json.dumps(failed))
""")
    assert [one for one in failed if one[1] in LACKING] == []


def test_the_table_of_extras_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(lines: list[str]) -> set[str]:
        return {line.partition(">")[0].partition("[")[0] for line in lines}

    for extra, (_, packages) in EXTRAS.items():
        assert names(project["optional-dependencies"][extra]) == set(packages)
    assert not names(project["dependencies"]) & LACKING


def test_other_failures_stay_what_they_are() -> None:
    assert str(needed(ModuleNotFoundError(name="torch.nn"))) == LOCAL.format("torch")
    assert needed(ModuleNotFoundError(name="no_such_package")) is None
    assert needed(ValueError("torch")) is None
    assert missing("local") is None, "this environment has all of it"
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), told():
        import no_such_package  # noqa: F401
    with pytest.raises(NeedsError, match=r"ramify\[parquet\]"), told():
        raise ModuleNotFoundError(name="pyarrow")
