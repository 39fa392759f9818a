"""ramify repro: the table, the JSON contract, exit codes, resuming, the figures file."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from ramify.base import registry
from ramify.cli import repro
from ramify.cli.main import main
from ramify.stats.checks import Cells, Check

CALLS: list[int] = []


def square(x: int) -> int:
    CALLS.append(x)
    return x * x


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A reproduction called "study" whose threshold a test can move."""
    module = types.ModuleType("study_repro")
    module.threshold, module.excuse = 9.0, ""

    def reproduce(size: str, cells: Cells) -> list[Check]:
        value = cells.get("square", square, x=3)
        return [
            Check("square", value, (8.0, 10.0), 1, (0,), ">=", module.threshold, module.excuse),
            Check("size", {"quick": 0, "cpu": 1, "gpu": 2}[size], None, 1, (0,), "report"),
        ]

    module.reproduce = reproduce
    monkeypatch.setitem(sys.modules, "study_repro", module)
    monkeypatch.setattr(repro, "JOBS", {"study": "study_repro"})
    monkeypatch.setattr(registry, "builtin_methods", list)
    monkeypatch.setenv("RAMIFY_CACHE", str(tmp_path / "cache"))
    CALLS.clear()
    return module


def last_line(capsys: pytest.CaptureFixture) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_json_contract(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert main(["repro", "study", "--quick", "--json"]) == 0
    report = last_line(capsys)
    assert list(report) == ["slug", "passed", "checks", "seconds", "commit"]
    assert report["checks"][0] == {
        "name": "square", "value": 9.0, "interval": [8.0, 10.0], "n": 1, "seeds": [0], "op": ">=", "threshold": 9.0, "status": "pass",
    }  # fmt: skip


def test_sizes(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    for flags, size in (([], 1), (["--cpu"], 1), (["--quick"], 0), (["--gpu"], 2)):
        assert main(["repro", "study", *flags, "--json"]) == 0
        assert last_line(capsys)["checks"][1]["value"] == size
    assert main(["repro", "study", "--cpu", "--gpu"]) == 2
    assert "choose one of --cpu, --gpu and --quick" in capsys.readouterr().err


def test_a_miss_exits_1_and_a_known_miss_is_listed_with_its_reason(
    study: types.ModuleType, capsys: pytest.CaptureFixture
) -> None:
    study.threshold = 10.0
    assert main(["repro", "study"]) == 1
    assert "study: MISSED" in capsys.readouterr().out
    study.excuse = "ties on this world, see docs/methods/study.md"
    assert main(["repro", "study"]) == 0
    out = capsys.readouterr().out
    assert "known_miss" in out
    assert "square: ties on this world, see docs/methods/study.md" in out


def test_finished_cells_are_kept_until_fresh(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        assert main(["repro", "study"]) == 0
    assert CALLS == [3]
    assert main(["repro", "study", "--fresh"]) == 0
    assert CALLS == [3, 3]


def test_an_interrupt_exits_130_and_says_how_to_go_on(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    def stop(size: str, cells: Cells) -> list[Check]:
        raise KeyboardInterrupt

    study.reproduce = stop
    assert main(["repro", "study"]) == 130
    err = capsys.readouterr().err
    assert err.startswith("ramify: interrupted; finished cells are kept, so the same command goes on")


def test_figures_name_commit_versions_and_machine(study: types.ModuleType, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    assert main(["repro", "study", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert set(figures) == {"size", "versions", "machine", "slug", "passed", "checks", "seconds", "commit"}
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


def test_unknown_reproductions_are_a_sentence(study: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert main(["repro", "studdy"]) == 2
    assert capsys.readouterr().err == "ramify: no reproduction 'studdy' (did you mean 'study'?)\n"
