"""ramify new method: package, tests, page and experiment that pass untouched, and that ramify finds once they are installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.new import LONGEST

NAME = "fresh-method-" + "x" * (LONGEST - len("fresh-method-"))
MODULE = NAME.replace("-", "_")


def installed(folder: Path, site: Path) -> dict[str, str]:
    """What pip leaves of ``folder``, as an environment: its modules, and a .dist-info that names its entry points."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {
        name if isinstance(next(iter(value.values())), str) else f"{name}.{inner}": value
        for name, group in project["entry-points"].items()
        for inner, value in ([("", group)] if isinstance(next(iter(group.values())), str) else group.items())
    }
    lines = [line for name, group in groups.items() for line in (f"[{name}]", *(f"{k} = {v}" for k, v in group.items()), "")]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return os.environ | {"PYTHONPATH": f"{site}:{folder / 'src'}", "RAMIFY_CACHE": str(site / "cache"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def made(verb: Any, here: Path) -> Path:
    done = verb("new", "method", NAME, "--json")
    assert done.code == 0, done.err
    folder = here / NAME
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(done.json["files"])
    return folder


def test_a_method_is_a_package_with_tests_a_page_and_an_experiment(made: Path) -> None:
    package = made / "src" / MODULE
    assert {path.name for path in package.iterdir()} == {"__init__.py", "algorithm.py", "verbs.py", "experiment.py"}
    assert {path.name for path in (made / "docs").iterdir()} == {f"{NAME}.md"}
    for command in (
        ["check"],
        ["format", "--check"],
        [
            "check",
            "--select",
            "E,F,W,I,UP,B,SIM,RUF,PT,C4,PIE,RET,TID,N,D1",
            "--ignore",
            "D105,D107",
            "--per-file-ignores",
            "tests/*:D",
        ],
    ):
        clean = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=made, capture_output=True, text=True, check=False
        )
        assert clean.returncode == 0, clean.stdout + clean.stderr
    texts = [path.read_text(encoding="utf-8") for end in ("py", "md", "toml") for path in made.rglob(f"*.{end}")]
    assert not any(re.search("@[A-Z]+@", text) for text in texts)


def test_names_that_are_taken(verb: Any, here: Path) -> None:
    for name in ("cliffs", "improve"):
        assert f"the method '{name}' exists already" in verb.refused("new", "method", name)


@pytest.mark.slow
def test_it_passes_untouched_and_is_found_where_it_is_installed(made: Path, here: Path, mypy: Callable[..., list[str]]) -> None:
    env = installed(made, here / "site")

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, "-m", *command], env=env, cwd=here, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    alone = dict(os.environ) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    own = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env=alone,
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )
    assert own.returncode == 0, own.stdout + own.stderr
    typed = subprocess.run(
        [*mypy(MODULE, f"{MODULE}.*", f"test_{MODULE}"), "src", "tests"],
        env=env,
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert "compare" in run("ramify", NAME, "--help")
    assert NAME in json.loads(run("ramify", "list", "method", "--json"))["names"]
    report = json.loads(run("ramify", "check", "method", NAME, "--quick", "--json").splitlines()[-1])
    assert report["passed"]
    assert (report["null"]["n"], report["planted"]["n"]) == (20, 10)
    assert json.loads(run("ramify", "repro", NAME, "--quick", "--json").splitlines()[-1])["passed"]
