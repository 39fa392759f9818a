"""What the studies on a real model take for the truth: the first wrong door, the first wrong digit, worked comparisons."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ramify
from ramify_experiments.cliffs.real import wrong_token
from ramify_experiments.early_decision.real import asked
from ramify_experiments.real import coin_doors, doors, first_wrong


def heeding(messages: list[dict[str, Any]], key: int) -> str:
    """Take what the sign says, in the words of a small model."""
    sign = re.search(r"take the (\w+) door", messages[-1]["content"])
    return f"The sign says: take the {sign[1].capitalize()} door" if sign else "half past nine"


def test_doors_are_won_by_the_signs_alone_and_the_clock_decides_nothing(tmp_path: Path) -> None:
    tasks = doors.task_set("train", 12)
    assert {task.data["clock"] for task in tasks} == {0, 1, 2}
    won = ramify.play(heeding, doors, tasks, out=tmp_path / "won")
    assert all(attempt.outcome for attempt in won)
    lost = ramify.play(lambda messages, key: "I take both", doors, tasks, out=tmp_path / "lost")
    assert not any(attempt.outcome for attempt in lost)


def test_the_step_that_lost_is_the_first_wrong_door(tmp_path: Path) -> None:
    for task in doors.task_set("train", 12):
        episode = doors.make()
        seen, replies = episode.reset(task, 0), list[str]()
        first, second = (turn for turn in range(3) if turn != task.data["clock"])
        for turn in range(3):
            replies.append("both" if turn == second else heeding([{"content": seen.text}], 0))
            seen = episode.step(replies[-1])
        assert seen.outcome is False
        assert first_wrong(task, replies) == second
        assert first_wrong(task, ["hm"] * 3) == first
        episode.restore(replies[:2])
        assert episode.snapshot() == replies[:2]


def test_coins_pay_no_heed_to_what_was_done(tmp_path: Path) -> None:
    tasks = coin_doors.task_set("train", 40)
    ends = [attempt.outcome for attempt in ramify.play(heeding, coin_doors, tasks, out=tmp_path / "coins")]
    assert 8 <= sum(map(bool, ends)) <= 32


@pytest.mark.parametrize(
    ("texts", "answer", "token"),
    [
        ([" ", "5", "7", "\n"], 64, 2),
        ([" ", "6", "7", "\n", "6", "4"], 64, 3),
        ([" ", "6", "4", "1"], 64, 4),
        ([" ", "6", "\n"], 64, 3),
        ([" ", "6", "4", "\n", "7"], 64, None),
        ([" a", " lot"], 64, None),
    ],
)
def test_the_token_of_the_first_wrong_digit(texts: list[str], answer: int, token: int | None) -> None:
    assert wrong_token(texts, answer) == token


def test_worked_comparisons_answer_first_only_where_a_commitment_is_asked_for() -> None:
    commit, reason = asked("commit", 0), asked("reason", 0)
    assert "Thought: No. 12 is less than 40.\nAnswer: no" in commit[0]
    assert "Thought: 12 is less than 40.\nAnswer: no" in reason[0]
    assert [one.rpartition("Q:")[2] for one in commit] == [one.rpartition("Q:")[2] for one in reason]
    numbers = [tuple(map(int, re.findall(r"\d+", one.rpartition("Q:")[2]))) for one in commit]
    assert sum(a > b for a, b in numbers) == len(numbers) / 2
