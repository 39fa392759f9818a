"""What `.ci/run` leaves out, and what it runs again: a change is seen by all whose result it may change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from ramify.cli import experiments
from ramify_experiments import verbs

ROOT = Path(__file__).resolve().parents[2]
METHOD = "src/ramify/methods/maze_recovery/algorithm.py"


class Parts(NamedTuple):
    kept: ModuleType
    steps: ModuleType


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parts:
    """The two programs, which keep what they keep in a folder of the test's."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    found = Parts(import_module("kept"), import_module("steps"))
    monkeypatch.setattr(found.kept, "KEPT", tmp_path / "kept.json")
    return found


BREAK = f"""
import sys, tempfile
from pathlib import Path
sys.path.insert(0, ".ci")
import kept, steps

some = lambda: [*kept._reproductions(), *kept._nulls()]
kept.write({{unit.name: {{"hash": unit.hash, "seconds": 1, "said": ""}} for unit in some()}})
assert not steps.Units(False, some()).chosen
with open({METHOD!r}, "a") as file:
    file.write("\\nraise RuntimeError('this method is broken')\\n")
kept._digest.cache_clear()
units, work = steps.Units(False, some()), steps.Steps(Path(tempfile.mkdtemp(dir=".")))
print("CHOSEN", *sorted(unit.name for unit in units.chosen), sep=":")
repro = next(unit for unit in units.chosen if unit.kind == "repro")
units.run(repro, work)
assert {{unit.name for unit in some()}} - kept.read().keys() == {{repro.name}}
sys.exit(steps.summary(work, units))
"""


def test_a_method_that_breaks_has_its_results_made_again_and_no_other(tmp_path: Path) -> None:
    """In a copy of the tree, where the reproduction runs, as `.ci/run` would run it, and fails."""
    for name in (".ci", "src", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    paths = f"{tmp_path / 'src'}:{tmp_path / 'experiments'}"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BREAK], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[0:1] == ["CHOSEN:nulls maze-recovery:repro maze-recovery"], done.stdout + done.stderr
    assert "this method is broken" in done.stdout.partition("FAILED: repro maze-recovery")[2]
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "within", "without"),
    [
        ("engine/test_schedules.py", "src/ramify/engine/verify.py", "src/ramify/web/server.py"),
        ("jobs/test_share.py", "src/ramify/jobs/play.py", "src/ramify/cli/main.py"),  # as ramify.fork_run
        ("hardening/test_kills.py", "src/ramify/web/server.py", "mkdocs.yml"),  # it starts verbs
        ("hardening/test_kills.py", "tests/hardening/kills.py", "tests/web/test_server.py"),  # by its path
        ("hardening/test_kills.py", "tests/hardening/fault_shim.c", "tests/model/model_server.py"),
        ("methods/maze_recovery/test_maze_verbs.py", METHOD, "src/ramify/methods/theory_loop/algorithm.py"),
        ("methods/maze_recovery/test_maze_verbs.py", "tests/fixtures/verifiers-traces.jsonl", "tests/hardening/kills.py"),
        ("cli/test_repro.py", "experiments/ramify_experiments/verbs.py", "examples/credit_a_trace.py"),
        ("test_examples.py", "examples/methods/dspark.py", "docs/index.md"),
    ],
)
def test_what_slow_tests_reach(parts: Parts, test: str, within: str, without: str) -> None:
    found = {str(file.relative_to(ROOT)) for file in parts.kept.tested(ROOT / "tests" / test)}
    assert {f"tests/{test}", "tests/conftest.py", within} <= found
    assert without not in found


def test_the_command_line_of_a_methods_cases_counts(parts: Parts) -> None:
    assert set(parts.kept.of_method("maze-recovery")) == set(verbs._used("maze-recovery", ()))


def test_nothing_is_forgotten(parts: Parts) -> None:
    assert parts.kept._entry_points("reproductions").keys() == experiments.found("reproductions").keys()
    assert parts.kept._entry_points("cases").keys() == experiments.found("cases").keys()
    assert all((ROOT / name).is_file() for name in (*parts.kept.VERB, *parts.kept.UNDER_KERNELS))
    scripts = {file.name for file in (ROOT / ".ci").iterdir() if not file.suffix and file.is_file()}
    assert scripts - {unit.name for unit in parts.kept._scripts()} == {"run"}


