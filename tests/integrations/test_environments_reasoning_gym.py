"""Real reasoning-gym datasets: the dataset's own scorer grades, splits share no question, any process makes the same task set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.env.protocol import Task
from ramify.jobs.play import fork_run, play
from ramify.model.scripted import ScriptedModel
from ramify.rollout.components import find_environment
from ramify.testing import check_env

pytestmark = pytest.mark.slow
reasoning_gym = pytest.importorskip(
    "reasoning_gym", reason="reasoning-gym is not installed: THE reasoning-gym DOOR IS NOT TESTED"
)
DATASETS = [
    "leg_counting", "chain_sum?min_terms=2&max_terms=3", "letter_counting", "graph_color", "knights_knaves",
    "basic_arithmetic",
]  # fmt: skip


@pytest.mark.parametrize("dataset", DATASETS)
def test_real_datasets_conform(dataset: str) -> None:
    assert check_env(find_environment(f"reasoning-gym:{dataset}")) == []


def test_the_right_answer_scores_one_and_another_less() -> None:
    for dataset in ("leg_counting", "chain_sum", "letter_counting", "basic_arithmetic"):
        environment: Any = find_environment(f"reasoning-gym:{dataset}")
        for task in environment.task_set("eval", 3):
            right, wrong, none = environment.actions(task, None)
            for reply, expected in ((right, True), (right + " or <answer>-1</answer>", False), (wrong, False), (none, False)):
                env = environment.make()
                assert env.reset(task, 0).text == task.data["question"]
                seen = env.step(reply)
                assert (seen.outcome, seen.terminated) == (expected, True)
                assert 0 <= seen.reward <= 1


def test_rollout_and_fork(tmp_path: Path) -> None:
    environment: Any = find_environment("reasoning-gym:leg_counting")
    tasks = list(environment.task_set("train", 3))
    answers = {task.data["question"]: environment.actions(task, None)[0] for task in tasks}

    def reply(messages: Any, key: int) -> str:
        return answers[messages[1].text] if key % 2 else "<answer>0</answer>"

    model = ScriptedModel(reply, tokens=False)
    attempts = play(model, "reasoning-gym:leg_counting", tasks, attempts=6, out=tmp_path / "run")
    assert {a.outcome for a in attempts} == {True, False}
    done = fork_run(tmp_path / "run", attempts[0].turns[0].node.id, n=12, model=model)
    assert 0 < done.arm.successes < 12


def test_splits_share_no_question_and_task_sets_are_the_same_everywhere() -> None:
    environment = find_environment("reasoning-gym:leg_counting?min_animals=1&max_animals=1&max_instances=2")
    task_sets = [
        {t.data["question"] for seed in (0, 1) for t in environment.task_set(split, 4, seed)}
        for split in ("train", "eval", "tune", "demo")
    ]
    assert sum(map(len, task_sets)) == len(set.union(*task_sets))
    with pytest.raises(UserError, match="gives only"):
        environment.task_set("train", 5000)
    code = (
        "from ramify.jobs.components import find_environment; "
        "print(find_environment('reasoning-gym:letter_counting').task_set('train', 9, 3).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "77")
    }
    assert hashes == {find_environment("reasoning-gym:letter_counting").task_set("train", 9, 3).hash}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("reasoning-gym", "has no dataset ''"),
        ("reasoning-gym:leg_countin", "did you mean 'leg_counting'"),
        ("reasoning-gym:leg_counting?min_animals=-3", "min_animals must be positive"),
        ("reasoning-gym:leg_counting?legs=4", "unexpected keyword argument 'legs'"),
        ("reasoning-gym:leg_counting?legs", "NAME\\?key=value"),
    ],
)
def test_what_does_not_exist_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_environment(spec)


def test_a_task_of_another_version_is_refused() -> None:
    env = find_environment("reasoning-gym:leg_counting").make()
    with pytest.raises(UserError, match="another question"):
        env.reset(Task("t", {"seed": 3, "question": "How many?"}), 0)
    with pytest.raises(UserError, match="'seed' must be a whole number"):
        env.reset(Task("t", {"question": "How many?"}), 0)
