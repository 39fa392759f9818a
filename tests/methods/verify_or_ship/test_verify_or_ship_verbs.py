"""The verbs, as a user calls them: on records, on a run, with judges in the sandbox, killed, and with every kind of bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from printed import said

from ramify.base.seeds import generator
from ramify.cli.main import main
from ramify.methods.verify_or_ship.records import BELIEF, VERIFIER, read_source
from ramify.testing import check_reader
from ramify.trace.db import Run
from ramify.trace.formats import readers

COSTS = ("--costs", "tests=2,review=5")


def run(*words: object) -> int:
    return main(["verify-or-ship", *map(str, words)])


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls a verb and gives what it printed as JSON."""

    def ask(*words: object) -> Any:
        capsys.readouterr()
        assert run(*words, "--json") == 0, capsys.readouterr().err
        return said(capsys)

    return ask


def lines(n: int = 120, seed: int = 0, steps: int = 3) -> list[dict[str, Any]]:
    """Records of attempts under a known model."""
    rng, found = generator(seed, "records"), []
    for i in range(n):
        right = bool(rng.random() < 0.4)
        for step in range(steps):
            if step:
                right = bool(rng.random() < (0.92 if right else 0.25))
            tests, review = (int(rng.random() < (t if right else f)) for t, f in ((0.9, 0.35), (0.75, 0.35)))
            text = f"def f{i}(): return {step}"
            found.append(
                {
                    "instance_id": f"i{seed}-{i}",
                    "step": step,
                    "Y": int(right),
                    "tests": tests,
                    "review": bool(review),
                    "cost_usd": 0.01,
                    "payload": text,
                }
            )
    return found


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "records.jsonl", lines())


def test_records_become_a_run_and_back(file: Path, tmp_path: Path) -> None:
    assert main(["import", str(file), "--run", str(tmp_path / "run")]) == 0
    found = read_source(tmp_path / "run")
    assert sorted(one.instance for one in found) == sorted(one.instance for one in read_source(file))
    first = next(one for one in found if one.instance == "i0-0")
    given = lines()[:3]
    assert [c.right for c in first.candidates] == [bool(one["Y"]) for one in given]
    assert [dict(c.checks) for c in first.candidates] == [
        {"tests": float(one["tests"]), "review": float(one["review"])} for one in given
    ]
    assert [c.payload for c in first.candidates] == [one["payload"] for one in given]


@pytest.mark.slow
def test_the_reader_conforms() -> None:
    assert check_reader(readers()["verify-or-ship"]) == []


def test_calibrate_plan_and_replay_on_one_run(file: Path, tmp_path: Path, asked: Any) -> None:
    folder, tables = tmp_path / "run", tmp_path / "tables.json"
    assert main(["import", str(file), "--run", str(folder)]) == 0
    found = asked("calibrate", folder, "--out", tables)
    assert found["instances"] == 120
    assert {row["critic"] for row in found["critics"]} == {"tests", "review"}
    assert found["dependent"] == []
    with Run.open(folder) as stored:
        assert len(stored.attempts()) == 120
        assert all(record.outcome is not None for record in stored.attempts())
        assert "calibrated" in {one.name for one in stored.findings(maker="verify-or-ship calibrate")}
    plans = [asked("plan", source, *COSTS) for source in (folder, tables)]
    assert plans[0] == plans[1]
    assert plans[0]["policy"][0]["belief"] == pytest.approx(found["prior"])
    assert plans[0]["value"] >= max(plans[0]["values"][name] for name in plans[0]["values"]) - 1e-9
    fresh = write(tmp_path / "fresh.jsonl", lines(seed=1))
    replayed = asked("replay", fresh, "--tables", folder, "--c-ver", 50, *COSTS)
    names = [row["policy"] for row in replayed["policies"]]
    assert {
        "stop at once",
        "always verify",
        "best of 3",
        "gate(tests)",
        "reflexion(tests)",
        "all critics",
        "bayes greedy",
        "bayes, one table",
        "bayes",
    } <= set(names)
    assert all(row["gain_over_always"]["interval"] and row["gain_over_best_fixed"]["interval"] for row in replayed["policies"])
    alone = asked("replay", folder, *COSTS)  # no tables: each fold with tables of the others
    assert alone["instances"] == 120


