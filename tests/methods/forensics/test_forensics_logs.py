"""A log of one's own: rates by what was recorded, each run once, with the warning that nothing was changed on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.forensics import read_log
from ramify.methods.forensics.hypotheses import ACH
from ramify.methods.forensics.judges import find_behaviour
from ramify.methods.forensics.logs import by_field


def log(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "runs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(i: int, said: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Refund?"}, {"role": "assistant", "content": said}]
    return {"id": f"run-{i}", "messages": messages, "fields": fields}


def test_rates_by_field_with_each_run_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [
        run(i, "REFUND" if i % 10 < (8 if i < 100 else 1) else "CHECK", queue="long" if i < 100 else "short") for i in range(190)
    ]
    rows += [rows[0], {"messages": [{"role": "user", "content": "?"}], "fields": {}}]
    file = log(tmp_path, rows)
    runs = read_log(file, find_behaviour("regex:refund"))
    assert len(runs) == 191, "the same id is the same run: nested folders are not counted twice"
    (found,) = by_field(runs, "queue")
    assert (found.name, found.seen) == ("queue=short (not long)", "falls")
    assert found.value == pytest.approx(0.1 - 0.8)
    assert found.confounds == ("observed, not changed",)
    table = ACH(["a", "b"])
    table.add(found, a="-")
    table.add(found, a="-")
    assert table.inconsistencies()["a"] == 1, "observations of one log are not independent evidence"
    assert main(["forensics", "report", str(file), "log", "--behavior", "regex:refund", "--by", "queue", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rate"]["k"], told["rate"]["n"], told["invalid"]) == (89, 190, 1)
    assert told["verdict"] == "differs: queue=short (not long) (p < 0.05, the only test of the log)"


def test_a_log_in_which_nothing_differs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [run(i, "REFUND" if i % 3 else "CHECK", queue="long" if i % 2 else "short", day=str(i % 5)) for i in range(60)]
    words = ["--behavior", "regex:refund", "--by", "queue", "--by", "day"]
    assert main(["forensics", "report", str(log(tmp_path, rows)), "log", *words]) == 0
    assert "nothing stands out: no rate differs (p < 0.05, corrected over the 5 tests of the log)." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"id": "x"}], ":1: an object with the keys 'id', which is of no format known here"),
        ([{"messages": []}], ":1: 'messages' must be a list"),
        ([{"messages": [{"role": "user", "content": "x"}], "fields": 3}], ":1: 'fields' must be a table"),
        ([], "holds no"),
    ],
)
def test_a_wrong_log_is_one_sentence(tmp_path: Path, rows: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_log(log(tmp_path, rows), find_behaviour("regex:x"))


def test_a_field_that_was_not_recorded(tmp_path: Path) -> None:
    runs = read_log(log(tmp_path, [run(0, "x", queue="a"), run(1, "x", queue="a")]), find_behaviour("regex:x"))
    with pytest.raises(UserError, match="1 values of 'queue' and two are needed"):
        by_field(runs, "queue")
    with pytest.raises(UserError, match="did you mean 'queue'"):
        by_field(runs, "quue")


def called(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["forensics", "report", str(words[0]), "log", *map(str, words[1:])])
    return (code, *capsys.readouterr())


def test_runs_and_their_exports_are_read(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def agent(messages, key):\n    if len(messages) < 3 and key % 3 == 0:\n        raise RuntimeError('out of luck')\n    "
        "return 'go hall'\n"
    )
    main(["rollout", "--model", "mine.py:agent", "--count", "6", "--seed", "1", "--out", "runs/mine", "--json"])
    main(["export", "runs/mine", "mine.jsonl"])
    code, out, _ = called(capsys, "runs/mine", "--behavior", "regex:hall", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["why"] == {"engine: mine.py:agent raised RuntimeError: out of luck": found["invalid"]}
    assert found["rate"]["k"] == found["rate"]["n"] == 6 - found["invalid"] > 0
    for same in (["mine"], ["mine.jsonl"], ["mine.jsonl", "--from", "run"]):
        assert json.loads(called(capsys, *same, "--behavior", "regex:hall", "--json")[1]) == found
    _, out, _ = called(capsys, "mine", "--behavior", "outcome", "--json")
    assert json.loads(out)["rate"]["k"] == 0
    _, out, _ = called(capsys, "mine", "--behavior", "regex:hall")
    assert f"  {found['invalid']} x engine: mine.py:agent raised RuntimeError: out of luck" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "cannot read nowhere: No such file"),
        (["."], ". is a folder and not that of a run: it holds no run.sqlite"),
        (["runs/mine", "--from", "chats"], "runs/mine is a run, which has no other format, so --from does not apply"),
        (["chats.jsonl", "--from", "chts"], "did you mean 'chats'?"),
        (["chats.jsonl", "--scorer", "env"], "--scorer does not apply"),
        (["runs/mine"], "runs/mine: all 2 attempts failed: 2 x engine: mine.py:agent raised RuntimeError: gone"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def agent(messages):\n    raise RuntimeError('gone')\n")
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    main(["rollout", "--model", "mine.py:agent", "--count", "2", "--out", "runs/mine", "--json"])
    code, out, err = called(capsys, *words, "--behavior", "regex:hall")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
