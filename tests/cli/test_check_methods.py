"""ramify check method: what a method finds where nothing is, and whether it finds what is there."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ramify.base import registry
from ramify.cli import experiments
from ramify_experiments.cases import KnownCase, verdict
from ramify_experiments.verbs import cases_of

TOY = """
from ramify_experiments.cases import KnownCase

def often(rep):
    assert not list(rep.folder.iterdir())
    rep.verb("list", "env")
    return rep.seed % 100 < SHARE

CASES = (
    KnownCase("coins", "nothing", "Nothing is there.", often, wanted=0.05, full=60, quick=12),
    KnownCase("sun", "planted", "It is always there.", lambda rep: SEES, wanted=0.9, full=8, quick=4),
)
"""


def make_toy(folder: Path, monkeypatch: pytest.MonkeyPatch, share: int = 0, sees: bool = True, cases: str = "") -> None:
    """A method "toy" that reports a finding in ``share`` of 100 repetitions of its null,
    and on its planted case where it ``sees``."""
    package = folder / "toy_method"
    package.mkdir()
    (package / "__init__.py").write_text('"""toy: a method."""\n')
    (package / "nulls.py").write_text(f"SHARE, SEES = {share}, {sees}\n{TOY}\n{cases}\n")
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.startswith("toy_method")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("RAMIFY_CACHE", str(folder / "cache"))
    info = folder / "toy_method-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: toy-method\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ramify.cases]\ntoy = toy_method.nulls:CASES\n")
    monkeypatch.setattr(registry, "names", lambda kind: ["toy"])
    found = experiments.found

    def alone(group: str) -> dict[str, EntryPoint]:
        return {name: entry for name, entry in found(group).items() if group != "cases" or name == "toy"}

    monkeypatch.setattr(experiments, "found", alone)


@pytest.mark.slow
def test_the_json_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(tmp_path, monkeypatch)
    done = verb("check", "method", "toy", "--quick", "--json", "--out", tmp_path / "nulls.json")
    report = done.json
    assert done.code == 0
    assert list(report)[:6] == ["caveats", "method", "null", "planted", "passed", "seconds"]
    assert report["null"] == {"n": 12, "false": 0, "rate": 0.0, "interval": [0.0, pytest.approx(0.2646, abs=1e-4)], "level": 0.05}
    assert report["planted"] == {"n": 4, "found": 4, "rate": 1.0, "interval": [pytest.approx(0.3976, abs=1e-4), 1.0]}
    assert json.loads((tmp_path / "nulls.json").read_text())["methods"] == [report]
    assert verb("check", "method", "toy", "--quick", "--json").json == report  # cells are kept, so it takes no time


@pytest.mark.slow
def test_counts_of_other_methods_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(tmp_path, monkeypatch)
    out = tmp_path / "nulls.json"
    out.write_text(json.dumps({"seed": 0, "methods": [{"method": "zebra"}, {"method": "toy"}]}))
    report = verb("check", "method", "toy", "--quick", "--json", "--out", out).json
    assert json.loads(out.read_text())["methods"] == [report, {"method": "zebra"}]
    done = verb("check", "method", "toy", "--quick", "--seed", 3, "--out", out)
    assert (done.code, "holds counts of seed 0" in done.err) == (2, True)
    out.write_text("{}")
    done = verb("check", "method", "toy", "--quick", "--out", out)
    assert (done.code, "does not hold counts of methods" in done.err) == (2, True)


@pytest.mark.slow
def test_a_method_that_finds_what_is_not_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(tmp_path, monkeypatch, share=40)
    done = verb("check", "method", "toy")
    assert done.code == 1
    assert "toy: MISSED" in done.out


@pytest.mark.slow
def test_a_method_that_does_not_see_what_is_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(tmp_path, monkeypatch, sees=False)
    report = verb("check", "method", "all", "--json")
    assert report.code == 1
    assert report.json == {
        "caveats": [],
        "method": "all",
        "passed": False,
        "methods": [{"method": "toy", "passed": False, "seconds": report.json["methods"][0]["seconds"]}],
    }


@pytest.mark.slow
def test_another_seed_samples_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(tmp_path, monkeypatch, share=50)
    found = {verb("check", "method", "toy", "--json", "--seed", seed).json["null"]["false"] for seed in range(3)}
    assert len(found) > 1


@pytest.mark.slow
def test_a_verb_that_fails_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    make_toy(
        tmp_path,
        monkeypatch,
        cases="CASES += (KnownCase('bad', 'nothing', '.', lambda rep: rep.verb('show', 'nowhere'), 0.05, 2, 2),)",
    )
    done = verb("check", "method", "toy", "--quick")
    assert done.code == 1
    assert re.search(r"cell 'bad, \d to \d' failed: UserError", done.err)  # whichever of two came first


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb) -> None:
    assert "unknown method 'clifs'" in verb.refused("check", "method", "clifs")
    assert "belong to `ramify check method NAME`" in verb.refused("check", "env", "household", "--quick")
    make_toy(tmp_path, monkeypatch, cases="CASES = CASES[:1]")
    assert "must hold a null and a planted case" in verb.refused("check", "method", "toy")
    (tmp_path / "toy_method-1.0.dist-info" / "entry_points.txt").unlink()
    assert "brings no null and no planted case" in verb.refused("check", "method", "toy")


def test_a_case_fails_only_where_its_interval_says_so() -> None:
    nothing = KnownCase("n", "nothing", ".", lambda rep: False, 0.05, 200, 20)
    planted = KnownCase("p", "planted", ".", lambda rep: True, 0.8, 200, 20)
    assert [verdict(nothing, [True] * k + [False] * (20 - k)).status for k in (0, 1, 3, 4)] == ["pass"] * 3 + ["miss"]
    assert [verdict(nothing, [True] * k + [False] * (200 - k)).status for k in (10, 16, 18)] == ["pass", "pass", "miss"]
    assert [verdict(planted, [True] * k + [False] * (20 - k)).status for k in (20, 13, 11)] == ["pass", "pass", "miss"]
    with pytest.raises(ValueError, match="no repetitions"):
        verdict(nothing, [])


@pytest.mark.parametrize("slug", registry.builtin_methods())
def test_every_method_brings_a_null_and_a_planted_case(slug: str) -> None:
    cases = cases_of(slug)
    for case in cases:
        assert case.says.endswith(".")
        assert (case.wanted <= 0.1) == (case.truth == "nothing"), case.name