def test_regimes_as_table_csv_and_pictures(file: Path, tmp_path: Path, asked: Any) -> None:
    asked("calibrate", file, "--out", tmp_path / "tables.json")
    rows = asked("regimes", tmp_path / "tables.json", "--sweep", "c_ver=5:95:4", *COSTS)["rows"]
    assert [row["c_ver"] for row in rows] == [5, 35, 65, 95]
    assert rows[-1]["regime"] == "stop at once"
    assert all(row["loss_of_best_fixed"] >= -1e-9 for row in rows)
    both = asked("regimes", file, "--sweep", "c_ver=15,50", "--out", tmp_path / "map.csv", *COSTS)
    assert [row["c_ver"] for row in both["realised"]] == [15, 50]
    table = (tmp_path / "map.csv").read_text().splitlines()
    assert table[0].startswith("of,c_ver,prior,regime,best_fixed")
    assert [line.split(",")[0] for line in table[1:]] == ["tables", "tables", "records", "records"]
    asked(
        "regimes", tmp_path / "tables.json", "--sweep", "c_ver=5:95:4", "--priors", "0.2,0.5,0.8", "--out", tmp_path / "map.svg"
    )
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


def test_score_keeps_beliefs_in_the_run_and_writes_a_comment(file: Path, tmp_path: Path, asked: Any) -> None:
    folder = tmp_path / "run"
    assert main(["import", str(file), "--run", str(folder)]) == 0
    found = asked("score", folder, *COSTS, "--out", tmp_path / "pr.md")
    assert len(found["candidates"]) == 360
    assert found["prr"]["belief"] > max(found["prr"]["tests"], found["prr"]["review"])
    with Run.open(folder) as stored:
        beliefs = {score.node: score.value for score in stored.scores(scorer=BELIEF)}
    assert beliefs == {row["node"]: pytest.approx(row["belief"]) for row in found["candidates"]}
    assert "probability that it is right" in (tmp_path / "pr.md").read_text()
    asked("calibrate", file, "--out", tmp_path / "tables.json")
    patch = tmp_path / "patch.json"  # one candidate that nobody verified
    patch.write_text(json.dumps({"instance_id": "mine", "Y": None, "critics": {"tests": True, "review": None}}))
    (row,) = asked("score", patch, "--tables", tmp_path / "tables.json", *COSTS)["candidates"]
    assert 0.5 < row["belief"] < 1


def test_shadow_marks_decisions_and_changes_nothing(file: Path, tmp_path: Path, asked: Any) -> None:
    folder = tmp_path / "run"
    assert main(["import", str(file), "--run", str(folder)]) == 0
    before = read_source(folder)
    found = asked("replay", folder, "--shadow", *COSTS)
    assert found["n"] == 120
    assert found["saved"] > 0
    with Run.open(folder) as stored:
        marks = stored.annotations(name="decisions")
        assert marks
        assert all(step["action"] for step in marks[0].value)
    assert read_source(folder) == before


PUBLIC = """#!/bin/sh
cat > candidate.py
python -c "import candidate; assert candidate.add(1, 2) == 3" 2>/dev/null
"""
FULL = """#!/bin/sh
cat > candidate.py
python -c "import candidate; assert all(candidate.add(a, b) == a + b for a in range(9) for b in range(9))" 2>/dev/null
"""
BODIES = ("return a + b", "return a - b", "return 3", "return a +", "return b + a")


