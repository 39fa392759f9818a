"""Routers on answers that others collected, on a made checkout."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify_experiments.orchestrator.outside import STRONG, WEAK, answers, by_group, halves, recovered, shuffled


def test_a_table_of_subjects(tmp_path: Path) -> None:
    """One model is right on the one subject, the other on the other."""
    place = tmp_path / "routellm" / "evals" / "mmlu" / "responses"
    place.mkdir(parents=True)
    for subject, right in (("law", STRONG), ("maths", WEAK)):
        with (place / f"{subject}.csv").open("w", newline="", encoding="utf-8") as lines:
            rows = csv.writer(lines)
            rows.writerow(["prompt", WEAK, STRONG])
            rows.writerows([f'Of "{subject}",\n{i}?', str(right == WEAK), str(right == STRONG)] for i in range(40))
    table = answers(tmp_path, "mmlu", 60)
    assert len(table.tasks) == 60
    assert all(reward[0] == (group == "law") for reward, group in zip(table.means(), table.groups, strict=True))
    fit, test = halves(table)
    assert (by_group(fit, test) == test.means()).all()
    test.groups[0] = "of nobody"
    assert by_group(fit, test)[0] == pytest.approx(fit.means().mean(axis=0))
    other = shuffled(table, 0)
    assert other.groups == table.groups
    assert not np.array_equal(other.rewards, table.rewards)
    with pytest.raises(UserError, match="should be a checkout of lm-sys/RouteLLM"):
        answers(tmp_path, "gsm8k", 60)


def test_what_is_recovered_of_the_gap() -> None:
    """Four questions, of which the strong model alone is right on one: best first, last, and in between."""
    means = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    order = np.arange(4)
    assert recovered(np.array([[1.0, 0], [0, 0], [0, 0], [0, 0]]), means, order) == 0.8
    assert recovered(np.array([[-1.0, 0], [0, 0], [0, 0], [0, 0]]), means, order) == 0.2
