"""Verbs of seven methods judge through the one family: what they ask of it is counted,
and what it cost stands in their ledgers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.score import judge as family

PROBLEMS = [{"id": "a", "prompt": "go to the kitchen", "answer": "look"}, {"id": "b", "prompt": "take the key", "answer": "7"}]
CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is 5. Wait, that is wrong: it is 4."}]
OWN = """
def right(text, trace): return "o" in text
def leans(prompt, chunks): return [1 if "a" in chunk else -1 for chunk in chunks]
def did(messages): return "wrong" in messages[-1].text
def good(text, data): return len(text) / 1000
"""
SMALL = ["--model", "builtin", "--json"]
SCAN = ["--anyway", "--n", "4", "--first", "2", "--confirm", "2", "--max-tokens", "6"]
VERBS: dict[str, list[list[str]]] = {
    "cliffs": [["cliffs", "scan", *SMALL, *SCAN, "--problems", "p.jsonl", "--verifier", "own.py:right", "--out", "scan"]],
    "early-decision": [
        [
            "early-decision",
            "run",
            *SMALL,
            "--prompts",
            "p.jsonl",
            "--label",
            "regex:k",
            "--k",
            "1",
            "--think-tokens",
            "6",
            "--answer-tokens",
            "4",
            "--out",
            "study",
        ],
    ],
    "forensics": [["forensics", "report", "chats.jsonl", "log", "--behavior", "own.py:did", "--json"]],
    "governance": [
        ["governance", "bench", "--out", "rows.jsonl", "--tasks", "email", "--reps", "1", "--words", "400", "--json"],
        ["governance", "judge", "rows.jsonl", "--judge", "regex:mail", "--json"],
    ],
    "implicit-advantage": [
        ["implicit-advantage", "score", "--trajectories", "graded.jsonl", "--out", "scores"],
        [
            "implicit-advantage",
            "judge",
            "--scores",
            "scores",
            "--trajectories",
            "graded.jsonl",
            "--model",
            "regex:o",
            "--tokenizer",
            "builtin",
            "--json",
        ],
    ],
    "maze-recovery": [["maze-recovery", "audit", "chats.jsonl", "--json"]],
}


@pytest.fixture
def judgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Judgements by the class of the judge that gave them, wherever a verb asked for them."""
    monkeypatch.chdir(tmp_path)

    def lines(name: str, records: list[Any]) -> None:
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in records))

    (tmp_path / "own.py").write_text(OWN)
    lines("p.jsonl", PROBLEMS)
    lines("chats.jsonl", [{"messages": CHAT, "reward": 1}] * 2)
    row = {"task_id": "t", "prompt_ids": [5, 6], "completion_ids": [7, 8], "env_mask": [1, 1], "reward": 1.0}
    lines("graded.jsonl", [row | {"old_log_probs": [-1.0, -1.0], "ref_log_prob": [-2.0, -4.0]}])
    seen: Counter[str] = Counter()
    plain = family.checked

    def counted(name: str, value: Any) -> Any:
        seen[name] += 1
        return plain(name, value)

    monkeypatch.setattr(family, "checked", counted)
    return seen


@pytest.mark.parametrize("method", VERBS)
def test_a_verb_judges_through_the_family(method: str, judgements: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words in VERBS[method]:
        capsys.readouterr()
        assert main(words) == 0, capsys.readouterr().err
    assert judgements.total() > 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    spent = record["spent"].get("by_purpose", record["spent"])["judge"]
    assert 0 < spent["judged"] <= judgements.total()