@pytest.fixture
def unjudged(tmp_path: Path) -> Path:
    """A run of written candidates that nobody has judged, from a chat log."""
    rows = []
    for i in range(10):
        messages = [{"role": "user", "content": "add two numbers"}]
        for step in range(2):
            messages.append({"role": "assistant", "content": f"def add(a, b):\n    {BODIES[(i + step) % 5]}\n"})
        rows.append({"task": f"t{i}", "messages": messages})
    write(tmp_path / "log.jsonl", rows)
    assert main(["import", str(tmp_path / "log.jsonl"), "--run", str(tmp_path / "run")]) == 0
    (tmp_path / "public.sh").write_text(PUBLIC)
    (tmp_path / "full.sh").write_text(FULL)
    return tmp_path / "run"


def judging(run: Path) -> tuple[object, ...]:
    there = run.parent
    return (
        "calibrate",
        run,
        "--judge",
        f"tests=cmd:{there}/public.sh",
        "--judge",
        "returns=regex:return",
        "--verify",
        f"cmd:{there}/full.sh",
    )


@pytest.mark.slow
def test_critics_and_verifier_are_asked_in_the_sandbox_once(unjudged: Path, asked: Any) -> None:
    found = asked(*judging(unjudged))
    with Run.open(unjudged) as stored:
        scores = stored.scores(scorer=VERIFIER)
        assert len(scores) == 20
        assert sum(score.value or 0 for score in scores) == 8
        assert all(score.judges for score in scores)
    assert {row["critic"] for row in found["critics"] if row["history"] == "first"} == {"tests", "returns"}
    began = time.process_time()
    (same,) = [text for text in found["caveats"] if "that it judged here" in text]  # of the call in which it was asked alone
    assert asked(*judging(unjudged)) == found | {"caveats": [text for text in found["caveats"] if text != same]}
    assert time.process_time() - began < 60


