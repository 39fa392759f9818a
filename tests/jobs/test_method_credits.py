"""Credit rules of methods in training: cliff positions, recovery mixes, the filter by implicit advantage.
Groups that are counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Task, TaskSet
from ramify.jobs.improve import ImproveConfig, improve
from ramify.jobs.results import UpdateReport
from ramify.score.credit.protocol import CreditGroup, CreditRule, assigned, find_rule
from ramify.testing import example_group
from ramify.trace.db import Run

FEW = {"updates": 2, "tokens": 1800, "tasks_per_update": 4, "train_tasks": 24, "eval_episodes": 4}


def group_of(attempts: list[tuple[str, bool]], values: list[float] | None = None) -> CreditGroup:
    """One task; an attempt is the letters of its states, in each of which the action names the next one, and whether it
    succeeded."""
    made = example_group(["graded"])
    template = next(iter(made.nodes.values()))
    columns: dict[str, list[Any]] = {name: [] for name in made.columns}
    nodes = {}
    for i, (states, won) in enumerate(attempts):
        for step, state in enumerate(states):
            name, last = f"{i}.{step}", step == len(states) - 1
            nodes[name] = template
            row = {"task_id": "t", "attempt_id": str(i), "step": step, "reward": float(won and last), "anchor": {"key": state}}
            row |= {"action": "end" if last else states[step + 1], "done": last, "truncated": False, "valid": True, "node": name}
            for column, cells in columns.items():
                cells.append(row[column])
    won = np.array([one for _, one in attempts])
    return CreditGroup(columns, won.astype(float), won, nodes, None if values is None else np.array(values))


def per_step(rule: CreditRule, group: CreditGroup) -> list[float]:
    found = assigned(rule, group)
    return [float(found[node][np.argmax(np.abs(found[node]))]) for node in group.columns["node"]]


def test_cliffs_credit_the_state_where_an_attempt_fell_and_no_other() -> None:
    group = group_of([("ab", True), ("ac", False)], [0.5, 0.6, 0.5, 0.45])
    rule = find_rule("cliffs", {"trust": 1e9})  # the critic's values as they are
    assert per_step(rule, group) == pytest.approx([0, 0, 0, -0.45], abs=1e-6), "the first step of the second lost a twentieth"
    sharp = group_of([("ab", True), ("ac", False)], [0.5, 0.6, 0.5, 0.1])
    assert per_step(rule, sharp) == pytest.approx([0.1, 0, -0.4, 0], abs=1e-6), "and what did better in its state is preferred"
    assert rule.explain("1.0")["cliff"]
    assert not rule.explain("0.1")["cliff"]
    flat = group_of([("ab", True), ("cd", True)], [0.9, 0.95, 0.9, 0.95])
    assert not any(per_step(rule, flat))
    assert rule.doubts


def test_recoveries_get_their_share_and_steps_into_a_loop_none() -> None:
    """The first succeeds at once; the second goes a, x, back to a, then on; the third fails."""
    group = group_of([("ab", True), ("axab", True), ("axa", False)])
    for share in (0.5, 0.25):
        rule = find_rule(f"recovery:{share}")
        found = per_step(rule, group)
        assert found[2] == 0, "the step that led astray"
        assert not any(found[6:])
        clean, back = sum(found[:2]), sum(found[2:6])
        assert back / (clean + back) == pytest.approx(share)
        assert clean + back == pytest.approx(5), "the mean weight stays 1"
    assert rule.explain("1.0") == {"trained": 0.0, "recovers": 1.0, "attempts": 1}
    alone = find_rule("recovery")
    assert per_step(alone, group_of([("ab", True), ("cd", False)])) == [1, 1, 0, 0]
    assert "nothing to mix" in alone.doubts[0]


def test_the_filter_leaves_out_what_training_turned_from() -> None:
    group = group_of([("ab", True), ("cd", False)])
    rule, zero = find_rule("implicit-advantage"), {name: np.zeros(len(node), np.float32) for name, node in group.nodes.items()}
    assert per_step(rule, group) == [1, 1, 0, 0]
    assert rule.doubts, "without two agents it is imitation, and says so"
    graded = replace(group, log_ratios=zero | {"0.1": zero["0.1"] - 0.01})
    assert per_step(rule, graded) == [1, 0, 0, 0]
    assert rule.explain("0.1")["grade"] < 0
    assert per_step(find_rule("implicit-advantage:-9"), graded) == [1, 1, 0, 0]


@pytest.mark.parametrize("spec", ["recovery:2", "recovery:half", "implicit-advantage:low", "implicit-advantage:nan"])
def test_bad_arguments_are_a_sentence(spec: str) -> None:
    with pytest.raises(UserError, match=f"credit rule '{spec.split(':')[0]}'"):
        find_rule(spec)


def test_cliff_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="delta0 is 1"):
        find_rule("cliffs", {"delta0": 1.0})


@pytest.mark.slow
def test_the_job_scores_steps_by_the_agent_and_by_the_one_it_began_with(tmp_path: Path) -> None:
    improve(ImproveConfig(**FEW, arm="imitate", credit="implicit-advantage", train={"lr": 5e-3, "epochs": 1}), tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        groups = {info.name: info.group for info in run.trees()}
        grades: dict[str, list[float]] = {}
        for one in run.annotations(name="why"):
            grades.setdefault(groups[run.node(one.node).tree], []).append(one.value["grade"])
        assert [one.warnings for one in run.memo("update", UpdateReport).values()] == [(), ()]
    assert not any(grades["imitate-0000"]), "before any update both are one agent"
    assert min(grades["imitate-0001"]) < 0 < max(grades["imitate-0001"])


class Answered(HouseholdEnvironment):
    """The household, each of whose tasks names its goal as the answer."""

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        tasks = super().task_set(split, n, seed)
        return TaskSet.of(Task(task.id, {**task.data, "answer": "it is in the safe"}) for task in tasks)


@pytest.mark.slow
def test_the_job_asks_the_agent_it_began_with_for_the_answer_before_every_step(tmp_path: Path) -> None:
    improve(ImproveConfig(**FEW, arm="grpo", credit="answer-td", env=f"python:{__name__}:Answered"), tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        told = [one.value for one in run.annotations(name="why") if one.maker == "answer-td"]
        assert [one.warnings for one in run.memo("update", UpdateReport).values()] == [(), ()]
    assert all(one["answer"] < 0 for one in told)
    assert any(one["change"] > 0 for one in told)
    assert any(one["change"] < 0 for one in told)