def units(parts: Parts, kind: str, count: int) -> list:
    return [parts.kept.Unit(kind, f"{kind} {i}", ("true",), frozenset()) for i in range(count)]


def test_a_sample_fits_and_the_commit_decides(parts: Parts) -> None:
    many = [*units(parts, "a", 40), *units(parts, "b", 40), *units(parts, "c", 2)]
    kept = {unit.name: {"seconds": 10} for unit in many}
    chosen = parts.kept.sample(many, kept, "some commit", 200)
    assert sum(kept[unit.name]["seconds"] for unit in chosen) == 200
    assert Counter(unit.kind for unit in chosen) == {"a": 9, "b": 9, "c": 2}, "few of a kind come before many of another"
    assert parts.kept.sample(many[::-1], kept, "some commit", 200) == chosen
    assert set(parts.kept.sample(many, kept, "another", 200)) != set(chosen)
    assert set(parts.kept.sample(many, kept, "some commit", 820)) == set(many), "all where all fit"
    assert parts.kept.sample(many, {name: {"seconds": 101} for name in kept}, "some commit", 200) == [], "longer than a lane"
    assert len(parts.kept.sample(many, {}, "some commit", 2 * parts.kept.UNKNOWN)) == 2


def test_what_passed_is_kept_and_what_failed_is_not(parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    said = {
        "passes": "3 passed, 1 skipped in 2.00s",
        "passes as before": "4 passed, 1 skipped in 1.00s",
        "tries less": "1 passed, 4 skipped in 1.00s",
        "cannot": "NOT CHECKED: there is no npm here",
        "fails": "1 failed in 1.00s",
        "file is skipped": "1 skipped in 1.00s",
    }
    codes = {"fails": 1, "file is skipped": 5}
    some = [
        parts.kept.Unit("a", name, ("sh", "-c", f"echo 'E  x'; echo '{line}'; exit {codes.get(name, 0)}", "pytest"), frozenset())
        for name, line in said.items()
    ]
    old = {"hash": "old", "seconds": 1, "said": "2 passed, 1 skipped in 1.00s"}
    parts.kept.write(dict.fromkeys(("passes as before", "tries less", "fails", "of a test that is gone"), old))
    found, steps = parts.steps.Units(False, some), parts.steps.Steps(tmp_path)
    assert set(found.chosen) == set(some)
    for unit in found.chosen:
        found.run(unit, steps)
    assert parts.steps.summary(steps, found) == 1
    printed = capsys.readouterr().out
    assert "3 passed, 1 skipped in 2.00s\n" in printed.partition("minutes  step")[2]
    assert printed.partition("FAILED: fails")[2].startswith("\nE  x\n")
    rows = parts.kept.read()
    assert {name: row["said"] for name, row in rows.items() if row["hash"] != "old"} == {
        name: said[name] for name in ("passes", "passes as before", "file is skipped")
    }
    assert {name for name, row in rows.items() if row["hash"] == "old"} == {"tries less"}
    again = parts.steps.Units(False, some)
    assert {unit.name for unit in again.same} == {"passes", "passes as before", "file is skipped"}
    assert {unit.name for unit in again.chosen} == {"cannot", "fails", "tries less"}
    assert set(parts.steps.Units(True, some).chosen) == set(some)


def test_what_did_not_run_is_named_with_the_reason(
    parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [*units(parts, "same", 1), *units(parts, "late", 1), *units(parts, "long", 1)]
    rows = {unit.name: {"hash": unit.hash if unit.kind == "same" else "", "seconds": 9, "said": ""} for unit in some}
    rows["long 0"]["seconds"] = parts.kept.BUDGET
    parts.kept.write(rows)
    monkeypatch.setattr(parts.steps, "LATEST", 5)
    found, steps = parts.steps.Units(False, some), parts.steps.Steps(tmp_path)
    for unit in found.chosen:
        found.run(unit, steps)
    assert steps.done == []
    found.say()
    reasons = dict(line.rsplit(": ", 1) for line in capsys.readouterr().out.splitlines() if line)
    assert {name: next(word for word in ("nothing", "sample", "time") if word in why) for why, name in reasons.items()} == {
        "same 0": "nothing",
        "long 0": "sample",
        "late 0": "time",
    }
