"""The studies beside the comparison of ``ramify improve``: what they count, on results that are known;
the critic's on a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramify.engine.checkpoints import weights_of
from ramify.jobs.improve import ImproveConfig, Job
from ramify_experiments import improve_studies
from ramify_experiments.improve_studies import (
    CREDITS,
    HOUSES,
    RULES,
    STUDIES,
    critic_cell,
    critic_study,
    ranked,
    sampled_cell,
    splitting_study,
)
from ramify_experiments.lab import ResultCache


@pytest.mark.parametrize("arms", [CREDITS, RULES])
def test_every_arm_is_one_that_improve_takes(arms: dict[str, Any]) -> None:
    for rival, settings in arms.values():
        ImproveConfig.model_validate(settings)
        assert rival in {"start", *arms}


def test_credits_are_compared_with_the_arm_they_vary(tmp_path: Path) -> None:
    effect = {"start": 0.1, "imitate": 0.3, "imitate, recovery": 0.35}

    def made_up(function: Any, missing: Any) -> Any:
        for key, one in missing.items():
            yield key, {"success": effect.get(one["arm"], 0.2) + 0.01 * one["seed"]}

    found = {one.name: one for one in STUDIES["credits"](ResultCache(tmp_path, runner=made_up, edition="t"), (0, 1, 2))}
    assert found["imitate, recovery - imitate"].value == pytest.approx(0.05)
    assert found["imitate - start"].value == pytest.approx(0.2)
    assert found["grpo, cliffs: success"].value == pytest.approx(0.21)


def test_only_pairs_that_the_truth_tells_apart_count() -> None:
    steps = [{"k": k, "n": 32, "critic": value, "few": 0.5, "share": 0.1} for k, value in ((30, 0.9), (2, 0.2), (29, 0.8))]
    right, clusters, every = ranked([steps, steps[:2]], "critic")
    assert (right, clusters, every) == ([1.0, 1.0, 1.0], [0, 0, 1], 4)
    assert ranked([steps], "few")[0] == [0.5, 0.5], "equal estimates are no opinion"
    assert ranked([steps[::2]], "critic") == ([], [], 1)


def test_a_won_task_costs_what_all_tokens_did(tmp_path: Path) -> None:
    def made_up(function: Any, missing: Any) -> Any:
        for key, one in missing.items():
            solved = 6 if one["sampling"] == "splitting" and one["houses"] != "household" else 2
            yield key, {"solved": solved, "tokens": 20_000, "independent won": 3, "independent": 100}

    found = {one.name: one for one in splitting_study(ResultCache(tmp_path, runner=made_up, edition="t"), (0, 1, 2))}
    for houses in HOUSES:
        assert found[f"{houses}: independent attempts that win"].value == pytest.approx(0.03)
        assert found[f"{houses}, four attempts a task: tokens a won task"].value == pytest.approx(10_000)
        assert found[f"{houses}, one attempt a task: tokens a won task"].value == pytest.approx(20_000 / 3)
        more = found[f"{houses}: splitting - four attempts a task, tasks won in 10,000 tokens"]
        assert more.value == pytest.approx(0 if houses == "household" else 2)
        more = found[f"{houses}: splitting - one attempt a task, tasks won in 10,000 tokens"]
        assert more.value == pytest.approx(-0.5 if houses == "household" else 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["flat", "splitting"])
def test_the_agent_of_the_splitting_study_learns_nothing(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    monkeypatch.setitem(improve_studies.BUDGETS, "few", {"updates": 2, "tokens": 2000})
    learn = Job.learn

    def watched(job: Job, *given: Any) -> int:
        before = weights_of(job.model)
        spent = learn(job, *given)
        saved.append(before == weights_of(job.model))
        return spent

    monkeypatch.setattr(Job, "learn", watched)
    found = sampled_cell("10 to 13 steps", sampling, 0, "few")
    assert saved == [True]
    assert 1000 <= found["tokens"] <= 4000
    assert (found["forks"] > 0) == (sampling == "splitting")


@pytest.mark.slow
def test_the_critics_study_runs_on_real_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(improve_studies.BUDGETS, "few", {"updates": 3, "tokens": 4000})
    found = critic_cell(0, "few", tasks=10, tried=6, forks=4)
    for state in found["states"]:
        assert len({step["action"] for step in state}) == len(state) > 1
        assert all(0 <= step["k"] <= step["n"] <= 4 and 0 < step["critic"] < 1 for step in state)
    assert found["states"]

    def known(function: Any, missing: Any) -> Any:
        for key in missing:
            yield key, found

    checks = critic_study(ResultCache(tmp_path, runner=known, edition="t"), (0, 1))
    assert {one.name for one in checks} >= {"pairs of steps", "ranked right by the critic's value"}
