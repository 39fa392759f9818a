"""Scans of what lies in runs and in other tools' logs, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.cli.main import main

SMALL = "--anyway --model builtin --n 8 --first 4 --confirm 4 --verifier mine.py:right --out scan.jsonl".split()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def right(text, trace):\n    return trace.data.get('answer', '')[:1] in text\n")
    return tmp_path


def scan(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["cliffs", "scan", *SMALL, *words])
    return (code, *capsys.readouterr())


def test_a_run_is_scanned_by_its_folder_or_its_name(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["rollout", "--env", "chain", "--count", "2", "--out", "runs/mine", "--json"]) == 0
    code, out, err = scan(capsys, "--traces", "runs/mine", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["wrong"]["traces"] + found["right"]["traces"] == 2
    assert found["solved"] == {"none": 0, "all": 2}  # every digit is in some fork: the verifier is told of, and nothing else
    assert err.startswith("warning: V_0 is 1 for 2 of 2 traces")
    assert err.count("\n") == 1
    assert found["verdict"] == "nothing stands out: no token was shown to lose more than 0.1"
    assert found["gap"] == pytest.approx(0, abs=1e-3)  # the same model sampled them: its own tokens, under the stored settings
    code, out, _ = scan(capsys, "--traces", "mine", "--json")  # continues with the scan that is there
    assert (code, json.loads(out)["forks"]) == (0, found["forks"])


def test_attempts_of_text_are_encoded_on_request_only(here: Path, capsys: pytest.CaptureFixture) -> None:
    messages = [{"role": "user", "content": "go hall?"}, {"role": "assistant", "content": "go hall"}]
    (here / "chats.jsonl").write_text(json.dumps({"messages": messages, "id": "a"}) + "\n")
    code, out, err = scan(capsys, "--traces", "chats.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("ramify: chats.jsonl holds no reply to scan: its replies are text only")
    assert not (here / "scan.jsonl").exists()
    code, out, err = scan(capsys, "--traces", "chats.jsonl", "--retokenise", "--json")
    assert code == 0, err
    assert "texts were encoded anew" in err
    assert json.loads(out)["tokens"] >= 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--traces", "nowhere"], "cannot read nowhere"),
        (["--traces", "."], ". is a folder and not that of a run"),
        (["--traces", "mine.py"], "mine.py:1: not JSON"),
        (["--traces", "mine.py", "--from", "chts"], "unknown format 'chts' (did you mean 'chats'?)"),
        (["--problems", "mine.py", "--from", "chats"], "--from is the format of --traces"),
    ],
)
def test_what_is_no_source_is_one_sentence(here: Path, capsys: pytest.CaptureFixture, words: list[str], says: str) -> None:
    code, out, err = scan(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
