"""Which moves the verbs call decisive: those that stand out of chance, and no others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.cli.main import main
from ramify.methods.graph_credit import StateGraph
from ramify.methods.graph_credit.decisive import corrected
from ramify.score.steps import write_rows

Row = dict[str, Any]


def attempt(name: str, moves: str, reward: float, nodes: str = "") -> list[Row]:
    """``moves`` is state, action, state, action, ...; ``nodes`` one letter a step."""
    words = moves.split()
    steps = list(zip(words[::2], words[1::2], strict=True))
    return [
        {"task_id": "t", "attempt_id": name, "step": j, "anchor": state, "action": action}
        | {"reward": reward if j == len(steps) - 1 else 0.0}
        | ({"node": nodes.split()[j]} if nodes else {})
        for j, (state, action) in enumerate(steps)
    ]


def log(successes: dict[str, tuple[int, int]]) -> list[Row]:
    """Attempts over one fork and a corridor: action -> (successes, attempts)."""
    rows: list[Row] = []
    for action, (k, n) in successes.items():
        for i in range(n):
            rows += attempt(f"{action}{i}", f"corridor walk fork {action} {action}-side on end finish", float(i < k))
    return rows


def report(rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[dict[str, Any], str]:
    write_rows(tmp_path / "steps.jsonl", rows)
    assert main(["graph-credit", "report", str(tmp_path / "steps.jsonl"), *flags]) == 0
    text = capsys.readouterr().out
    assert main(["graph-credit", "report", str(tmp_path / "steps.jsonl"), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1]), text


def test_rewards_that_follow_nothing_name_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found, text = report(log({"left": (5, 10), "right": (6, 10)}), tmp_path, capsys)
    assert found["top_losses"]  # the largest of what chance gives is there all the same, beside its test
    assert found["decisive"] == []
    assert found["compared"] == 2
    assert found["verdict"].startswith("nothing stands out: none of 2 moves")
    assert "nothing stands out" in text
    assert all(move["decisive"] is not True for name in ("top_gains", "top_losses") for move in found[name])


def test_the_one_decisive_step_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found, text = report(log({"left": (9, 10), "right": (1, 10)}), tmp_path, capsys)
    assert [(move["source"], move["action"]) for move in found["decisive"]] == [("fork", "left"), ("fork", "right")]
    best = found["decisive"][0]
    assert (best["takers"], best["others"], best["difference"]) == (10, 10, pytest.approx(0.8))
    assert best["p"] == pytest.approx(2 * (10 * 10 + 1) / 184756)  # both tails of the hypergeometric law of 10, 10, 10
    assert best["p_corrected"] == pytest.approx(best["p"])  # one test: what was done elsewhere cannot be compared
    assert best["interval"][0] > 0
    assert "2 of 2 moves that can be compared stand out of chance" in text
    assert report(log({"left": (9, 10), "right": (1, 10)}), tmp_path, capsys, "--level", "0.001")[0]["decisive"] == []


def test_how_an_attempt_ended_is_no_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Those who ended well all ended well: the end must not be compared with itself."""
    found, _ = report(log({"left": (10, 20)}), tmp_path, capsys)
    assert found["compared"] == 0
    assert found["verdict"].startswith("nothing stands out: no two attempts did different things")


def test_leaves_of_one_shared_step_are_one_observation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Twelve leaves below one step and twelve below another: two samples of the move, whatever became of the leaves."""
    rows = [
        row
        for door, i in itertools.product("ab", range(12))
        for row in attempt(f"{door}{i}", f"hall {door} room-{door} finish", float(door == "a"), f"step-{door} leaf-{door}{i}")
    ]
    found, text = report(rows, tmp_path, capsys)
    assert found["decisive"] == []
    moves = [move for move in found["top_gains"] + found["top_losses"] if move["source"] == "hall"]
    assert [(move["takers"], move["others"], move["p"]) for move in moves] == [(1, 1, 1.0)] * 2
    assert "step-a" in text


def test_only_the_first_visit_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Those who fail come back to the hall ever again; on the first visit all did the same."""
    rows = []
    for i in range(12):
        rows += attempt(f"lost{i}", "hall search hall search hall search", 0.0)
        rows += attempt(f"won{i}", "hall search hall leave", 1.0)
    assert report(rows, tmp_path, capsys)[0]["compared"] == 0


