"""ramify repro: the table, the JSON contract, exit codes, resuming, the figures file."""

from __future__ import annotations

import json
import shutil
import sys
import time
import tomllib
import types
from dataclasses import replace
from pathlib import Path

import pytest
from command import Verb
from forked import Forks

import ramify
import ramify_experiments
from ramify.base import registry
from ramify.base.errors import NeedsError
from ramify.cli import experiments
from ramify.cli.main import main
from ramify.stats.checks import Check
from ramify_experiments.lab import ResultCache

CALLS: list[int] = []


def only(monkeypatch: pytest.MonkeyPatch, folder: Path, group: str, name: str, value: str) -> None:
    """A third party's distribution that names ``value`` in a group, and no other distribution's entries in it."""
    info = folder / "site" / "third_party-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ramify.{group}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(info.parent)
    every = experiments.found
    monkeypatch.setattr(
        experiments, "found", lambda wanted: {k: v for k, v in every(wanted).items() if wanted != group or v.value == value}
    )


def square(x: int) -> int:
    CALLS.append(x)
    return x * x


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A reproduction called "study" whose threshold a test can move."""
    module = types.ModuleType("study_repro")
    module.threshold, module.excuse = 9.0, ""

    def reproduce(size: str, cells: ResultCache) -> list[Check]:
        value = cells.get("square", square, x=3)
        return [
            Check("square", value, (8.0, 10.0), 1, (0,), ">=", module.threshold, module.excuse),
            Check("size", {"quick": 0, "cpu": 1, "gpu": 2}[size], None, 1, (0,), "report"),
        ]

    module.reproduce = reproduce
    monkeypatch.setitem(sys.modules, "study_repro", module)
    only(monkeypatch, tmp_path, "reproductions", "study", "study_repro:reproduce")
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path / "cache"))
    CALLS.clear()
    return module


def test_the_json_contract(study: types.ModuleType, verb: Verb) -> None:
    report = verb.json("repro", "study", "--quick")
    assert list(report) == ["caveats", "slug", "passed", "checks", "seconds", "commit", "model"]
    assert report["checks"][0] == {
        "name": "square",
        "value": 9.0,
        "interval": [8.0, 10.0],
        "n": 1,
        "seeds": [0],
        "op": ">=",
        "threshold": 9.0,
        "known_failure": "",
        "status": "pass",
    }


def test_sizes(study: types.ModuleType, verb: Verb) -> None:
    for flags, size in (([], 1), (["--cpu"], 1), (["--quick"], 0), (["--quick", "--cpu"], 0), (["--gpu"], 2)):
        assert verb.json("repro", "study", *flags)["checks"][1]["value"] == size
    assert "choose --gpu or --cpu" in verb.refused("repro", "study", "--cpu", "--gpu")


def test_on_a_real_model_the_reproduction_gets_its_name_and_the_report_says_which(
    study: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: Verb
) -> None:
    plain = study.reproduce
    study.real = lambda model, cells, first=0: plain("quick", cells) if model == "builtin" else []
    only(monkeypatch, tmp_path / "real", "real_reproductions", "study", "study_repro:real")
    assert verb.json("repro", "study", "--real", "--model", "builtin")["model"] == "household"
    for words, said in (
        (["--real", "--cpu"], "--real has one size"),
        (["--model", "smollm2"], "--model goes with --real"),
        (["--real", "--model", "hf:/nowhere"], "there is no folder /nowhere"),
    ):
        assert said in verb.refused("repro", "study", *words)
    assert "no real reproduction 'others'" in verb.refused("repro", "others", "--real")


def test_another_first_seed_has_cells_of_its_own(study: types.ModuleType, verb: Verb) -> None:
    plain = study.reproduce

    def reproduce(size: str, cells: ResultCache, first: int = 0) -> list[Check]:
        return [replace(check, seeds=(first,)) for check in plain(size, cells)]

    study.reproduce = reproduce
    for seed in (0, 7, 7):
        report = verb.json("repro", "study", "--quick", "--seed", seed)
        assert {check["seeds"][0] for check in report["checks"]} == {seed}
    assert CALLS == [3, 3]  # the second call with seed 7 found its cell


def test_a_miss_exits_1_and_a_known_miss_is_listed_with_its_reason(
    study: types.ModuleType, capsys: pytest.CaptureFixture, verb: Verb
) -> None:
    study.threshold = 10.0
    assert main(["repro", "study"]) == 1
    assert "study: MISSED" in capsys.readouterr().out
    study.excuse = "ties on this environment, see docs/methods/study.md"
    out = verb.says("repro", "study")
    assert "known_failure" in out
    assert "square: ties on this environment, see docs/methods/study.md" in out


def test_finished_cells_are_kept_until_fresh(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        assert main(["repro", "study"]) == 0
    assert CALLS == [3]
    assert main(["repro", "study", "--fresh"]) == 0
    assert CALLS == [3, 3]


def test_an_interrupt_exits_130_and_says_how_to_continue(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    def stop(size: str, cells: ResultCache) -> list[Check]:
        raise KeyboardInterrupt

    study.reproduce = stop
    assert main(["repro", "study"]) == 130
    err = capsys.readouterr().err
    assert err.startswith("ramify: interrupted; finished cells are kept, so the same command continues")


def test_figures_name_commit_versions_and_machine(study: types.ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    assert main(["repro", "study", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert set(figures) == {"size", "versions", "machine", "caveats", "slug", "passed", "checks", "seconds", "commit", "model"}
    assert {"ramify", "python", "torch", "numpy"} <= set(figures["versions"])
    assert figures["machine"]["cores"] >= 1


def test_a_folder_in_the_place_of_the_figures_is_refused_before_anything_runs(
    study: types.ModuleType, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    assert main(["repro", "study", "--quick", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"ramify: cannot write {tmp_path}: it is a folder\n")


def test_all_runs_everything_quick_and_sums_up(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert main(["repro", "all", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["slug"] for line in lines] == ["study", "all"]
    assert lines[0]["checks"][1]["value"] == 0
    study.threshold = 10.0
    assert main(["repro", "all"]) == 1


def test_all_leaves_out_what_needs_a_package_that_is_not_there(
    study: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def reproduce(size: str, cells: ResultCache) -> list[Check]:
        raise NeedsError("needs the package 'gone': pip install 'ramify[gone]'")

    monkeypatch.setattr(study, "reproduce", reproduce)
    assert main(["repro", "all"]) == 0
    assert "study is left out: needs the package 'gone'" in capsys.readouterr().err
    assert main(["repro", "study"]) != 0
    assert "pip install 'ramify[gone]'" in capsys.readouterr().err


def test_unknown_reproductions_are_a_sentence(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert main(["repro", "studdy"]) == 2
    assert capsys.readouterr().err == "ramify: no reproduction 'studdy' (did you mean 'study'?)\n"


@pytest.mark.slow
def test_the_seconds_are_those_of_making_not_of_reading(
    study: types.ModuleType, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(x: int) -> int:
        time.sleep(0.2)
        return x

    def reproduce(size: str, cells: ResultCache) -> list[Check]:
        values = [cells.get(f"cell {x}", slowly, x=x) for x in range(cells_wanted)]
        if stop:
            raise KeyboardInterrupt
        return [Check("sum", sum(values), None, len(values), (0,), "report")]

    monkeypatch.setattr(study, "reproduce", reproduce)
    cells_wanted, stop = 1, True
    assert main(["repro", "study"]) == 130
    cells_wanted, stop = 3, False
    whole = verb.json("repro", "study")["seconds"]
    assert whole >= 0.6, "with those of the call that was interrupted"
    assert verb.json("repro", "study")["seconds"] == whole


def test_weights_are_kept_with_the_cells_and_forgotten_with_them(
    study: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ramify_experiments.models import place

    made: list[Path] = []

    def reproduce(size: str, cells: ResultCache) -> list[Check]:
        folder = place("weights", {"seed": 1}, __name__)
        if not folder.exists():
            folder.mkdir(parents=True)
            made.append(folder)
        return []

    monkeypatch.setattr(study, "reproduce", reproduce)
    for flags in ([], [], ["--fresh"]):
        assert main(["repro", "study", *flags]) == 0
    assert len(made) == 2
    assert made[0].is_relative_to(tmp_path / "cache")
    assert place("weights", {"seed": 1}, __name__) != made[0], "outside of a reproduction they are somewhere else"


MAKES = """
import os, sys
from pathlib import Path

