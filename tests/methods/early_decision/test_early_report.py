"""What the report makes of the rows of a run, written here by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify.methods.early_decision.record import CONTINUED, NewTrace, PrefixCounts, Study, StudyConfig, Written
from ramify.methods.early_decision.report import build
from ramify.methods.early_decision.results import StudySource
from ramify.rollout.token_traces import TokenProblem


def made(folder: Path, outcomes: np.ndarray, pools: Sequence[str] = ()) -> Study:
    """A study with labelled traces of these ``outcomes`` bool (prompts, k)."""
    problems = [TokenProblem(f"p{i}", (1, 2), {"pool": pool}) for i, pool in enumerate(pools or [""] * len(outcomes))]
    study = Study.begin(folder, StudyConfig(k=outcomes.shape[1], modes=("thinking",)), problems, StudySource("m"))
    with study.run.transaction():
        for i, j in np.ndindex(*outcomes.shape):
            ended = bool(outcomes[i, j])
            row = NewTrace(
                prompt=f"p{i}", mode="thinking", sample=j, thinking=(1, 2, 3), closed="own", status="labelled", outcome=ended
            )
            study.add(row, Written(row.thinking, 0, "so it goes"))
    return study


def continue_(study: Study, rows: Sequence[PrefixCounts]) -> None:
    for i, row in enumerate(rows):
        study.run.once(CONTINUED, str(i), PrefixCounts, lambda row=row: (row, ()))


def continued(trace: str, share: float, n: int, k: int) -> PrefixCounts:
    return PrefixCounts(trace, 1, "done", k, n, 0, trace.split("/")[0], share, "open")


@pytest.mark.slow
def test_a_slice_is_not_shown_on_the_rollouts_that_chose_it(tmp_path: Path) -> None:
    study = made(tmp_path, generator(0, "rollouts").random((150, 16)) < 0.9)
    continue_(study, [continued(row.key, 0.5, 2, 2) for row in study.prefixes(8)])
    found = build(study).continuation
    assert found is not None
    assert set(found.slices) == {"ambiguous", "settled"}
    start = found.curves["ambiguous"].open[0]
    assert start.share == 0
    assert start.unbiased == pytest.approx(0.36, abs=0.1)  # with those rollouts it is .66


def test_each_prefix_counts_once_and_a_share_without_pools_has_no_mean(tmp_path: Path) -> None:
    study = made(tmp_path, np.array([[True, False, True, True]] * 2), ["", "harmful"])
    rows = [continued("p0/thinking/0", 0.5, n, k) for n, k in ((6, 3), (8, 4))]
    continue_(study, [*rows, continued("p1/thinking/0", 0.2, 4, 2)])
    found = build(study).continuation
    assert found is not None
    (half,) = [point for point in found.curves["all"].open if point.share == 0.5]
    assert (half.prefixes, half.samples) == (1, 8)
    assert [point.share for point in found.mean_of_pools.open] == [0.0, 0.2]


def test_traces_of_a_prompt_are_not_counted_as_prompts(tmp_path: Path) -> None:
    found = build(made(tmp_path / "a", np.repeat([[True], [False]] * 10, 16, axis=1))).pools["thinking"].shares["all"]
    assert found is not None
    assert found.interval is not None
    assert (found.k, found.n) == (160, 320)
    assert found.interval[1] - found.interval[0] > 0.35  # of 20 prompts; Wilson's of 320 traces is .11 wide
    same = build(made(tmp_path / "b", np.ones((20, 16), bool))).pools["thinking"].shares["all"]
    assert same is not None
    assert same.interval == pytest.approx([0.839, 1], abs=0.001)
