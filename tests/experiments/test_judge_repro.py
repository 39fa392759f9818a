"""The reproduction of judge-evolution: its environments do what they are said to do, and its quick size passes."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify_experiments.judge_evolution import learned, toys
from ramify_experiments.judge_evolution.repro import reproduce
from ramify_experiments.lab import ResultCache


def test_a_seed_decides_every_toy() -> None:
    for make in (
        lambda s: toys.arms(s, True, 64, 32),
        lambda s: toys.gaming(s, "full", budget=64, first=16),
        lambda s: toys.bias(s, 0.2, rounds=2, fresh=200),
    ):
        assert make(3) == make(3)
        assert make(3) != make(4)
    assert toys.gaming(0, "fixed", budget=64)["replaced"] == 0
    assert toys.gaming(0, "no-erasure", budget=128, first=16)["erased"] == 0


def test_the_checker_reads_derivations_exactly() -> None:
    texts = ["07+05=12\n", "07+05=13\n", "07+05=12;12+03=15\n", "07+05=12;12+03=16\n", "07+05=1;;12+03=15\n"]
    rows = np.full((len(texts), learned.T), learned.CODE["\n"])
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = [learned.CODE[char] for char in text]
    right, sums, formed = learned.read(rows)
    assert right.tolist() == [True, False, True, False, False]
    assert sums.tolist()[:4] == [1, 1, 2, 2]
    assert formed.tolist()[:4] == [True] * 4
    assert not formed[4]


def test_the_corpus_has_the_share_of_right_results_it_says() -> None:
    right, sums, formed = learned.read(learned.corpus(4000, np.random.default_rng(0)))
    assert formed.mean() == pytest.approx(0.9, abs=0.03)
    one = right[formed & (sums == 1)]
    assert one.mean() == pytest.approx(learned.RIGHT, abs=0.05)


def test_a_size_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="no size 'gpu'"):
        reproduce("gpu", ResultCache())
