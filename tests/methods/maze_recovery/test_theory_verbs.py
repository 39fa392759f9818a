from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.cli.main import main


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main(["maze-recovery", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_exact(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "exact")
    assert found["base"]["steps"] == 50142
    assert found["golden_sft"] == {
        "steps": pytest.approx(4.318448e14, rel=1e-6),
        "log_steps": pytest.approx(33.699, abs=1e-3),
        "search_steps": 1019,
    }
    assert found["optimal"] == {"steps": 900, "log_steps": pytest.approx(6.802, abs=1e-3), "search_steps": 473}
    assert shown(capsys, "exact", "--k", "900")["golden_sft"]["steps"] is None
    assert shown(capsys, "exact", "--w", "1", "--k", "0", "--l", "1")["base"]["steps"] == 2
    assert main(["maze-recovery", "exact"]) == 0
    assert "4.3184482e+14" in capsys.readouterr().out


@pytest.mark.slow
def test_train(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    size = ("--w", "3", "--k", "2", "--l", "3", "--steps", "300")
    curve = tmp_path / "curve.jsonl"
    after = {
        method: shown(capsys, "train", *size, "--method", method, "--out", str(curve))["after"]
        for method in ("rlvr", "sft", "distill", "distill-erased")
    }
    assert after["rlvr"] < 60
    assert after["distill"] < 40 < 240 < after["sft"] == after["distill-erased"]
    rows = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows] == list(range(301))
    assert rows[-1]["expected_steps"] == after["sft"]
    assert shown(capsys, "train", "--w", "2", "--k", "0", "--l", "2", "--steps", "1")["families"] == {}
    assert main(["maze-recovery", "train", *size]) == 0
    assert "optimum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("exact", "--w", "0"), "W of at least 1, not 0"),
        (("train", "--l", "0"), "L of at least 1"),
        (("exact", "--w", "1" + "0" * 400), "W of at most 1000000000"),
        (("exact", "--l", "1" + "0" * 400), "L of at most 1000000000"),
        (("train", "--k", "1" + "0" * 400), "K of at most 10000"),
        (("train", "--method", "distil"), "did you mean 'distill'"),
        (("train", "--lr", "-1"), "lr is -1.0"),
        (("train", "--lr", "nan"), "lr is nan"),
        (("train", "--w", "2", "--k", "1", "--steps", "1", "--out", "no/such/folder/x.jsonl"), "no/such/folder"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], says: str) -> None:
    assert main(["maze-recovery", *argv]) == 2
    assert says in capsys.readouterr().err