os.environ["RAMIFY_CACHE"] = "cache"
sys.path.insert(0, "package")
import ramify
from ramify_experiments import recipes

assert Path(ramify.__file__).is_relative_to(Path("package").resolve()), ramify.__file__
small = recipes.ChainRecipe(hops=1, mod=5, demonstrations=2, held_out=2, steps=1, every=1, rows=1, width=32, layers=1)
seen = sorted(Path("cache").rglob("model.safetensors"))
print(small.folder().name, len(seen))
"""


@pytest.mark.slow
def test_what_other_code_made_is_made_again(forks: Forks, tmp_path: Path) -> None:
    package = tmp_path / "package" / "ramify"
    for one in (ramify, ramify_experiments):
        source = Path(one.__file__ or "").parent
        shutil.copytree(source, package.parent / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    found = []
    for changed in ("", "web/server.py", "train/loop.py"):
        if changed:
            with (package / changed).open("a") as file:
                file.write("STEPS = 3\n")
        done = forks.run(MAKES, tmp_path)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines()[-1].split())
    (first, _), (second, _), (third, before) = found
    assert first == second != third
    assert before == "1"
    assert len(list((tmp_path / "cache").rglob("model.safetensors"))) == 2


def test_without_the_experiments_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, verb: Verb
) -> None:
    monkeypatch.setattr(experiments, "found", lambda group: {})
    for verb in (["repro", "cliffs"], ["check", "method", "cliffs"]):
        assert main([*verb, "--quick"]) == 4
        assert capsys.readouterr().err.endswith("is not installed: pip install ./experiments in a checkout of ramify\n")


def test_a_reproduction_of_two_distributions_is_refused(monkeypatch: pytest.MonkeyPatch, verb: Verb, tmp_path: Path) -> None:
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ramify.reproductions]\ncliffs = nowhere:reproduce\nmine = nowhere:reproduce\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "two distributions bring reproductions of 'cliffs': nowhere:reproduce and " in verb.refused("repro", "mine")
    (info / "entry_points.txt").write_text("[ramify.reproductions]\nmine = nowhere:reproduce\n")
    assert "mine = 'nowhere:reproduce' of ramify.reproductions cannot be loaded: No module named" in verb.refused("repro", "mine")


def test_the_installed_distribution_is_the_one_in_the_tree() -> None:
    """Every entry point is that of experiments/pyproject.toml and loads; every method has a reproduction and cases."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "experiments/pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == own["version"]
    assert project["dependencies"] == [f"ramify=={own['version']}"]
    methods = registry.builtin_methods()
    for group, names in (
        ("experiments", ["check", "repro"]),
        ("reproductions", [*methods, "improve", "why", "world-model-trained"]),
        ("cases", [*methods, "fix", "test", "why"]),
    ):
        wanted = project["entry-points"][f"ramify.{group}"]
        assert sorted(wanted) == sorted(names)
        assert {name: entry.value for name, entry in experiments.found(group).items()} == wanted, "install it again"
        for name in wanted:
            assert experiments.load(group, name)