def test_free_text_is_compared_by_where_it_led(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = []
    for i in range(20):
        where = ("study", "cellar")[i % 2]
        rows += attempt(f"{i}", f"hall thought-{i} {where} answer-{i}", float(where == "study"))
    found, _ = report(rows, tmp_path, capsys)
    assert {(move["source"], move["target"]) for move in found["decisive"]} == {("hall", "study"), ("hall", "cellar")}


def test_graded_rewards_are_compared_by_their_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [r for i in range(4) for r in attempt(f"{i}", f"fork {'left' if i > 1 else 'right'} end finish", float(i))]
    graph = StateGraph.from_steps(rows)
    assert [move.p for move in graph.comparison.moves] == [pytest.approx(2 / 6)] * 2
    rng = np.random.default_rng(0)
    many = [
        r
        for i in range(40)
        for r in attempt(f"{i}", f"fork {'left' if i % 2 else 'right'} end finish", float(rng.normal(i % 2 * 2)))
    ]
    best = next(move for move in report(many, tmp_path, capsys)[0]["decisive"] if move["action"] == "left")
    assert best["p"] < 0.001
    assert 0.5 < best["interval"][0] < best["difference"] < best["interval"][1] < 3.5


def test_why_mark_and_the_page_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_rows(tmp_path / "steps.jsonl", log({"left": (9, 10), "right": (1, 10)}))
    at = ["--task", "t", "--attempt", "left0", "--step"]
    assert main(["graph-credit", "why", str(tmp_path / "steps.jsonl"), *at, "1"]) == 0
    assert "the step stands out of chance: rewards +0.8 against 10 others" in capsys.readouterr().out
    assert main(["graph-credit", "why", str(tmp_path / "steps.jsonl"), *at, "0"]) == 0
    assert "the step cannot be compared" in capsys.readouterr().out
    assert main(["import", str(tmp_path / "steps.jsonl"), "--run", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["graph-credit", "mark", str(tmp_path / "run"), "--json"]) == 0
    marked = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(marked["decisive"]) == 20
    assert "20 of them stand out of chance" in marked["verdict"]
    assert main(["graph-credit", "why", str(tmp_path / "run"), marked["decisive"][0][:12], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["decisive"] is True
    assert main(["graph-credit", "mark", str(tmp_path / "run"), "--level", "0.0001"]) == 0
    assert "nothing stands out" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "page.html")]) == 0
    assert "whether the step stands out of chance" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_correction_counts_a_test_by_what_it_can_give():
    coarse, fine = np.array([0.5, 1.0]), np.linspace(0.001, 1, 1000)
    assert corrected([0.01, 0.02, 0.5], [fine, fine, coarse]) == pytest.approx([0.02, 0.02, 0.5])  # Holm over the two that can
    assert corrected([0.01], [fine]) == pytest.approx([0.01])
    assert corrected([], []) == []


@pytest.mark.slow
def test_a_house_of_coins_is_called_decisive_at_the_level_promised():
    """The share of false findings over many random logs lies at .05 or below, and is not an artefact of testing nothing."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(400):
        rows = [
            r
            for i in range(30)
            for r in attempt(
                f"{i}",
                f"hall a{rng.integers(2)} room b{rng.integers(3)} loft c{rng.integers(2)} end finish",
                float(rng.random() < 0.4),
            )
        ]
        false += bool(StateGraph.from_steps(rows).report().decisive)
    assert 1 <= false <= 33  # 20 expected at most; 33 and more have probability .003