@pytest.mark.slow
def test_a_killed_calibration_continues(unjudged: Path, asked: Any) -> None:
    (unjudged.parent / "full.sh").write_text(FULL.replace("cat >", "sleep 0.3; cat >"))
    words = [sys.executable, "-m", "ramify", "verify-or-ship", *map(str, judging(unjudged))]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        time.sleep(0.05)
        with Run.open(unjudged) as stored:
            done = len(stored.scores(scorer=VERIFIER))
        if done >= 2:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 2 <= done < 20
    asked(*judging(unjudged))
    with Run.open(unjudged) as stored:
        assert len(stored.scores(scorer=VERIFIER)) == 20


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"Y": 1, "critics": {"tests": 1}}, "'instance_id' must be text or an integer, and it is missing"),
        ({"instance_id": "a", "critics": {"tests": 1}}, "'Y' must be 0, 1 or null, and it is missing"),
        ({"instance_id": "a", "Y": 2, "tests": 1}, "'Y' must be 0, 1 or null"),
        ({"instance_id": "a", "Y": "yes", "tests": 1}, "'Y' must be true, false, a finite number or null, not 'yes'"),
        ({"instance_id": "a", "Y": 1, "critics": [1]}, "'critics' must be an object"),
        ({"instance_id": "a", "Y": 1, "critics": {"tests": "ok"}}, "'tests' must be true, false, a finite number or null"),
        ({"instance_id": "a", "Y": 1, "tests": float("nan")}, "'tests' must be true, false, a finite number or null"),
        ({"instance_id": "a", "Y": 1, "step": 1, "tests": 1}, "step 1 of instance 'a' follows no step 0"),
        ({"instance_id": "a", "Y": 1, "step": "0", "tests": 1}, "'step' must be an integer"),
        ({"instance_id": "a", "Y": 1}, "hold no critic"),
        ({"instance_id": "a", "Y": None, "tests": 1}, "no first candidate has a score"),
    ],
)
def test_bad_records_are_one_sentence(
    record: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.jsonl", [record])
    assert run("calibrate", path, "--out", tmp_path / "tables.json") == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "tables.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("calibrate", "nowhere.jsonl"), "nowhere.jsonl"),
        (("calibrate", "empty.jsonl"), "empty.jsonl"),
        (("calibrate", "records.jsonl", "--critics", "lint"), "no record has a critic 'lint'"),
        (("calibrate", "records.jsonl", "--gate", "lint"), "the gate 'lint' is none of the critics"),
        (("calibrate", "records.jsonl", "--verifier", "oracle"), "no score of 'oracle'"),
        (("calibrate", "records.jsonl", "--judge", "regex:x"), "--judge takes NAME=JUDGE"),
        (("calibrate", "records.jsonl", "--judge", "a=regex:x"), "is not a run to keep judgements in"),
        (("plan", "empty.jsonl"), "is not JSON"),
        (("plan", "list.json"), "a JSON object is needed"),
        (("plan", "nan.json"), "nan.json"),
        (("plan", "part.json"), "lacks 'critics'"),
        (("plan", "tables.json", "--costs", "lint=2"), "the tables know no critic 'lint'"),
        (("plan", "tables.json", "--costs", "tests=-2"), "NAME=COST"),
        (("plan", "tables.json", "--c-ver", "nan"), "finite"),
        (("plan", "tables.json", "--horizon", "99"), "8"),
        (("plan", "tables.json", "--max-false-accept", "0.1"), "--stop ship"),
        (("regimes", "tables.json", "--sweep", "c_gen=1:2"), "--sweep takes c_ver"),
        (("regimes", "tables.json", "--sweep", "c_ver=a:b"), "neither FROM:TO nor a list"),
        (("regimes", "tables.json", "--sweep", "c_ver=9:1"), "neither FROM:TO nor a list"),
        (("regimes", "tables.json", "--sweep", "c_ver=-5,5"), "0 or more"),
        (("regimes", "tables.json", "--priors", "2"), "between 0 and 1"),
        (("regimes", "tables.json", "--out", "map.png"), ".csv or .svg"),
        (("replay", "records.jsonl", "--tables", "tables.json"), "calibrated on 120 of these instances"),
        (("replay", "records.jsonl", "--shadow", "--max-false-accept", "0.1"), "--shadow takes no --max-false-accept"),
        (("replay", "records.jsonl", "--horizon", "5"), "choose a smaller --horizon"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(
    words: tuple[str, ...], says: str, file: Path, asked: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(file.parent)
    asked("calibrate", file, "--out", "tables.json")
    Path("empty.jsonl").touch()
    Path("list.json").write_text("[1]")
    Path("part.json").write_text('{"prior": 0.4}')
    Path("nan.json").write_text('{"prior": NaN, "critics": {"t": {"right": [0.1, 0.9], "wrong": [0.6, 0.4]}}}')
    capsys.readouterr()
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("ramify: ")
    assert err.count("\n") == 1


def test_tables_of_the_papers_own_code(tmp_path: Path, asked: Any) -> None:
    record = {
        "prior_Y1": 0.4,
        "critic_likelihoods": {
            name: {"P_pass_given_Y1": t, "P_pass_given_Y0": f}
            for name, (t, f) in {"S": (0.99, 0.9), "T": (0.9, 0.35), "L": (0.75, 0.35)}.items()
        },
        "kernel_all": {"P_fix_given_broken": 0.24, "P_break_given_correct": 0.08},
    }
    (tmp_path / "theirs.json").write_text(json.dumps(record))
    found = asked("plan", tmp_path / "theirs.json", "--costs", "S=1,T=2,L=5")
    assert found["value"] == pytest.approx(22.742552, abs=1e-6)
    assert found["gain_over_best_fixed"] == pytest.approx(22.742552 - 19.640228, abs=1e-5)


def test_shipping_with_a_bound_on_false_accepts(file: Path, tmp_path: Path, asked: Any) -> None:
    asked("calibrate", file, "--out", tmp_path / "tables.json")
    found = asked("plan", tmp_path / "tables.json", *COSTS, "--stop", "ship", "--loss", 10, "--max-false-accept", 0.1)
    assert found["rates"]["false_accept"] <= 0.1
    assert found["loss"] > 10
